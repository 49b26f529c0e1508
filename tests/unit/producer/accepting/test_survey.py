"""The survey: one pass that decides what is accepted before anything is spent."""

from __future__ import annotations

import hashlib
import json
import tracemalloc
from pathlib import Path

import pytest

from penstock_producer.accepting.survey import Survey, survey
from penstock_producer.errors import SourceError, TooManyBadRows
from penstock_producer.job.spec import JobSpec
from penstock_producer.sources import open_source


def record(doc_id: str) -> bytes:
    return json.dumps({"id": doc_id, "text": "t"}).encode()


def surveyed(tmp_path: Path, lines: list[bytes], max_bad_rows: int | str = 10) -> Survey:
    path = tmp_path / "in.jsonl"
    path.write_bytes(b"\n".join(lines) + b"\n")
    spec = JobSpec(prompt="{text}", model="m", max_bad_rows=max_bad_rows)
    return survey(open_source(path, spec), spec)


def test_counts_pins_and_refuses(tmp_path: Path) -> None:
    """Total counts documents and bad rows, and the pin is the content's digest."""
    found = surveyed(tmp_path, [record("a"), b"oops", b"", record("b")])
    assert found.total == 3
    assert [(refusal.row.line, refusal.row.code, refusal.doc_id) for refusal in found.refused] == [
        (2, "invalid_json_line", "line-2")
    ]
    content = (tmp_path / "in.jsonl").read_bytes()
    assert (found.pin["sha256"], found.pin["size"]) == (
        hashlib.sha256(content).hexdigest(),
        len(content),
    )


def test_duplicates_name_both_lines(tmp_path: Path) -> None:
    """Every row after the first of its id is refused, naming both lines; twins in other normal
    forms are not."""
    lines = [record("a"), record("é"), record("e\u0301"), record("a"), record("b"), record("a")]
    found = surveyed(tmp_path, lines)
    assert [(refusal.row.line, refusal.row.code) for refusal in found.refused] == [
        (4, "duplicate_custom_id"),
        (6, "duplicate_custom_id"),
    ]
    assert "line 6 was already used in line 1" in found.refused[1].row.message


def test_refused_rows_get_ids_that_no_document_has(tmp_path: Path) -> None:
    """A bad row keeps its own id where it is free and else becomes `line-<n>`, never the id of a
    document."""
    no_text = b'{"id": "own"}'
    taken = b'{"id": "a"}'
    found = surveyed(tmp_path, [record("a"), no_text, taken, b"oops", record("line-4"), no_text])
    ids = [refusal.doc_id for refusal in found.refused]
    assert ids == ["own", "line-3", "line-4~", "line-6"]


def test_too_many_bad_rows_stop_the_job(tmp_path: Path) -> None:
    """Beyond max_bad_rows nothing is accepted and the error lists the first twenty rows."""
    with pytest.raises(TooManyBadRows) as caught:
        surveyed(tmp_path, [record("a")] + [b"oops"] * 30, max_bad_rows=25)
    assert len(caught.value.rows) == 20
    assert "line 2: invalid_json_line" in str(caught.value)
    assert "max_bad_rows allows 25" in str(caught.value)


def test_duplicates_count_as_bad_rows(tmp_path: Path) -> None:
    """Rows refused for their id count towards the limit like all others."""
    with pytest.raises(TooManyBadRows):
        surveyed(tmp_path, [record("a"), record("a"), b"oops"], max_bad_rows=1)


def test_a_share_is_of_all_rows(tmp_path: Path) -> None:
    """A percentage is taken of the whole source, wherever the bad rows lie, and rounds up."""
    bad_first = [b"oops"] + [record(f"d{number}") for number in range(99)]
    assert len(surveyed(tmp_path, bad_first, max_bad_rows="1%").refused) == 1
    assert len(surveyed(tmp_path, bad_first[:40], max_bad_rows="1%").refused) == 1
    with pytest.raises(TooManyBadRows):
        surveyed(tmp_path, [b"oops", *bad_first[:-1]], max_bad_rows="1%")
    with pytest.raises(TooManyBadRows):
        surveyed(tmp_path, [b"oops"], max_bad_rows="1%")


@pytest.mark.parametrize("content", [b"", b"\n \n\t\r\n", b"\xef\xbb\xbf"])
def test_an_empty_source_is_refused(tmp_path: Path, content: bytes) -> None:
    """A source without a single row is an error and not a job that is complete at once."""
    with pytest.raises(SourceError, match="empty_source"):
        surveyed(tmp_path, [content])


def test_memory_is_flat_in_the_number_of_rows(tmp_path: Path) -> None:
    """Four times the rows do not take more memory."""
    spec = JobSpec(prompt="{text}", model="m")

    def peak(count: int) -> int:
        path = tmp_path / f"{count}.jsonl"
        path.write_bytes(b"\n".join(record(f"document-{number:08d}") for number in range(count)))
        tracemalloc.start()
        survey(open_source(path, spec), spec)
        highest = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return highest

    assert peak(120_000) < peak(30_000) + 1024 * 1024


def test_alike_faults_are_shown_once(tmp_path: Path) -> None:
    """Twelve rows with one fault are one line with the others' numbers, and another fault has its
    own (D24)."""
    lines = [b"oops"] * 12 + [b'{"id": "a"}']
    with pytest.raises(TooManyBadRows) as caught:
        surveyed(tmp_path, lines, max_bad_rows="0%")
    told = str(caught.value)
    assert told.count("invalid_json_line") == 1
    assert "11 more like it, in line 2, 3, 4, 5, 6, 7, 8, 9, …" in told
    assert told.count("missing_field") == 1
    assert len(caught.value.rows) == 13
