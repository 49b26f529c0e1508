"""One quota in one process: who waits, under which terms, and how the provider is.

It also holds what Redis must still hear.
"""

from __future__ import annotations

import asyncio
import logging
import shlex
from collections.abc import Callable

from penstock_ratelimit.quota import Quota
from penstock_ratelimit.rates import Terms
from penstock_ratelimit.shared.concurrency import InFlight
from penstock_ratelimit.shared.discovery import declares_the_same, with_discovered
from penstock_ratelimit.shared.waiting import Issuing, WaitingCallers
from penstock_ratelimit.store.messages import Breaker, Health, InForce, ReportBuffer, Reserved
from penstock_ratelimit.store.quota_hash import QuotaHash
from penstock_ratelimit.tickets import Grant, QuotaStats, Tally

log = logging.getLogger("penstock.ratelimit")


class TermsInForce:
    """One process's view of the terms in force, and its part in changing them.

    Calls raise what the client raises."""

    def __init__(self, quota: Quota, quota_hash: QuotaHash, tally: Tally) -> None:
        self._quota, self._hash, self._tally = quota, quota_hash, tally
        # this process's terms were put in force once; from then on it follows others
        self._declared = False
        self.terms = quota.terms()
        self.version = ""
        """Of the terms in force, as Redis names it; empty while they are not known to be there."""

    async def install(self, *, empty: bool = False) -> None:
        """Put this process's terms in force where there are none, or others at its start."""
        in_force = await self._put(self.terms, empty=empty)
        if not self._declared and not declares_the_same(self.terms, in_force.terms):
            terms = (
                with_discovered(self.terms, in_force.terms) if self._quota.discover else self.terms
            )
            in_force = await self._put(terms, replaces=in_force.version)
        self._declared = True
        self.adopt(in_force)

    async def propose(self, terms: Terms) -> None:
        """Put the limits of the provider's headers in force, unless another process was first."""
        log.info(
            "quota %s: the limits now follow the provider's headers: %s",
            self._quota.id,
            terms.to_json(),
        )
        self.adopt(await self._put(terms, replaces=self.version))

    def adopt(self, in_force: InForce) -> None:
        self.version = in_force.version
        if in_force.terms != self.terms:
            log.info(
                "quota %s: adopting the limits now in force: %s",
                self._quota.id,
                in_force.terms.to_json(),
            )
            self.terms = in_force.terms

    async def _put(self, terms: Terms, *, replaces: str = "", empty: bool = False) -> InForce:
        self._tally.calls += 1
        return await self._hash.install(
            terms, replaces=replaces, empty=empty, account=self._quota.account
        )


