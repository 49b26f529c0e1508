"""Outcomes of a job in the order of commits: as rows of a table, or as output lines.

They are read from a cursor on, which is one text that a reader can keep anywhere.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import orjson

from penstock_ledger import CommitOrder, Database, Place
from penstock_ledger.errors import PlaceLost
from penstock_ledger.model import DeadLetter, Job, Result
from penstock_producer.errors import ContentError, seen
from penstock_producer.outputs import output_line
from penstock_producer.tables.columns import Column, Row, Table

__all__ = ["Committed", "Lines", "Reading", "end_of", "place_in"]

VERSION = 1
MAX_CHARS = 2_000  # an id of a document has at most 512 bytes


class Committed(NamedTuple):
    """One outcome of a stream, and its place in it."""

    outcome: Result | DeadLetter
    place: Place

    @property
    def cursor(self) -> str:
        """Give it as ``after`` to go on behind this outcome.

        Keep it together with what was made of the outcome."""
        return cursor_text(self.outcome.key.job_id, self.place)


def cursor_text(job_id: str, place: Place) -> str:
    return urlsafe_b64encode(orjson.dumps([VERSION, job_id, *place])).decode().rstrip("=")


def place_in(job_id: str, cursor: str) -> Place:
    """Return the place of a cursor.

    Raises ContentError for a text that is no cursor, PlaceLost for one of another job.
    """
    try:
        raw = urlsafe_b64decode(cursor[:MAX_CHARS] + "=" * (-len(cursor) % 4))
        version, its_job, number, generation, doc_id = orjson.loads(raw)
        if version != VERSION or not (isinstance(number, int) and isinstance(generation, int)):
            raise ValueError("of another kind")
    except (ValueError, TypeError):
        message = f"{seen(cursor)} is not a cursor; give one that a reading has returned"
        raise ContentError("invalid_cursor", message) from None
    if its_job != job_id:
        raise PlaceLost(job_id)
    return Place(number, generation, str(doc_id))


def end_of(database: Database, job: Job) -> str | None:
    """Return the cursor behind the last outcome of a job that gets no more; None without any."""
    place = CommitOrder(database).last(job.job_id)
    return None if place is None else cursor_text(job.job_id, place)


class _FromCursor:
    """Counts what is read, and knows where it is."""

    def __init__(
        self, database: Database, job: Job, after: str | None = None, *, whole: bool = False
    ) -> None:
        """Begin at a cursor, or at the first outcome.

        ``whole`` is for readers that must not stop before the end: reading raises OutcomesHeldBack
        instead.

        Raises PlaceLost and ContentError for a cursor that is not one of this job.
        """
        self.number = 0
        self._whole = whole
        self._job_id = job.job_id
        self._place: Place | None = None if after is None else place_in(job.job_id, after)
        self._order = CommitOrder(database)

    @property
    def cursor(self) -> str | None:
        """To go on behind what was read last; the one that was given before anything was."""
        return None if self._place is None else cursor_text(self._job_id, self._place)

    def _read(self, *, letters: bool, as_stored: bool) -> Iterator[Result | DeadLetter]:
        read = self._order.read(
            self._job_id, self._place, letters=letters, as_stored=as_stored, whole=self._whole
        )
        for self._place, outcome in read:
            self.number += 1
            yield outcome


class Reading(_FromCursor):
    """A row for each outcome."""

    def __init__(
        self,
        database: Database,
        job: Job,
        after: str | None = None,
        *,
        whole: bool = False,
        letter: Callable[[DeadLetter], DeadLetter] | None = None,
    ) -> None:
        """``letter``: a dead letter as its reader may see it; None for as it is."""
        super().__init__(database, job, after, whole=whole)
        self.table = Table(job.spec)
        self._letter = letter

    @property
    def columns(self) -> Sequence[Column]:
        return self.table.columns

    def __iter__(self) -> Iterator[Row]:
        for outcome in self._read(letters=True, as_stored=True):
            if self._letter is not None and isinstance(outcome, DeadLetter):
                yield self.table.row(self._letter(outcome))
            else:
                yield self.table.row(outcome)


class Lines(_FromCursor):
    """An output line for each result."""

    def __iter__(self) -> Iterator[bytes]:
        return (
            output_line(one)
            for one in self._read(letters=False, as_stored=False)
            if isinstance(one, Result)
        )
