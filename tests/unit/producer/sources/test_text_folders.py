"""Folders whose files are one document each: order, pins, what is no text, and what changes
meanwhile."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock_producer import Producer
from penstock_producer.accepting.survey import survey
from penstock_producer.errors import BadReference, SourceChanged, SourceError, SourceUnavailable
from penstock_producer.job.spec import JobSpec
from penstock_producer.settings import ProducerSettings
from penstock_producer.sources import BadRow, Document, open_source
from penstock_producer.sources.listings.chosen import Chosen
from penstock_producer.sources.listings.listing import Entry
from penstock_producer.sources.open import unchanged
from penstock_producer.sources.readers import whole_files
from penstock_producer.sources.readers.each_file import TextFiles
from penstock_producer.sources.readers.whole_files import FileOptions

SPEC = JobSpec(prompt="{name} {size}: {text}", model="m", max_bad_rows=20)


def asked(row: Document | BadRow) -> str:
    assert isinstance(row, Document), str(row)
    return str(json.loads(row.body)["messages"][0]["content"])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Seven texts on two levels, all of the same age."""
    for name in ("a.txt", "b.md", "b/1.txt", "b/2.html", "c%.txt", "ü.txt", "z.txt"):
        path = tmp_path / "notes" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"text of {name}")
        os.utime(path, (1000, 1000))
    return tmp_path / "notes"


@pytest.fixture(autouse=True)
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whole_files, "SEGMENT", 3)


def pinned(where: str, spec: JobSpec = SPEC) -> dict[str, object]:
    pin: dict[str, object] = json.loads(json.dumps(survey(open_source(where, spec), spec).pin))
    return pin


def test_each_file_is_a_document(folder: Path) -> None:
    """Every file comes once, in the order of names, from the pin, after any cursor, and by its
    position."""
    source = open_source(pinned(f"{folder}/"), SPEC)
    rows = list(source.documents({}))
    assert [row.doc_id for row in rows] == [
        "a.txt",
        "b.md",
        "b/1.txt",
        "b/2.html",
        "c%.txt",
        "z.txt",
        "ü.txt",
    ]
    assert asked(rows[2]) == "1.txt 15: text of b/1.txt"
    for index, row in enumerate(rows):
        assert isinstance(row, Document)
        assert list(source.documents(row.cursor)) == rows[index + 1 :]
        assert row.position.isprintable()
        assert source.fetch(row.position).body == row.body


def test_a_pattern_and_a_word_choose_the_files(folder: Path) -> None:
    """A pattern names some of them; `--format text` takes every file for a text, and of a folder of
    mixed names the texts are read, the others counted and named."""
    (folder / "b" / "notes.cfg").write_text("setting")
    assert [row.doc_id for row in open_source(f"{folder}/b/*.txt", SPEC).documents({})] == ["1.txt"]
    found = survey(open_source(f"{folder}/", SPEC), SPEC)
    assert found.total == 7
    assert found.pin["skipped"] == {"count": 1, "names": ["b/notes.cfg"]}
    again = open_source(found.pin, SPEC)
    assert len(list(again.documents({}))) == 7
    assert unchanged(found.pin, f"{folder}/")
    every = SPEC.model_copy(update={"format": "text"})
    assert survey(open_source(f"{folder}/", every), every).total == 8
    with pytest.raises(SourceError, match="is one file"):
        open_source(f"{folder}/a.txt", every)


def test_what_is_no_text_is_one_bad_row(folder: Path, tmp_path: Path) -> None:
    """Each file that cannot be a document is refused with its name, reason and fix; the others are
    fed."""
    (tmp_path / "secret.txt").write_text("x")
    (folder / "p1-latin.txt").write_bytes(b"caf\xe9")
    (folder / "p2-wide.txt").write_bytes("x".encode("utf-16"))
    (folder / "p3-nul.txt").write_bytes(b"a\0b")
    (folder / "p4-empty.txt").write_bytes(b"\xef\xbb\xbf \n")
    (folder / "p5-large.txt").write_bytes(b"x" * 2000)
    (folder / "p6-out.txt").symlink_to(tmp_path / "secret.txt")
    (folder / "p7-inside.txt").symlink_to(folder / "a.txt")
    (folder / "p8-nowhere.txt").symlink_to(folder / "gone.txt")
    os.mkfifo(folder / "q1-pipe.txt")
    (folder / "q2\nline.txt").write_text("x")
    (folder / ("q3" + "x" * 240 + ".txt")).write_text("x")
    with open(os.fsencode(folder) + b"/q4-\xff.txt", "w") as file:
        file.write("x")
    settings = ProducerSettings(max_line_bytes=1024)
    found = survey(open_source(f"{folder}/", SPEC, settings), SPEC)
    assert found.total == 19
    codes = [
        (refusal.row.uri.rpartition("/")[2][:2], refusal.row.code) for refusal in found.refused
    ]
    assert codes == [
        ("p1", "invalid_encoding"),
        ("p2", "invalid_encoding"),
        ("p3", "nul_character"),
        ("p4", "empty_file"),
        ("p5", "file_too_large"),
        ("p6", "not_a_regular_file"),
        ("p8", "not_a_regular_file"),
        ("q1", "not_a_regular_file"),
        ("'q", "invalid_id"),
        ("'q", "invalid_encoding"),
    ]
    for refusal in found.refused:
        assert str(refusal.row).isprintable()
        assert refusal.row.uri.startswith(str(folder))
        assert f"{refusal.row.uri}: {refusal.row.code}" in str(refusal.row)
    json.dumps(found.pin).encode()
    good = [
        row.doc_id
        for row in open_source(found.pin, SPEC).documents({})
        if isinstance(row, Document)
    ]
    assert len(good) == 9
    assert "p7-inside.txt" in good


