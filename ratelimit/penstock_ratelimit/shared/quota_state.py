"""One quota in one process: who waits for it, under which terms, how the provider is, and what
Redis must still hear."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from penstock_ratelimit.concurrency.in_flight import InFlight
from penstock_ratelimit.quota import Quota
from penstock_ratelimit.shared.issuing import Issuing
from penstock_ratelimit.shared.provider_state import ProviderState
from penstock_ratelimit.shared.reports import ReportBuffer
from penstock_ratelimit.shared.terms_in_force import TermsInForce
from penstock_ratelimit.shared.waiting import WaitingCallers
from penstock_ratelimit.store.quota_hash import QuotaHash
from penstock_ratelimit.terms import Terms
from penstock_ratelimit.tickets import QuotaStats, Tally


class QuotaState:
    """What the parts that decide (``reserving``, ``free_starts``, ``redis_outage``) share.

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
        self.issuing = Issuing(self.callers, self.in_flight, self.tally, refund)
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
        """Those in force."""
        return self.in_force.terms

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
