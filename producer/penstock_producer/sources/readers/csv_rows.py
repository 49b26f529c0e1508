"""CSV and TSV over any blob: RFC 4180 with a header, each record a row of texts.

Python's csv module says where a record ends only by the lines that it took, so it is given our
numbered lines and these are counted.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from shlex import quote
from typing import Any, Final, NamedTuple

from penstock_ledger import storable
from penstock_ledger.texts import SetOption, Text
from penstock_producer.errors import BadReference, SourceError, seen
from penstock_producer.job.spec import JobSpec
from penstock_producer.rows import BadRow, Column, Document, Kinds
from penstock_producer.rows import Record as SourceRecord
from penstock_producer.source_formats import FORMATS, TSV, UTF_8
from penstock_producer.sources.blobs.blob import BOM, Blob, Line, split_lines
from penstock_producer.sources.blobs.detect import LOOKED_AT, refuse_magic
from penstock_producer.sources.forms.row_forms import check_columns
from penstock_producer.sources.forms.strict_json import RowFault, check_text
from penstock_producer.sources.readers.rows import ROWS, PinnedRows, RowOptions

_RECORDS: Final = 20
_LOOKED_FOR: Final = (",", "\t", ";", "|")
_JSON: Final = ("{", "[")


def looks_like_csv(start: bytes, *, whole: bool) -> bool:
    """Return whether a file that begins so is CSV, and no TSV."""
    return _delimiter_of(start, whole=whole) not in (None, "\t")


def looks_like_tsv(start: bytes, *, whole: bool) -> bool:
    """Return whether a file that begins so is TSV."""
    return _delimiter_of(start, whole=whole) == "\t"


def _delimiter_of(start: bytes, *, whole: bool) -> str | None:
    """Return what stands between the fields; None for what may be anything else.

    ``whole``: the file has no more than these bytes.

    Two records at least, none of which begins as JSON does; the delimiter is that which the header
    is read by.
    """
    data = start.removeprefix(BOM)[:LOOKED_AT]
    whole = whole and len(start) <= LOOKED_AT
    if b"\0" in data:
        return None
    text = data.decode("latin-1")  # whatever the encoding: delimiters and quotes are ASCII
    if any(line.lstrip().startswith(_JSON) for line in text.splitlines()[:_RECORDS]):
        return None
    header = text.partition("\n")[0]
    delimiter = next((one for one in _LOOKED_FOR if one in header), None)
    if delimiter is None or len(set(_numbers_of_fields(text, delimiter, whole=whole))) != 1:
        return None
    return delimiter


def _numbers_of_fields(text: str, delimiter: str, *, whole: bool) -> list[int]:
    """Return the numbers of fields of the first whole records.

    None where there is only one, or where they cannot be read.
    """
    rows: list[int] = []
    try:
        for row in islice(
            csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True),
            _RECORDS + 1,
        ):
            if row:
                rows.append(len(row))
    except csv.Error:  # a quote that closes later than here
        rows.append(0)
        whole = False
    known = rows if whole else rows[:-1]
    return known[:_RECORDS] if len(known) > 1 else []


# characters of a field; the module's own default, which is for the whole process
_CSV_LIMIT: Final = 131_072


class Dialect(NamedTuple):
    delimiter: str
    encoding: str


class Record(NamedTuple):
    """One record, or why it is none."""

    line: int  # where it starts
    offset: int
    length: int  # bytes without the end of its last line
    end: int  # offset of what follows
    next_line: int
    values: list[str]
    fault: str  # the parser's words; empty for a record that was read
    # whether values may hold NUL, or bytes that do not decode: these are lone surrogates then
    doubtful: bool


def read_records(
    lines: Iterable[Line], dialect: Dialect, uri: str, max_bytes: int
) -> Iterator[Record]:
    """Yield all records but blank lines.

    Raises SourceError for a quote that is not closed, and a record that is too long.

    After either it is unknown which newlines are quoted, and so which lines are documents.
    """
    if csv.field_size_limit() < max_bytes:
        # never lowered: it belongs to the whole process
        csv.field_size_limit(max(max_bytes, _CSV_LIMIT))
    feed = _Feed(lines, dialect.encoding, uri, max_bytes)
    reader = csv.reader(feed, delimiter=dialect.delimiter, strict=True)
    while True:
        feed.begin()
        values, fault = [], ""
        try:
            values = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            fault = str(error)
            if feed.ended:  # the only fault that is seen at the end of the lines
                raise _unclosed(uri, feed.first) from None
        if values or fault:
            yield _record(feed, values, fault)


def parse_record(data: bytes, dialect: Dialect) -> list[str]:
    """Return the values of exactly one record. Raises csv.Error and UnicodeDecodeError."""
    return next(
        csv.reader((data.decode(dialect.encoding),), delimiter=dialect.delimiter, strict=True)
    )


class _Feed:
    """Lines as text, with an account of those that belong to the record being read."""

    def __init__(self, lines: Iterable[Line], encoding: str, uri: str, max_bytes: int) -> None:
        self._lines = iter(lines)
        self._encoding = encoding
        self._uri = uri
        self._max_bytes = max_bytes
        self.ended = False
        self.begin()

    def begin(self) -> None:
        self.first: Line | None = None
        self.last: Line | None = None
        self.doubtful = False

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = next(self._lines, None)
        if line is None:
            self.ended = True
            raise StopIteration
        _, offset, data, length, _, last = line
        first = self.first = self.first or line
        self.last = line
        if data is None or offset + length - first[1] > self._max_bytes:
            raise _too_long(self._uri, first, self._max_bytes)
        if data.find(b"\0") >= 0:
            self.doubtful = True
        return self._text(data) + ("\r" if length > len(data) else "") + ("" if last else "\n")

    def _text(self, data: bytes) -> str:
        try:
            return data.decode(self._encoding)
        except UnicodeDecodeError:
            self.doubtful = True
            return data.decode(self._encoding, "surrogateescape")


def _record(feed: _Feed, values: list[str], fault: str) -> Record:
    first, last = feed.first, feed.last
    assert first is not None, "a record is of lines"
    assert last is not None, "a record is of lines"
    length = last[1] + last[3] - first[1]
    return Record(first[0], first[1], length, last[4], last[0] + 1, values, fault, feed.doubtful)


def _unclosed(uri: str, first: Line | None) -> SourceError:
    line = first[0] if first is not None else 0
    return SourceError(
        "csv_unclosed_quote",
        f"{uri} line {line}: a quote opens in this record and is not closed by the end of the "
        "file, so all that follows would be one value; close it, or double it where the text has a "
        "quote",
    )


def _too_long(uri: str, first: Line, max_bytes: int) -> SourceError:
    return SourceError(
        "line_too_long",
        f"{uri} line {first[0]}: this record has more than {max_bytes} bytes; close its quote, or "
        "raise max_line_bytes where documents really are larger",
    )


_DELIMITERS: Final = ",;\t|"
_WIDE: Final = (b"\xff\xfe", b"\xfe\xff")


class CsvSource(PinnedRows):
    """Documents of one CSV blob.

    A position is "offset:length" of a record in bytes, a cursor the next one's offset and line."""

    kinds: Kinds = "by_text"

    def __init__(self, blob: Blob, spec: JobSpec, options: RowOptions) -> None:
        super().__init__(blob, spec, options)
        self._tabs = options.form == TSV
        self._encoding = spec.encoding or UTF_8
        self._known: tuple[list[str], Dialect] | None = None

    def documents(self, cursor: Mapping[str, Any]) -> Iterator[Document | BadRow]:
        before = int(cursor.get(ROWS, 0))
        header = self._header()
        if header is None:
            return
        begin = int(cursor.get("offset", 0)), int(cursor.get("line", 1))
        for row, record in enumerate(self._records(*begin, header[1]), before + 1):
            yield self._read(record, header[0], row)

    def columns(self) -> Sequence[Column]:
        header = self._header()
        return () if header is None else [Column(name, "text") for name in header[0]]

    def records(self) -> Iterator[SourceRecord]:
        header = self._header()
        if header is None:
            return
        for record in self._records(0, 1, header[1]):
            values = [] if record.fault else record.values
            texts = [storable(value) for value in values] if record.doubtful else values
            yield SourceRecord(record.line, dict(zip(header[0], texts, strict=False)))

    def _records(self, offset: int, number: int, dialect: Dialect) -> Iterator[Record]:
        """Yield the records from a place on, without the header."""
        chunks = self._blob.chunks(offset)
        lines = split_lines(
            chunks, offset=offset, number=number, max_line_bytes=self._max_line_bytes
        )
        records = read_records(lines, dialect, self.uri, self._max_line_bytes)
        if offset == 0:
            next(records, None)  # the header
        yield from records

    def fetch(self, position: str) -> Document:
        """Read one document.

        Raises BadReference for a position that the survey cannot have given: the pinned bytes have
        not changed.
        """
        offset, length, row = self._span(position)
        header = self._header()
        data = self._blob.read(offset, length)
        try:
            if header is None:
                raise RowFault("empty_source", "There is no header.", fix="restore it")
            values = parse_record(data, header[1])
            named = self._with_number(self._named(values, header[0]), row)
            doc_id, body, endpoint = self._form.read(named)
        except RowFault as fault:
            raise self._no_document(position, fault.code, fault.message) from None
        except (csv.Error, UnicodeDecodeError, StopIteration) as fault:
            raise BadReference(
                f"{self.uri}: at {position} there is no document ({type(fault).__name__})"
            ) from None
        return Document(doc_id, body, position, 0, {}, endpoint)

    def _read(self, record: Record, names: list[str], number: int) -> Document | BadRow:
        cursor = self._behind(record.end, record.next_line, number)
        try:
            if record.fault:
                raise _malformed(record.fault)
            row = self._named(record.values, names)
            if record.doubtful:
                self._check_texts(row)
            doc_id, body, endpoint = self._form.read(self._with_number(row, number))
        except RowFault as fault:
            return self._bad(record.line, fault, cursor)
        position = self._at(record.offset, record.length, number)
        return Document(doc_id, body, position, record.line, cursor, endpoint)

    def _named(self, values: list[str], names: list[str]) -> dict[str, Any]:
        if len(values) != len(names):
            raise RowFault(
                "csv_ragged",
                f"This record has {len(values)} values, and the header has {len(names)} columns.",
                fix=(
                    "give every record a value for each column, and put values with a delimiter, "
                    "quote or newline into quotes"
                ),
                value=seen(values[-1] if values else ""),
            )
        return dict(zip(names, values, strict=True))

    def _check_texts(self, row: Mapping[str, str]) -> None:
        for name, text in row.items():
            try:
                text.encode()
            except UnicodeEncodeError as error:
                raise RowFault(
                    "invalid_encoding",
                    f"Character {error.start + 1} of the column {name!r} is not {self._encoding}.",
                    fix=Text(
                        "name the encoding of the file (",
                        SetOption("encoding", "cp1252"),
                        "), or convert it to UTF-8",
                    ),
                    field=name,
                    value=seen(
                        text[max(0, error.start - 8) : error.start + 8].encode(
                            errors="surrogateescape"
                        )
                    ),
                ) from None
            check_text(text, name)

    def _header(self) -> tuple[list[str], Dialect] | None:
        """Return names of columns and the dialect, read once; None for a file without a record."""
        if self._known is None:
            self._check_start()
            wanted = "\t" if self._tabs else _DELIMITERS
            found = [self._first(Dialect(delimiter, self._encoding)) for delimiter in wanted]
            first, dialect = next((one for one in found if len(one[0].values) > 1), found[0])
            if not first.values and not first.fault:
                return None
            self._check_header(first)
            self._known = first.values, dialect
        return self._known

    def _check_start(self) -> None:
        """Raise SourceError for first bytes that are another format's."""
        start = next(iter(self._blob.chunks(0)), b"")
        refuse_magic(self.uri, start, FORMATS[self._written_as].title)
        if start.startswith(_WIDE):
            raise SourceError(
                "invalid_encoding",
                f"{self.uri} looks like UTF-16; convert it: iconv -f UTF-16 -t UTF-8 "
                f"{quote(self.uri)} > utf8.csv",
            )

    def _first(self, dialect: Dialect) -> tuple[Record, Dialect]:
        """Return the first record of the file, and the dialect.

        A file without any has one without values.
        """
        lines = split_lines(
            self._blob.chunks(0), offset=0, number=1, max_line_bytes=self._max_line_bytes
        )
        records = read_records(lines, dialect, self.uri, self._max_line_bytes)
        return next(records, Record(0, 0, 0, 0, 0, [], "", False)), dialect

    def _check_header(self, header: Record) -> None:
        names = header.values
        if header.fault or header.doubtful:
            unnamed = Text(
                f"it is not {self._encoding}; name the encoding (",
                SetOption("encoding", "cp1252"),
                ")",
            )
            where = f"{self.uri} line {header.line}: the header cannot be read: "
            raise SourceError("csv_header", Text(where, header.fault or unnamed))
        twice = (
            [name for name in names if names.count(name) > 1]
            if len(set(names)) < len(names)
            else []
        )
        if twice:
            raise SourceError(
                "csv_header",
                f"{self.uri}: the header names the column {seen(twice[0])} twice; rename one of "
                "them",
            )
        check_columns(self.uri, self._form, names, nested=False, id_field=self.id_field)


def _malformed(words: str) -> RowFault:
    return RowFault(
        "csv_malformed",
        f"This record is not RFC 4180 ({words}).",
        fix=(
            "put a value with a delimiter, quote or newline into quotes, and double its quotes: "
            '"say ""hi"""'
        ),
    )