class ProviderState:
    """Pauses of this process that Redis must learn, those that Redis knows, and the fleet's health.

    Times are the loop's."""

    def __init__(self, quota_id: str) -> None:
        self._quota_id = quota_id
        self.health = Health()
        self.is_known = False
        """Redis said at least once how things are."""
        self.paused_until = 0.0
        self.has_unsent_pause = False
        """This process got a pause that Redis does not know yet."""
        self._latest_pause = 0  # of those from Redis

    def clear(self, now: float) -> bool:
        """Return whether nothing that is known keeps a request from starting."""
        return (
            now >= self.paused_until
            and not self.health.hold
            and self.health.breaker is Breaker.CLOSED
        )

    def pause(self, seconds: float, now: float) -> bool:
        """Note that the provider said "not now".

        It is False when a pause that is as long is known already.
        """
        if seconds <= 0 or now + seconds <= self.paused_until:
            return False
        self.paused_until = now + seconds
        self.has_unsent_pause = True
        return True

    def unsent_pause(self, now: float) -> float:
        """Return the seconds of pause to send to Redis with the next call; 0 = none."""
        return max(0.0, self.paused_until - now) if self.has_unsent_pause else 0.0

    def pause_sent(self, pause_s: float, reply: Reserved, now: float) -> None:
        """Note that Redis knows of ``pause_s``; a longer one may have come meanwhile."""
        if self.has_unsent_pause:
            self.has_unsent_pause = self.paused_until > now + pause_s
            self._latest_pause = max(self._latest_pause, reply.pause_id)

    def forgotten(self, now: float) -> None:
        """Send a pause that lasts again, since Redis lost its data or was down."""
        self.has_unsent_pause = self.paused_until > now

    def learn(self, reply: Reserved, now: float) -> float | None:
        """Take in a reply.

        Returns the loop time before which no request starts, if that has changed.

        A pause that Redis knows ends when Redis ends it, as ``lift`` does.
        """
        before, self.health, self.is_known = self.health, reply.health, True
        if self.health.hold and not before.hold:
            log.error(
                "quota %s: the account is held: %s. Nothing is lost; correct the account at the "
                "provider, then: penstock limits --lift %s",
                self._quota_id,
                self.health.hold,
                shlex.quote(self._quota_id),
            )
        if reply.pause_id > self._latest_pause and reply.pause_left_s > 0:
            self._latest_pause, self.paused_until = reply.pause_id, now + reply.pause_left_s
            return self.paused_until
        if not self.has_unsent_pause:
            self.paused_until = now + reply.pause_left_s
        if self.health.generation == before.generation:
            return None
        return self._turned(before, now)

    def _turned(self, before: Health, now: float) -> float | None:
        """Note that the breaker opened, lets probes through, or closed."""
        if self.health.breaker is Breaker.OPEN:
            log.warning(
                "quota %s: the provider keeps failing; the fleet leaves it alone for %.1f s",
                self._quota_id,
                self.health.left_s,
            )
            return now + self.health.left_s
        if before.breaker is not Breaker.CLOSED and self.health.breaker is Breaker.CLOSED:
            log.info(
                "quota %s: the provider answers again; the fleet goes on, gently at first",
                self._quota_id,
            )
        return None


class QuotaState:
    """The state shared by the parts that decide (``reserving``, ``free_starts``, ``redis_outage``).

    It decides nothing itself."""

    def __init__(
        self,
        quota: Quota,
        quota_hash: QuotaHash,
        *,
        on_start: Callable[[], None],
        refund: Callable[[tuple[str, ...], tuple[float, ...]], None],
    ) -> None:
        loop = asyncio.get_running_loop()
        self.quota, self.hash, self.now = quota, quota_hash, loop.time
        self.tally = Tally()
        self.in_flight = InFlight(quota, loop.time)
        self.callers = WaitingCallers(loop, on_start)
        self.issuing = Issuing(self.callers, self.in_flight, self.tally, refund, self.unused)
        self.provider = ProviderState(quota.id)
        self.reports = ReportBuffer()
        self.in_force = TermsInForce(quota, quota_hash, self.tally)
        self.wake = asyncio.Event()
        """Set when the dispatcher's task has something to do."""
        self.processes = 0
        """Of those that share the quota, as Redis last said; 0 = not known yet."""
        self.pace_s = 0.0
        """Seconds per item for the whole fleet, as Redis last said; 0 = not known yet."""

    @property
    def terms(self) -> Terms:
        """The terms in force."""
        return self.in_force.terms

    def unused(self, grant: Grant) -> None:
        """Tell Redis soon that nothing will be known of a ticket, where it waits for that."""
        if self.reports.add_unused(grant.generation, now=self.now()):
            self.wake.set()

    def stats(self, *, degraded: bool) -> QuotaStats:
        health = self.provider.health
        return QuotaStats(
            allowed={
                dim: rate * health.share
                for dim, rate in zip(self.terms.dims, self.terms.rates, strict=True)
            },
            used=dict(self.tally.used),
            waiting=self.callers.waiting,
            granted=self.callers.granted + self.tally.granted,
            refunded=self.tally.refunded,
            throttled=self.tally.throttled,
            in_flight=self.in_flight.count,
            concurrency=self.in_flight.limit,
            concurrency_most=self.in_flight.most,
            climbing=self.in_flight.climbing,
            calls=self.tally.calls,
            degraded=degraded,
            breaker=health.breaker.name.lower(),
            held=health.hold,
        )
