"""Batches of the HTTP doors: one row each, moved by compare-and-set.

Its caller creates and cancels a batch. Everything else is a step, done by one process at a time
under a lease on the database's clock; each lease has a fence of its own, so that a process which
was frozen in a step cannot write afterwards.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from typing import Any, Final

import orjson
from sqlalchemy import (
    ColumnElement,
    Connection,
    Float,
    Integer,
    Row,
    Select,
    and_,
    bindparam,
    delete,
    func,
    literal,
    or_,
    select,
    tuple_,
    update,
)

from penstock_ledger.door_stores.events import note_event
from penstock_ledger.door_stores.whose import Whose
from penstock_ledger.model import JobState
from penstock_ledger.sql.database import Database
from penstock_ledger.sql.tables import door_batches, jobs, tallies
from penstock_ledger.stored_values import json_text

__all__ = [
    "LIVE",
    "BatchPage",
    "BatchesAsked",
    "DoorBatch",
    "DoorBatchState",
    "DoorBatchStore",
    "LeasedBatch",
    "NewDoorBatch",
]


class DoorBatchState(StrEnum):
    """OpenAI's words. The first four are live."""

    VALIDATING = "validating"
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"
    CANCELLING = "cancelling"
    COMPLETED = "completed"
    FAILED = "failed"
    EXPIRED = "expired"
    CANCELLED = "cancelled"

    @property
    def final(self) -> bool:
        return self not in LIVE


LIVE: Final = (
    DoorBatchState.VALIDATING,
    DoorBatchState.IN_PROGRESS,
    DoorBatchState.FINALIZING,
    DoorBatchState.CANCELLING,
)


@dataclass(frozen=True, slots=True)
class NewDoorBatch:
    """A batch as its caller asks for it."""

    batch_id: str
    kind: str  # 'openai' or 'anthropic'
    tenant: str | None
    endpoint: str
    input_file_id: str
    window_s: float  # from its creation to its end
    metadata: Mapping[str, str] | None = None
    output_expires_s: float | None = None
    counts: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DoorBatch:
    """A row, as it is."""

    batch_id: str
    kind: str
    tenant: str | None
    job_id: str | None
    endpoint: str
    input_file_id: str
    window_s: float
    output_expires_s: float | None
    metadata: dict[str, str] | None
    state: DoorBatchState
    errors: list[dict[str, Any]] | None
    counts: dict[str, int]  # shown last: they never go back
    usage: dict[str, Any] | None
    model: str | None
    output_file_id: str | None  # of a batch that has not ended: the id that its file will have
    error_file_id: str | None
    created_at: float
    expires_at: float
    times: Mapping[DoorBatchState, float]  # when it came into each state; none for `validating`

    @property
    def of_anthropic(self) -> bool:
        return self.kind == "anthropic"


@dataclass(frozen=True, slots=True)
class LeasedBatch:
    """A batch that one process brings forward."""

    batch: DoorBatch
    fence: int


@dataclass(frozen=True, slots=True)
class BatchesAsked:
    """A page of batches to read: of whom, and from where on, the newest first."""

    kind: str
    limit: int
    whose: Whose
    after: str | None = None  # the id before the first one
    before: str | None = None  # the id behind the last one


@dataclass(frozen=True, slots=True)
class BatchPage:
    batches: Sequence[DoorBatch]
    has_more: bool


_JSON: Final = ("metadata", "errors", "counts", "usage")
_RUNNING: Final = (str(JobState.RUNNING), str(JobState.PAUSED))
_ENDED: Final = tuple(str(state) for state in JobState if state.final)
_MAY_CANCEL: Final = (DoorBatchState.VALIDATING, DoorBatchState.IN_PROGRESS)


