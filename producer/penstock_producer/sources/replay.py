"""Dead letters that are being replayed: their stored requests, with the replay's overrides applied.

The ledger yields letters in the order of their ids, and which letters a replay has never changes: a
cursor is the last id read, and a position is the id before the document.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from penstock_ledger import OutcomeStore
from penstock_ledger.model import DeadLetter, Feed
from penstock_producer.errors import SourceChanged
from penstock_producer.rows import BadRow, Cursor, Document
from penstock_producer.sources.forms.strict_json import RowFault
from penstock_producer.sources.overrides import Overrides

KIND = "replay"


class ReplaySource:
    """The dead letters that one replay generation supersedes."""

    def __init__(self, feed: Feed, outcomes: OutcomeStore) -> None:
        self._feed = feed
        self._outcomes = outcomes
        self._overrides = Overrides.accepted(feed.overrides)

    def pin(self) -> dict[str, Any]:
        return {"kind": KIND, "job_id": self._feed.job_id, "generation": self._feed.generation}

    def documents(self, cursor: Mapping[str, Any]) -> Iterator[Document | BadRow]:
        before = str(cursor.get("after", ""))
        for letter in self._outcomes.replayable(
            self._feed.job_id, self._feed.generation, after=before
        ):
            yield self._read(letter, before)
            before = letter.key.doc_id

    def ended(self) -> bool:
        return True

    def fetch(self, position: str) -> Document:
        letters = self._outcomes.replayable(
            self._feed.job_id, self._feed.generation, after=position, page=1
        )
        for letter in letters:
            document = self._read(letter, position)
            if isinstance(document, Document):
                return document
            break
        raise SourceChanged(
            f"the dead letter after {position!r} of {self._feed.job_id} is gone; restore the "
            "database"
        )

    def mark_published(self, documents: Sequence[Document]) -> None:
        """Nothing to remember: the cursor is enough."""

    def _read(self, letter: DeadLetter, position: str) -> Document | BadRow:
        doc_id = letter.key.doc_id
        cursor: Cursor = {"after": doc_id}
        try:
            if not letter.request:
                raise RowFault(
                    letter.reason, letter.last_error, fix="correct the row and submit it again"
                )
            body = self._overrides.apply(
                letter.request, self._original(doc_id) if self._overrides.restores else b""
            )
        except RowFault as fault:
            line = letter.line or 0
            return BadRow(
                "replay",
                line,
                fault.code,
                fault.field,
                fault.message,
                fault.value,
                fault.fix,
                doc_id,
                cursor,
                letter.request,
                endpoint=letter.endpoint,
            )
        return Document(doc_id, body, position, letter.line or 0, cursor, letter.endpoint)

    def _original(self, doc_id: str) -> bytes:
        """The request before the first replay: a document that is replayed has a dead letter in the
        first generation."""
        first = self._outcomes.of_generation(self._feed.job_id, 1, doc_id)
        return first.request if isinstance(first, DeadLetter) else b""
