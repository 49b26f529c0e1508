"""Tickets: the right to start one request now, and the duty to say afterwards what it cost."""

from __future__ import annotations

import math
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import TracebackType
from typing import Any, Protocol

from penstock_ratelimit.errors import BadCost


@dataclass(frozen=True, slots=True)
class QuotaStats:
    """One quota as seen by this process since it started."""

    allowed: Mapping[str, float]
    """Units per second that the whole fleet may start, margin applied."""
    used: Mapping[str, float]
    """Units that this process was charged, after settlements and refunds."""
    waiting: int
    """Callers without a ticket or before their start time."""
    granted: int
    """Tickets handed to a caller."""
    refunded: int
    """Tickets given back before anything was sent."""
    throttled: int
    """Calls of ``not_before``: how often the provider said 429."""
    calls: int = 0
    """Round trips to Redis (reservations, settlements, installs)."""
    degraded: bool = False
    """True while Redis is away and this process lives on its local share."""


@dataclass(slots=True)
class Tally:
    """Counters of one lane, written by its limiter and its tickets, read by ``stats``."""

    used: dict[str, float] = field(default_factory=dict)
    granted: int = 0
    refunded: int = 0
    throttled: int = 0
    calls: int = 0


class Account(Protocol):
    """Where a ticket's corrections go."""

    tally: Tally

    def adjust(self, dim: str, delta: float) -> None:
        """Charge ``delta`` more units (a refund when negative)."""
        ...


class TicketState(Enum):
    """Life of a ticket. Only an UNSTARTED one can be given back."""

    UNSTARTED = "unstarted"
    STARTED = "started"
    RELEASED = "released"


class Ticket:
    """The right to send one request from now on. Made by a limiter, used by one task."""

    __slots__ = ("_account", "_charged", "_dims", "state")

    def __init__(self, account: Account, dims: tuple[str, ...], amounts: tuple[float, ...]) -> None:
        self._account = account
        self._dims = dims
        self._charged = amounts
        self.state = TicketState.UNSTARTED

    @property
    def charged(self) -> dict[str, float]:
        """Units charged at this moment, per limited dimension."""
        return dict(zip(self._dims, self._charged, strict=True))

    def start(self) -> None:
        """Say that the request is being sent: from here on the ticket is charged, even if the request fails."""
        if self.state is TicketState.UNSTARTED:
            self.state = TicketState.STARTED

    def settle(self, actual: Mapping[str, float]) -> None:
        """Replace the reservation by what was used. Dimensions left out stay as reserved; call again to correct."""
        self.start()
        if self.state is TicketState.RELEASED or not self._dims:
            return
        charged = tuple(actual.get(dim, before) for dim, before in zip(self._dims, self._charged, strict=True))
        for dim, after in zip(self._dims, charged, strict=True):
            if not 0 <= after < math.inf:
                raise BadCost(dim, after)
        for dim, before, after in zip(self._dims, self._charged, charged, strict=True):
            if after != before:
                self._account.adjust(dim, after - before)
        self._charged = charged

    def release(self) -> None:
        """Give the ticket back: nothing was sent. Does nothing once started, so it is safe in a ``finally``."""
        if self.state is not TicketState.UNSTARTED:
            return
        self.state = TicketState.RELEASED
        refund(self._account, self._dims, self._charged)
        self._charged = tuple(0.0 for _ in self._dims)


def refund(account: Account, dims: tuple[str, ...], amounts: tuple[float, ...]) -> None:
    """Take back what a ticket reserved and never sent."""
    account.tally.refunded += 1
    for dim, amount in zip(dims, amounts, strict=True):
        account.adjust(dim, -amount)


class Lane(Account, Protocol):
    """One quota inside a limiter."""

    async def acquire(self, costs: Mapping[str, float], certain: Mapping[str, float] | None) -> Ticket: ...


class Limiter(Protocol):
    """What every limiter does, shared or local. Held by one conformance suite."""

    def acquire(
        self, quota_id: str, costs: Mapping[str, float], *, certain: Mapping[str, float] | None = None
    ) -> Coroutine[Any, Any, Ticket]:
        """Sleep until the start time of a ticket for ``costs`` (estimates, clipped to the cap) and return it.

        ``certain`` is the part that is known for sure. Raises ``NeverFits`` at once when it is above the cap.
        Cancelling the wait costs nothing. The ticket comes unstarted: ``start`` it when sending, else ``release`` it.
        """
        ...

    def ticket(
        self, quota_id: str, costs: Mapping[str, float], *, certain: Mapping[str, float] | None = None
    ) -> TicketScope:
        """``async with`` around one send. Leaving the block charges the ticket, unless the block released it."""
        ...

    def not_before(self, quota_id: str, seconds: float) -> None:
        """The provider said 429: nobody who shares the quota starts for so long. Never shortens a longer pause."""
        ...

    def stats(self) -> dict[str, QuotaStats]: ...

    async def aclose(self) -> None:
        """Give back what was not started; everybody who waits gets ``LimiterClosed``."""
        ...


class TicketScope:
    """``async with limiter.ticket(…) as t``: in doubt the ticket is charged, because something may have been sent."""

    __slots__ = ("_certain", "_costs", "_lane", "_ticket")

    def __init__(self, lane: Lane, costs: Mapping[str, float], certain: Mapping[str, float] | None) -> None:
        self._lane, self._costs, self._certain = lane, costs, certain

    async def __aenter__(self) -> Ticket:
        self._ticket = await self._lane.acquire(self._costs, self._certain)
        return self._ticket

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ticket.start()
