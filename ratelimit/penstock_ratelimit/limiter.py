"""Callers hold a limiter over several quotas, one bound quota, or one ticket's scope."""

from __future__ import annotations

import math
from collections.abc import Coroutine, Mapping
from itertools import pairwise
from types import TracebackType
from typing import Any, Final, NamedTuple, Protocol, TypedDict, Unpack

from penstock_ratelimit.fairness import DEFAULT_FLOW, Flow
from penstock_ratelimit.rates import pause_seconds
from penstock_ratelimit.tickets import Account, QuotaStats, Ticket


class StartOptions(TypedDict, total=False):
    """A caller's words on a request besides its costs. Every limiter takes these keywords."""

    certain: Mapping[str, float] | None
    flow: Flow
    retry: bool


class StartRequest(NamedTuple):
    """A request that a caller wants to start.

    The fields are explained here, and their names are those of ``StartOptions``."""

    costs: Mapping[str, float]
    """Units per dimension, estimated; clipped to what can ever fit."""
    certain: Mapping[str, float] | None = None
    """The part known for sure: above the cap it never fits."""
    flow: Flow = DEFAULT_FLOW
    """Whose turn it takes from: the job and its tenant."""
    retry: bool = False
    """True when it was sent before: retries live on a budget."""


BOUNDS_MAX: Final = 256
"""Buckets of a histogram; vLLM has 23."""


class ServerGauges(NamedTuple):
    """A server's own figures, since it started where they count something."""

    running: float
    """Requests that it works on."""
    waiting: float
    """Requests in its queue."""
    ttft: tuple[tuple[float, float], ...] = ()
    """Seconds to the first token: (upper bound, requests at or below), the last one infinite."""
    queue_s: float = 0.0
    """Seconds that the requests which left its queue had waited there,"""
    queued: float = 0.0
    """and how many these are."""

    @property
    def fault(self) -> str:
        """Return what makes the figures unusable; empty where nothing does."""
        counts = [count for _, count in self.ttft]
        bounds = [bound for bound, _ in self.ttft]
        if not all(
            math.isfinite(one) and one >= 0
            for one in (self.running, self.waiting, self.queue_s, self.queued, *counts)
        ):
            return "a figure is negative or no number"
        if not counts:
            return "it has no times to the first token"
        if len(bounds) > BOUNDS_MAX or not math.isinf(bounds[-1]):
            return "its histogram has no end"
        rises = all(low < high for low, high in pairwise([-math.inf, *bounds]))
        if not rises or counts != sorted(counts):
            return "its histogram does not add up"
        return ""


class QuotaLimiter(Account, Protocol):
    """One quota inside a limiter."""

    async def acquire(self, ask: StartRequest) -> Ticket: ...

    def at_once(self) -> Ticket | None: ...

    def not_before(self, seconds: float) -> None: ...

    def may_retry(self) -> bool: ...

    async def lift(self) -> None: ...

    @property
    def looks(self) -> bool: ...

    def gauge(self, gauges: ServerGauges) -> None: ...

    def unread(self, why: str) -> None: ...

    def stats(self) -> QuotaStats: ...


class Limiter(Protocol):
    """The interface of every limiter, shared or local. One conformance suite tests them all."""

    def acquire(
        self, quota_id: str, costs: Mapping[str, float], **options: Unpack[StartOptions]
    ) -> Coroutine[Any, Any, Ticket]:
        """Sleep until the start time of a ticket for ``costs``, and return the ticket.

        Costs are estimates, clipped to the cap.

        ``certain`` is the part that is known for sure, ``flow`` the job whose turn it takes,
        ``retry`` says that the request was sent before. Raises ``NeverFits`` at once when
        ``certain`` is above the cap, and ``QuotaHeld`` when the account is held; ``UnknownQuota``
        for an id that was not declared, ``BadCost`` for a cost that is negative or no number,
        ``LimiterClosed`` once it is closed. Cancelling the wait costs nothing. The ticket comes
        unstarted: ``start`` it when sending, and end it with ``answered``, ``failed`` or
        ``release``.
        """
        ...

    def at_once(self, quota_id: str) -> Ticket | None:
        """Return a ticket for a first try where nothing limits the quota now, and no one waits.

        Where it is None, ask ``acquire``."""
        ...

    def ticket(
        self, quota_id: str, costs: Mapping[str, float], **options: Unpack[StartOptions]
    ) -> TicketScope:
        """Make a ticket for an ``async with`` around one send.

        Leaving the block charges the ticket, unless the block released it."""
        ...

    def quota(self, quota_id: str) -> BoundQuota:
        """Bind one quota: ``async with quota.ticket(requests=1, tokens=500) as t``."""
        ...

    def not_before(self, quota_id: str, seconds: float) -> None:
        """Start no request of the quota for so long in any process: the provider said 429.

        Never shortens a longer pause."""
        ...

    def may_retry(self, quota_id: str) -> bool:
        """Return whether to retry now; where it is False, put the request off instead.

        It is False while too large a part of what is sent are retries, and others wait."""
        ...

    async def lift(self, quota_id: str) -> None:
        """End a hold: the account was paid, or the key corrected."""
        ...

    def looks(self, quota_id: str) -> bool:
        """Return whether this process is to look at the server's own figures now.

        Of those that hold back for others there (``Quota.interactive``) it is one at a time, while
        it has requests there; without that it is every process."""
        ...

    def gauge(self, quota_id: str, gauges: ServerGauges) -> None:
        """Take the server's own figures: adaptive concurrency and the ceiling follow them."""
        ...

    def unread(self, quota_id: str, why: str) -> None:
        """Note that the server's figures could not be read: the ceiling stays where it is."""
        ...

    def stats(self) -> dict[str, QuotaStats]:
        """Return by quota what this process was given and charged.

        Also what the fleet may start now."""
        ...

    async def aclose(self) -> None:
        """Give back what was not started; every caller that waits gets ``LimiterClosed``."""
        ...


