"""JSON Lines over any blob: OpenAI Batch lines or plain records, each line a document or a bad row."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from penstock_producer.errors import BadReference, SourceError, seen
from penstock_producer.job.sizes import DEFAULT_MAX_BODY_BYTES, DEFAULT_MAX_LINE_BYTES
from penstock_producer.job.spec import JobSpec
from penstock_producer.rows import BadRow, Cursor, Document
from penstock_producer.sources.blob import Blob
from penstock_producer.sources.convert import refuse_content
from penstock_producer.sources.forms import RowForm, form_of
from penstock_producer.sources.lines import BOM, Line, split_lines
from penstock_producer.sources.strict_json import RowFault, parse_object, parse_surveyed

_POSITION = re.compile(r"(\d{1,18}):(\d{1,10})", re.ASCII)  # "offset:length"


class JsonlSource:
    """Documents of one JSONL blob. A position is "offset:length" in bytes, a cursor the next line's offset and number.

    ``max_line_bytes`` and ``max_body_bytes`` travel in the pin: a reader with other settings must refuse the same lines.
    ``surveyed`` says that the survey has read these bytes: rows that it refused may come as documents, and callers drop
    them by their lines.
    """

    def __init__(
        self,
        blob: Blob,
        spec: JobSpec,
        *,
        max_line_bytes: int = DEFAULT_MAX_LINE_BYTES,
        max_body_bytes: int = DEFAULT_MAX_BODY_BYTES,
        surveyed: bool = False,
    ) -> None:
        self.uri = blob.uri
        self._blob = blob
        self._form: RowForm = form_of(spec, max_body_bytes)
        self._max_line_bytes = max_line_bytes
        self._max_body_bytes = max_body_bytes
        self._surveyed = surveyed
        self.id_field = "custom_id" if spec.prompt is None else spec.id_field

    def pin(self) -> dict[str, Any]:
        return self._blob.pin() | {"max_line_bytes": self._max_line_bytes, "max_body_bytes": self._max_body_bytes}

    def documents(self, cursor: Mapping[str, Any]) -> Iterator[Document | BadRow]:
        offset, number = int(cursor.get("offset", 0)), int(cursor.get("line", 1))
        first = offset == 0
        chunks = _refuse_others(self.uri, self._blob.chunks(offset)) if first else self._blob.chunks(offset)
        for line in split_lines(chunks, offset=offset, number=number, max_line_bytes=self._max_line_bytes):
            data = line[2]
            if data is not None and (not data or data.isspace()):
                continue
            yield self._read(line, first=first)
            first = False

    def fetch(self, position: str) -> Document:
        """Raises BadReference for a position that the survey cannot have given: the pinned bytes have not changed."""
        span = _POSITION.fullmatch(position)
        if span is None or int(span[2]) > self._max_line_bytes:
            raise BadReference(f"{seen(position)} is not the position of a document in {self.uri}")
        offset, length = int(span[1]), int(span[2])
        data = self._blob.read(offset, length)
        try:
            doc_id, body = self._form.read(parse_object(data, self._form.control_keys))
        except RowFault as fault:
            raise BadReference(f"{self.uri}: at {position} there is no document ({fault.code})") from None
        return Document(doc_id, body, position, 0, {})

    def ended(self) -> bool:
        return True

    def mark_published(self, documents: Sequence[Document]) -> None:
        """Nothing to remember: the cursor is the memory of a file."""

    def _read(self, line: Line, *, first: bool) -> Document | BadRow:
        number, offset, data, length, end, last = line
        cursor: Cursor = {"offset": end, "line": number + 1}
        try:
            if data is None:
                raise self._too_long(length)
            record = self._parse(data, last)
            if first:
                self._check_form(record)
            doc_id, body = self._form.read(record)
        except RowFault as fault:
            return self._bad(number, fault, cursor)
        return Document(doc_id, body, f"{offset}:{length}", number, cursor)

    def _parse(self, data: bytes, last: bool) -> dict[str, Any]:
        return parse_surveyed(data) if self._surveyed else parse_object(data, self._form.control_keys, last=last)

    def _check_form(self, record: Mapping[str, Any]) -> None:
        advice = self._form.mistaken_for(record)
        if advice is not None:
            public = (
                f"{self.uri}: the first row has not the form that the job asks for: batch lines go without a prompt, "
            )
            raise SourceError("wrong_form", f"{self.uri}: {advice}", public=public + "plain records need one")

    def _too_long(self, length: int) -> RowFault:
        return RowFault(
            "line_too_long",
            f"The line has more than {self._max_line_bytes} bytes.",
            fix="one JSON object per line; raise max_line_bytes where documents really are larger",
            value=f"{length} bytes",
        )

    def _bad(self, number: int, fault: RowFault, cursor: Cursor) -> BadRow:
        return BadRow(
            self.uri, number, fault.code, fault.field, fault.message, fault.value, fault.fix, fault.doc_id, cursor
        )


def _refuse_others(uri: str, chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Refuse compressed and columnar files and JSON arrays by their first bytes: each would be a million bad rows."""
    for index, chunk in enumerate(chunks):
        if index == 0:
            refuse_content(uri, chunk.removeprefix(BOM))
        yield chunk