def test_the_encoding_of_the_job_is_that_of_its_files(folder: Path) -> None:
    """Texts in another encoding are read as the job says."""
    (folder / "a.txt").write_bytes(b"caf\xe9")
    latin = SPEC.model_copy(update={"encoding": "cp1252"})
    assert asked(next(open_source(f"{folder}/", latin).documents({}))) == "a.txt 4: café"


def test_files_that_come_later_are_not_of_the_job(folder: Path) -> None:
    """A folder that is written to all the time can be read: what is newer than all that was listed
    is left out."""
    pin = pinned(f"{folder}/")
    (folder / "b" / "new.txt").write_text("new")
    (folder / "zz.txt").write_text("new")
    assert [row.doc_id for row in open_source(pin, SPEC).documents({})][-1] == "ü.txt"
    assert len(list(open_source(pin, SPEC).documents({}))) == 7


@pytest.mark.parametrize("how", ["changed", "removed", "added with an old time"])
def test_other_files_than_were_submitted_stop_the_source(folder: Path, how: str) -> None:
    """A changed, a removed and an old added file stop the source at their thousand, before anything
    of it is read."""
    pin = pinned(f"{folder}/")
    if how == "changed":
        (folder / "b/2.html").write_text("other text!!!!!!!")
    elif how == "removed":
        (folder / "b/2.html").unlink()
    else:
        (folder / "b/1b.txt").write_text("x")
        os.utime(folder / "b/1b.txt", (900, 900))
    assert not unchanged(pin, f"{folder}/")
    rows = open_source(pin, SPEC).documents({})
    assert [next(rows).doc_id for _ in range(3)] == ["a.txt", "b.md", "b/1.txt"]
    with pytest.raises(
        SourceChanged, match=r"files 4 to 6 of .* one was changed, removed or added"
    ) as caught:
        next(rows)
    assert ("newer than the job are b/2.html" in str(caught.value)) == (how == "changed")


def test_a_position_reads_only_what_was_submitted(folder: Path, tmp_path: Path) -> None:
    """A file that changed is never read by a worker, and a message names no other file than one of
    the folder."""
    source = open_source(pinned(f"{folder}/"), SPEC)
    first, *_ = [row for row in source.documents({}) if isinstance(row, Document)]
    (folder / "a.txt").write_text("other text!!!")
    with pytest.raises(SourceChanged):
        source.fetch(first.position)
    (folder / "a.txt").unlink()
    with pytest.raises((SourceChanged, SourceUnavailable)):
        source.fetch(first.position)
    (tmp_path / "secret.txt").write_text("x")
    (folder / "link").symlink_to(tmp_path)
    for name in (
        "../secret.txt",
        "b/../../secret.txt",
        "/etc/hostname",
        "b//1.txt",
        ".hidden",
        "",
        "b%00",
    ):
        with pytest.raises((BadReference, SourceChanged)):
            source.fetch(f"1:1000000000000:{name}")
    with pytest.raises(SourceChanged, match="link out of the folder"):
        source.fetch("1:1000000000000:link/secret.txt")
    for position in ("x", "1:2", f"{10**12}:1:a.txt"):
        with pytest.raises(BadReference):
            source.fetch(position)


def test_a_folder_that_is_empty_now_pauses_the_job(folder: Path) -> None:
    """A disk that is not mounted can come back: the source is unavailable, not changed."""
    pin = pinned(f"{folder}/")
    folder.rename(folder.with_name("away"))
    folder.mkdir()
    with pytest.raises(SourceUnavailable, match="holds 0 of its 7 files"):
        next(open_source(pin, SPEC).documents({}))


