"""Admit: ask the shared quota for a start time before anything is sent, and tell it afterwards how it went.

Waiting here costs no attempt. While it waits an item holds a slot but the ledger has not counted its start, so a crash is
never blamed on items that were only waiting.
"""

from __future__ import annotations

import hashlib

from penstock_ratelimit import Limiter, PerMinute, Quota, Ticket
from penstock_workers.answer import Tried
from penstock_workers.costs import Costs, metering
from penstock_workers.decide import explain
from penstock_workers.flight import Flight
from penstock_workers.judge import Failure, Reply
from penstock_workers.settings import ProviderSettings, WorkerSettings


def quotas(settings: WorkerSettings) -> list[Quota]:
    """One quota per provider: what its settings declare, corrected by what its headers tell. Raises MissingApiKey."""
    return [_quota(name, provider, settings.concurrency) for name, provider in settings.providers.items()]


def _quota(name: str, provider: ProviderSettings, concurrency: int) -> Quota:
    limits = {dim: PerMinute(amount) for dim, amount in provider.limits.items()}
    adaptive = not limits if provider.adaptive is None else provider.adaptive
    return Quota(
        name,
        limits,
        profile=metering(provider).name,
        discover=provider.discover,
        probe=True,
        concurrency=concurrency if adaptive else None,
        account=_fingerprint(name, provider),
    )


def _fingerprint(name: str, provider: ProviderSettings) -> str:
    """Names an account without telling its key: another one lifts a hold."""
    account = f"{provider.base_url}\n{provider.api_key(name) or ''}"
    return hashlib.sha256(account.encode()).hexdigest()[:16]


class Admission:
    """The runner's way to the limiter: what an item costs, whose turn it takes, how it went."""

    def __init__(self, limiter: Limiter, costs: Costs) -> None:
        self._limiter = limiter
        self._costs = costs

    async def ticket(self, flight: Flight) -> Ticket:
        """Wait for this flight's start time.

        Raises NeverFits when the request is larger than the quota ever allows, QuotaHeld while the account is held.
        """
        costs, certain = self._costs.of(flight)
        return await self._limiter.acquire(
            flight.job.spec.provider, costs, certain=certain, flow=flight.job.flow, retry=flight.retries > 0
        )

    def conclude(self, flight: Flight, ticket: Ticket, tried: Tried, happened: Failure | Reply) -> None:
        """Tell the quota how the request went. A failed one stays charged as the provider charges it."""
        if isinstance(happened, Reply):
            ticket.answered(tried.headers, usage=self._costs.observe(flight, happened))
            return
        ticket.failed(
            happened.signal,
            retry_after_s=happened.retry_after_s,
            reason=explain(happened),
            headers=tried.headers,
        )

    def may_retry(self, flight: Flight) -> bool:
        """False while the fleet sends too many retries: this one is put off."""
        return self._limiter.may_retry(flight.job.spec.provider)

    async def close(self) -> None:
        await self._limiter.aclose()
        await self._costs.close()