class DoorBatchStore:
    def __init__(self, db: Database) -> None:
        self._db = db

    def add(self, new: NewDoorBatch) -> tuple[DoorBatch, bool]:
        """Return the batch, and whether it is new: an id that is there already keeps its row."""

        def insert(connection: Connection) -> tuple[DoorBatch, bool]:
            now = self._db.now(connection)
            values = {
                "batch_id": new.batch_id,
                "kind": new.kind,
                "tenant": new.tenant,
                "endpoint": new.endpoint,
                "input_file_id": new.input_file_id,
                "window_s": new.window_s,
                "metadata": _text(new.metadata),
                "output_expires_s": new.output_expires_s,
                "state": str(DoorBatchState.VALIDATING),
                "counts": _text(dict(new.counts)),
                "created_at": now,
                "expires_at": now + new.window_s,
                "fence": 0,
            }
            statement = self._db.insert(door_batches).values(values).on_conflict_do_nothing()
            is_new = connection.execute(statement).rowcount == 1
            row = connection.execute(_of(new.batch_id)).one()
            return _batch_of(row), is_new

        return self._db.write(insert, named=True)

    def get(self, batch_id: str) -> DoorBatch | None:
        row = self._db.read(lambda connection: connection.execute(_of(batch_id)).one_or_none())
        return None if row is None else _batch_of(row)

    def page(self, asked: BatchesAsked) -> BatchPage | None:
        """Return a page; None where the batch that it begins or ends with is not there."""
        edge = asked.after or asked.before
        place = tuple_(door_batches.c.created_at, door_batches.c.batch_id)
        theirs = asked.whose.holds(door_batches.c.tenant)
        query = (
            select(door_batches)
            .where(door_batches.c.kind == asked.kind, theirs)
            .limit(asked.limit + 1)
        )

        def look(connection: Connection) -> Sequence[Row[Any]] | None:
            wanted = query
            if edge is not None:
                found = connection.execute(_of(edge).where(theirs)).one_or_none()
                if found is None:
                    return None
                there = tuple_(literal(found.created_at), literal(edge))
                wanted = wanted.where(place < there if asked.after else place > there)
            order = (door_batches.c.created_at, door_batches.c.batch_id)
            backwards = asked.after is None and asked.before is not None
            return connection.execute(
                wanted.order_by(*(one if backwards else one.desc() for one in order))
            ).all()

        rows = self._db.read(look)
        if rows is None:
            return None
        batches = [_batch_of(row) for row in rows[: asked.limit]]
        if asked.after is None and asked.before is not None:
            batches.reverse()
        return BatchPage(batches, len(rows) > asked.limit)

    def refused(self, whose: Whose, limit: int) -> list[DoorBatch]:
        """Return those that failed before they had a job, the newest first."""
        query = (
            select(door_batches)
            .where(
                door_batches.c.state == str(DoorBatchState.FAILED),
                door_batches.c.job_id.is_(None),
                whose.holds(door_batches.c.tenant),
            )
            .order_by(door_batches.c.created_at.desc(), door_batches.c.batch_id.desc())
            .limit(limit)
        )
        return [_batch_of(row) for row in self._db.read(lambda one: one.execute(query).all())]

    def cancel(self, batch_id: str) -> DoorBatch | None:
        """Ask for it; the batch as it is then.

        One that has ended, or is being written, stays as it is."""

        def ask(connection: Connection) -> Row[Any] | None:
            statement = (
                update(door_batches)
                .where(
                    door_batches.c.batch_id == batch_id,
                    door_batches.c.state.in_(map(str, _MAY_CANCEL)),
                )
                .values(
                    state=str(DoorBatchState.CANCELLING), cancelling_at=self._db.now(connection)
                )
            )
            connection.execute(statement)
            return connection.execute(_of(batch_id)).one_or_none()

        row = self._db.write(ask)
        return None if row is None else _batch_of(row)

    def note_counts(self, batch: DoorBatch, counts: Mapping[str, int]) -> None:
        """Keep what was shown of a batch that is live."""
        statement = (
            update(door_batches)
            .where(
                door_batches.c.batch_id == batch.batch_id, door_batches.c.state == str(batch.state)
            )
            .values(counts=_text(dict(counts)))
        )
        self._db.write(lambda connection: connection.execute(statement))

    def tallied(self, job_ids: Collection[str]) -> dict[str, Counter[tuple[str, str]]]:
        """Return how many visible outcomes jobs have, by kind and reason.

        It is one statement for a page of batches."""
        query = (
            select(
                tallies.c.job_id,
                tallies.c.kind,
                tallies.c.reason,
                func.sum(tallies.c.number).label("number"),
            )
            .where(tallies.c.job_id.in_(job_ids))
            .group_by(tallies.c.job_id, tallies.c.kind, tallies.c.reason)
        )
        found: dict[str, Counter[tuple[str, str]]] = {job_id: Counter() for job_id in job_ids}
        for row in self._db.rows(query):
            found[row.job_id][row.kind, row.reason] += int(row.number)
        return found

    def remove(self, batch_id: str) -> bool:
        """Forget a batch that has ended."""
        statement = delete(door_batches).where(
            door_batches.c.batch_id == batch_id, door_batches.c.state.not_in(map(str, LIVE))
        )
        return self._db.write(lambda connection: connection.execute(statement).rowcount) == 1

    # -- steps, under a lease ----------------------------------------------------------------------

    def any_live(self) -> bool:
        """Return whether a batch has not ended: without one, only a commit can bring a step."""
        query = select(door_batches.c.batch_id).where(door_batches.c.state.in_(map(str, LIVE)))
        return bool(self._db.rows(query.limit(1)))

    def due(self, limit: int) -> list[str]:
        """Return batches with a step to do and without a lease, tenants in turn.

        First come tenants for whom no step is under way, and of each the oldest batch. So the
        batches of one tenant wait for one of another's, not for all."""

        def look(connection: Connection) -> list[str]:
            given = {"now": self._db.now(connection), "most": limit}
            return list(connection.execute(_due(), given).scalars())

        return self._db.read(look)

    def lease(self, batch_id: str, owner: str, ttl_s: float) -> LeasedBatch | None:
        """Lease a batch; None where another process has it, or it has ended."""

        def take(connection: Connection) -> LeasedBatch | None:
            row = connection.execute(_of(batch_id).with_for_update()).one_or_none()
            now = self._db.now(connection)
            if (
                row is None
                or DoorBatchState(row.state).final
                or (row.lease_until is not None and row.lease_until > now)
            ):
                return None
            fence = row.fence + 1
            taken = {"owner": owner, "lease_until": now + ttl_s, "fence": fence}
            connection.execute(
                update(door_batches).where(door_batches.c.batch_id == batch_id).values(taken)
            )
            return LeasedBatch(_batch_of(row), fence)

        return self._db.write(take)

    def renew(self, leased: LeasedBatch, ttl_s: float) -> bool:
        return self._hold(leased, self._db.clock() + ttl_s)

    def release(self, leased: LeasedBatch, pause_s: float = 0.0) -> None:
        """Give it up; no process takes it for ``pause_s`` seconds."""
        self._hold(leased, self._db.clock() + pause_s)

    def move(self, leased: LeasedBatch, to: DoorBatchState, **values: Any) -> DoorBatch | None:
        """Move a batch into another state, or give it other ``values`` in the same.

        It is None when its caller or another process moved it first.

        The event that webhooks tell of a final state goes into the same transaction.
        """
        batch = leased.batch
        given = {name: _text(value) if name in _JSON else value for name, value in values.items()}

        def write(connection: Connection) -> DoorBatch | None:
            if to is not batch.state:
                given[f"{to}_at"] = self._db.now(connection)
            statement = update(door_batches).where(
                *_held(leased), door_batches.c.state == str(batch.state)
            )
            if connection.execute(statement.values(state=str(to), **given)).rowcount != 1:
                return None
            if to.final:
                note_event(connection, batch.tenant, f"batch.{to}", batch.batch_id)
            return _batch_of(connection.execute(_of(batch.batch_id)).one())

        return self._db.write(write)

    def _hold(self, leased: LeasedBatch, until: ColumnElement[float]) -> bool:
        statement = update(door_batches).where(*_held(leased)).values(lease_until=until)
        return self._db.write(lambda connection: connection.execute(statement).rowcount) == 1


