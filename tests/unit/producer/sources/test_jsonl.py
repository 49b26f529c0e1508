"""Reading a JSONL file: lines, positions, cursors, bounded memory, and a file that is not what it
was."""

from __future__ import annotations

import json
import lzma
import os
import shutil
import subprocess
import tracemalloc
from pathlib import Path

import pytest

from penstock_producer.errors import SourceChanged, SourceError, SourceUnavailable
from penstock_producer.job.spec import JobSpec
from penstock_producer.settings import ProducerSettings
from penstock_producer.sources import BadRow, Document, open_source
from penstock_producer.sources.blobs.blob import split_lines

SPEC = JobSpec(prompt="{text}", model="m")

NEEDS_XZ = pytest.mark.skipif(
    shutil.which("xz") is None, reason="no xz here: apt-get install xz-utils"
)


def record(doc_id: str, text: str = "t") -> bytes:
    return json.dumps({"id": doc_id, "text": text}, ensure_ascii=False).encode()


def write(tmp_path: Path, content: bytes) -> Path:
    path = tmp_path / "in.jsonl"
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("chunk", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"a\nb\n", [(1, 0, b"a"), (2, 2, b"b")]),
        (b"a\r\nb", [(1, 0, b"a"), (2, 3, b"b")]),
        (b"\xef\xbb\xbfa\n\nb\n", [(1, 3, b"a"), (2, 5, b""), (3, 6, b"b")]),
        ("\u2028b\u0085\n".encode(), [(1, 0, "\u2028b\u0085".encode())]),
        (b"a\n123456789\nb\n", [(1, 0, b"a"), (2, 2, None), (3, 12, b"b")]),
        (b"12345678\r\n", [(1, 0, b"12345678")]),
        (b"1" * 50, [(1, 0, None)]),
        (b"", []),
    ],
)
def test_lines_are_the_same_for_any_chunking(
    content: bytes, expected: list[tuple[int, int, bytes | None]], chunk: int
) -> None:
    """Numbers, offsets and data of lines do not depend on how the bytes arrive."""
    chunks = [content[at : at + chunk] for at in range(0, len(content), chunk)]
    found = list(split_lines(chunks, offset=0, number=1, max_line_bytes=8))
    assert [line[:3] for line in found] == expected


def test_blank_lines_are_skipped_and_counted(tmp_path: Path) -> None:
    """Blank lines hold no document but keep their numbers."""
    path = write(tmp_path, record("a") + b"\n\n  \t\r\n" + record("b") + b"\n\n")
    assert [(row.doc_id, row.line) for row in open_source(path, SPEC).documents({})] == [
        ("a", 1),
        ("b", 4),
    ]


def test_every_cursor_continues_after_its_document(tmp_path: Path) -> None:
    """Reading on from any document's cursor, good or bad, gives exactly the rest."""
    path = write(
        tmp_path,
        b"\xef\xbb\xbf" + b"\r\n".join([record("a"), b"", b"oops", record("é"), record("c")]),
    )
    source = open_source(path, SPEC)
    whole = list(source.documents({}))
    assert len(whole) == 4
    for index, row in enumerate(whole):
        assert list(source.documents(row.cursor)) == whole[index + 1 :]


def test_every_position_fetches_its_document(tmp_path: Path) -> None:
    """A position alone is enough to read one document again."""
    path = write(tmp_path, b"\xef\xbb\xbf" + b"\r\n".join([record("a", "é\u2028"), record("b")]))
    source = open_source(path, SPEC)
    for row in source.documents({}):
        assert isinstance(row, Document)
        again = source.fetch(row.position)
        assert (again.doc_id, again.body) == (row.doc_id, row.body)


def test_a_giant_line_costs_no_memory(tmp_path: Path) -> None:
    """A line far beyond the limit is one bad row and its bytes are never held."""
    path = tmp_path / "in.jsonl"
    with path.open("wb") as file:
        file.write(record("a") + b"\n")
        for _ in range(64):
            file.write(b"x" * 1024 * 1024)
        file.write(b"\n" + record("b") + b"\n")
    source = open_source(path, SPEC, ProducerSettings(max_line_bytes=64 * 1024))
    tracemalloc.start()
    found = list(source.documents({}))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [row.code if isinstance(row, BadRow) else row.doc_id for row in found] == [
        "a",
        "line_too_long",
        "b",
    ]
    assert peak < 8 * 1024 * 1024


