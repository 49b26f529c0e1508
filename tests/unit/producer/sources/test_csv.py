"""CSV and TSV: the records of Python's own csv module, each with a place, and every fault with
line, column and fix."""

from __future__ import annotations

import contextlib
import csv
import gzip
import io
import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from penstock_producer.accepting.survey import survey
from penstock_producer.errors import SourceError, SpecError
from penstock_producer.job.spec import JobSpec
from penstock_producer.rows import id_fault
from penstock_producer.settings import ProducerSettings
from penstock_producer.sources import BadRow, Document, open_source
from penstock_producer.sources.blobs.detect import format_of
from penstock_producer.sources.blobs.local import LocalFile

SPEC = JobSpec(prompt="{text}", model="m")
TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12) | st.text(
    '",;\t\r\n a', max_size=12
)


def write(tmp_path: Path, content: str | bytes, name: str = "in.csv") -> Path:
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def asked(row: Document | BadRow) -> str:
    """The prompt of a document."""
    assert isinstance(row, Document), str(row)
    return str(json.loads(row.body)["messages"][0]["content"])


def only(path: Path, spec: JobSpec = SPEC) -> Document | BadRow:
    (row,) = open_source(path, spec).documents({})
    return row


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    texts=st.lists(st.tuples(TEXT.filter(str.strip), TEXT), min_size=1, max_size=6),
    ending=st.sampled_from(["\n", "\r\n"]),
    delimiter=st.sampled_from([",", ";", "\t", "|"]),
    quoting=st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC]),
    bom=st.booleans(),
    end=st.booleans(),
)
def test_records_are_those_of_pythons_csv(
    tmp_path: Path,
    texts: list[tuple[str, str]],
    ending: str,
    delimiter: str,
    quoting: int,
    bom: bool,
    end: bool,
) -> None:
    """Whatever csv writes is read with its values; every cursor goes on behind its record, every
    position finds it."""
    # csv of Python 3.12 and before leaves a lone return unquoted, which is no RFC 4180
    assume(
        quoting != csv.QUOTE_MINIMAL
        or ending == "\r\n"
        or not any("\r" in "".join(pair) for pair in texts)
    )
    written = io.StringIO(newline="")
    writer = csv.writer(written, lineterminator=ending, delimiter=delimiter, quoting=quoting)  # type: ignore[arg-type]
    writer.writerow(["id", "text", "more"])
    writer.writerows([f"d{number}", text, more] for number, (text, more) in enumerate(texts))
    content = written.getvalue() if end else written.getvalue().removesuffix(ending)
    path = write(tmp_path, b"\xef\xbb\xbf" * bom + content.encode())
    known = list(csv.DictReader(io.StringIO(content, newline=""), delimiter=delimiter, strict=True))
    source = open_source(path, JobSpec(prompt='{text}<{more|default:""}>', model="m"))
    found = list(source.documents({}))
    assert [(row.doc_id, asked(row)) for row in found] == [
        (row["id"], f"{row['text']}<{row['more'] if row['more'].strip() else ''}>") for row in known
    ]
    for index, row in enumerate(found):
        assert isinstance(row, Document)
        assert list(source.documents(row.cursor)) == found[index + 1 :]
        assert source.fetch(row.position).body == row.body


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(body=st.text(st.sampled_from('ab",\n\r \u2028é'), max_size=40))
def test_any_bytes_are_read_as_pythons_csv_reads_them(tmp_path: Path, body: str) -> None:
    """Of any text the same records are accepted as by csv, strictly read; only an open quote stops
    the source."""
    path = write(tmp_path, f"id,text\n{body}")
    reader = csv.reader(io.StringIO(f"id,text\n{body}", newline="\n"), strict=True)
    known: list[list[str]] = []
    unclosed = False
    while True:
        try:
            known.append(next(reader))
        except StopIteration:
            break
        except csv.Error as error:
            unclosed = unclosed or "unexpected end" in str(error)
    rows = open_source(path, SPEC).documents({})
    found: list[Document] = []
    with (
        pytest.raises(SourceError, match="csv_unclosed_quote")
        if unclosed
        else contextlib.nullcontext()
    ):
        found.extend(row for row in rows if isinstance(row, Document))
    if not unclosed:
        usable = [
            tuple(row)
            for row in known[1:]
            if len(row) == 2 and id_fault(row[0]) is None and row[1].strip()
        ]
        assert [(row.doc_id, asked(row)) for row in found] == usable


