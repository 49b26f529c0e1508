"""The journal of the `batch` lane: provider batches, each with one leader at a time.

A lease runs on the database's clock and its fence grows with every change of owner, as with feeds.
Every step that a leader writes names both, so that a leader that was frozen changes nothing when it
comes back.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from sqlalchemy import Connection, bindparam, delete, insert, or_, select, update

from penstock_ledger.errors import BatchLost
from penstock_ledger.model import DeadLetter, Feed, ItemKey, Paid, PaidBeside, Result
from penstock_ledger.provider_batch import (
    BatchFailure,
    BatchState,
    EqualRequests,
    NewProviderBatch,
    ProviderBatch,
    Remainder,
)
from penstock_ledger.sql.database import Database
from penstock_ledger.sql.tables import provider_batch_ids as kept_ids
from penstock_ledger.sql.tables import provider_batches as table
from penstock_ledger.stored_values import json_text
from penstock_ledger.stores.account import (
    NOTHING_SAVED,
    UNREAD,
    WAITED,
    Savings,
    add_spent,
    take_out_earlier,
)
from penstock_ledger.stores.batch_figures import IS_OPEN, BatchFigures, batch_of, held_beside
from penstock_ledger.stores.batch_remainders import claim, move, note_equal, put_back, take_waiting
from penstock_ledger.stores.feeds import FeedStore
from penstock_ledger.stores.outcomes import NOTHING_EARLIER, OutcomeStore
from penstock_ledger.stores.spool import mark_fed
from penstock_ledger.stores.tallies import add_beside

_LED: Final = (
    table.c.tag == bindparam("its_tag"),
    table.c.owner == bindparam("by"),
    table.c.fence == bindparam("its_fence"),
)
_RELEASE: Final = (
    update(table)
    .where(IS_OPEN, table.c.owner == bindparam("by"))
    .values(owner=None, lease_until=None)
)


class ProviderBatchStore(BatchFigures):
    """The journal of all jobs. ``lane``: of the process that settles."""

    def __init__(self, db: Database, lane: str | None = None) -> None:
        super().__init__(db)
        self._lane = lane

    # -- leaders -----------------------------------------------------------------------------------

    def take(
        self,
        owner: str,
        ttl_s: float,
        limit: int,
        *,
        providers: Collection[str] | None = None,
        besides: Collection[str] = (),
    ) -> list[ProviderBatch]:
        """Become the leader of up to ``limit`` open batches that none leads, the oldest first.

        They are at ``providers`` (None: at any).

        ``besides``: those that ``owner`` works on already; what else is its own by name is taken up
        again.
        """

        def wanted(connection: Connection) -> Any:
            now = self._db.now(connection)
            free = or_(table.c.owner.is_(None), table.c.owner == owner, table.c.lease_until <= now)
            query = select(table).where(IS_OPEN, free, table.c.tag.not_in(besides))
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
            return [batch_of(row, fence=row.fence + 1) for row in rows]

        # it is asked every second, and mostly there is none
        return self._db.write(lease) if self._db.read(is_any) else []

    def renew(self, owner: str, ttl_s: float) -> None:
        """Stay the leader of all that ``owner`` leads."""
        now = self._db.clock()
        led = update(table).where(IS_OPEN, table.c.owner == owner, table.c.lease_until > now)
        self._db.write(lambda connection: connection.execute(led.values(lease_until=now + ttl_s)))

    def release_all(self, owner: str) -> None:
        """Let the next leader start at once."""
        self._db.write(lambda connection: connection.execute(_RELEASE, {"by": owner}))

    # -- packing -----------------------------------------------------------------------------------

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
        equal: EqualRequests | None = None,
    ) -> None:
        """Note batches that ``owner`` has packed from a feed, and move its cursor, or neither.

        The cursor goes behind their documents, and those that wait for the answers to ``equal``
        requests.

        ``ids``: what ``kept_ids`` returns later, by tag. Raises FeedLost.
        """

        def add(connection: Connection) -> None:
            _add(connection, batches, owner, self._db.now(connection) + ttl_s, ids or {})
            if equal is not None:
                note_equal(connection, equal)

        FeedStore(self._db).advance_feed(feed, owner, cursor=cursor, exhausted=exhausted, also=add)

    def add_of_spool(
        self,
        feed: Feed,
        owner: str,
        waiting: Sequence[Remainder],
        rows: Sequence[int],
        *,
        exhausted: bool,
    ) -> None:
        """Take documents of an open job, which wait as remainders do from now on.

        They are named by the ``rows`` of its spool. Raises FeedLost."""

        def add(connection: Connection) -> None:
            put_back(connection, "", waiting)
            mark_fed(connection, feed.job_id, rows)

        FeedStore(self._db).advance_feed(
            feed, owner, cursor=feed.cursor, exhausted=exhausted, also=add
        )

    def add_of_remainders(
        self,
        owner: str,
        ttl_s: float,
        batches: Sequence[tuple[NewProviderBatch, Sequence[ItemKey]]],
        ids: Mapping[str, bytes] | None = None,
        equal: EqualRequests | None = None,
    ) -> bool:
        """Note batches that were packed of remainders, and ``equal`` requests that wait.

        False, and nothing is noted, where another process was first."""

        def add(connection: Connection) -> None:
            if equal is not None:
                note_equal(connection, equal)
            for batch, keys in batches:
                if not claim(connection, keys, batch.tag):
                    raise _Claimed
            _add(
                connection,
                [batch for batch, _ in batches],
                owner,
                self._db.now(connection) + ttl_s,
                ids or {},
            )

        try:
            self._db.write(add)
        except _Claimed:
            return False
        return True

    # -- steps -------------------------------------------------------------------------------------

    def step(self, batch: ProviderBatch, owner: str, **values: Any) -> bool:
        """Write columns of a batch; False when ``owner`` leads it no more."""
        led = {"its_tag": batch.tag, "by": owner, "its_fence": batch.fence}
        return (
            self._db.write(
                lambda connection: (
                    connection.execute(update(table).where(*_LED).values(values), led).rowcount
                )
            )
            == 1
        )

    def collected(
        self,
        batch: ProviderBatch,
        owner: str,
        failure: BatchFailure,
        unread: int = 0,
        unread_microusd: int | None = None,
    ) -> bool:
        """Note that what a batch has answered is settled.

        It is False when ``owner`` leads it no more, or it was noted before. The ``unread`` answers
        were paid for and never came: they are added to the account of the job with this step."""
        led = {"its_tag": batch.tag, "by": owner, "its_fence": batch.fence}
        step: dict[str, Any] = {
            "state": str(BatchState.COLLECTED),
            "collected_at": time.time(),
            "trouble": None,
            "missing": None,
            **failure.columns(),
        }
        if unread:
            step |= {"unread": unread, "unread_microusd": unread_microusd}

        def write(connection: Connection) -> bool:
            ended = update(table).where(
                *_LED, table.c.collected_at.is_(None) if unread else IS_OPEN
            )
            if connection.execute(ended.values(step), led).rowcount != 1:
                return False
            if unread:
                unpriced = unread if unread_microusd is None else 0
                add_spent(
                    connection,
                    batch.job_id,
                    Paid(calls=unread, cost_microusd=unread_microusd or 0, unpriced=unpriced),
                    kind=UNREAD,
                    lane=self._lane,
                    generation=batch.generation,
                )
            return True

        return self._db.write(write)

    def end(self, batch: ProviderBatch, owner: str, failure: BatchFailure | None) -> bool:
        """Note that a batch is settled; False when ``owner`` leads it no more.

        Remainders that are still its own (its job was cancelled, or a row of the source has
        changed) wait again: a row that no batch gives back would keep its job from ever ending."""
        said = {"why": None, "failure": None} if failure is None else failure.columns()
        ended = {"state": str(BatchState.SETTLED), "settled_at": time.time(), **said}
        led = {"its_tag": batch.tag, "by": owner, "its_fence": batch.fence}

        def write(connection: Connection) -> bool:
            if connection.execute(update(table).where(*_LED).values(ended), led).rowcount != 1:
                return False
            move(connection, batch.tag, None)
            connection.execute(delete(kept_ids).where(kept_ids.c.tag == batch.tag))
            return True

        return self._db.write(write)

    def begin_create(self, batch: ProviderBatch, owner: str, cap: int | None) -> bool:
        """Note that the batch is about to be created.

        False, and nothing is noted, where there is no room for it.

        Its tokens must fit into the account's ``cap`` beside those of all batches that are at the
        provider; the only batch of an account always fits. Raises BatchLost.
        """

        def reserve(connection: Connection) -> bool | None:
            if cap is not None:
                self._db.lock(connection, f"penstock:batches:{batch.provider}")
                held = connection.execute(held_beside(batch)).scalar_one()
                if held and held + batch.tokens > cap:
                    return False
            led = {"its_tag": batch.tag, "by": owner, "its_fence": batch.fence}
            noted = connection.execute(
                update(table).where(*_LED).values(creating_at=time.time()), led
            ).rowcount
            return True if noted == 1 else None

        reserved = self._db.write(reserve)
        if reserved is None:
            raise BatchLost(batch.tag)
        return reserved

    def replace(
        self, batch: ProviderBatch, owner: str, new_tag: str, why: str
    ) -> ProviderBatch | None:
        """Return the same documents as another batch, since the provider will not run this one.

        None where ``owner`` leads it no more. Remainders go along."""

        def write(connection: Connection) -> ProviderBatch | None:
            led = {"its_tag": batch.tag, "by": owner, "its_fence": batch.fence}
            ended = {"state": str(BatchState.SETTLED), "why": why, "settled_at": time.time()}
            row = connection.execute(select(table).where(*_LED, IS_OPEN), led).one_or_none()
            if (
                row is None
                or connection.execute(update(table).where(*_LED).values(ended), led).rowcount != 1
            ):
                return None
            fresh = {name: getattr(row, name) for name in _OF_NEW} | {
                "tag": new_tag,
                "state": str(BatchState.PACKED),
                "packed_at": row.packed_at,
                "fence": 1,
                "owner": owner,
                "lease_until": row.lease_until,
            }
            connection.execute(insert(table).values(fresh))
            move(connection, batch.tag, new_tag)
            connection.execute(
                update(kept_ids).where(kept_ids.c.tag == batch.tag).values(tag=new_tag)
            )
            return batch_of(connection.execute(select(table).where(table.c.tag == new_tag)).one())

        return self._db.write(write)

    def settle(
        self,
        tag: str,
        results: Sequence[Result],
        letters: Sequence[DeadLetter],
        left: Sequence[Remainder],
        beside: Sequence[PaidBeside] = (),
        earlier: Mapping[ItemKey, Paid] = NOTHING_EARLIER,
        savings: Savings = NOTHING_SAVED,
    ) -> set[ItemKey]:
        """Store what documents of a batch came to, in one transaction.

        That is outcomes, those that wait for another batch, and what was paid ``beside`` for those
        whose job has left the lane. ``earlier``: what outcomes say of earlier attempts;
        ``savings``: of what this batch answered. Returns those that had an outcome before. Doing it
        again changes nothing."""

        def also(connection: Connection) -> set[ItemKey]:
            noted = put_back(connection, tag, left) - {one.key for one in beside}
            return noted | add_beside(connection, beside, f"batch-{tag}")

        store = OutcomeStore(self._db, self._lane)
        return store.settle(
            results, letters, earlier=earlier, from_batches=True, also=also, savings=savings
        )

    def forget(self, keys: Collection[ItemKey]) -> None:
        """Forget these remainders, which have got an outcome elsewhere."""
        earlier = dict.fromkeys(keys, Paid())
        self._db.write(lambda connection: take_out_earlier(connection, earlier, remainders=True))

    def passed_on(self, keys: Collection[ItemKey]) -> None:
        """Let go of remainders that are in another lane by now.

        Its outcomes say nothing of what batches have cost before: that is noted as paid beside.
        Those that a batch has again stay."""

        def write(connection: Connection) -> None:
            for one in take_waiting(connection, keys):
                add_beside(
                    connection,
                    [_cost_of(one)] if any(_cost_of(one)[2:]) else [],
                    f"{WAITED}{one.calls}-{one.cost_microusd}",
                )

        self._db.write(write)

    # -- when a job leaves the lane ----------------------------------------------------------------

    def hand_over(self, batch: ProviderBatch) -> None:
        """Let all documents of a batch go on elsewhere.

        Those of the source wait as remainders already, and those that were remainders wait again.
        What the provider still answers is stored where it is the first answer."""

        def write(connection: Connection) -> None:
            now = {"handed_at": time.time()}
            connection.execute(
                update(table)
                .where(table.c.tag == batch.tag, table.c.handed_at.is_(None))
                .values(now)
            )
            move(connection, batch.tag, None)

        self._db.write(write)


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
            "cursor_before": None
            if batch.cursor_before is None
            else json_text(batch.cursor_before),
            "cursor_behind": None
            if batch.cursor_behind is None
            else json_text(batch.cursor_behind),
            "state": str(BatchState.PACKED),
            "packed_at": now,
            "fence": 0,
            "owner": owner,
            "lease_until": lease_until,
        }
        for batch in batches
    ]
    if rows:
        connection.execute(insert(table), rows)
    kept = [
        {"tag": one.tag, "job_id": one.job_id, "ids": ids[one.tag]}
        for one in batches
        if one.tag in ids
    ]
    if kept:
        connection.execute(insert(kept_ids), kept)


_OF_NEW: Final = tuple(NewProviderBatch.__dataclass_fields__)


def _cost_of(one: Remainder) -> PaidBeside:
    """Return what a document cost. Its calls are in its message, which counts its tries."""
    tokens = one.prompt_tokens, one.completion_tokens
    return PaidBeside(one.key, 0, *tokens, one.cost_microusd, one.unpriced, one.escalations)
