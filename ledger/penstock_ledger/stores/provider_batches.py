"""The journal of the `batch` lane: provider batches, each with one leader at a time.

A lease runs on the database's clock and its fence grows with every change of owner, as with feeds. Every step that a leader
writes names both, so that a leader that was frozen changes nothing when it comes back.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from typing import Any, Final

import orjson
from sqlalchemy import ColumnElement, Connection, Row, bindparam, exists, func, insert, or_, select, text, update

from penstock_ledger.errors import BatchLost
from penstock_ledger.model import DeadLetter, Feed, ItemKey, JobState, Result
from penstock_ledger.provider_batch import (
    BatchesOpen,
    BatchState,
    BatchSum,
    NewProviderBatch,
    NoRoom,
    ProviderBatch,
    Remainder,
)
from penstock_ledger.sql.database import Database
from penstock_ledger.sql.tables import batch_remainders, jobs, paid_beside, tallies
from penstock_ledger.sql.tables import provider_batches as table
from penstock_ledger.stored_values import json_text
from penstock_ledger.stores.batch_remainders import claim, forget, move, put_back
from penstock_ledger.stores.feeds import FeedStore
from penstock_ledger.stores.outcomes import OutcomeStore
from penstock_ledger.stores.spool import mark_fed

SUMS_MAX: Final = 200  # kinds of provider batches that a job is summed up by
_OPEN: Final = table.c.state != bindparam("settled", str(BatchState.SETTLED))
_LED: Final = (
    table.c.tag == bindparam("its_tag"), table.c.owner == bindparam("by"), table.c.fence == bindparam("its_fence")
)  # fmt: skip
_RELEASE: Final = update(table).where(table.c.owner == bindparam("by")).values(owner=None, lease_until=None)
_AT_PROVIDER: Final = (BatchState.UPLOADED, BatchState.CREATED)


class ProviderBatchStore:
    """The provider batches of all jobs. ``lane``: of the process that settles."""

    def __init__(self, db: Database, lane: str | None = None) -> None:
        self._db = db
        self._lane = lane

    # -- leaders -------------------------------------------------------------------------------------------------------

    def take(self, owner: str, ttl_s: float, limit: int, *, besides: Collection[str] = ()) -> list[ProviderBatch]:
        """Become the leader of up to ``limit`` open batches that no process leads, the oldest first.

        ``besides``: those that ``owner`` works on already; what else is its own by name is taken up again.
        """

        def wanted(connection: Connection) -> Any:
            now = self._db.now(connection)
            free = or_(table.c.owner.is_(None), table.c.owner == owner, table.c.lease_until <= now)
            query = (
                select(table).where(_OPEN, free, table.c.tag.not_in(besides)).order_by(table.c.packed_at).limit(limit)
            )
            return query, now

        def is_any(connection: Connection) -> bool:
            query, _ = wanted(connection)
            return connection.execute(query.limit(1)).first() is not None

        def lease(connection: Connection) -> list[ProviderBatch]:
            query, now = wanted(connection)
            rows = connection.execute(query.with_for_update(skip_locked=True)).all()
            for row in rows:
                values = {"owner": owner, "lease_until": now + ttl_s, "fence": row.fence + 1}
                connection.execute(update(table).where(table.c.tag == row.tag).values(values))
            return [_batch_of(row, fence=row.fence + 1) for row in rows]

        return (
            self._db.write(lease) if self._db.read(is_any) else []
        )  # it is asked every second, and mostly there is none

    def renew(self, owner: str, ttl_s: float) -> None:
        """Stay the leader of all that ``owner`` leads."""
        now = self._db.clock()
        led = update(table).where(_OPEN, table.c.owner == owner, table.c.lease_until > now)
        self._db.write(lambda connection: connection.execute(led.values(lease_until=now + ttl_s)))

    def release_all(self, owner: str) -> None:
        """Let the next leader start at once."""
        self._db.write(lambda connection: connection.execute(_RELEASE, {"by": owner}))

    # -- packing -------------------------------------------------------------------------------------------------------

    def add_of_feed(
        self,
        feed: Feed,
        owner: str,
        ttl_s: float,
        batches: Sequence[NewProviderBatch],
        *,
        cursor: dict[str, Any],
        exhausted: bool,
    ) -> None:
        """Note batches that ``owner`` has packed from a feed, and move its cursor behind their documents, or neither.

        Raises FeedLost.
        """

        def add(connection: Connection) -> None:
            _add(connection, batches, owner, self._db.now(connection) + ttl_s)

        FeedStore(self._db).advance_feed(feed, owner, cursor=cursor, exhausted=exhausted, also=add)

    def add_of_spool(
        self, feed: Feed, owner: str, waiting: Sequence[Remainder], rows: Sequence[int], *, exhausted: bool
    ) -> None:
        """Documents of an open job, by the ``rows`` of its spool: from now on they wait as remainders do. Raises FeedLost."""

        def add(connection: Connection) -> None:
            put_back(connection, "", waiting)
            mark_fed(connection, feed.job_id, rows)

        FeedStore(self._db).advance_feed(feed, owner, cursor=feed.cursor, exhausted=exhausted, also=add)

    def add_of_remainders(
        self, owner: str, ttl_s: float, batches: Sequence[tuple[NewProviderBatch, Sequence[ItemKey]]]
    ) -> bool:
        """Note batches that were packed of remainders; False, and nothing is noted, where another process was first."""

        def add(connection: Connection) -> None:
            for batch, keys in batches:
                if not claim(connection, keys, batch.tag):
                    raise _Claimed
            _add(connection, [batch for batch, _ in batches], owner, self._db.now(connection) + ttl_s)

        try:
            self._db.write(add)
        except _Claimed:
            return False
        return True

    # -- steps ---------------------------------------------------------------------------------------------------------

    def step(self, batch: ProviderBatch, owner: str, **values: Any) -> bool:
        """Write columns of a batch; False when ``owner`` leads it no more."""
        led = {"its_tag": batch.tag, "by": owner, "its_fence": batch.fence}
        return (
            self._db.write(
                lambda connection: connection.execute(update(table).where(*_LED).values(values), led).rowcount
            )
            == 1
        )

    def end(self, batch: ProviderBatch, owner: str, why: str | None) -> bool:
        """Note that a batch is settled; False when ``owner`` leads it no more. Remainders that are still its own (its job
        was cancelled, or a row of the source has changed) wait again: a row that no batch gives back would keep its job
        from ever ending."""
        ended = {"state": str(BatchState.SETTLED), "why": why, "settled_at": time.time()}
        led = {"its_tag": batch.tag, "by": owner, "its_fence": batch.fence}

        def write(connection: Connection) -> bool:
            if connection.execute(update(table).where(*_LED).values(ended), led).rowcount != 1:
                return False
            move(connection, batch.tag, None)
            return True

        return self._db.write(write)

    def begin_create(
        self, batch: ProviderBatch, owner: str, cap: int | None, budget_microusd: int | None = None
    ) -> NoRoom | None:
        """Note that the batch is about to be created, unless there is no room for it: then say why, and note nothing.

        Its tokens must fit into the account's ``cap`` beside those of all batches that are at the provider; the only batch
        of an account always fits. What it may cost must fit into the job's budget beside what is spent and what its
        batches that are not settled may cost. Raises BatchLost.
        """

        def reserve(connection: Connection) -> NoRoom | bool:
            if cap is not None:
                self._lock(connection, f"penstock:batches:{batch.provider}")
                held = connection.execute(_held(batch)).scalar_one()
                if held and held + batch.tokens > cap:
                    return NoRoom(is_budget=False, held=int(held))
            if budget_microusd is not None:
                self._lock(connection, f"penstock:budget:{batch.job_id}")
                spent = sum(connection.execute(query).scalar_one() for query in _spent(batch.job_id))
                held = connection.execute(_may_cost(batch)).scalar_one()
                if spent + held + batch.may_cost_microusd > budget_microusd:
                    return NoRoom(is_budget=True, held=int(held), spent=int(spent))
            led = {"its_tag": batch.tag, "by": owner, "its_fence": batch.fence}
            return connection.execute(update(table).where(*_LED).values(creating_at=time.time()), led).rowcount == 1

        reserved = self._db.write(reserve)
        if reserved is False:
            raise BatchLost(batch.tag)
        return reserved if isinstance(reserved, NoRoom) else None

    def tokens_beside(self, batch: ProviderBatch) -> int:
        """Those of all other batches that are at its provider."""
        return int(self._db.read(lambda connection: connection.execute(_held(batch)).scalar_one()))

    def replace(self, batch: ProviderBatch, owner: str, new_tag: str, why: str) -> ProviderBatch | None:
        """The same documents as another batch, since the provider will not run this one. None where ``owner`` leads it no
        more. Remainders go along."""

        def write(connection: Connection) -> ProviderBatch | None:
            led = {"its_tag": batch.tag, "by": owner, "its_fence": batch.fence}
            ended = {"state": str(BatchState.SETTLED), "why": why, "settled_at": time.time()}
            row = connection.execute(select(table).where(*_LED, _OPEN), led).one_or_none()
            if row is None or connection.execute(update(table).where(*_LED).values(ended), led).rowcount != 1:
                return None
            fresh = {name: getattr(row, name) for name in _OF_NEW} | {
                "tag": new_tag, "state": str(BatchState.PACKED), "packed_at": row.packed_at, "fence": 1, "owner": owner,
                "lease_until": row.lease_until,
            }  # fmt: skip
            connection.execute(insert(table).values(fresh))
            move(connection, batch.tag, new_tag)
            return _batch_of(connection.execute(select(table).where(table.c.tag == new_tag)).one())

        return self._db.write(write)

    def settle(
        self, tag: str, results: Sequence[Result], letters: Sequence[DeadLetter], left: Sequence[Remainder]
    ) -> set[ItemKey]:
        """What documents of a batch came to, in one transaction: outcomes, and those that wait for another batch. Returns the
        keys that had an outcome before. Doing it again changes nothing."""
        done = [*(one.key for one in results), *(one.key for one in letters)]

        def also(connection: Connection) -> None:
            forget(connection, done)
            put_back(connection, tag, left)

        return OutcomeStore(self._db, self._lane).settle(results, letters, also=also)

    def forget(self, keys: Collection[ItemKey]) -> None:
        """These remainders have got an outcome elsewhere."""
        self._db.write(lambda connection: forget(connection, keys))

    # -- when a job leaves the lane --------------------------------------------------------------------------------------

    def not_handed_over(self, job_id: str) -> list[ProviderBatch]:
        """Batches of a job that are not settled, and whose documents are not in another lane by now; the oldest first."""
        query = select(table).where(table.c.job_id == job_id, _OPEN, table.c.handed_at.is_(None))
        query = query.order_by(table.c.packed_at, table.c.tag)
        return self._db.read(lambda connection: [_batch_of(row) for row in connection.execute(query)])

    def hand_over(self, batch: ProviderBatch) -> None:
        """All documents of a batch go on elsewhere: those of the source wait as remainders already, and those that were
        remainders wait again. What the provider still answers is stored where it is the first answer."""

        def write(connection: Connection) -> None:
            now = {"handed_at": time.time()}
            connection.execute(update(table).where(table.c.tag == batch.tag, table.c.handed_at.is_(None)).values(now))
            move(connection, batch.tag, None)

        self._db.write(write)

    def is_handed_over(self, tag: str) -> bool:
        query = select(table.c.handed_at).where(table.c.tag == tag)
        return self._db.read(lambda connection: connection.execute(query).scalar_one_or_none()) is not None

    # -- figures -------------------------------------------------------------------------------------------------------

    def open_of(self, job_id: str) -> int:
        """Batches of a job that are not settled."""
        query = select(func.count()).where(table.c.job_id == job_id, _OPEN)
        return self._db.read(lambda connection: connection.execute(query).scalar_one())

    def is_busy(self, job_id: str) -> bool:
        """Whether documents of a job are in a batch, or wait for one, or for another lane."""
        in_batch = exists().where(table.c.job_id == job_id, _OPEN, table.c.handed_at.is_(None))
        waits = exists().where(batch_remainders.c.job_id == job_id)
        return bool(self._db.read(lambda connection: connection.execute(select(or_(in_batch, waits))).scalar_one()))

    def open_tags(self) -> set[str]:
        """Of all jobs."""
        query = select(table.c.tag).where(_OPEN)
        return self._db.read(lambda connection: set(connection.execute(query).scalars()))

    def packed_waiting(self, provider: str) -> int:
        """Batches of a provider that wait to be created: their files take room, and their turn has not come. Those of jobs
        that are paused do not count: other jobs would wait until a person resumes them."""
        running = select(jobs.c.job_id).where(jobs.c.state == str(JobState.RUNNING))
        query = select(func.count()).where(
            table.c.state.in_((BatchState.PACKED, BatchState.UPLOADED)),
            table.c.provider == provider,
            table.c.job_id.in_(running),
        )
        return self._db.read(lambda connection: connection.execute(query).scalar_one())

    def of_job(self, job_id: str, limit: int = 1_000) -> list[ProviderBatch]:
        """The batches of a job, oldest first."""
        query = select(table).where(table.c.job_id == job_id).order_by(table.c.packed_at, table.c.tag).limit(limit)
        return self._db.read(lambda connection: [_batch_of(row) for row in connection.execute(query)])

    def sums(self, job_id: str) -> list[BatchSum]:
        """The batches of a job, summed up by their states."""
        columns = table.c
        query = (
            select(
                columns.state, columns.status, func.count().label("batches"), func.sum(columns.requests).label("requests"),
                func.sum(columns.succeeded).label("succeeded"), func.sum(columns.failed).label("failed"),
                func.count(columns.succeeded).label("counted"), func.max(columns.why).label("why"),
            )
            .where(columns.job_id == job_id)
            .group_by(columns.state, columns.status)
            .order_by(func.min(columns.packed_at))
            .limit(SUMS_MAX)
        )  # fmt: skip
        return self._db.read(lambda connection: [_sum_of(row) for row in connection.execute(query)])

    def created(self, job_id: str) -> tuple[int, int]:
        """Batches of a job that its providers took, and the requests in them."""
        query = select(func.count(), func.coalesce(func.sum(table.c.requests), 0)).where(
            table.c.job_id == job_id, table.c.remote_id.is_not(None)
        )
        batches, requests = self._db.read(lambda connection: connection.execute(query).one())
        return int(batches), int(requests)

    def open_times(self, job_id: str) -> BatchesOpen:
        """Since when the batches of a job run, or wait to be created."""
        columns, waiting = table.c, (str(BatchState.PACKED), str(BatchState.UPLOADED))
        waits = columns.state.in_(waiting)
        query = select(
            func.min(columns.created_at).filter(columns.state == str(BatchState.CREATED)),
            func.min(columns.packed_at).filter(waits),
            func.max(columns.why).filter(waits),
            func.coalesce(func.sum(columns.succeeded).filter(columns.state == str(BatchState.CREATED)), 0),
        ).where(columns.job_id == job_id, _OPEN)
        return self._db.read(lambda connection: _open_of(connection.execute(query).one()))

    def lasted(self, provider: str, limit: int) -> list[float]:
        """Seconds from the create to the end of the provider's last batches of all jobs, as it worked on them: without those
        that were cancelled or refused."""
        columns = table.c
        ended = select(columns.ended_at - columns.created_at).where(
            columns.provider == provider, columns.created_at.is_not(None), columns.ended_at.is_not(None),
            func.coalesce(columns.status, "").not_like("%cancel%"), func.coalesce(columns.status, "").not_like("%fail%"),
        )  # fmt: skip
        query = ended.order_by(columns.ended_at.desc()).limit(limit)
        return self._db.read(lambda connection: [float(seconds) for seconds in connection.execute(query).scalars()])

    def by_state(self) -> dict[tuple[str, str], int]:
        """Open batches of all jobs, by provider and state."""
        query = (
            select(table.c.provider, table.c.state, func.count()).where(_OPEN).group_by(table.c.provider, table.c.state)
        )
        return self._db.read(lambda connection: {(row[0], row[1]): row[2] for row in connection.execute(query)})

    def _lock(self, connection: Connection, name: str) -> None:
        """Until the transaction ends. SQLite's has the write lock already."""
        if not self._db.is_sqlite:
            connection.execute(text("SELECT pg_advisory_xact_lock(hashtextextended(:name, 0))"), {"name": name})