def test_rows_that_are_wrong_are_bad_rows_with_their_line(tmp_path: Path) -> None:
    """Ragged and malformed records, an empty id and a NUL are refused by line, column and fix; the
    others go on."""
    path = write(
        tmp_path,
        'id,text\na,"two\nlines"\nb\nc,x,y\nd,"x"y\n,empty\ne,nul\0\n\nf,fine\n',
    )
    rows = list(open_source(path, SPEC).documents({}))
    assert [row.doc_id for row in rows if isinstance(row, Document)] == ["a", "f"]
    bad = [(row.line, row.code, row.field) for row in rows if isinstance(row, BadRow)]
    assert bad == [
        (4, "csv_ragged", None),
        (5, "csv_ragged", None),
        (6, "csv_malformed", None),
        (7, "invalid_id", "id"),
        (8, "nul_character", "text"),
    ]
    assert "This record has 3 values, and the header has 2 columns" in str(rows[2])


def test_an_open_quote_names_the_line_it_opened_in(tmp_path: Path) -> None:
    """A quote that would take the rest of the file is one error with its line, not one row."""
    path = write(tmp_path, 'id,text\na,x\nb,"oops\nc,y\nd,z\n')
    with pytest.raises(SourceError, match=r"csv_unclosed_quote: .*in.csv line 3: a quote opens"):
        survey(open_source(path, SPEC), SPEC)


def test_an_open_quote_in_a_large_file_stops_at_the_limit(tmp_path: Path) -> None:
    """No more than max_line_bytes are held to find the end of a record."""
    path = write(tmp_path, 'id,text\nb,"oops\n' + "c,y\n" * 1000)
    with pytest.raises(
        SourceError, match=r"line_too_long: .* line 2: this record has more than 1024 bytes"
    ):
        survey(open_source(path, SPEC, ProducerSettings(max_line_bytes=1024)), SPEC)


def test_a_field_may_be_larger_than_the_modules_default(tmp_path: Path) -> None:
    """A text of more than 131,072 characters is a text."""
    assert len(asked(only(write(tmp_path, f"id,text\na,{'x' * 200_000}\n")))) == 200_000


@pytest.mark.parametrize(
    ("encoding", "text"), [("cp1252", "naïve €"), ("shift_jis", "表ソ"), ("gb18030", "编码")]
)
def test_other_encodings_are_read_by_name(tmp_path: Path, encoding: str, text: str) -> None:
    """A file in the encoding that the job names is read; without the name its rows are refused by
    column, with the fix."""
    path = write(tmp_path, f"id,text\na,{text}\n".encode(encoding))
    spec = JobSpec(prompt="{text}", model="m", encoding=encoding)
    assert asked(only(path, spec)) == text
    assert asked(open_source(path, spec).fetch("8:" + str(path.stat().st_size - 9))) == text
    bad = only(path)
    assert isinstance(bad, BadRow)
    assert (bad.code, bad.field, bad.line) == ("invalid_encoding", "text", 2)
    assert "encoding=cp1252" in bad.fix


@pytest.mark.parametrize("name", ["utf-16", "rot13", "zlib", "klingon", "iso2022_jp", "\0"])
def test_encodings_that_cannot_be_read_are_refused_in_the_spec(name: str) -> None:
    """An encoding in which a newline may be another byte, and one that does not exist, is a fault
    of the spec."""
    with pytest.raises(SpecError, match="/encoding"):
        JobSpec(prompt="{text}", model="m", encoding=name)


def test_utf_16_is_named_with_the_command(tmp_path: Path) -> None:
    """A UTF-16 file is refused as that."""
    with pytest.raises(
        SourceError, match=r"invalid_encoding: .* looks like UTF-16; convert it: iconv"
    ):
        survey(open_source(write(tmp_path, "id,text\na,b\n".encode("utf-16")), SPEC), SPEC)


