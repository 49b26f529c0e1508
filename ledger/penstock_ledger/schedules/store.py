"""Schedules: kept by name, held by one process, and moved on once per planned time.

A control process holds one while it starts a job.

``next_at`` is what makes a planned time count once: a decision is written together with the next
time, only where ``next_at`` still is the time that was decided, and the next time is always later.
A clock that steps back changes nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

import orjson
from sqlalchemy import Connection, Row, delete, func, insert, or_, select, update
from sqlalchemy.exc import IntegrityError

from penstock_ledger.errors import ScheduleExists, ScheduleNotFound, TooManySchedules
from penstock_ledger.model import JobState
from penstock_ledger.schedules.model import (
    TAKEN_MAX,
    CatchUp,
    Decision,
    DriftRule,
    Firing,
    FiringOutcome,
    NewSchedule,
    OnDrift,
    Schedule,
    ScheduleState,
)
from penstock_ledger.sql.database import Database
from penstock_ledger.sql.tables import firings, jobs, noticed_files, schedules, taken_files
from penstock_ledger.stored_values import json_text

# the control loop reads the due ones every few seconds, `schedule list` all of them
SCHEDULES_MAX: Final = 1_000
FIRINGS_KEPT: Final = 100  # of one schedule, the latest: three months of nights
FORGOTTEN_AT_ONCE: Final = 500
_LIVE: Final = tuple(str(state) for state in JobState if not state.final)


class ScheduleStore:
    """``clock`` is for tests that play the time.

    Else leases and planned times go by the database server's."""

    def __init__(self, db: Database, *, clock: Callable[[], float] | None = None) -> None:
        self._db = db
        self._clock = clock

    def now(self) -> float:
        """Return Unix seconds, on the clock by which schedules are due."""
        return self._db.read(self._now)

    def add(self, new: NewSchedule) -> Schedule:
        """Add a schedule. Raises ScheduleExists and TooManySchedules."""
        try:
            self._db.write(lambda connection: self._add(connection, new))
        except IntegrityError:
            raise ScheduleExists(new.name) from None
        return self.get(new.name)

    def get(self, name: str) -> Schedule:
        """Return a schedule by name. Raises ScheduleNotFound."""
        found = self._db.read(
            lambda one: one.execute(select(schedules).where(schedules.c.name == name)).one_or_none()
        )
        if found is None:
            raise ScheduleNotFound(name)
        return schedule_of(found)

    def of_id(self, schedule_id: str) -> Schedule:
        """Return a schedule by id. Raises ScheduleNotFound."""
        query = select(schedules).where(schedules.c.schedule_id == schedule_id)
        found = self._db.read(lambda connection: connection.execute(query).one_or_none())
        if found is None:
            raise ScheduleNotFound(schedule_id)
        return schedule_of(found)

    def firings(self, schedule_id: str, limit: int = FIRINGS_KEPT) -> list[Firing]:
        """Return the latest planned times, newest first, each with what its job is now."""
        query = (
            select(firings, jobs.c.state)
            .select_from(firings.outerjoin(jobs, firings.c.started_job == jobs.c.job_id))
            .where(firings.c.schedule_id == schedule_id)
            .order_by(firings.c.planned_at.desc())
            .limit(limit)
        )
        return [_firing_of(row) for row in self._db.rows(query)]

    def running(self, schedule_id: str) -> str | None:
        """Return the latest job of this schedule that has not ended; None when all have."""
        query = (
            select(jobs.c.job_id)
            .select_from(firings.join(jobs, firings.c.started_job == jobs.c.job_id))
            .where(firings.c.schedule_id == schedule_id, jobs.c.state.in_(_LIVE))
            .order_by(firings.c.planned_at.desc())
            .limit(1)
        )
        return self._db.read(lambda connection: connection.execute(query).scalar_one_or_none())

    def pause(self, name: str) -> bool:
        """Start no more jobs until ``resume``; False when it is paused. Raises ScheduleNotFound."""
        return self._change(name, schedules.c.paused.is_(False), paused=True, waits_for=None)

    def resume(self, name: str, next_at: float) -> bool:
        """Go on with ``next_at``, or with what is planned already where that is later.

        So no time is decided twice.

        False when it is not paused. Raises ScheduleNotFound.
        """
        later = func.max if self._db.is_sqlite else func.greatest
        fresh = {
            "next_at": later(schedules.c.next_at, next_at),
            "tries": 0,
            "retry_at": None,
            "waits_for": None,
        }
        return self._change(name, schedules.c.paused.is_(True), paused=False, **fresh)

    def remove(self, name: str) -> None:
        """Remove a schedule; its jobs stay. Raises ScheduleNotFound."""

        def forget(connection: Connection) -> int:
            found = connection.execute(
                select(schedules.c.schedule_id).where(schedules.c.name == name)
            ).scalar()
            connection.execute(delete(firings).where(firings.c.schedule_id == found))
            for files in (taken_files, noticed_files):
                connection.execute(delete(files).where(files.c.schedule_id == found))
            return connection.execute(delete(schedules).where(schedules.c.name == name)).rowcount

        if self._db.write(forget) == 0:
            raise ScheduleNotFound(name)

    def due(self) -> tuple[float, Sequence[Schedule]]:
        """Return the time, and schedules with an undecided planned time, the longest due first."""

        def look(connection: Connection) -> tuple[float, Sequence[Schedule]]:
            now = self._now(connection)
            query = (
                select(schedules)
                .where(schedules.c.next_at <= now, schedules.c.paused.is_(False))
                .where(or_(schedules.c.retry_at.is_(None), schedules.c.retry_at <= now))
                .order_by(schedules.c.next_at, schedules.c.name)
            )
            return now, [schedule_of(row) for row in connection.execute(query)]

        return self._db.read(look)

    def states(self, late_s: float) -> Mapping[ScheduleState, int]:
        """Count the schedules.

        One whose planned time came more than ``late_s`` seconds ago is late."""

        def count(connection: Connection) -> Mapping[ScheduleState, int]:
            paused, come = schedules.c.paused, schedules.c.next_at < self._now(connection) - late_s
            query = select(
                func.count().label("number"),
                func.count().filter(paused).label("paused"),
                func.count().filter(come, paused.is_(False)).label("late"),
            ).select_from(schedules)
            found = connection.execute(query).one()
            active = found.number - found.paused - found.late
            return {
                ScheduleState.ACTIVE: active,
                ScheduleState.LATE: found.late,
                ScheduleState.PAUSED: found.paused,
            }

        return self._db.read(count)

    def hold(self, schedule: Schedule, owner: str, ttl_s: float) -> bool:
        """Become or stay the one process that decides ``next_at``.

        It is False when another one does, or it is decided."""

        def lease(connection: Connection) -> bool:
            now = self._now(connection)
            free = or_(
                schedules.c.owner.is_(None),
                schedules.c.owner == owner,
                schedules.c.lease_until <= now,
            )
            query = (
                update(schedules)
                .where(*_undecided(schedule), schedules.c.paused.is_(False), free)
                .values(owner=owner, lease_until=now + ttl_s)
            )
            return connection.execute(query).rowcount == 1

        return self._db.write(lease)

    def release(self, owner: str) -> None:
        """Let others decide at once what ``owner`` holds."""
        query = (
            update(schedules).where(schedules.c.owner == owner).values(owner=None, lease_until=None)
        )
        self._db.write(lambda connection: connection.execute(query))

    def wait(
        self, schedule: Schedule, owner: str, why: str, *, retry_at: float, tried: bool = False
    ) -> None:
        """Say why the job of ``next_at`` has not started, and wait until ``retry_at``."""
        told = {"waits_for": why, "retry_at": retry_at, "owner": None, "lease_until": None}
        query = (
            update(schedules)
            .where(*_undecided(schedule), schedules.c.owner == owner)
            .values(tries=schedule.tries + int(tried), **told)
        )
        self._db.write(lambda connection: connection.execute(query))

    def decide(self, schedule: Schedule, decision: Decision) -> bool:
        """Write what came of a planned time, and plan the next.

        It is False when that was decided meanwhile."""
        return self._db.write(lambda connection: self._decide(connection, schedule, decision))

    def taken(self, schedule: Schedule, files: Sequence[bytes]) -> set[bytes]:
        """Return those of some files (or outcomes of other jobs) that jobs of this schedule have.

        At most some hundred at a time.
        """
        query = select(taken_files.c.file).where(
            taken_files.c.schedule_id == schedule.schedule_id, taken_files.c.file.in_(files)
        )
        return self._db.read(lambda connection: set(connection.execute(query).scalars()))

    def has_taken(self, schedule_id: str) -> int:
        """Return how many files jobs of this schedule have, counted up to ``TAKEN_MAX``."""
        some = (
            select(taken_files.c.file)
            .where(taken_files.c.schedule_id == schedule_id)
            .limit(TAKEN_MAX)
        )
        query = select(func.count()).select_from(some.subquery())
        return self._db.read(lambda connection: int(connection.execute(query).scalar_one()))

    def taken_between(
        self, schedule_id: str, first: bytes, before: bytes | None
    ) -> Sequence[bytes]:
        """Return the keys of taken files from ``first`` up to ``before``.

        A 256th of them for two bytes that follow one another."""
        query = select(taken_files.c.file).where(
            taken_files.c.schedule_id == schedule_id, taken_files.c.file >= first
        )
        if before is not None:
            query = query.where(taken_files.c.file < before)
        return [row.file for row in self._db.rows(query)]

    def forget_taken(self, schedule_id: str, files: Sequence[bytes]) -> None:
        """Forget files that are there no more."""

        def forget(connection: Connection) -> None:
            of_it = taken_files.c.schedule_id == schedule_id
            for start in range(0, len(files), FORGOTTEN_AT_ONCE):
                some = files[start : start + FORGOTTEN_AT_ONCE]
                connection.execute(delete(taken_files).where(of_it, taken_files.c.file.in_(some)))

        self._db.write(forget)

    def list(self, wanted: Callable[[Schedule], bool] | None = None) -> list[Schedule]:
        """Return schedules by name, those that are ``wanted``.

        Of the others one is held at a time, for their options may be large."""
        query = (
            select(schedules)
            .order_by(schedules.c.name)
            .limit(SCHEDULES_MAX)
            .execution_options(yield_per=1)
        )

        def look(connection: Connection) -> list[Schedule]:
            every = map(schedule_of, connection.execute(query))
            return [one for one in every if wanted is None or wanted(one)]

        return self._db.read(look)

    def _decide(self, connection: Connection, schedule: Schedule, decision: Decision) -> bool:
        moved = (
            update(schedules)
            .where(*_undecided(schedule), schedules.c.next_at < decision.next_at)
            .values(
                next_at=decision.next_at,
                tries=0,
                retry_at=None,
                waits_for=None,
                owner=None,
                lease_until=None,
            )
        )
        if connection.execute(moved).rowcount != 1:
            return False
        of_it = firings.c.schedule_id == schedule.schedule_id
        # the latest of them is enough, beside the jobs
        if decision.outcome is FiringOutcome.NOTHING_NEW:
            connection.execute(
                delete(firings).where(of_it, firings.c.outcome == str(decision.outcome))
            )
        connection.execute(
            insert(firings).values(
                schedule_id=schedule.schedule_id,
                planned_at=decision.planned_at,
                outcome=str(decision.outcome),
                started_job=decision.job_id,
                reason=decision.reason,
                noted_at=time.time(),
            )
        )
        if decision.taken is not None:
            row = {"schedule_id": schedule.schedule_id, "file": decision.taken}
            connection.execute(self._db.insert(taken_files).values(row).on_conflict_do_nothing())
        oldest_kept = (
            select(firings.c.planned_at)
            .where(of_it)
            .order_by(firings.c.planned_at.desc())
            .offset(FIRINGS_KEPT - 1)
            .limit(1)
        )
        connection.execute(
            delete(firings).where(of_it, firings.c.planned_at < oldest_kept.scalar_subquery())
        )
        return True

    def _add(self, connection: Connection, new: NewSchedule) -> None:
        if (
            connection.execute(select(func.count()).select_from(schedules)).scalar_one()
            >= SCHEDULES_MAX
        ):
            raise TooManySchedules(SCHEDULES_MAX)
        connection.execute(
            insert(schedules).values(
                schedule_id=new.schedule_id,
                name=new.name,
                cron=new.cron,
                timezone=new.timezone,
                spec=json_text(new.spec),
                source=json_text(new.source),
                catch_up=str(new.catch_up),
                overlap=new.overlap,
                paused=False,
                created_at=self._now(connection),
                next_at=new.next_at,
                tries=0,
                drift=None if new.drift is None else json_text(asdict(new.drift)),
            )
        )

    def _change(self, name: str, only_if: Any, **values: Any) -> bool:
        query = update(schedules).where(schedules.c.name == name, only_if).values(**values)
        if self._db.write(lambda connection: connection.execute(query).rowcount) == 1:
            return True
        self.get(name)
        return False

    def _now(self, connection: Connection) -> float:
        return self._db.now(connection) if self._clock is None else self._clock()


