"""Callers that wait for a ticket: first in line, then with a start time, until they start."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from itertools import count
from math import inf
from typing import Final

from penstock_ratelimit.errors import RateLimitError
from penstock_ratelimit.fairness import FairLine
from penstock_ratelimit.limiter import StartRequest
from penstock_ratelimit.rates import Terms
from penstock_ratelimit.shared.concurrency import InFlight
from penstock_ratelimit.tickets import UNSHARED, Grant, Tally

GATHER_S: Final = 0.005
"""At hundreds of starts a second one may be so late to go with the next: a turn of the loop costs
more than a start."""
LEAST_COST_S: Final = 1e-6
"""A request that costs nothing waits its turn, too, but takes almost nothing of its flow's
share."""


class Waiter:
    """One caller in ``acquire``.

    Owned by the dispatcher, except ``future``, which the caller may cancel."""

    __slots__ = ("amounts", "ask", "future", "grant", "reserved", "terms")

    def __init__(self, ask: StartRequest, terms: Terms, future: asyncio.Future[None]) -> None:
        self.ask = ask
        self.future = future
        self.grant = UNSHARED
        self.reserved = False
        """True while the quota counts it and its caller does not hold the ticket yet."""
        self.price(terms)

    def price(self, terms: Terms) -> None:
        """Price it by these terms. Raises ``NeverFits`` and ``BadCost``.

        Without limits nothing is looked up in ``costs`` and ``certain``: a caller may work them out
        when they are read.
        """
        if terms.dims and self.ask.certain:
            terms.check_fits(self.ask.certain)
        self.amounts = terms.amounts(self.ask.costs)
        self.terms = terms

    @property
    def cost_s(self) -> float:
        """Seconds of the quota that it takes: those of the dimension that binds."""
        if not self.amounts:
            return LEAST_COST_S
        rows = zip(self.amounts, self.terms.rates, strict=True)
        return max(
            (amount / rate for amount, rate in rows if amount > 0 and rate > 0),
            default=LEAST_COST_S,
        )

    @property
    def gone(self) -> bool:
        return self.future.done()


class WaitingCallers:
    """The line and the issued start times of one quota, with one timer for the earliest.

    The line is fair between flows (see ``fairness``), in order of arrival inside each. It is
    bounded by the callers (one entry per waiting task), the issued ones by the window.
    ``on_start`` is called after some were started.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, on_start: Callable[[], None]) -> None:
        self._loop, self._on_start = loop, on_start
        self._line: FairLine[Waiter] = FairLine(gone=lambda waiter: waiter.future.done())
        self._issued: list[tuple[float, int, Waiter]] = []  # a heap by start time, loop clock
        self._order = count()
        self._timer: asyncio.TimerHandle | None = None
        self.granted = 0

    @property
    def unstarted(self) -> int:
        """Tickets with a start time in the future."""
        return len(self._issued)

    @property
    def has_line(self) -> bool:
        return bool(self._line)

    @property
    def has_first_tries(self) -> bool:
        """Return whether a first attempt is in line: retries are put off for these only."""
        return any(not waiter.ask.retry and not waiter.gone for waiter in self._line)

    @property
    def waiting(self) -> int:
        return sum(not waiter.gone for waiter in self._line) + sum(
            not waiter.gone for _, _, waiter in self._issued
        )

    def arrive(self, waiter: Waiter) -> None:
        self._line.push(waiter, waiter.ask.flow, waiter.cost_s)

    def put_back(self, waiters: list[Waiter]) -> None:
        """Put them at the head of the line, in their order.

        They are a window at most, so those who come now wait for little."""
        self._line.push_front(waiters)

    def next(self) -> Waiter | None:
        """Take the one whose turn it is, of those who are still there."""
        return self._line.pop()

    def let_go(self, waiter: Waiter) -> None:
        if not waiter.gone:
            self.granted += 1
            waiter.future.set_result(None)

    def let_go_at(self, waiter: Waiter, start_at: float) -> None:
        """Hold the waiter until its start time; call ``arm`` after a batch of these."""
        heappush(self._issued, (start_at, next(self._order), waiter))

    def forget(self, waiter: Waiter) -> None:
        """Forget a caller that gave up; at most a window of others is looked through."""
        self._issued = [entry for entry in self._issued if entry[2] is not waiter]
        heapify(self._issued)
        self.arm()

    def arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._issued:
            self._timer = self._loop.call_at(self._next_wake(), self._start_due)

    def _next_wake(self) -> float:
        """Return the earliest start.

        A moment later when another follows closely, to let both go in one turn of the loop."""
        first = self._issued[0][0]
        second = min(self._issued[1:3], default=None)  # a heap: the second smallest is one of these
        follows_closely = second is not None and 0 < second[0] - first <= GATHER_S
        return first + GATHER_S if follows_closely else first

    def recall(self) -> list[tuple[float, Waiter]]:
        """Take every unstarted ticket back, with its start time.

        The callers are at the head of the line again."""
        tickets = [
            (start_at, waiter) for start_at, _, waiter in sorted(self._issued) if not waiter.gone
        ]
        self._issued.clear()
        self.arm()
        self.put_back([waiter for _, waiter in tickets])
        return tickets

    def _start_due(self) -> None:
        now = self._loop.time()
        while self._issued and self._issued[0][0] <= now:
            self.let_go(heappop(self._issued)[2])
        self.arm()
        self._on_start()


