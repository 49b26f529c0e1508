"""Begin: count the start of an item outside this process before the call, and hear whether it must not start at all.

Begins of many items travel in one script call; while it is under way the next group gathers. Only what a feed has put
into its job's window is begun: an item that somebody else put into the queue is not paid for (``strays.py``).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from penstock_ledger import Begin, BeginVerdict, Begun, OutcomeStore, RedisLedger, SettleBatch, in_words
from penstock_ledger.model import ItemKey
from penstock_workers.backlog import Backlog
from penstock_workers.failure_log import FailureLog
from penstock_workers.item.flight import Flight
from penstock_workers.item.gather import Gatherer
from penstock_workers.item.insist import Insistence
from penstock_workers.item.outcome import Outcome, Parked, Skipped, Unreadable
from penstock_workers.item.strays import Strays

log = logging.getLogger(__name__)

GROUP_MAX = 500  # begins per script call, so that one call stays well under a millisecond of Redis
REDIS_RETRY_CAP_S = 5.0  # while Redis is away items wait here; they are bounded by the slots


class _Waiting(NamedTuple):
    flight: Flight
    verdict: asyncio.Future[Outcome | None]


class _Answer(NamedTuple):
    outcome: Outcome | None  # None: go
    crashes: int


class Starts:
    """Groups begins. ``begin`` is called on the event loop; the stores are asked in a thread of their own."""

    def __init__(self, hot: RedisLedger, outcomes: OutcomeStore, strays: Strays) -> None:
        self._hot = hot
        self._outcomes = outcomes
        self._strays = strays
        self._gatherer: Gatherer[_Waiting] = Gatherer(self._ask, group_max=GROUP_MAX, linger_s=0)
        self._returns: Gatherer[tuple[ItemKey, asyncio.Future[None]]] = Gatherer(
            self._take_back, group_max=GROUP_MAX, linger_s=0
        )
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="begin")
        self._ledger = Insistence("the ledger of starts", self._thread, FailureLog(log), cap_s=REDIS_RETRY_CAP_S)
        self.backlog = Backlog("starts wait to be counted", (self._ledger,))

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
        self.backlog.put()
        self._gatherer.put(waiting)
        return await waiting.verdict

    async def give_back(self, flight: Flight) -> None:
        """The start of an item that was begun and now waits: no death may be held against it meanwhile."""
        flight.begun = False
        returned: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._returns.put((flight.key, returned))
        await returned

    async def _take_back(self, group: Sequence[tuple[ItemKey, asyncio.Future[None]]]) -> None:
        await self._release([key for key, _ in group])
        for _, returned in group:
            if not returned.done():
                returned.set_result(None)

    async def _ask(self, group: Sequence[_Waiting]) -> None:
        self.backlog.take()
        written = await self._ledger.write(self._begin, group)
        abandoned = [
            self._tell(waiting, answer)
            for part, answers in written.parts
            for waiting, answer in zip(part, answers, strict=True)
        ]
        for waiting, error in written.refused:
            self._tell(waiting, _Answer(Unreadable(f"its start cannot be counted: {in_words(error)}"), 0))
        await self._release([flight.key for flight in abandoned if flight is not None])
        self.backlog.done(more=len(self._gatherer) > 0)

    async def _release(self, keys: list[ItemKey]) -> None:
        """Take their starts back."""
        if keys:
            batch = SettleBatch(released=keys)
            await self._ledger.write(lambda batches: [self._hot.settle(one) for one in batches], [batch])

    def _begin(self, group: Sequence[_Waiting]) -> list[_Answer]:
        """One script call; then, where a message was seen before, one look into SQL before anything is paid twice."""
        flights = [waiting.flight for waiting in group]
        begun = self._hot.begin([Begin(flight.key, flight.job.buckets) for flight in flights])
        doubtful = [flight.key for flight, one in zip(flights, begun, strict=True) if _is_doubtful(flight, one)]
        finished = self._outcomes.terminal(doubtful) if doubtful else frozenset()
        if finished:
            self._close([flight for flight in flights if flight.key in finished])
        return [
            _Answer(Skipped("finished already"), 0)
            if flight.key in finished
            else _Answer(self._turned_away(flight, one), one.crashes)
            for flight, one in zip(flights, begun, strict=True)
        ]

    def _turned_away(self, flight: Flight, begun: Begun) -> Outcome | None:
        if begun.verdict in _STRAY:
            return self._strays.judge(flight.key, rebuilt=begun.verdict is BeginVerdict.UNKNOWN_SINCE_REBUILT)
        return _TURNED_AWAY.get(begun.verdict)

    def _close(self, flights: list[Flight]) -> None:
        """Their outcomes are in SQL, but whoever put them there died before it told Redis: tell it now."""
        for flight in flights:
            job_id, generation, doc_id = flight.key
            self._hot.rehydrate(job_id, generation, [(doc_id, False)], flight.job.buckets)
        self._hot.settle(SettleBatch(released=[flight.key for flight in flights]))
        self._hot.drop_from_window(flight.key for flight in flights)

    @staticmethod
    def _tell(waiting: _Waiting, answer: _Answer) -> Flight | None:
        """Hand over the verdict; returns the flight if it was counted but nobody waits for it any more."""
        go = answer.outcome is None
        if waiting.verdict.done():  # cancelled meanwhile
            return waiting.flight if go else None
        waiting.flight.begun = go
        waiting.flight.crashes = answer.crashes
        waiting.verdict.set_result(answer.outcome)
        return None


def _is_doubtful(flight: Flight, begun: Begun) -> bool:
    if begun.verdict is BeginVerdict.GO:
        return flight.delivery.redelivered or begun.crashes > 0
    return begun.verdict in _STRAY


_STRAY = (BeginVerdict.UNKNOWN, BeginVerdict.UNKNOWN_SINCE_REBUILT)
_TURNED_AWAY: dict[BeginVerdict, Outcome] = {
    BeginVerdict.DONE: Skipped("finished already"),
    BeginVerdict.CANCELLED: Skipped("its job is cancelled"),
    BeginVerdict.PAUSED: Parked("its job is paused"),
}
