"""CSV and TSV over any blob: RFC 4180 with a header, each record a plain record whose values are
texts."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from shlex import quote
from typing import Any, Final

from penstock_producer.errors import BadReference, SourceError, seen
from penstock_producer.job.formats import CSV, TSV, UTF_8
from penstock_producer.job.spec import JobSpec
from penstock_producer.rows import BadRow, Cursor, Document
from penstock_producer.sources.blobs.blob import Blob
from penstock_producer.sources.blobs.convert import refuse_magic
from penstock_producer.sources.blobs.lines import split_lines
from penstock_producer.sources.forms.columns import check_columns
from penstock_producer.sources.forms.strict_json import RowFault, check_text
from penstock_producer.sources.readers.csv_records import (
    Dialect,
    Record,
    parse_record,
    read_records,
)
from penstock_producer.sources.readers.pinned_rows import FORMAT, PinnedRows, RowOptions

_DELIMITERS: Final = ",;\t|"
_WIDE: Final = (b"\xff\xfe", b"\xfe\xff")


class CsvSource(PinnedRows):
    """Documents of one CSV blob.

    A position is "offset:length" of a record in bytes, a cursor the next one's offset and line."""

    def __init__(
        self, blob: Blob, spec: JobSpec, options: RowOptions, *, tabs: bool = False
    ) -> None:
        super().__init__(blob, spec, options)
        self._tabs = tabs
        self._encoding = spec.encoding or UTF_8
        self._known: tuple[list[str], Dialect] | None = None

    def pin(self) -> dict[str, Any]:
        return super().pin() | {FORMAT: TSV if self._tabs else CSV}

    def documents(self, cursor: Mapping[str, Any]) -> Iterator[Document | BadRow]:
        offset, number = int(cursor.get("offset", 0)), int(cursor.get("line", 1))
        header = self._header()
        if header is None:
            return
        names, dialect = header
        chunks = self._blob.chunks(offset)
        lines = split_lines(
            chunks, offset=offset, number=number, max_line_bytes=self._max_line_bytes
        )
        records = read_records(lines, dialect, self.uri, self._max_line_bytes)
        if offset == 0:
            next(records, None)  # the header
        for record in records:
            yield self._read(record, names)

    def fetch(self, position: str) -> Document:
        """Raises BadReference for a position that the survey cannot have given: the pinned bytes
        have not changed."""
        offset, length = self._span(position)
        header = self._header()
        data = self._blob.read(offset, length)
        try:
            if header is None:
                raise RowFault("empty_source", "There is no header.", fix="restore it")
            values = parse_record(data, header[1])
            doc_id, body, endpoint = self._form.read(self._named(values, header[0]))
        except RowFault as fault:
            raise self._no_document(position, fault.code, fault.message) from None
        except (csv.Error, UnicodeDecodeError, StopIteration) as fault:
            raise BadReference(
                f"{self.uri}: at {position} there is no document ({type(fault).__name__})"
            ) from None
        return Document(doc_id, body, position, 0, {}, endpoint)

    def _read(self, record: Record, names: list[str]) -> Document | BadRow:
        cursor: Cursor = {"offset": record.end, "line": record.next_line}
        try:
            if record.fault:
                raise _malformed(record.fault)
            row = self._named(record.values, names)
            if record.doubtful:
                self._check_texts(row)
            doc_id, body, endpoint = self._form.read(row)
        except RowFault as fault:
            return self._bad(record.line, fault, cursor)
        return Document(
            doc_id, body, f"{record.offset}:{record.length}", record.line, cursor, endpoint
        )

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
                    fix="name the encoding of the file (--encoding cp1252), or convert it to UTF-8",
                    field=name,
                    value=seen(
                        text[max(0, error.start - 8) : error.start + 8].encode(
                            errors="surrogateescape"
                        )
                    ),
                ) from None
            check_text(text, name)

    def _header(self) -> tuple[list[str], Dialect] | None:
        """Names of columns and the dialect, read once; None for a file without any record."""
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
        """Raises SourceError for first bytes that are another format's."""
        start = next(iter(self._blob.chunks(0)), b"")
        refuse_magic(self.uri, start, "TSV" if self._tabs else "CSV")
        if start.startswith(_WIDE):
            raise SourceError(
                "invalid_encoding",
                f"{self.uri} looks like UTF-16; convert it: iconv -f UTF-16 -t UTF-8 "
                f"{quote(self.uri)} > utf8.csv",
            )

    def _first(self, dialect: Dialect) -> tuple[Record, Dialect]:
        """The first record of the file as the dialect has it; one without values for a file without
        any."""
        lines = split_lines(
            self._blob.chunks(0), offset=0, number=1, max_line_bytes=self._max_line_bytes
        )
        records = read_records(lines, dialect, self.uri, self._max_line_bytes)
        return next(records, Record(0, 0, 0, 0, 0, [], "", False)), dialect

    def _check_header(self, header: Record) -> None:
        names = header.values
        if header.fault or header.doubtful:
            why = (
                header.fault or f"it is not {self._encoding}; name the encoding (--encoding cp1252)"
            )
            raise SourceError(
                "csv_header", f"{self.uri} line {header.line}: the header cannot be read: {why}"
            )
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
        check_columns(self.uri, self._form, names, nested=False)


def _malformed(words: str) -> RowFault:
    return RowFault(
        "csv_malformed",
        f"This record is not RFC 4180 ({words}).",
        fix=(
            "put a value with a delimiter, quote or newline into quotes, and double its quotes: "
            '"say ""hi"""'
        ),
    )