class Issuing:
    """The callers of one quota in one process, and what they were granted.

    ``refund`` gives units back to the quota; it is called with the dimensions and amounts of an
    unused ticket. ``unused`` hears of each ticket that was taken back.
    """

    def __init__(
        self,
        callers: WaitingCallers,
        in_flight: InFlight,
        tally: Tally,
        refund: Callable[[tuple[str, ...], tuple[float, ...]], None],
        unused: Callable[[Grant], None],
    ) -> None:
        self.callers, self.in_flight = callers, in_flight
        self._tally, self._refund, self._unused = tally, refund, unused

    def price(self, waiter: Waiter, terms: Terms) -> bool:
        """Price a caller by the terms in force, if they changed since it came.

        It is False when it can never fit now."""
        if waiter.terms is terms:
            return True
        try:
            waiter.price(terms)
        except RateLimitError as error:
            waiter.future.set_exception(error)
            return False
        return True

    def issue(self, waiter: Waiter, start_at: float | None = None) -> None:
        """Issue a ticket: the caller starts at once, or at ``start_at`` (loop time).

        The quota counts it from now on."""
        waiter.reserved = True
        self.in_flight.granted()
        self._tally.charge(waiter.terms.dims, waiter.amounts)
        if waiter.gone:
            self.give_back(waiter)
        elif start_at is None:
            self.callers.let_go(waiter)
        else:
            self.callers.let_go_at(waiter, start_at)

    def give_back(self, waiter: Waiter) -> bool:
        """Refund what was reserved for a caller that gave up. False when nothing was."""
        if not waiter.reserved:
            return False
        self.callers.forget(waiter)
        self._take_back(waiter)
        self._refund(waiter.terms.dims, waiter.amounts)
        return True

    def recall(self, until: float) -> None:
        """Take back every ticket that has not started, because no request starts before ``until``.

        That time is lost to all: giving it back would let the fleet burst afterwards. Only tickets
        for later are refunded to the quota; the others just do not count as used.
        """
        for start_at, waiter in self.callers.recall():
            if start_at >= until:
                self.give_back(waiter)
            else:
                self._void(waiter)

    def refuse_all(self, error: Exception) -> None:
        """Raise ``error`` for every caller that waits; tickets that have not started are void."""
        self.recall(inf)
        while waiter := self.callers.next():
            waiter.future.set_exception(error)

    def _void(self, waiter: Waiter) -> None:
        self._take_back(waiter)
        self._tally.refunded += 1
        self._tally.charge(waiter.terms.dims, waiter.amounts, sign=-1)

    def _take_back(self, waiter: Waiter) -> None:
        waiter.reserved = False
        self.in_flight.taken_back()
        self._unused(waiter.grant)
