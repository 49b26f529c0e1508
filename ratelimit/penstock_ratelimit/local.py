"""Pacing inside one process, without Redis.

It has aiolimiter's leaky bucket per dimension, with one caller at the head."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable

from aiolimiter import AsyncLimiter

from penstock_ratelimit.errors import LimiterClosed, QuotaHeld, UnknownQuota
from penstock_ratelimit.limiter import QuotasLimiter, ServerGauges, StartRequest
from penstock_ratelimit.provider.profiles import PROFILES, Profile
from penstock_ratelimit.provider.refusals import WINS
from penstock_ratelimit.quota import Quota, by_id
from penstock_ratelimit.rates import Terms, pause_seconds
from penstock_ratelimit.strays import LIMITED_S, Patience, may_be_stray
from penstock_ratelimit.tickets import Feedback, QuotaStats, Tally, Ticket


class Bucket(AsyncLimiter):
    """aiolimiter's bucket, which can also be corrected afterwards.

    A contract test holds the private names used."""

    __slots__ = ()

    def adjust(self, amount: float) -> None:
        """Charge more, or refund down to empty, and wake who now fits.

        Beyond full is a debt that leaks first."""
        self._leak()
        self._level = max(self._level + amount, 0.0)
        self._wake_next()

    async def wait_for(self, amount: float) -> None:
        """Wait until ``amount`` fits, without taking it."""
        await self.acquire(amount)
        self.adjust(-amount)


class LocalQuota:
    """One quota in one process.

    Starts with no burst, as the shared one does, so that a restart never doubles it."""

    def __init__(self, terms: Terms, profile: Profile) -> None:
        self.terms = terms
        self.profile = profile
        self.tally = Tally()
        self._waiting = 0
        self._in_flight = 0
        self._held = ""
        self._failure: LimiterClosed | None = None
        self._paused_until = 0.0  # loop time
        self._patience = Patience()
        self._limited_at = -math.inf  # loop time: the last start that the limits put off
        self._resume = asyncio.Event()
        # only the head waits at the buckets: aiolimiter would serve small amounts first
        self._head = asyncio.Lock()
        self._buckets: tuple[Bucket, ...] = ()

    async def acquire(self, ask: StartRequest) -> Ticket:
        if self._failure is not None:
            raise self._failure
        if self._held:
            raise QuotaHeld(self.terms.quota_id, self._held)
        if ask.certain:
            self.terms.check_fits(ask.certain)
        amounts = self.terms.amounts(ask.costs)
        self._waiting += 1
        try:
            await self.take(amounts)
        finally:
            self._waiting -= 1
        self.tally.granted += 1
        self._in_flight += 1
        self.tally.charge(self.terms.dims, amounts)
        return Ticket(self, self.terms.dims, amounts)

    def at_once(self) -> None:
        """Let nothing start at once: each start here goes through the buckets."""

    async def take(self, amounts: tuple[float, ...]) -> None:
        """Wait in order until all dimensions fit at once, then charge them all.

        Cancelling charges none."""
        async with self._head:
            buckets = self._buckets or self._open()
            while self._failure is None and not await self._ready(buckets, amounts):
                continue
            if self._failure is not None:
                raise self._failure
            for bucket, amount in zip(buckets, amounts, strict=True):
                bucket.adjust(amount)

    async def _ready(self, buckets: tuple[Bucket, ...], amounts: tuple[float, ...]) -> bool:
        """Wait for a pause or a full bucket; True when there was neither."""
        if self._paused_until > asyncio.get_running_loop().time():
            await self._sit_out()
            return False
        self._paused_until = 0.0
        for bucket, amount in zip(buckets, amounts, strict=True):
            need = min(amount, bucket.max_rate)
            if not bucket.has_capacity(need):
                await bucket.wait_for(need)
                self._limited_at = self.now()
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
        kept = self.terms.scaled(1 - self.terms.reserve)
        rows = zip(kept.rates, kept.bursts, strict=True)
        self._buckets = tuple(Bucket(burst, burst / rate) for rate, burst in rows)
        for bucket in self._buckets:
            bucket.adjust(bucket.max_rate)
        return self._buckets

    def adjust(self, dim: str, delta: float) -> None:
        self.tally.used[dim] = self.tally.used.get(dim, 0.0) + delta
        if dim in self.terms.dims and self._buckets:
            self._buckets[self.terms.dims.index(dim)].adjust(delta)

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    def ended(self, ticket: Ticket, feedback: Feedback | None) -> None:
        self._in_flight -= 1
        if feedback is None:
            return
        if feedback.signal in WINS:
            self._patience.answered_well(self._in_flight)
        if self._is_stray(ticket, feedback):
            self.tally.throttled += 1
        elif feedback.pause_s is not None:
            self.not_before(pause_seconds(feedback.pause_s))
        if feedback.hold:
            self._held = feedback.hold

    def _is_stray(self, ticket: Ticket, feedback: Feedback) -> bool:
        """See ``strays``."""
        limited = ticket.since <= self._limited_at + LIMITED_S
        return may_be_stray(feedback) and not limited and self._patience.is_stray()

    def not_before(self, seconds: float) -> None:
        self.tally.throttled += 1
        self.pause(seconds)

    def pause(self, seconds: float) -> None:
        until = asyncio.get_running_loop().time() + seconds
        self._paused_until = max(self._paused_until, until)

    def may_retry(self) -> bool:
        """Return True: the budget of retries is the fleet's, and kept in Redis."""
        return True

    async def lift(self) -> None:
        self._held = ""

    looks = False  # requests in flight are not controlled here

    def gauge(self, gauges: ServerGauges) -> None:
        """Ignore the server's figures."""

    def unread(self, why: str) -> None:
        """Ignore that there are none."""

    def stats(self) -> QuotaStats:
        return QuotaStats(
            allowed=dict(zip(self.terms.dims, self.terms.allowed, strict=True)),
            used=dict(self.tally.used),
            waiting=self._waiting,
            granted=self.tally.granted,
            refunded=self.tally.refunded,
            throttled=self.tally.throttled,
            in_flight=self._in_flight,
            held=self._held,
        )

    def close(self) -> None:
        """Give every caller that waits ``LimiterClosed``.

        The head is let through to see it, and the others follow."""
        self._failure = LimiterClosed(self.terms.quota_id)
        self._resume.set()
        for bucket in self._buckets:
            bucket.adjust(-math.inf)


class LocalLimiter(QuotasLimiter):
    """A ``Limiter`` for one process: no Redis. One instance per event loop."""

    def __init__(self, quotas: Iterable[Quota]) -> None:
        self._limiters = {
            quota.id: LocalQuota(quota.terms(), PROFILES[quota.profile])
            for quota in by_id(quotas).values()
        }

    def stats(self) -> dict[str, QuotaStats]:
        """Return the figures of all quotas that were declared."""
        return {quota_id: quota.stats() for quota_id, quota in self._limiters.items()}

    async def aclose(self) -> None:
        """See ``Limiter``."""
        for quota in self._limiters.values():
            quota.close()

    def _quota_limiter(self, quota_id: str) -> LocalQuota:
        try:
            return self._limiters[quota_id]
        except KeyError:
            raise UnknownQuota(quota_id, self._limiters) from None
