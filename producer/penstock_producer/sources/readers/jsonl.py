"""JSON Lines over any blob: OpenAI Batch lines or plain records."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any

from penstock_ledger.texts import SetOption, Text
from penstock_producer.errors import SourceError
from penstock_producer.rows import BadRow, Document, Record
from penstock_producer.sources.blobs.blob import BOM, Line, split_lines
from penstock_producer.sources.blobs.detect import refuse_content, rows_by_name
from penstock_producer.sources.forms.media import kind_of
from penstock_producer.sources.forms.strict_json import RowFault, parse_object, parse_surveyed
from penstock_producer.sources.readers.rows import ROWS, PinnedRows


class JsonlSource(PinnedRows):
    """Documents of one JSONL blob.

    A position is "offset:length" in bytes, a cursor the next line's offset and number."""

    def documents(self, cursor: Mapping[str, Any]) -> Iterator[Document | BadRow]:
        offset, before = int(cursor.get("offset", 0)), int(cursor.get(ROWS, 0))
        first = offset == 0
        lines = self._lines(offset, int(cursor.get("line", 1)))
        for row, line in enumerate(lines, before + 1):
            yield self._read(line, row, first=first)
            first = False

    def columns(self) -> None:
        """Return None: each line has columns of its own."""

    def records(self) -> Iterator[Record]:
        for line in self._lines(0, 1):
            try:
                yield Record(line[0], {} if line[2] is None else self._parse(line[2], line[5]))
            except RowFault:
                yield Record(line[0], {})

    def _lines(self, offset: int, number: int) -> Iterator[Line]:
        """Yield the lines from a place on that are not blank."""
        chunks = (
            _refuse_others(self.uri, self._blob.chunks(offset))
            if offset == 0
            else self._blob.chunks(offset)
        )
        for line in split_lines(
            chunks, offset=offset, number=number, max_line_bytes=self._max_line_bytes
        ):
            data = line[2]
            if data is not None and (not data or data.isspace()):
                continue
            yield line

    def fetch(self, position: str) -> Document:
        """Read one document.

        Raises BadReference for a position that the survey cannot have given: the pinned bytes have
        not changed.
        """
        offset, length, row = self._span(position)
        data = self._blob.read(offset, length)
        try:
            record = self._with_number(parse_object(data, self._form.control_keys), row)
            doc_id, body, endpoint = self._form.read(record)
        except RowFault as fault:
            raise self._no_document(position, fault.code, fault.message) from None
        return Document(doc_id, body, position, 0, {}, endpoint)

    def _read(self, line: Line, row: int, *, first: bool) -> Document | BadRow:
        number, offset, data, length, end, last = line
        cursor = self._behind(end, number + 1, row)
        try:
            if data is None:
                raise self._too_long(length)
            record = self._parse(data, last)
            if first:
                self._check_form(record)
            doc_id, body, endpoint = self._form.read(self._with_number(record, row))
        except RowFault as fault:
            if first and rows_by_name(self.uri) is None and fault.code == "invalid_json_line":
                fault.fix = Text(
                    fault.fix,
                    "; a file of CSV whose name does not say so is read with ",
                    SetOption("format", "csv"),
                )
            return self._bad(number, fault, cursor)
        position = self._at(offset, length, row)
        return Document(doc_id, body, position, number, cursor, endpoint)

    def _parse(self, data: bytes, last: bool) -> dict[str, Any]:
        return (
            parse_surveyed(data)
            if self._surveyed
            else parse_object(data, self._form.control_keys, last=last)
        )

    def _too_long(self, length: int) -> RowFault:
        return RowFault(
            "line_too_long",
            f"The line has more than {self._max_line_bytes} bytes.",
            fix="one JSON object per line; raise max_line_bytes where documents really are larger",
            value=f"{length} bytes",
        )


def _refuse_others(uri: str, chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Refuse compressed and columnar files and JSON arrays by their first bytes.

    Each would be a million bad rows.
    """
    for index, chunk in enumerate(chunks):
        if index == 0:
            refuse_content(uri, chunk.removeprefix(BOM))
            _refuse_media(uri, chunk)
        yield chunk


def _refuse_media(uri: str, start: bytes) -> None:
    media = kind_of(start)
    if media is not None:
        folder = uri.rpartition("/")[0] or "."
        raise SourceError(
            "unsupported_format",
            f"{uri} is {media.name} ({media.modality}), not JSON Lines; images and sounds are read "
            f"as the files of a folder: write {folder}/, or a pattern such as "
            f"{folder}/*{PurePosixPath(uri).suffix}",
        )
