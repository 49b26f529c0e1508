"""The spool of an open job: documents that services pushed, stored in SQL until they are fed.

The spool itself remembers what was fed, so its cursor is empty. A position is the row's number.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from penstock_ledger import JobStore, Spool
from penstock_producer.errors import BadReference, SourceChanged, seen
from penstock_producer.rows import BadRow, Document

KIND = "spool"
PIN = {"kind": KIND}
_NUMBER = re.compile(r"\d{1,18}", re.ASCII)
_ROWS_PER_TAKE = 500  # a few megabytes of bodies at most in memory, one query for each


class SpoolSource:
    """What is in the spool of one job and not yet fed."""

    def __init__(self, job_id: str, spool: Spool, jobs: JobStore) -> None:
        self._job_id = job_id
        self._spool = spool
        self._jobs = jobs
        self._ended = False

    def pin(self) -> dict[str, Any]:
        return dict(PIN)

    def documents(self, cursor: Mapping[str, Any]) -> Iterator[Document | BadRow]:
        """One group of rows.

        Ask again once they are marked as published: until then they would come again."""
        # In this order: a job that was closed before the rows were counted gets no more of them.
        closed = self._jobs.get(self._job_id).total is not None
        rows = self._spool.take(self._job_id, _ROWS_PER_TAKE)
        for row in rows:
            yield Document(row.doc_id, row.body, str(row.seq), row.seq, {})
        self._ended = closed and len(rows) < _ROWS_PER_TAKE

    def ended(self) -> bool:
        return self._ended

    def fetch(self, position: str) -> Document:
        if _NUMBER.fullmatch(position) is None:
            raise BadReference(f"{seen(position)} is not a row of the spool of {self._job_id}")
        row = self._spool.fetch(self._job_id, int(position))
        if row is None:
            raise SourceChanged(
                f"row {position} of the spool of {self._job_id} is gone; restore the database"
            )
        return Document(row.doc_id, row.body, position, row.seq, {})

    def mark_published(self, documents: Sequence[Document]) -> None:
        self._spool.mark_fed(self._job_id, [document.line for document in documents])