def test_a_folder_of_texts_is_one_job(folder: Path, tmp_path: Path) -> None:
    """A folder is submitted as a file is: a key is the same job while its texts are the same,
    touched or not."""
    (folder / "p.txt").write_bytes(b"\xff")
    with Producer(database_url=f"sqlite:///{tmp_path}/ledger.db") as producer:
        job = producer.submit(f"{folder}/", SPEC, job_key="night")
        (letter,) = producer.dead_letters(job.job_id)
        assert (job.total, letter.key.doc_id, letter.reason) == (8, "p.txt", "invalid_encoding")
        assert producer.submit(f"{folder}/", SPEC, job_key="night").job_id == job.job_id
        os.utime(folder / "a.txt", (1, 1))
        assert producer.submit(f"{folder}/", SPEC, job_key="night").job_id == job.job_id
        (folder / "a.txt").write_text("other")
        with pytest.raises(Exception, match="another spec or source"):
            producer.submit(f"{folder}/", SPEC, job_key="night")


def test_specs_that_cannot_use_texts_are_refused_at_once(folder: Path) -> None:
    """A prompt without such a column, and no prompt at all, are one error that names the columns
    there are."""
    for spec, words in (
        (JobSpec(prompt="{body}", model="m"), "no column 'body'.*'text', 'id', 'name', 'size'"),
        (JobSpec(model="m"), r"wrong_form.*Summarise: \{text\}"),
    ):
        with pytest.raises(SourceError, match=words):
            open_source(f"{folder}/", spec)


def test_bounds_hold_before_any_content_is_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Too many files, and a folder that is not read in time, are one error."""
    with pytest.raises(SourceError, match="source_too_slow"):
        survey(open_source(f"{folder}/", SPEC, timeout_s=-1), SPEC)
    monkeypatch.setattr(whole_files, "MAX_FILES", 4)
    with pytest.raises(SourceError, match="stands for more than 4 files"):
        survey(open_source(f"{folder}/", SPEC), SPEC)


def test_a_remote_door_takes_no_folders(folder: Path) -> None:
    """A door that confines sources to roots takes single files, of texts as of rows."""
    allowed = ProducerSettings(source_roots=(str(folder),))
    text = SPEC.model_copy(update={"format": "text"})
    for where, spec in (
        (f"{folder}/", SPEC),
        (f"{folder}/*", SPEC),
        (f"{folder}/", text),
        (f"{folder}/a.txt", text),
    ):
        with pytest.raises(SourceError, match=r"source_forbidden|no_such_file|unsupported_format"):
            survey(open_source(where, spec, allowed, remote=True), spec)


def test_the_pin_of_many_files_is_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three thousand files take three digests, not three thousand pins."""
    monkeypatch.setattr(whole_files, "SEGMENT", 1000)
    for number in range(3000):
        (tmp_path / f"{number}.txt").write_text("x")
    pin = pinned(f"{tmp_path}/")
    assert len(json.dumps(pin)) < 1000
    source = open_source(pin, SPEC)
    assert [row.line for row in source.documents({"number": 2500})] == list(range(2501, 3001))


class Objects:
    """A prefix that makes its names as they are asked for, and knows how far that went."""

    uri, at_once = "s3://bucket/", 16

    def __init__(self, number: int) -> None:
        self._number = number
        self.listed = 0

    def entries(self, after: str) -> Iterator[Entry]:
        for number in range(int(after[:7] or 0) + 1, self._number + 1):
            self.listed = number
            yield self.named(f"{number:07}.txt", 4, "e")

    def named(self, name: str, size: int, tag: str) -> Entry:
        return Entry(name, size, tag, 1)

    def pinned(self, entry: Entry) -> Any:
        return self

    fresh = pinned

    def read(self, offset: int, length: int) -> bytes:
        return b"text"


def test_a_prefix_is_listed_as_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """At submit and again from the pin, a feeder that takes over included, no more names are held
    than one segment has."""
    monkeypatch.setattr(whole_files, "SEGMENT", 100)
    objects = Objects(2_000)
    pin: dict[str, Any] | None = None
    for done in (0, 0, 1_250):
        source = TextFiles(Chosen(objects, ""), SPEC, FileOptions("text", 1_000, 10_000, pin))
        lines = []
        for row in source.documents({"number": done}):
            lines.append(row.line)
            assert row.line <= objects.listed <= row.line + 101
        assert lines == list(range(done + 1, 2_001))
        pin = source.pin()
        assert len(pin["segments"]) == 20