def _of(batch_id: str) -> Any:
    return select(door_batches).where(door_batches.c.batch_id == batch_id)


def _held(leased: LeasedBatch) -> tuple[ColumnElement[bool], ...]:
    return door_batches.c.batch_id == leased.batch.batch_id, door_batches.c.fence == leased.fence


@cache
def _due() -> Select[str]:
    """Build the statement once: that costs more than its run, and each door looks all the time."""
    columns, of_tenant = door_batches.c, func.coalesce(door_batches.c.tenant, "")
    now: ColumnElement[float] = bindparam("now", type_=Float)
    is_live = columns.state.in_(map(str, LIVE))
    held = (
        select(of_tenant.label("tenant"), func.count().label("number"))
        .where(is_live, columns.lease_until > now)
        .group_by(of_tenant)
        .subquery()
    )
    nth = func.row_number().over(
        partition_by=of_tenant, order_by=(columns.created_at, columns.batch_id)
    )
    is_free = or_(columns.lease_until.is_(None), columns.lease_until <= now)
    return (
        select(columns.batch_id)
        .select_from(
            door_batches.outerjoin(jobs, columns.job_id == jobs.c.job_id).outerjoin(
                held, held.c.tenant == of_tenant
            )
        )
        .where(is_live, _has_step(now), is_free)
        .order_by(nth + func.coalesce(held.c.number, 0), columns.created_at, columns.batch_id)
        .limit(bindparam("most", type_=Integer))
    )


def _has_step(now: ColumnElement[float]) -> ColumnElement[bool]:
    """Return the condition of a batch with a step to do; it has none while its job runs."""
    state, runs = door_batches.c.state, jobs.c.state.in_(_RUNNING)
    over = or_(jobs.c.job_id.is_(None), jobs.c.state.in_(_ENDED))
    return or_(
        state.in_((str(DoorBatchState.VALIDATING), str(DoorBatchState.FINALIZING))),
        and_(state == str(DoorBatchState.CANCELLING), or_(over, runs)),
        and_(
            state == str(DoorBatchState.IN_PROGRESS),
            or_(over, and_(runs, door_batches.c.expires_at <= now)),
        ),
    )


def _text(value: Any) -> str | None:
    return None if value is None else json_text(value)


def _batch_of(row: Row[Any]) -> DoorBatch:
    read = {
        name: None if getattr(row, name) is None else orjson.loads(getattr(row, name))
        for name in _JSON
    }
    times = {state: getattr(row, f"{state}_at", None) for state in DoorBatchState}
    return DoorBatch(
        batch_id=row.batch_id,
        kind=row.kind,
        tenant=row.tenant,
        job_id=row.job_id,
        endpoint=row.endpoint,
        input_file_id=row.input_file_id,
        window_s=row.window_s,
        output_expires_s=row.output_expires_s,
        metadata=read["metadata"],
        state=DoorBatchState(row.state),
        errors=read["errors"],
        counts=read["counts"] or {},
        usage=read["usage"],
        model=row.model,
        output_file_id=row.output_file_id,
        error_file_id=row.error_file_id,
        created_at=row.created_at,
        expires_at=row.expires_at,
        times={state: at for state, at in times.items() if at is not None},
    )
