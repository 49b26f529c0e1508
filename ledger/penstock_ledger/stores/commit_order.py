"""Outcomes in the order in which they were stored, with a place after each.

Readers go on there while the job still runs.

Every outcome is read once. SQLite has one writer at a time, so its row numbers grow with the
commits. PostgreSQL gives `outcomes.seq` out while transactions run side by side, and the later
number may be committed first. So a reader takes the highest number that it sees, and then waits for
those transactions to end that write outcomes at that moment: what they have below that number is
there then, or never will be.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Row,
    Select,
    case,
    func,
    literal_column,
    select,
    text,
    tuple_,
)

from penstock_ledger.errors import OutcomesHeldBack, PlaceLost
from penstock_ledger.model import DeadLetter, Result
from penstock_ledger.sql.database import Database
from penstock_ledger.sql.sqlite_file import unindexed
from penstock_ledger.sql.tables import outcomes
from penstock_ledger.stores.outcome_rows import (
    RESULT,
    RESULT_COLUMNS,
    outcome_from,
    result_from,
    stored_from,
)

PAGE: Final = 1_000  # rows read at a time
# outcomes of all jobs that SQLite looks through for the latest of one: some hundredths of a second
LATEST_AMONG: Final = 50_000
WRITERS_WAIT_S: Final = 5.0  # a group commit takes milliseconds
WRITERS_LOOK_S: Final = 0.01  # between two looks at them

_log = logging.getLogger(__name__)

_ROWID: Final = literal_column("outcomes.rowid", BigInteger)
_SEQ: Final = literal_column("outcomes.seq", BigInteger)
_OLD: Final = 0  # `seq` of rows from before there was one
# An insert has this lock from before it gets numbers until its transaction ends.
_WRITERS: Final = text(
    "SELECT virtualtransaction FROM pg_locks WHERE locktype = 'relation' AND relation = "
    "'outcomes'::regclass AND database = (SELECT oid FROM pg_database WHERE datname = "
    "current_database()) AND mode = 'RowExclusiveLock' AND granted"
)


class Place(NamedTuple):
    """After one outcome.

    It is named as well: numbers alone mean other rows in a database that was copied."""

    number: int
    generation: int
    doc_id: str


class CommitOrder:
    """Visible outcomes of a job as they were stored."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._number: ColumnElement[int] = _ROWID if db.is_sqlite else _SEQ
        # else SQLite sorts the whole job for each page; it then reads its table in order
        self._job = unindexed(outcomes.c.job_id)

    def latest(self, job_id: str, number: int, *, body_bytes: int | None = None) -> list[Result]:
        """Return the results that were stored last, the newest first.

        Bodies of more than ``body_bytes`` stay where they are and come back empty.
        """
        whole = outcomes.c.body
        body = (
            whole
            if body_bytes is None
            else case((func.length(whole) <= body_bytes, whole), else_=b"")
        )
        query = (
            select(*(body if one is whole else one for one in RESULT_COLUMNS))
            .where(self._job == job_id, outcomes.c.superseded_by.is_(None))
            .where(outcomes.c.kind == RESULT)
            .order_by(self._number.desc())
            .limit(number)
        )
        if self._db.is_sqlite:  # whose order has no index by job
            newest = select(func.max(_ROWID)).select_from(outcomes).scalar_subquery()
            query = query.where(newest - LATEST_AMONG < _ROWID)
        return [result_from(row) for row in self._db.rows(query)]

    def last(self, job_id: str) -> Place | None:
        """Return the place behind all outcomes of a job that has ended; None where it has none."""
        key = (outcomes.c.generation, outcomes.c.doc_id, self._number.label("number"))
        query = (
            select(*key)
            .where(self._job == job_id, outcomes.c.superseded_by.is_(None))
            .order_by(self._number.desc())
            .limit(1)
        )
        row: Any = self._db.read(lambda connection: connection.execute(query).first())
        return None if row is None else _place(row)

    def read(
        self,
        job_id: str,
        after: Place | None = None,
        *,
        letters: bool = True,
        as_stored: bool = False,
        whole: bool = False,
        page: int = PAGE,
    ) -> Iterator[tuple[Place, Result | DeadLetter]]:
        """Yield all that was stored before the call and lies after ``after``.

        Raises PlaceLost when that is no place of the job.

        ``letters`` is whether dead letters are wanted; ``as_stored`` leaves embeddings as
        vectors.py packs them. While a transaction may still commit earlier outcomes nothing is
        read; ``whole`` raises OutcomesHeldBack then.
        """
        if after is not None:
            self._check(job_id, after)
        try:
            end = self._end(job_id)
        except OutcomesHeldBack as error:
            if whole:
                raise
            _log.warning("%s", error)
            return
        if end is None:
            return
        make = stored_from if as_stored else outcome_from
        conditions = (
            outcomes.c.superseded_by.is_(None),
            *(() if letters else (outcomes.c.kind == RESULT,)),
        )
        query = (
            select(outcomes, self._number.label("number"))
            .where(self._job == job_id, *conditions)
            .limit(page)
        )
        number = self._lowest(job_id) - 1 if after is None else after.number
        if number <= _OLD:
            number = _OLD
            yield from self._old(query, after, page, make)
        query = query.where(self._number <= end).order_by(self._number)
        rows = self._db.rows(query.where(self._number > number))
        while rows:
            yield from ((_place(row), make(row)) for row in rows)
            behind = query.where(self._number > rows[-1].number)
            rows = self._db.rows(behind) if len(rows) == page else []

    def _old(
        self,
        query: Select[Any],
        after: Place | None,
        page: int,
        make: Callable[[Row[Any]], Result | DeadLetter],
    ) -> Iterator[tuple[Place, Result | DeadLetter]]:
        """Yield rows from before there were numbers, by their keys: no more of them come."""
        if self._db.is_sqlite:
            return
        query = query.where(self._number == _OLD).order_by(outcomes.c.generation, outcomes.c.doc_id)
        while True:
            rows = self._db.rows(query if after is None else query.where(_beyond(after)))
            yield from ((_place(row), make(row)) for row in rows)
            if len(rows) < page:
                return
            after = _place(rows[-1])

    def _lowest(self, job_id: str) -> int:
        """Return where the job begins: what lies before it in SQLite's table need not be read."""
        lowest = (
            select(func.min(self._number)).select_from(outcomes).where(outcomes.c.job_id == job_id)
        )
        return int(self._db.rows(lowest)[0][0] or _OLD)

    def _check(self, job_id: str, place: Place) -> None:
        named = (
            select(self._number)
            .select_from(outcomes)
            .where(
                outcomes.c.job_id == job_id,
                outcomes.c.generation == place.generation,
                outcomes.c.doc_id == place.doc_id,
            )
        )
        found = self._db.rows(named)
        if not found or found[0][0] != place.number:
            raise PlaceLost(job_id)

    def _end(self, job_id: str) -> int | None:
        """Return the highest number below which no further row of the job will appear.

        It is None when there is none at all.

        Raises OutcomesHeldBack.
        """
        highest = (
            select(self._number)
            .select_from(outcomes)
            .where(self._job == job_id)
            .order_by(self._number.desc())
            .limit(1)
        )
        rows = self._db.rows(highest)
        if not rows or self._db.is_sqlite:
            return rows[0][0] if rows else None
        end: int = rows[0][0]
        until = time.monotonic() + WRITERS_WAIT_S
        writers = self._writers()
        while writers:
            if time.monotonic() > until:
                raise OutcomesHeldBack(job_id, WRITERS_WAIT_S)
            time.sleep(WRITERS_LOOK_S)
            writers &= self._writers()
        return end

    def _writers(self) -> set[str]:
        return self._db.read(lambda connection: set(connection.execute(_WRITERS).scalars()))


def _beyond(place: Place) -> ColumnElement[bool]:
    return tuple_(outcomes.c.generation, outcomes.c.doc_id) > (place.generation, place.doc_id)


def _place(row: Row[Any]) -> Place:
    return Place(row.number, row.generation, row.doc_id)
