"""Tickets on their way to callers: issued for now or for later, taken back when a caller gives up
or all must wait."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from penstock_ratelimit.concurrency.in_flight import InFlight
from penstock_ratelimit.errors import RateLimitError
from penstock_ratelimit.shared.waiting import Waiter, WaitingCallers
from penstock_ratelimit.terms import Terms
from penstock_ratelimit.tickets import Tally


class Issuing:
    """The callers of one quota in one process, and what they were granted.

    ``refund`` gives units back to the quota; it is called with the dimensions and amounts of an
    unused ticket.
    """

    def __init__(
        self,
        callers: WaitingCallers,
        in_flight: InFlight,
        tally: Tally,
        refund: Callable[[tuple[str, ...], tuple[float, ...]], None],
    ) -> None:
        self.callers, self.in_flight = callers, in_flight
        self._tally, self._refund = tally, refund

    def price(self, waiter: Waiter, terms: Terms) -> bool:
        """Price a caller by the terms in force, if they changed since it came; False when it can
        never fit now."""
        if waiter.terms is terms:
            return True
        try:
            waiter.price(terms)
        except RateLimitError as error:
            waiter.future.set_exception(error)
            return False
        return True

    def issue(self, waiter: Waiter, start_at: float | None = None) -> None:
        """The quota counts the caller from now on; it starts at once, or at ``start_at`` (loop
        time)."""
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
        waiter.reserved = False
        self.callers.forget(waiter)
        self.in_flight.taken_back()
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
        """Every caller that waits gets ``error``; tickets that have not started are void."""
        self.recall(inf)
        while waiter := self.callers.next():
            waiter.future.set_exception(error)

    def _void(self, waiter: Waiter) -> None:
        waiter.reserved = False
        self.in_flight.taken_back()
        self._tally.refunded += 1
        self._tally.charge(waiter.terms.dims, waiter.amounts, sign=-1)
