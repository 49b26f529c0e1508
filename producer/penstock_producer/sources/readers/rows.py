"""Readers of rows share pin, limits, the form of a row, and bad rows."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from penstock_ledger.texts import Text
from penstock_producer.errors import BadReference, SourceError, seen
from penstock_producer.job.spec import JobSpec
from penstock_producer.pins import FORMAT, MEDIA_NEWEST
from penstock_producer.refusals import no_longer
from penstock_producer.rows import (
    LINE,
    ROW_ID,
    BadRow,
    Column,
    Cursor,
    Document,
    FiniteSource,
    Kinds,
    Place,
    Record,
    Tally,
)
from penstock_producer.source_formats import JSONL
from penstock_producer.sources.blobs.blob import Blob
from penstock_producer.sources.forms.media import media_of
from penstock_producer.sources.forms.media_places import MediaPlaces
from penstock_producer.sources.forms.row_forms import RowForm, form_of
from penstock_producer.sources.forms.strict_json import RowFault

# "offset:length", and the number of the row where that is its id
_POSITION = re.compile(r"(\d{1,18}):(\d{1,10})(?::(\d{1,12}))?", re.ASCII)


ROWS: Final = "rows"
"""What a cursor calls the number of rows of its file that lie before it."""


@dataclass(frozen=True, slots=True)
class RowOptions:
    """The options of readers of all formats."""

    # both limits travel in the pin: a reader with other settings must refuse the same rows
    max_line_bytes: int
    max_body_bytes: int
    form: str  # the format's name
    size: int | None  # of the pinned file, in bytes; None for one that is submitted now
    places: MediaPlaces  # where files that rows name may lie

    @property
    def surveyed(self) -> bool:
        """Return whether the survey has read these bytes.

        Rows that it refused may come as documents then, and callers drop them.
        """
        return self.size is not None


class PinnedRows(FiniteSource, ABC):
    """Rows of one blob."""

    unit = LINE
    kinds: Kinds = "by_value"

    def __init__(self, blob: Blob, spec: JobSpec, options: RowOptions) -> None:
        self.uri = blob.uri
        self._blob = blob
        self._max_line_bytes = options.max_line_bytes
        self._max_body_bytes = options.max_body_bytes
        self._surveyed = options.surveyed
        media = media_of(spec, options.places, self._max_body_bytes)
        self._form: RowForm = form_of(spec, self._max_body_bytes, media)
        self._written_as = options.form
        self._places = None if media is None else options.places
        self.id_field = spec.id_field if spec.takes_records else "custom_id"
        self._numbers_rows = self.id_field == ROW_ID

    @property
    def tally(self) -> Tally:
        return self._form.tally

    def pin(self) -> dict[str, Any]:
        limits = {"max_line_bytes": self._max_line_bytes, "max_body_bytes": self._max_body_bytes}
        return (
            self._blob.pin()
            | limits
            | ({} if self._places is None else {MEDIA_NEWEST: self._places.newest_ns})
            | ({} if self._written_as == JSONL else {FORMAT: self._written_as})
        )

    @abstractmethod
    def documents(self, cursor: Mapping[str, Any]) -> Iterator[Document | BadRow]: ...

    @abstractmethod
    def fetch(self, position: str) -> Document: ...

    @abstractmethod
    def columns(self) -> Sequence[Column] | None: ...

    @abstractmethod
    def records(self) -> Iterator[Record]: ...

    def place(self, line: int) -> Place:
        """Return the file that a row lies in, and its line there."""
        return Place(self.uri, line, self.unit)

    def _with_number(self, record: dict[str, Any], row: int) -> dict[str, Any]:
        """Give a row its number as an id, where the job asks for that."""
        if self._numbers_rows:
            record[ROW_ID] = row
        return record

    def _span(self, position: str) -> tuple[int, int, int]:
        """Return offset, length and the row's number, which is 0 where it does not matter.

        Raises BadReference for what is not the position of a document.
        """
        span = _POSITION.fullmatch(position)
        if span is None or int(span[2]) > self._max_line_bytes:
            raise BadReference(f"{seen(position)} is not the position of a document in {self.uri}")
        return int(span[1]), int(span[2]), int(span[3] or 0)

    def _at(self, begin: int, within: int, row: int) -> str:
        """Return the position of a row, from which it can be read again."""
        return f"{begin}:{within}:{row}" if self._numbers_rows else f"{begin}:{within}"

    def _behind(self, offset: int, line: int, rows: int) -> Cursor:
        """Return the cursor behind a row, of which ``rows`` are read by then."""
        cursor: Cursor = {"offset": offset, "line": line}
        return cursor | {ROWS: rows} if self._numbers_rows else cursor

    def _no_document(self, position: str, code: str, why: str = "") -> SourceError:
        """Return why a row that was surveyed is no document now."""
        gone = no_longer(code, f"{self.uri} at {position}: {code}: {why}")
        return gone or BadReference(f"{self.uri}: at {position} there is no document ({code})")

    def _check_form(self, record: Mapping[str, Any]) -> None:
        advice = self._form.mistaken_for(record)
        if advice is not None:
            public = (
                f"{self.uri}: the first row has not the form that the job asks for: batch lines go "
                "without a prompt, "
            )
            raise SourceError(
                "wrong_form",
                Text(f"{self.uri}: ", advice),
                public=public + "plain records need one",
            )

    def _bad(self, number: int, fault: RowFault, cursor: Cursor) -> BadRow:
        return replace(fault.row(self.uri, number, cursor), unit=self.unit)