def test_a_truncated_last_line_is_said_to_be_one(tmp_path: Path) -> None:
    """A last line without its end is accepted when it parses and called truncated when it does
    not."""
    whole, cut = open_source(
        write(tmp_path, record("a") + b"\n" + record("b")[:-4]), SPEC
    ).documents({})
    assert isinstance(whole, Document)
    assert isinstance(cut, BadRow)
    assert "truncated" in cut.message


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32"])
def test_wide_encodings_are_named(tmp_path: Path, encoding: str) -> None:
    """A UTF-16 or UTF-32 file is called that, with the command that converts it."""
    first = next(
        iter(open_source(write(tmp_path, '{"id":"a"}\n'.encode(encoding)), SPEC).documents({}))
    )
    assert isinstance(first, BadRow)
    assert first.code == "invalid_encoding"
    assert "iconv" in first.fix


def test_latin1_bytes_are_named_with_their_offset(tmp_path: Path) -> None:
    """A byte that is not UTF-8 is named with its place in the line."""
    (row,) = open_source(write(tmp_path, b'{"id":"caf\xe9"}'), SPEC).documents({})
    assert isinstance(row, BadRow)
    assert "byte 10 of this line is 0xe9" in row.message


@pytest.mark.parametrize(
    ("magic", "fix"),
    [
        (b"\x1f\x8b\x08", "let its name end in .gz"),
        (b"\x28\xb5\x2f\xfd", "let its name end in .zst"),
        (b"PAR1", "let its name end in .parquet, or give format=parquet"),
        (b"BZh9", "convert it: bzip2 -dc < .*in.jsonl > .*in-converted.jsonl"),
        (b"PK\x03\x04", "convert it: unzip -p .*in-converted.jsonl"),
    ],
)
def test_files_of_another_format_are_named(tmp_path: Path, magic: bytes, fix: str) -> None:
    """A file whose name says JSON Lines and whose first bytes do not is refused at once, with what
    to do."""
    with pytest.raises(SourceError, match=f"not JSON Lines; {fix}"):
        list(open_source(write(tmp_path, magic + b"rest\n"), SPEC).documents({}))


@pytest.mark.parametrize(
    "name", ["data.xls", "data.jsonl.xz", "ftp://host/key", "https://host/x.jsonl"]
)
def test_other_formats_and_schemes_are_named(name: str) -> None:
    """What is not read is refused by name instead of by a million bad rows."""
    with pytest.raises(SourceError, match=r"unsupported_(format|source)"):
        open_source(name, SPEC)


def test_missing_files_folders_pipes_and_devices(tmp_path: Path) -> None:
    """What is not a regular file is refused at once, even a pipe without a writer."""
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(SourceError, match="not_a_regular_file"):
            list(open_source(path, SPEC).documents({}))
    with pytest.raises(SourceUnavailable, match="check the path"):
        list(open_source(tmp_path / "nothing.jsonl", SPEC).documents({}))


def pinned(tmp_path: Path) -> tuple[Path, dict[str, object]]:
    path = write(tmp_path, record("a") + b"\n" + record("b") + b"\n")
    return path, open_source(path, SPEC).pin()


def test_a_pin_opens_the_same_documents(tmp_path: Path) -> None:
    """The pin in the ledger is all that another process needs, also after the file was touched."""
    path, pin = pinned(tmp_path)
    os.utime(path, (1, 1))
    assert [row.doc_id for row in open_source(json.loads(json.dumps(pin)), SPEC).documents({})] == [
        "a",
        "b",
    ]


def test_changed_content_is_never_read(tmp_path: Path) -> None:
    """Other content of the same length is refused before a document is read or fetched."""
    path, pin = pinned(tmp_path)
    path.write_bytes(record("x") + b"\n" + record("b") + b"\n")
    os.utime(path, (1, 1))
    with pytest.raises(SourceChanged):
        next(iter(open_source(pin, SPEC).documents({})))
    with pytest.raises(SourceChanged):
        open_source(pin, SPEC).fetch("0:10")