@pytest.mark.parametrize("delimiter", [";", "\t", "|"])
def test_other_delimiters_are_found_in_the_header(tmp_path: Path, delimiter: str) -> None:
    """Where no comma splits the header, the delimiter that does is the file's."""
    assert asked(only(write(tmp_path, f'"id"{delimiter}text\na{delimiter}"x,y"\n'))) == "x,y"


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("id,text\na,x\n", "x"),
        ('id,text\na,"two\nlines, one text"\nb,c', "two\nlines, one text"),
        ("id\ttext, more\ttext\na\tb\tc\n", None),
        ("id\ttext\na\tb,c\n", "b,c"),
        ("id;text\r\na;b,c\r\n", "b,c"),
        ("\ufeffid|text\na|b\n\n", "b"),
        ("id,text\n" + "a,b\n" * 30_000, "b"),
        ('id,text\na,"' + "long " * 20_000 + '"\nb,c\n', None),
    ],
)
def test_a_file_without_an_ending_is_told_by_its_first_records(
    tmp_path: Path, content: str, text: str | None
) -> None:
    """The same number of fields in each of them makes it CSV or TSV; what is not sure stays JSON
    Lines, with `format: csv`."""
    path = write(tmp_path, content, "export")
    first = next(open_source(path, JobSpec(prompt="{text}", model="m")).documents({}))
    if text is not None:
        assert asked(first) == text
        return
    assert isinstance(first, BadRow)
    assert (first.code, "format=csv" in first.fix) == ("invalid_json_line", True)


@pytest.mark.parametrize(
    "content",
    [
        '{"id": "a", "text": "b"}\n{"id": "c", "text": "d"}\n',
        'junk, more\n{"id": "a", "text": "b"}\n',
        "id,text\n",
    ],
)
def test_json_lines_are_not_taken_for_csv(tmp_path: Path, content: str) -> None:
    """Lines with commas that are JSON, one broken line among them, and a header without a row."""
    assert format_of(LocalFile(write(tmp_path, content, "export")), None).format.name == "jsonl"


def test_tsv_has_tabs_only(tmp_path: Path) -> None:
    """In TSV a comma is text, and a row of nothing but tabs is a row."""
    path = write(tmp_path, "id\ttext, more\na\tb,c\n\t\n", "in.tsv")
    good, bad = open_source(path, JobSpec(prompt="{id}", model="m")).documents({})
    assert good.doc_id == "a"
    assert isinstance(bad, BadRow)
    assert bad.code == "invalid_id"


@pytest.mark.parametrize(
    ("content", "spec", "words"),
    [
        ("id,text,id\n", SPEC, "names the column 'id' twice"),
        ("key,text\na,b\n", SPEC, "no column 'id'.*id_field.*'key', 'text'"),
        ("id,body\na,b\n", SPEC, "no column 'text'"),
        ("id,text\na,b\n", JobSpec(model="m"), "wrong_form.*prompt"),
        ("", SPEC, "empty_source"),
        ("id,text\n\n", SPEC, "empty_source"),
        ('id,"te"xt\n', SPEC, "csv_header.*line 1"),
        (b"id,te\xffxt\n", SPEC, "csv_header.*encoding=cp1252"),
        (b"PAR1", SPEC, "is Parquet, not CSV"),
    ],
)
def test_a_header_that_does_not_serve_is_one_error(
    tmp_path: Path, content: str | bytes, spec: JobSpec, words: str
) -> None:
    """What makes every row useless is said once, before any row."""
    with pytest.raises(SourceError, match=words):
        survey(open_source(write(tmp_path, content), spec), spec)


def test_a_column_with_a_default_may_be_missing(tmp_path: Path) -> None:
    """The prompt's own word for an absent column counts for a whole file without it."""
    spec = JobSpec(prompt='{title|default:"none"}: {text}', model="m")
    assert asked(only(write(tmp_path, "id,text\na,b\n"), spec)) == "none: b"


def test_a_packed_csv_is_a_csv(tmp_path: Path) -> None:
    """Compression and rows are independent; the pin says both."""
    path = write(tmp_path, gzip.compress(b'id,text\na,"x\ny"\nb,z\n'), "in.csv.gz")
    found = survey(open_source(path, SPEC), SPEC)
    assert (found.pin["format"], found.pin["packed"]) == ("csv", "gzip")
    again = open_source(json.loads(json.dumps(found.pin)), SPEC)
    rows = list(again.documents({}))
    assert [asked(row) for row in rows] == ["x\ny", "z"]
    assert asked(again.fetch(rows[0].position)) == ("x\ny")  # type: ignore[union-attr] # both are documents


def test_format_overrides_the_name(tmp_path: Path) -> None:
    """--format says what a file is, whatever it is called; in the pin it stays so."""
    path = write(tmp_path, "id\ttext\na\tb\n", "export.jsonl")
    spec = JobSpec(prompt="{text}", model="m", format="tsv")
    pin = survey(open_source(path, spec), spec).pin
    assert asked(next(iter(open_source(pin, SPEC).documents({})))) == "b"
