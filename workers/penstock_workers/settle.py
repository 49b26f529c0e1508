"""Make outcomes durable, then let the broker forget. In this order: SQL, Redis, acknowledgement.

A crash between any two steps repeats the later ones for the same items and changes nothing: the first writer has won in
SQL, the completed set is a set, and an acknowledgement that never left brings back a message that is skipped as done.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from penstock_ratelimit import full_jitter
from penstock_workers.engine import Acked, Bridge, GivenBack, Retried, SetAside, Verdict
from penstock_workers.failpoints import Failpoints
from penstock_workers.gather import Gatherer
from penstock_workers.metrics.tally import Tally
from penstock_workers.outcome import Dead, Done, Released, Retry, Unreadable
from penstock_workers.shelves import Settled, Shelves

log = logging.getLogger(__name__)

STORE_RETRY_CAP_S = 10.0  # while a store is down, outcomes wait in memory; the prefetch bounds how many

Tell = Callable[[Sequence[Settled]], None]  # hears of each group that is durable; must not raise


class Settler:
    """Groups outcomes (at most ``group_max``, at most ``linger_s``) and commits one group after the other."""

    def __init__(
        self,
        shelves: Shelves,
        failpoints: Failpoints,
        tally: Tally,
        *,
        group_max: int,
        linger_s: float,
        tell: Tell | None = None,
    ) -> None:
        self._shelves = shelves
        self._tell_of = tell
        self._tally = tally
        self._failpoints = failpoints
        self._gatherer: Gatherer[Settled] = Gatherer(self._commit, group_max=group_max, linger_s=linger_s)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="settle")
        self._bridge: Bridge | None = None
        self.groups = 0

    def start(self, bridge: Bridge) -> None:
        self._bridge = bridge
        self._gatherer.start()

    def put(self, settled: Settled) -> None:
        self._gatherer.put(settled)

    async def flush(self) -> None:
        """Return once everything that was put before has been committed."""
        await self._gatherer.flush()

    async def close(self) -> None:
        await self._gatherer.close()
        self._thread.shutdown()

    async def _commit(self, group: Sequence[Settled]) -> None:
        await self._insist("SQL", self._write_sql, group)
        await self._insist("Redis", self._shelves.write_redis, group)
        self._failpoints.hit("after_settle")
        self.groups += 1
        self._tally.settled(group)
        assert self._bridge is not None, "start() comes first"
        self._bridge.conclude([(settled.flight.delivery, _verdict(settled)) for settled in group])
        if self._tell_of is not None:
            self._tell_of(group)

    def _write_sql(self, group: Sequence[Settled]) -> None:
        self._failpoints.hit("before_commit")
        self._shelves.write_sql(group)
        self._failpoints.hit("after_commit")

    async def _insist(self, store: str, write: Callable[[Sequence[Settled]], None], group: Sequence[Settled]) -> None:
        """Try until it is written: giving up would throw away answers that are paid for."""
        attempt, began = 0, time.monotonic()
        while True:
            try:
                await asyncio.get_running_loop().run_in_executor(self._thread, write, group)
                self._tally.stored(store, time.monotonic() - began)
                return
            except Exception as error:
                wait_s = full_jitter(attempt, base_s=0.2, cap_s=STORE_RETRY_CAP_S)
                log.warning(
                    "%s refused %d outcomes (%s: %s); they wait in memory, next try in %.1f s",
                    store, len(group), type(error).__name__, error, wait_s, exc_info=attempt == 0,
                )  # fmt: skip
                attempt += 1
                await asyncio.sleep(wait_s)


def _verdict(settled: Settled) -> Verdict:
    outcome = settled.outcome
    match outcome:
        case Done(result):
            return Acked(runtime_s=result.latency_ms / 1000)
        case Dead(letter):
            return Acked(ok=False, error=f"{letter.reason}: {letter.last_error}")
        case Retry(after_s, error):
            return Retried(error, after_s)
        case Released(why):
            return GivenBack(why)
        case Unreadable(why):
            return SetAside(why)
        case _:  # skipped or parked: stored elsewhere or not needed, so the broker may forget it
            return Acked()
