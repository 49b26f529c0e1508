"""JSON Lines over any blob: OpenAI Batch lines or plain records."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any

from penstock_ledger.texts import SetOption, Text
from penstock_producer.errors import SourceError
from penstock_producer.rows import BadRow, Cursor, Document
from penstock_producer.sources.blobs.blob import BOM, Line, split_lines
from penstock_producer.sources.blobs.detect import refuse_content, rows_by_name
from penstock_producer.sources.forms.media import kind_of
from penstock_producer.sources.forms.strict_json import RowFault, parse_object, parse_surveyed
from penstock_producer.sources.readers.rows import PinnedRows


class JsonlSource(PinnedRows):
    """Documents of one JSONL blob.

    A position is "offset:length" in bytes, a cursor the next line's offset and number."""

    def documents(self, cursor: Mapping[str, Any]) -> Iterator[Document | BadRow]:
        offset, number = int(cursor.get("offset", 0)), int(cursor.get("line", 1))
        first = offset == 0
        chunks = (
            _refuse_others(self.uri, self._blob.chunks(offset))
            if first
            else self._blob.chunks(offset)
        )
        for line in split_lines(
            chunks, offset=offset, number=number, max_line_bytes=self._max_line_bytes
        ):
            data = line[2]
            if data is not None and (not data or data.isspace()):
                continue
            yield self._read(line, first=first)
            first = False

    def fetch(self, position: str) -> Document:
        """Read one document.

        Raises BadReference for a position that the survey cannot have given: the pinned bytes have
        not changed.
        """
        offset, length = self._span(position)
        data = self._blob.read(offset, length)
        try:
            doc_id, body, endpoint = self._form.read(parse_object(data, self._form.control_keys))
        except RowFault as fault:
            raise self._no_document(position, fault.code, fault.message) from None
        return Document(doc_id, body, position, 0, {}, endpoint)

    def _read(self, line: Line, *, first: bool) -> Document | BadRow:
        number, offset, data, length, end, last = line
        cursor: Cursor = {"offset": end, "line": number + 1}
        try:
            if data is None:
                raise self._too_long(length)
            record = self._parse(data, last)
            if first:
                self._check_form(record)
            doc_id, body, endpoint = self._form.read(record)
        except RowFault as fault:
            if first and rows_by_name(self.uri) is None and fault.code == "invalid_json_line":
                fault.fix = Text(
                    fault.fix,
                    "; a file of CSV whose name does not say so is read with ",
                    SetOption("format", "csv"),
                )
            return self._bad(number, fault, cursor)
        return Document(doc_id, body, f"{offset}:{length}", number, cursor, endpoint)

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
