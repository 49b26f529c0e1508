"""The journal of the `batch` lane: provider batches, each with one leader at a time.

A lease runs on the database's clock and its fence grows with every change of owner, as with feeds. Every step that a leader
writes names both, so that a leader that was frozen changes nothing when it comes back.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import orjson
from sqlalchemy import (
    ColumnElement,
    Connection,
    Row,
    and_,
    bindparam,
    case,
    delete,
    exists,
    func,
    insert,
    not_,
    or_,
    select,
    text,
    update,
)  # fmt: skip

from penstock_ledger.errors import BatchLost
from penstock_ledger.model import DeadLetter, Feed, ItemKey, JobState, PaidBeside, Result
from penstock_ledger.provider_batch import (
    BatchesOpen,
    BatchState,
    BatchSum,
    NewProviderBatch,
    ProviderBatch,
    Remainder,
)
from penstock_ledger.sql.database import Database
from penstock_ledger.sql.tables import batch_remainders, jobs, paid_beside, tallies
from penstock_ledger.sql.tables import provider_batch_ids as kept_ids
from penstock_ledger.sql.tables import provider_batches as table
from penstock_ledger.stored_values import json_text
from penstock_ledger.stores.batch_remainders import claim, forget, move, put_back, take_waiting
from penstock_ledger.stores.feeds import FeedStore
from penstock_ledger.stores.outcomes import OutcomeStore
from penstock_ledger.stores.spool import mark_fed
from penstock_ledger.stores.tallies import add_beside

SUMS_MAX: Final = 200  # kinds of provider batches that a job is summed up by
_OPEN: Final = table.c.state != bindparam("settled", str(BatchState.SETTLED))
_LED: Final = (
    table.c.tag == bindparam("its_tag"), table.c.owner == bindparam("by"), table.c.fence == bindparam("its_fence")
)  # fmt: skip
_TAKEN: Final = select(func.count(), func.coalesce(func.sum(table.c.requests), 0)).where(
    table.c.job_id == bindparam("job"), table.c.remote_id.is_not(None)
)
_RELEASE: Final = update(table).where(table.c.owner == bindparam("by")).values(owner=None, lease_until=None)
_AT_PROVIDER: Final = (BatchState.UPLOADED, BatchState.CREATED)
_READ: Final = (BatchState.COLLECTED, BatchState.SETTLED)  # then the journal says why a batch has ended
_CUT_SHORT: Final = (
    "lane_left",
    "batch_cancelled",
    "batch_stuck",
    "batch_refused",
)  # how the reasons of such batches begin
_READING_S: Final = (
    1_800.0  # since its end a batch that a living worker leads keeps its documents: its answers are read
)


class ProviderBatchStore:
    """The provider batches of all jobs. ``lane``: of the process that settles."""

    def __init__(self, db: Database, lane: str | None = None) -> None:
        self._db = db
        self._lane = lane

    # -- leaders -------------------------------------------------------------------------------------------------------

    def take(
        self,
        owner: str,
        ttl_s: float,
        limit: int,
        *,
        providers: Collection[str] | None = None,
        besides: Collection[str] = (),
    ) -> list[ProviderBatch]:
        """Become the leader of up to ``limit`` open batches at ``providers`` (None: at any) that no process leads, the oldest
        first.

        ``besides``: those that ``owner`` works on already; what else is its own by name is taken up again.
        """

        def wanted(connection: Connection) -> Any:
            now = self._db.now(connection)
            free = or_(table.c.owner.is_(None), table.c.owner == owner, table.c.lease_until <= now)
            query = select(table).where(_OPEN, free, table.c.tag.not_in(besides))
            if providers is not None:
                query = query.where(table.c.provider.in_(providers))
            return query.order_by(table.c.packed_at).limit(limit), now

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
        ids: Mapping[str, bytes] | None = None,
    ) -> None:
        """Note batches that ``owner`` has packed from a feed, and move its cursor behind their documents, or neither.

        ``ids``: what ``kept_ids`` returns later, by tag. Raises FeedLost.
        """

        def add(connection: Connection) -> None:
            _add(connection, batches, owner, self._db.now(connection) + ttl_s, ids or {})

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
        self,
        owner: str,
        ttl_s: float,
        batches: Sequence[tuple[NewProviderBatch, Sequence[ItemKey]]],
        ids: Mapping[str, bytes] | None = None,
    ) -> bool:
        """Note batches that were packed of remainders; False, and nothing is noted, where another process was first."""

        def add(connection: Connection) -> None:
            for batch, keys in batches:
                if not claim(connection, keys, batch.tag):
                    raise _Claimed
            _add(connection, [batch for batch, _ in batches], owner, self._db.now(connection) + ttl_s, ids or {})

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
            connection.execute(delete(kept_ids).where(kept_ids.c.tag == batch.tag))
            return True

        return self._db.write(write)

    def begin_create(self, batch: ProviderBatch, owner: str, cap: int | None) -> bool:
        """Note that the batch is about to be created; False, and nothing is noted, where there is no room for it.

        Its tokens must fit into the account's ``cap`` beside those of all batches that are at the provider; the only batch
        of an account always fits. Raises BatchLost.
        """

        def reserve(connection: Connection) -> bool | None:
            if cap is not None:
                self._lock(connection, f"penstock:batches:{batch.provider}")
                held = connection.execute(_held(batch)).scalar_one()
                if held and held + batch.tokens > cap:
                    return False
            led = {"its_tag": batch.tag, "by": owner, "its_fence": batch.fence}
            noted = connection.execute(update(table).where(*_LED).values(creating_at=time.time()), led).rowcount
            return True if noted == 1 else None

        reserved = self._db.write(reserve)
        if reserved is None:
            raise BatchLost(batch.tag)
        return reserved

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
            connection.execute(update(kept_ids).where(kept_ids.c.tag == batch.tag).values(tag=new_tag))
            return _batch_of(connection.execute(select(table).where(table.c.tag == new_tag)).one())

        return self._db.write(write)

    def settle(
        self,
        tag: str,
        results: Sequence[Result],
        letters: Sequence[DeadLetter],
        left: Sequence[Remainder],
        beside: Sequence[PaidBeside] = (),
    ) -> set[ItemKey]:
        """What documents of a batch came to, in one transaction: outcomes, those that wait for another batch, and what was
        paid ``beside`` for those whose job has left the lane. Returns the keys that had an outcome before. Doing it again
        changes nothing."""
        done = [*(one.key for one in results), *(one.key for one in letters)]

        def also(connection: Connection) -> None:
            forget(connection, done)
            put_back(connection, tag, left)
            add_beside(connection, beside, f"batch-{tag}")

        return OutcomeStore(self._db, self._lane).settle(results, letters, also=also)

    def forget(self, keys: Collection[ItemKey]) -> None:
        """These remainders have got an outcome elsewhere."""
        self._db.write(lambda connection: forget(connection, keys))

    def passed_on(self, keys: Collection[ItemKey]) -> None:
        """These remainders are in another lane by now, whose outcomes say nothing of what batches have cost before: that is
        noted as paid beside. Those that a batch has again stay."""

        def write(connection: Connection) -> None:
            for one in take_waiting(connection, keys):
                add_beside(connection, [_cost_of(one)] if one.cost_microusd or one.prompt_tokens else [], _waited(one))

        self._db.write(write)

    def kept_ids(self, tag: str) -> bytes | None:
        """Which documents a batch has, as its packer wrote it; None where that was too much, or the batch is settled."""
        query = select(kept_ids.c.ids).where(kept_ids.c.tag == tag)
        return self._db.read(lambda connection: connection.execute(query).scalar_one_or_none())

    def refused_in_a_row(self, job_id: str, at_least: int, why: str) -> bool:
        """Whether so many of the newest batches of a job that were created have all come to nothing, for a reason that
        begins with ``why``."""
        query = select(table.c.why).where(table.c.job_id == job_id, table.c.created_at.is_not(None))
        newest = query.order_by(table.c.created_at.desc()).limit(at_least)
        found = self._db.read(lambda connection: connection.execute(newest).scalars().all())
        return len(found) == at_least and all(one is not None and one.startswith(why) for one in found)

    # -- money -------------------------------------------------------------------------------------------------------------

    def spent(self, job_id: str) -> int:
        """Millionths of a dollar that a job has paid for documents with an outcome, and for those that wait for another batch."""
        return self._db.read(
            lambda connection: int(sum(connection.execute(query).scalar_one() for query in _spent(job_id)))
        )

    def may_cost(self, job_id: str) -> dict[str, int]:
        """The most that each batch of a job which may be at its provider costs, by their tags. None is settled."""
        query = select(table.c.tag, table.c.may_cost_microusd)
        query = query.where(table.c.job_id == job_id, _OPEN, table.c.creating_at.is_not(None))
        return self._db.read(lambda connection: {row[0]: int(row[1]) for row in connection.execute(query)})

    def tags_of(self, job_id: str) -> set[str]:
        """Of the batches of a job that are not settled."""
        query = select(table.c.tag).where(table.c.job_id == job_id, _OPEN)
        return self._db.read(lambda connection: set(connection.execute(query).scalars()))

    # -- when a job leaves the lane --------------------------------------------------------------------------------------

    def not_handed_over(self, job_id: str) -> list[ProviderBatch]:
        """Batches of a job that are not settled, and whose documents are not in another lane by now; the oldest first."""
        query = select(table).where(table.c.job_id == job_id, _OPEN, table.c.handed_at.is_(None))
        query = query.order_by(table.c.packed_at, table.c.tag)
        return self._db.read(lambda connection: [_batch_of(row) for row in connection.execute(query)])

    def to_hand_over(self, job_id: str) -> list[ProviderBatch]:
        """The same without those whose answers a living worker reads now."""

        def read(connection: Connection) -> list[ProviderBatch]:
            is_led = and_(table.c.owner.is_not(None), table.c.lease_until > self._db.now(connection))
            is_fresh = func.coalesce(table.c.ended_at, 0.0) > time.time() - _READING_S
            is_read = and_(table.c.state.in_((BatchState.ENDED, BatchState.COLLECTED)), is_led, is_fresh)
            query = select(table).where(table.c.job_id == job_id, _OPEN, table.c.handed_at.is_(None), not_(is_read))
            return [_batch_of(row) for row in connection.execute(query.order_by(table.c.packed_at, table.c.tag))]

        return self._db.read(read)

    def holds_documents(self, job_id: str, generation: int) -> bool:
        """Whether documents of a generation are in batches that are neither settled nor handed over."""
        query = select(
            exists().where(
                table.c.job_id == job_id, table.c.generation == generation, _OPEN, table.c.handed_at.is_(None)
            )
        )
        return bool(self._db.read(lambda connection: connection.execute(query).scalar_one()))

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

        def read(connection: Connection) -> list[BatchSum]:
            is_led = case(
                (and_(columns.owner.is_not(None), columns.lease_until > self._db.now(connection)), 1), else_=0
            )
            query = (
                select(
                    columns.state, columns.status, columns.provider, func.count().label("batches"),
                    func.sum(columns.requests).label("requests"), func.sum(columns.succeeded).label("succeeded"),
                    func.sum(columns.failed).label("failed"), func.count(columns.succeeded).label("counted"),
                    func.max(columns.why).label("why"), func.sum(is_led).label("led"),
                )
                .where(columns.job_id == job_id)
                .group_by(columns.state, columns.status, columns.provider)
                .order_by(func.min(columns.packed_at))
                .limit(SUMS_MAX)
            )  # fmt: skip
            return [_sum_of(row) for row in connection.execute(query)]

        return self._db.read(read)

    def created(self, job_id: str) -> tuple[int, int]:
        """Batches of a job that its providers took, and the requests in them."""
        batches, requests = self._db.read(lambda connection: connection.execute(_TAKEN, {"job": job_id}).one())
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
        that were cancelled or refused, or that their job did not wait for."""
        columns = table.c
        status, why = func.lower(func.coalesce(columns.status, "")), func.coalesce(columns.why, "")
        ended = select(columns.ended_at - columns.created_at).where(
            columns.provider == provider, columns.created_at.is_not(None), columns.ended_at.is_not(None),
            columns.state.in_(_READ), columns.handed_at.is_(None), status.not_like("%cancel%"), status.not_like("%fail%"),
            *(~why.startswith(word, autoescape=True) for word in _CUT_SHORT),
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


def _add(
    connection: Connection,
    batches: Sequence[NewProviderBatch],
    owner: str,
    lease_until: float,
    ids: Mapping[str, bytes],
) -> None:
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
    kept = [{"tag": one.tag, "job_id": one.job_id, "ids": ids[one.tag]} for one in batches if one.tag in ids]
    if kept:
        connection.execute(insert(kept_ids), kept)


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


def _spent(job_id: str) -> tuple[Any, ...]:
    """By documents with an outcome, by those that wait for another batch, and what was paid besides."""
    tables = (tallies, batch_remainders, paid_beside)
    return tuple(
        select(func.coalesce(func.sum(one.c.cost_microusd), 0)).where(one.c.job_id == job_id) for one in tables
    )


def _cost_of(one: Remainder) -> PaidBeside:
    """Its calls are in its message, which counts its tries."""
    return PaidBeside(one.key, 0, one.prompt_tokens, one.completion_tokens, one.cost_microusd)


def _waited(one: Remainder) -> str:
    return f"waited-{one.calls}-{one.cost_microusd}"


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
        int(row.succeeded) if counted else None, int(row.failed or 0) if counted else None, row.why, int(row.led),
        row.provider,
    )  # fmt: skip