class _Claimed(Exception):
    """Another process has some of these documents."""


def _add(connection: Connection, batches: Sequence[NewProviderBatch], owner: str, lease_until: float) -> None:
    now = time.time()
    rows = [
        {name: getattr(batch, name) for name in _OF_NEW if not name.startswith("cursor_")}
        | {
            "cursor_before": None if batch.cursor_before is None else json_text(batch.cursor_before),
            "cursor_behind": None if batch.cursor_behind is None else json_text(batch.cursor_behind),
            "state": str(BatchState.PACKED), "packed_at": now, "fence": 0, "owner": owner, "lease_until": lease_until,
        }
        for batch in batches
    ]  # fmt: skip
    if rows:
        connection.execute(insert(table), rows)


_OF_NEW: Final = tuple(NewProviderBatch.__dataclass_fields__)
_OF_BATCH: Final = tuple(ProviderBatch.__dataclass_fields__)


def _held(batch: ProviderBatch) -> Any:
    at_provider: tuple[ColumnElement[bool], ...] = (
        table.c.provider == batch.provider,
        table.c.state.in_(_AT_PROVIDER),
        table.c.creating_at.is_not(None),
        table.c.tag != batch.tag,
    )
    return select(func.coalesce(func.sum(table.c.tokens), 0)).where(*at_provider)


