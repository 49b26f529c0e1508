"""Records of CSV and TSV as Python's csv module reads them, each with its place in the bytes.

The module says where a record ends only by the lines that it took, so it is given our numbered
lines and these are counted.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from penstock_producer.errors import SourceError
from penstock_producer.sources.blobs.lines import Line

_CSV_LIMIT: Final = (
    131_072  # characters of a field; the module's own default, which is for the whole process
)


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
    """All records but blank lines.

    Raises SourceError for a quote that is not closed, and a record that is too long.

    After either it is unknown which newlines are quoted, and so which lines are documents.
    """
    if csv.field_size_limit() < max_bytes:
        csv.field_size_limit(
            max(max_bytes, _CSV_LIMIT)
        )  # never lowered: it belongs to the whole process
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
    """The values of exactly one record. Raises csv.Error and UnicodeDecodeError."""
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
