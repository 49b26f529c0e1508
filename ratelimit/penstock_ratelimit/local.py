"""Pacing inside one process, without Redis: aiolimiter's leaky bucket per dimension, one caller at the head."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Coroutine, Iterable, Mapping
from typing import Any

from aiolimiter import AsyncLimiter

from penstock_ratelimit.errors import LimiterClosed, UnknownQuota
from penstock_ratelimit.limits import Quota, Terms, by_id, pause_seconds
from penstock_ratelimit.tickets import QuotaStats, Tally, Ticket, TicketScope


class Bucket(AsyncLimiter):
    """aiolimiter's bucket, which can also be corrected afterwards. A contract test holds the private names used."""

    __slots__ = ()

    def adjust(self, amount: float) -> None:
        """Charge more (beyond full is a debt that leaks first), or refund down to empty, and wake who now fits."""
        self._leak()
        self._level = max(self._level + amount, 0.0)
        self._wake_next()

    async def wait_for(self, amount: float) -> None:
        """Wait until ``amount`` fits, without taking it."""
        await self.acquire(amount)
        self.adjust(-amount)


class LocalLane:
    """One quota in one process. Starts with no burst, as the shared one does, so that a restart never doubles it."""

    def __init__(self, terms: Terms) -> None:
        self.terms = terms
        self.tally = Tally()
        self._waiting = 0
        self._failure: LimiterClosed | None = None
        self._paused_until = 0.0  # loop time
        self._resume = asyncio.Event()
        self._head = asyncio.Lock()  # only the head waits at the buckets: aiolimiter would serve small amounts first
        self._buckets: tuple[Bucket, ...] = ()

    async def acquire(self, costs: Mapping[str, float], certain: Mapping[str, float] | None) -> Ticket:
        if self._failure is not None:
            raise self._failure
        if not self.terms.dims and not self._paused_until:
            self.tally.granted += 1
            return Ticket(self, (), ())
        if certain:
            self.terms.check_fits(certain)
        amounts = self.terms.amounts(costs)
        self._waiting += 1
        try:
            await self.take(amounts)
        finally:
            self._waiting -= 1
        self.tally.granted += 1
        for dim, amount in zip(self.terms.dims, amounts, strict=True):
            self.tally.used[dim] = self.tally.used.get(dim, 0.0) + amount
        return Ticket(self, self.terms.dims, amounts)

    async def take(self, amounts: tuple[float, ...]) -> None:
        """Wait in order until all dimensions fit at once, then charge them all. Cancelling charges none."""
        async with self._head:
            buckets = self._buckets or self._open()
            while self._failure is None and not await self._ready(buckets, amounts):
                continue
            if self._failure is not None:
                raise self._failure
            for bucket, amount in zip(buckets, amounts, strict=True):
                bucket.adjust(amount)

    async def _ready(self, buckets: tuple[Bucket, ...], amounts: tuple[float, ...]) -> bool:
        """Wait for whatever is in the way; True when nothing was."""
        if self._paused_until > asyncio.get_running_loop().time():
            await self._sit_out()
            return False
        self._paused_until = 0.0
        for bucket, amount in zip(buckets, amounts, strict=True):
            need = min(amount, bucket.max_rate)
            if not bucket.has_capacity(need):
                await bucket.wait_for(need)
                return False
        return True

    async def _sit_out(self) -> None:
        self._resume.clear()
        alarm = asyncio.get_running_loop().call_at(self._paused_until, self._resume.set)
        try:
            await self._resume.wait()
        finally:
            alarm.cancel()

    def _open(self) -> tuple[Bucket, ...]:
        rows = zip(self.terms.rates, self.terms.bursts, strict=True)
        self._buckets = tuple(Bucket(burst, burst / rate) for rate, burst in rows)
        for bucket in self._buckets:
            bucket.adjust(bucket.max_rate)
        return self._buckets

    def adjust(self, dim: str, delta: float) -> None:
        self.tally.used[dim] = self.tally.used.get(dim, 0.0) + delta
        if dim in self.terms.dims and self._buckets:
            self._buckets[self.terms.dims.index(dim)].adjust(delta)

    def not_before(self, seconds: float) -> None:
        self.tally.throttled += 1
        until = asyncio.get_running_loop().time() + seconds
        self._paused_until = max(self._paused_until, until)

    def stats(self) -> QuotaStats:
        return QuotaStats(
            allowed=dict(zip(self.terms.dims, self.terms.rates, strict=True)),
            used=dict(self.tally.used),
            waiting=self._waiting,
            granted=self.tally.granted,
            refunded=self.tally.refunded,
            throttled=self.tally.throttled,
        )

    def close(self) -> None:
        """Everybody who waits gets ``LimiterClosed``: let the head through to see it, the others follow."""
        self._failure = LimiterClosed(self.terms.quota_id)
        self._resume.set()
        for bucket in self._buckets:
            bucket.adjust(-math.inf)


class LocalLimiter:
    """A ``Limiter`` for one process: no Redis. One instance per event loop."""

    def __init__(self, quotas: Iterable[Quota]) -> None:
        self._lanes = {quota.id: LocalLane(quota.terms()) for quota in by_id(quotas).values()}

    def acquire(
        self, quota_id: str, costs: Mapping[str, float], *, certain: Mapping[str, float] | None = None
    ) -> Coroutine[Any, Any, Ticket]:
        return self._lane(quota_id).acquire(costs, certain)

    def ticket(
        self, quota_id: str, costs: Mapping[str, float], *, certain: Mapping[str, float] | None = None
    ) -> TicketScope:
        return TicketScope(self._lane(quota_id), costs, certain)

    def not_before(self, quota_id: str, seconds: float) -> None:
        self._lane(quota_id).not_before(pause_seconds(seconds))

    def stats(self) -> dict[str, QuotaStats]:
        return {quota_id: lane.stats() for quota_id, lane in self._lanes.items()}

    async def aclose(self) -> None:
        for lane in self._lanes.values():
            lane.close()

    def _lane(self, quota_id: str) -> LocalLane:
        try:
            return self._lanes[quota_id]
        except KeyError:
            raise UnknownQuota(quota_id, self._lanes) from None
