"""Runs of schedules: their figures, and how each compares with the run before.

A run is compared once: the row of its planned time is written only while nothing is in it, together
with the event for webhooks and the pause of its schedule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple, TypeVar

import orjson
from sqlalchemy import Connection, Float, and_, case, cast, func, select, update

from penstock_ledger.door_stores.events import note_event
from penstock_ledger.model import JobState
from penstock_ledger.schedules.model import Schedule
from penstock_ledger.schedules.store import schedule_of
from penstock_ledger.sql.database import Database
from penstock_ledger.sql.tables import firings, jobs, outcomes, schedules
from penstock_ledger.stored_values import json_text

_ENDED: Final = tuple(str(state) for state in JobState if state.final)
_WITHHELD: Final = ("content_filter", "refusal")  # finish reasons of answers that were not given
_CUT: Final = "length"
DRIFTED: Final = "job.drifted"
BODIES_AT_ONCE: Final = 100

Answers = Iterator[tuple[str | None, bytes]]  # endpoint, where it is not the job's, and body
T = TypeVar("T")


class Spread(NamedTuple):
    """A figure over documents: how many have it, their sum, and the sum of their squares."""

    number: int
    total: float
    squares: float


class RunFigures(NamedTuple):
    """The visible outcomes of a job, added up."""

    documents: int
    dead: int
    withheld: int  # results without an answer, by the provider's filter or the model's refusal
    cut: int  # results that ended at the limit of their length
    tokens: Spread  # of answers
    cost: Spread  # of documents, in millionths of a dollar


class Run(NamedTuple):
    """A run that has ended and is not compared yet."""

    schedule: Schedule
    planned_at: float
    job_id: str
    state: JobState
    tenant: str | None
    before: str | None  # the job of the run before, the latest that is complete


class RunStore:
    """Raises DatabaseUnavailable."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def next_to_compare(self) -> Run | None:
        """Return the run that ended first of those that are to be compared."""

        def look(connection: Connection) -> Run | None:
            row = connection.execute(_NEXT_TO_COMPARE).one_or_none()
            if row is None:
                return None
            earlier = (
                select(jobs.c.job_id)
                .select_from(_STARTED)
                .where(
                    firings.c.schedule_id == row.schedule_id,
                    firings.c.planned_at < row.planned_at,
                    jobs.c.state == str(JobState.COMPLETED),
                )
                .order_by(firings.c.planned_at.desc())
                .limit(1)
            )
            return Run(
                schedule_of(row),
                row.planned_at,
                row.job_id,
                JobState(row.state),
                row.tenant,
                connection.execute(earlier).scalar_one_or_none(),
            )

        return self._db.read(look)

    def is_to_compare(self, schedule_id: str) -> str | None:
        """Return a job of this schedule that has ended and is not compared yet."""
        query = (
            select(jobs.c.job_id)
            .select_from(_STARTED)
            .where(*_UNCOMPARED, firings.c.schedule_id == schedule_id)
            .limit(1)
        )
        return self._db.read(lambda connection: connection.execute(query).scalar_one_or_none())

    def comparison_of(self, job_id: str) -> dict[str, Any] | None:
        """Return how a job compares with the run before; None where it was not compared."""
        query = (
            select(firings.c.drift)
            .where(firings.c.started_job == job_id, firings.c.drift.is_not(None))
            .limit(1)
        )
        found = self._db.read(lambda connection: connection.execute(query).scalar_one_or_none())
        return None if found is None else dict(orjson.loads(found))

    def figures(self, job_id: str) -> RunFigures:
        """Add up a job's outcomes: one walk over them, a second for a million."""
        columns = outcomes.c
        is_result = columns.kind == "result"
        tokens, cost = columns.completion_tokens, columns.cost_microusd
        query = select(
            func.count(),
            _number(columns.kind == "dead"),
            _number(and_(is_result, columns.finish_reason.in_(_WITHHELD))),
            _number(and_(is_result, columns.finish_reason == _CUT)),
            *_spread(tokens, and_(is_result, tokens.is_not(None), columns.reason.is_(None))),
            *_spread(cost, columns.reason.is_(None)),
        ).where(columns.job_id == job_id, columns.superseded_by.is_(None))
        found = self._db.read(lambda connection: connection.execute(query).one())
        documents, dead, withheld, cut, *spreads = found
        return RunFigures(
            documents,
            int(dead),
            int(withheld),
            int(cut),
            Spread(*spreads[:3]),
            Spread(*spreads[3:]),
        )

    def over_answers(self, job_id: str, most: int, count: Callable[[Answers], T]) -> T:
        """Return what ``count`` makes of the results; of more than ``most``, of some by chance."""
        columns = outcomes.c
        which = (
            select(columns.generation, columns.doc_id)
            .where(
                columns.job_id == job_id,
                columns.kind == "result",
                columns.superseded_by.is_(None),
            )
            .order_by(func.random())
            .limit(most)
            .subquery()
        )
        query = (
            select(columns.endpoint, columns.body)
            .select_from(
                outcomes.join(
                    which,
                    and_(
                        columns.generation == which.c.generation, columns.doc_id == which.c.doc_id
                    ),
                )
            )
            .where(columns.job_id == job_id)
            .execution_options(yield_per=BODIES_AT_ONCE)
        )
        return self._db.read(
            lambda connection: count(
                (row.endpoint, row.body) for row in connection.execute(query) if row.body
            )
        )

    def write(self, run: Run, comparison: Mapping[str, Any], *, moved: bool, pauses: bool) -> bool:
        """Write a comparison down; False where another process was first.

        With ``moved`` it is an event for webhooks, and with ``pauses`` the schedule pauses."""
        query = (
            update(firings)
            .where(
                firings.c.schedule_id == run.schedule.schedule_id,
                firings.c.planned_at == run.planned_at,
                firings.c.drift.is_(None),
            )
            .values(drift=json_text(dict(comparison)))
        )
        pause = (
            update(schedules)
            .where(schedules.c.schedule_id == run.schedule.schedule_id)
            .values(paused=True, waits_for=None)
        )

        def note(connection: Connection) -> bool:
            if connection.execute(query).rowcount != 1:
                return False
            if moved:
                note_event(connection, run.tenant, DRIFTED, run.job_id)
            if pauses:
                connection.execute(pause)
            return True

        return self._db.write(note)


_STARTED: Final = firings.join(jobs, firings.c.started_job == jobs.c.job_id)
# else the firings of all schedules are looked through
_COMPARES: Final = select(schedules.c.schedule_id).where(schedules.c.drift.is_not(None))
_UNCOMPARED: Final = firings.c.drift.is_(None), jobs.c.state.in_(_ENDED)
_NEXT_TO_COMPARE: Final = (
    select(schedules, firings.c.planned_at, jobs.c.job_id, jobs.c.state, jobs.c.tenant)
    .select_from(_STARTED.join(schedules, schedules.c.schedule_id == firings.c.schedule_id))
    .where(*_UNCOMPARED, firings.c.schedule_id.in_(_COMPARES))
    .order_by(jobs.c.finished_at)
    .limit(1)
)


def _number(holds: Any) -> Any:
    return func.coalesce(func.sum(case((holds, 1), else_=0)), 0)


def _spread(figure: Any, counts: Any) -> tuple[Any, Any, Any]:
    value = cast(case((counts, figure), else_=0), Float)
    return (
        _number(counts),
        func.coalesce(func.sum(value), 0.0),
        func.coalesce(func.sum(value * value), 0.0),
    )