def _undecided(schedule: Schedule) -> tuple[Any, Any]:
    return schedules.c.schedule_id == schedule.schedule_id, schedules.c.next_at == schedule.next_at


def schedule_of(row: Row[Any]) -> Schedule:
    return Schedule(
        schedule_id=row.schedule_id,
        name=row.name,
        cron=row.cron,
        timezone=row.timezone,
        spec=orjson.loads(row.spec),
        source=orjson.loads(row.source),
        catch_up=CatchUp(row.catch_up),
        overlap=row.overlap,
        paused=row.paused,
        created_at=row.created_at,
        next_at=row.next_at,
        tries=row.tries,
        retry_at=row.retry_at,
        waits_for=row.waits_for,
        owner=row.owner,
        lease_until=row.lease_until,
        drift=None if row.drift is None else _rule(orjson.loads(row.drift)),
    )


def _firing_of(row: Row[Any]) -> Firing:
    return Firing(
        planned_at=row.planned_at,
        outcome=FiringOutcome(row.outcome),
        job_id=row.started_job,
        reason=row.reason,
        noted_at=row.noted_at,
        job_state=None if row.state is None else JobState(row.state),
        drift=None if row.drift is None else orjson.loads(row.drift),
    )


def _rule(kept: Mapping[str, Any]) -> DriftRule:
    return DriftRule(OnDrift(kept["then"]), kept["field"])
