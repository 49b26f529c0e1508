"""The rows of a job in the order of commits, from a cursor on."""

from __future__ import annotations

from collections.abc import Iterator

from penstock_ledger import CommitOrder, Database
from penstock_ledger.model import Job
from penstock_producer.cursors import cursor_text, place_in
from penstock_producer.tables.columns import Row, Table

__all__ = ["Reading"]


class Reading:
    """The rows of a job from a cursor on, counted as they are read."""

    def __init__(self, database: Database, job: Job, after: str | None = None) -> None:
        """Raises PlaceLost and ContentError for a cursor that is not one of this job."""
        self.table = Table(job.spec)
        self.rows = 0
        self.cursor = after
        self._job_id = job.job_id
        self._after = None if after is None else place_in(job.job_id, after)
        self._order = CommitOrder(database)

    @property
    def here(self) -> str:
        """The cursor of the row that was read last."""
        if self._after is None:
            raise ValueError("nothing was read yet")
        return cursor_text(self._job_id, self._after)

    def __iter__(self) -> Iterator[Row]:
        for place, outcome in self._order.read(self._job_id, self._after, as_stored=True):
            self.rows += 1
            self._after = place
            yield self.table.row(outcome)
        if self._after is not None:
            self.cursor = self.here