def _may_cost(batch: ProviderBatch) -> Any:
    """Of the job's batches that are under way, besides this one. What is settled counts as spent."""
    query = select(func.coalesce(func.sum(table.c.may_cost_microusd), 0))
    return query.where(
        table.c.job_id == batch.job_id, _OPEN, table.c.creating_at.is_not(None), table.c.tag != batch.tag
    )


def _spent(job_id: str) -> tuple[Any, ...]:
    """By documents with an outcome, by those that wait for another batch, and what was paid besides."""
    tables = (tallies, batch_remainders, paid_beside)
    return tuple(
        select(func.coalesce(func.sum(one.c.cost_microusd), 0)).where(one.c.job_id == job_id) for one in tables
    )


def _batch_of(row: Row[Any], *, fence: int | None = None) -> ProviderBatch:
    values = {name: getattr(row, name) for name in _OF_BATCH}
    for name in ("cursor_before", "cursor_behind"):
        values[name] = None if values[name] is None else orjson.loads(values[name])
    values["state"] = BatchState(row.state)
    values["fence"] = row.fence if fence is None else fence
    return ProviderBatch(**values)


def _open_of(row: Any) -> BatchesOpen:
    created_at, waits_since, why, answered = row
    return BatchesOpen(created_at, waits_since, why, int(answered))


def _sum_of(row: Any) -> BatchSum:
    counted = row.counted == row.batches
    return BatchSum(
        BatchState(row.state), row.status, row.batches, int(row.requests),
        int(row.succeeded) if counted else None, int(row.failed or 0) if counted else None, row.why,
    )  # fmt: skip
