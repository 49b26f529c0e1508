"""Begin: count the start of an item outside this process before the call, and hear whether it must not start at all.

Begins of many items travel in one script call; while it is under way the next group gathers.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from penstock_ledger import Begin, BeginVerdict, Begun, OutcomeStore, RedisLedger, SettleBatch
from penstock_ledger.model import ItemKey
from penstock_ratelimit import full_jitter
from penstock_workers.flight import Flight
from penstock_workers.gather import Gatherer
from penstock_workers.outcome import Outcome, Parked, Skipped

log = logging.getLogger(__name__)

GROUP_MAX = 500  # begins per script call, so that one call stays well under a millisecond of Redis
REDIS_RETRY_CAP_S = 5.0  # while Redis is away items wait here; they are bounded by the slots


class _Waiting(NamedTuple):
    flight: Flight
    verdict: asyncio.Future[Outcome | None]


class Starts:
    """Groups begins. ``begin`` is called on the event loop; the stores are asked in a thread of their own."""

    def __init__(self, hot: RedisLedger, outcomes: OutcomeStore) -> None:
        self._hot = hot
        self._outcomes = outcomes
        self._gatherer: Gatherer[_Waiting] = Gatherer(self._ask, group_max=GROUP_MAX, linger_s=0)
        self._returns: Gatherer[tuple[ItemKey, asyncio.Future[None]]] = Gatherer(
            self._take_back, group_max=GROUP_MAX, linger_s=0
        )
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="begin")

    def start(self) -> None:
        self._gatherer.start()
        self._returns.start()

    async def close(self) -> None:
        await self._gatherer.close()
        await self._returns.close()
        self._thread.shutdown()

    async def begin(self, flight: Flight) -> Outcome | None:
        """None: go. Otherwise what becomes of the item instead."""
        waiting = _Waiting(flight, asyncio.get_running_loop().create_future())
        self._gatherer.put(waiting)
        return await waiting.verdict

    async def give_back(self, flight: Flight) -> None:
        """The start of an item that was begun and now waits: no death may be held against it meanwhile."""
        flight.begun = False
        returned: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._returns.put((flight.key, returned))
        await returned

    async def _take_back(self, group: Sequence[tuple[ItemKey, asyncio.Future[None]]]) -> None:
        released = SettleBatch(released=[key for key, _ in group])
        attempt = 0
        while True:
            try:
                await asyncio.get_running_loop().run_in_executor(self._thread, self._hot.settle, released)
                break
            except Exception as error:
                wait_s = full_jitter(attempt, base_s=0.2, cap_s=REDIS_RETRY_CAP_S)
                log.warning("%d starts are still counted (%s); again in %.1f s", len(group), error, wait_s)
                attempt += 1
                await asyncio.sleep(wait_s)
        for _, returned in group:
            if not returned.done():
                returned.set_result(None)

    async def _ask(self, group: Sequence[_Waiting]) -> None:
        flights = [waiting.flight for waiting in group]
        loop = asyncio.get_running_loop()
        attempt = 0
        while True:
            try:
                begun = await loop.run_in_executor(self._thread, self._begin, flights)
                break
            except Exception as error:
                wait_s = full_jitter(attempt, base_s=0.2, cap_s=REDIS_RETRY_CAP_S)
                log.warning(
                    "%d items wait: the ledger cannot count their start (%s); again in %.1f s",
                    len(group),
                    error,
                    wait_s,
                )
                attempt += 1
                await asyncio.sleep(wait_s)
        abandoned = [self._tell(waiting, one) for waiting, one in zip(group, begun, strict=True)]
        keys = [flight.key for flight in abandoned if flight is not None]
        if keys:
            await loop.run_in_executor(self._thread, self._hot.settle, SettleBatch(released=keys))

    def _begin(self, flights: list[Flight]) -> list[Begun]:
        """One script call; then, where a message was seen before, one look into SQL before anything is paid twice."""
        begun = self._hot.begin([Begin(flight.key, flight.job.buckets) for flight in flights])
        doubtful = [
            flight.key
            for flight, one in zip(flights, begun, strict=True)
            if one.verdict is BeginVerdict.GO and (flight.delivery.redelivered or one.crashes)
        ]
        finished = self._outcomes.terminal(doubtful) if doubtful else frozenset()
        if not finished:
            return begun
        self._close([flight for flight in flights if flight.key in finished])
        return [
            Begun(BeginVerdict.DONE, 0) if flight.key in finished else one
            for flight, one in zip(flights, begun, strict=True)
        ]

    def _close(self, flights: list[Flight]) -> None:
        """Their outcomes are in SQL, but whoever put them there died before it told Redis: tell it now."""
        for flight in flights:
            job_id, generation, doc_id = flight.key
            self._hot.rehydrate(job_id, generation, [(doc_id, False)], flight.job.buckets)
        self._hot.settle(SettleBatch(released=[flight.key for flight in flights]))
        self._hot.drop_from_window(flight.key for flight in flights)

    @staticmethod
    def _tell(waiting: _Waiting, begun: Begun) -> Flight | None:
        """Hand over the verdict; returns the flight if it was counted but nobody waits for it any more."""
        go = begun.verdict is BeginVerdict.GO
        if waiting.verdict.done():  # cancelled meanwhile
            return waiting.flight if go else None
        waiting.flight.begun = go
        waiting.flight.crashes = begun.crashes
        waiting.verdict.set_result(_TURNED_AWAY.get(begun.verdict))
        return None


_TURNED_AWAY: dict[BeginVerdict, Outcome] = {
    BeginVerdict.DONE: Skipped("finished already"),
    BeginVerdict.CANCELLED: Skipped("its job is cancelled"),
    BeginVerdict.PAUSED: Parked("its job is paused"),
}