class TicketScope:
    """``async with limiter.ticket(…) as t``: in doubt the ticket is charged.

    Something may have been sent."""

    __slots__ = ("_ask", "_quota", "_ticket")

    def __init__(self, quota: QuotaLimiter, ask: StartRequest) -> None:
        self._quota, self._ask = quota, ask

    async def __aenter__(self) -> Ticket:
        self._ticket = await self._quota.acquire(self._ask)
        return self._ticket

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ticket.start()
        self._ticket.release()


class BoundQuota:
    """One quota of a limiter, for code that uses no other."""

    __slots__ = ("_quota",)

    def __init__(self, quota: QuotaLimiter) -> None:
        self._quota = quota

    def ticket(
        self,
        *,
        certain: Mapping[str, float] | None = None,
        flow: Flow = DEFAULT_FLOW,
        retry: bool = False,
        **costs: float,
    ) -> TicketScope:
        """Take a ticket with the costs by name: ``quota.ticket(requests=1, tokens=500)``."""
        return TicketScope(self._quota, StartRequest(costs, certain, flow, retry))

    def not_before(self, seconds: float) -> None:
        """Start no request of the quota for so many seconds, a day at most, in any process.

        The provider said 429."""
        self._quota.not_before(pause_seconds(seconds))

    def may_retry(self) -> bool:
        """Return whether to retry now; where it is False, put the request off instead.

        It is False while too large a part of what is sent are retries, and others wait."""
        return self._quota.may_retry()

    async def lift(self) -> None:
        """End a hold: the account was paid, or the key corrected."""
        await self._quota.lift()

    def stats(self) -> QuotaStats:
        """Return what this process was given and charged, and what the fleet may start now."""
        return self._quota.stats()


class QuotasLimiter:
    """The common part of all limiters: finding a quota by its id and passing the call on."""

    def _quota_limiter(self, quota_id: str) -> QuotaLimiter:
        """Return the limiter of a quota. Raises ``UnknownQuota`` and ``LimiterClosed``."""
        raise NotImplementedError

    def acquire(
        self, quota_id: str, costs: Mapping[str, float], **options: Unpack[StartOptions]
    ) -> Coroutine[Any, Any, Ticket]:
        """See ``Limiter``."""
        return self._quota_limiter(quota_id).acquire(StartRequest(costs, **options))

    def at_once(self, quota_id: str) -> Ticket | None:
        """See ``Limiter``."""
        return self._quota_limiter(quota_id).at_once()

    def ticket(
        self, quota_id: str, costs: Mapping[str, float], **options: Unpack[StartOptions]
    ) -> TicketScope:
        """See ``Limiter``."""
        return TicketScope(self._quota_limiter(quota_id), StartRequest(costs, **options))

    def quota(self, quota_id: str) -> BoundQuota:
        """See ``Limiter``."""
        return BoundQuota(self._quota_limiter(quota_id))

    def not_before(self, quota_id: str, seconds: float) -> None:
        """See ``Limiter``."""
        self._quota_limiter(quota_id).not_before(pause_seconds(seconds))

    def may_retry(self, quota_id: str) -> bool:
        """See ``Limiter``."""
        return self._quota_limiter(quota_id).may_retry()

    async def lift(self, quota_id: str) -> None:
        """See ``Limiter``."""
        await self._quota_limiter(quota_id).lift()

    def looks(self, quota_id: str) -> bool:
        """See ``Limiter``."""
        return self._quota_limiter(quota_id).looks

    def gauge(self, quota_id: str, gauges: ServerGauges) -> None:
        """See ``Limiter``."""
        self._quota_limiter(quota_id).gauge(gauges)

    def unread(self, quota_id: str, why: str) -> None:
        """See ``Limiter``."""
        self._quota_limiter(quota_id).unread(why)