def test_a_file_that_grows_while_it_is_read_is_noticed(tmp_path: Path) -> None:
    """Appending to a file under its reader ends the reading with an error."""
    path, pin = pinned(tmp_path)
    documents = open_source(pin, SPEC).documents({})
    next(documents)
    with path.open("ab") as file:
        file.write(record("c"))
    with pytest.raises(SourceChanged):
        list(documents)


def test_a_vanished_file_can_come_back(tmp_path: Path) -> None:
    """A file that is gone is unavailable, and the same source reads on once it is back."""
    path, pin = pinned(tmp_path)
    source = open_source(pin, SPEC)
    content = path.read_bytes()
    path.rename(tmp_path / "away.jsonl")
    with pytest.raises(SourceUnavailable):
        list(source.documents({}))
    path.write_bytes(content)
    assert len(list(source.documents({}))) == 2


def test_the_line_limit_travels_in_the_pin(tmp_path: Path) -> None:
    """A reader with other settings refuses the same lines as the survey did."""
    path = write(tmp_path, record("a", "x" * 5000) + b"\n")
    pin = open_source(path, SPEC, ProducerSettings(max_line_bytes=1024)).pin()
    (row,) = open_source(pin, SPEC, ProducerSettings()).documents({})
    assert isinstance(row, BadRow)
    assert row.code == "line_too_long"


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("a b.jsonl.xz", "xz -dc < 'a b.jsonl.xz' > 'a b.jsonl'"),
        ("a.jsonl.bz2", "bzip2 -dc < a.jsonl.bz2 > a.jsonl"),
        ("a.zip", "unzip -p a.zip > a.jsonl"),
        ("s3://bucket/deep/a.xls", "a.xls a.jsonl"),
    ],
)
def test_other_formats_come_with_a_command_that_converts_them(name: str, command: str) -> None:
    """The refusal of a format that is not read ends with one line to paste (D13)."""
    with pytest.raises(SourceError, match="unsupported_format") as caught:
        open_source(name, SPEC)
    assert command in str(caught.value)


@pytest.mark.parametrize("name", [pytest.param("a.jsonl.xz", marks=NEEDS_XZ), "array.json"])
def test_the_commands_convert(name: str, tmp_path: Path) -> None:
    """What the refusals of archives and arrays advise makes a source that is read (D13, D24)."""
    packed = lzma.compress(b'{"id": "x", "text": "t"}\n')
    content = {"a.jsonl.xz": packed, "array.json": b'[\n {"id": "x",\n "text": "t"}\n]\n'}
    (tmp_path / name).write_bytes(content[name])
    with pytest.raises(SourceError) as caught:
        list(open_source(tmp_path / name, SPEC).documents({}))
    subprocess.run(
        str(caught.value).partition("convert it: ")[2], shell=True, check=True, timeout=60
    )
    made = tmp_path / f"{name.partition('.')[0]}.jsonl"
    assert [json.loads(line) for line in made.read_text().splitlines()] == [
        {"id": "x", "text": "t"}
    ]


def test_an_array_is_one_error(tmp_path: Path) -> None:
    """A file that is one JSON array is named as that instead of by each of its lines (D24)."""
    with pytest.raises(SourceError, match=r"json_array: .* is one JSON array"):
        list(open_source(write(tmp_path, b'[\n{"id": "a"},\n{"id": "b"}\n]'), SPEC).documents({}))


def test_folders_pipes_patterns_and_stdin_have_words_of_their_own(tmp_path: Path) -> None:
    """The error says what it is and what to do, instead of `no such file` (D25)."""
    os.mkfifo(tmp_path / "pipe")
    told = {
        tmp_path: "is a folder; write ",
        tmp_path / "pipe": "is a pipe, and a source is read more than once",
        tmp_path / "*.jsonl": "stands for no file",
        Path("-"): "read more than once",
        tmp_path / "nothing.jsonl": "there is no such file",
    }
    for path, words in told.items():
        with pytest.raises(SourceError) as caught:
            list(open_source(path, SPEC).documents({}))
        assert words in str(caught.value)
