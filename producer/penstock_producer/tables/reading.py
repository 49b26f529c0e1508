"""Outcomes of a job in the order of commits, from a cursor on: as rows of a table, or as output
lines."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from penstock_ledger import CommitOrder, Database, Place
from penstock_ledger.model import DeadLetter, Job, Result
from penstock_producer.outputs import output_line
from penstock_producer.tables.columns import Row, Table
from penstock_producer.tables.cursors import cursor_text, place_in

__all__ = ["Lines", "Reading"]


class _FromCursor:
    """Counts what is read, and knows where it is."""

    def __init__(
        self, database: Database, job: Job, after: str | None = None, *, whole: bool = False
    ) -> None:
        """``whole`` for readers that must not stop before the end: reading raises OutcomesHeldBack
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
