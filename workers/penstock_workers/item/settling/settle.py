"""Make outcomes durable, then let the broker forget. In this order: SQL, Redis, acknowledgement.

A crash between any two steps repeats the later ones for the same items and changes nothing: the
first writer has won in SQL, the completed set is a set, and an acknowledgement that never left
brings back a message that is skipped as done. What a store will never take becomes something that
it does take, or is set aside: see ``Unstorable``.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from penstock_workers.failpoints import Failpoints
from penstock_workers.failure_log import FailureLog
from penstock_workers.item.attempt import Attempt, Settled
from penstock_workers.item.deliveries import Bridge
from penstock_workers.item.settling.groups import (
    Backlog,
    Choice,
    Gatherer,
    StoreWriter,
    Unstorable,
    Writes,
)
from penstock_workers.item.settling.rows import is_awaited
from penstock_workers.item.settling.tally import OutcomeTally

log = logging.getLogger(__name__)

STORE_RETRY_CAP_S = 10.0  # while a store is down, outcomes wait in memory; the slots bound how many

# A group waits for more outcomes for so large a part of the time that SQL took for the last one: a
# disk that takes seconds gets all that the slots hold at once, and not a few in each of its turns.
LINGER_SHARE = 0.25
LINGER_MAX_S = 1.0  # SQL that was locked or away for minutes makes no group wait for minutes

# called with each group that is durable; must not raise
Durable = Callable[[Sequence[Settled]], None]


class Settler:
    """Commits outcomes in groups of ``group_max`` at most, ``linger_s`` after the first at most."""

    def __init__(
        self,
        bridge: Bridge,
        records: Writes,
        failpoints: Failpoints,
        tally: OutcomeTally,
        *,
        group_max: int,
        linger_s: float,
        on_durable: Durable | None = None,
        is_short: Callable[[int, bool], bool] = lambda *_: False,
    ) -> None:
        """Take ``is_short``: whether so many outcomes are to be stored at once.

        Its second argument says that it is to be all that can be held."""
        self._bridge, self._records, self._on_durable = bridge, records, on_durable
        self._tally, self._failpoints = tally, failpoints
        self._linger_s, self._is_slow = linger_s, False
        self._clock = time.monotonic
        self._gatherer = Gatherer(
            self._commit,
            group_max=group_max,
            linger_s=linger_s,
            at_once=lambda settled, number: is_awaited(settled) or is_short(number, self._is_slow),
        )
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="settle")
        self._unstorable = Unstorable(log)
        failure_log = FailureLog(log)
        self._sql = StoreWriter("SQL", self._thread, failure_log, cap_s=STORE_RETRY_CAP_S)
        self._redis = StoreWriter("Redis", self._thread, failure_log, cap_s=STORE_RETRY_CAP_S)
        self.backlog = Backlog("outcomes wait to be stored", (self._sql, self._redis))
        self.groups = 0

    def start(self) -> None:
        self._gatherer.start()

    def put(self, settled: Settled) -> None:
        self.backlog.put()
        self._gatherer.put(settled)

    async def flush(self) -> None:
        """Return once everything that was put before has been committed."""
        await self._gatherer.flush()

    async def close(self) -> None:
        await self._gatherer.close()
        self._thread.shutdown()

    def stats(self) -> Mapping[str, int | float | str]:
        """Return the figures of what waits for a store; from any thread."""
        return {
            "unsettled-oldest-s": round(self.backlog.oldest_s(), 1),
            "store-failures": self._sql.failures + self._redis.failures,
            "store-refusals": self._sql.refusals + self._redis.refusals,
            "store-trouble": self.backlog.trouble() or "",
        }

    async def _commit(self, group: Sequence[Settled]) -> None:
        self.backlog.take()
        began = self._clock()
        group = await self._store(self._sql, self._write_sql, group, self._unstorable.by_sql)
        wait_s = min(LINGER_MAX_S, (self._clock() - began) * LINGER_SHARE)
        self._gatherer.linger_s = max(self._linger_s, wait_s)
        self._is_slow = wait_s > self._linger_s
        for settled in group:  # no death of this process repeats a call for it any more
            if isinstance(settled.item, Attempt) and settled.item.place is not None:
                settled.item.place.leave()
        group = await self._store(
            self._redis, self._records.write_redis, group, self._unstorable.by_redis
        )
        self._failpoints.hit("after_settle")
        self.groups += 1
        self._tally.settled(group)
        self._bridge.conclude([(settled.delivery, settled.outcome) for settled in group])
        if self._on_durable is not None:
            self._on_durable(group)
        if self._is_slow:
            self._gatherer.look_again()
        self.backlog.done(more=len(self._gatherer) > 0)

    def _write_sql(self, group: Sequence[Settled]) -> None:
        self._failpoints.hit("before_commit")
        self._records.write_sql(group)
        self._failpoints.hit("after_commit")

    async def _store(
        self,
        store: StoreWriter,
        write: Callable[[Sequence[Settled]], None],
        group: Sequence[Settled],
        choose: Choice,
    ) -> Sequence[Settled]:
        """Return ``group`` as it is stored: what was refused for good has another outcome."""
        began = self._clock()
        written = await store.write(write, group)
        self._tally.stored(store.store, self._clock() - began)
        if not written.refused:
            return group
        kept = [settled for part, _ in written.parts for settled in part]
        choices = [choose(settled, error) for settled, error in written.refused]
        kept += [choice.settled for choice in choices if not choice.is_to_be_written]
        again = await store.write(
            write, [choice.settled for choice in choices if choice.is_to_be_written]
        )
        kept += [settled for part, _ in again.parts for settled in part]
        return kept + [
            self._unstorable.set_aside(settled, error).settled for settled, error in again.refused
        ]
