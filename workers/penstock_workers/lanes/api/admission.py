"""The admission of the `api` lane: a ticket with a start time from the quota that the fleet
shares."""

from __future__ import annotations

import contextlib
import hashlib

from penstock_ledger import REDIS_TIMEOUT_S, RedisAddress
from penstock_ratelimit import Limiter, PerMinute, Quota, SharedLimiter, Ticket, profile_for
from penstock_workers.item.answer import Tried
from penstock_workers.item.attempt import Attempt
from penstock_workers.item.failures import Failure, Reply
from penstock_workers.item.lane import Prepared
from penstock_workers.item.run.fates import explain
from penstock_workers.lanes.api.costs import Costs
from penstock_workers.lanes.api.gauges import GaugeWatch
from penstock_workers.settings import ProviderSettings, WorkerSettings


def quotas(settings: WorkerSettings) -> list[Quota]:
    """One quota per provider: what its settings declare, corrected by the headers of its answers.

    Raises MissingApiKey."""
    return [
        _quota(name, provider, settings.concurrency)
        for name, provider in settings.providers.items()
    ]


def _quota(name: str, provider: ProviderSettings, concurrency: int) -> Quota:
    limits = {dim: PerMinute(amount) for dim, amount in provider.limits.items()}
    adaptive = not limits if provider.adaptive is None else provider.adaptive
    return Quota(
        name,
        limits,
        profile=profile_for(provider.base_url, provider.metering).name,
        discover=provider.discover,
        probe=True,
        concurrency=concurrency if adaptive else None,
        account=_fingerprint(name, provider),
    )


def _fingerprint(name: str, provider: ProviderSettings) -> str:
    """Names an account without telling its key: another one lifts a hold."""
    account = f"{provider.base_url}\n{provider.api_key(name) or ''}"
    return hashlib.sha256(account.encode()).hexdigest()[:16]


class QuotaAdmission:
    """A provider's shared quota: what an item costs, whose turn it takes, how it went."""

    def __init__(
        self, limiter: Limiter, costs: Costs, closing: contextlib.AsyncExitStack | None = None
    ) -> None:
        self._limiter = limiter
        self._costs = costs
        self._closing = closing or contextlib.AsyncExitStack()

    @classmethod
    def open(cls, settings: WorkerSettings) -> QuotaAdmission:
        """With everything that it takes in a worker.

        Call it on the event loop. Raises MissingApiKey."""
        closing = contextlib.AsyncExitStack()
        client = RedisAddress.parse(settings.redis_url).connect_async(
            socket_timeout=REDIS_TIMEOUT_S
        )
        closing.push_async_callback(client.aclose)
        limiter = SharedLimiter(client, quotas(settings))
        closing.push_async_callback(limiter.aclose)
        costs = Costs(settings.providers)
        costs.share(client)
        closing.push_async_callback(costs.close)
        pages = {
            name: provider.metrics_url
            for name, provider in settings.providers.items()
            if provider.metrics_url
        }
        gauges = GaugeWatch(pages, limiter.gauge, http_client=settings.http_client)
        gauges.start()
        closing.push_async_callback(gauges.close)
        return cls(limiter, costs, closing)

    def at_once(self, attempt: Attempt) -> QuotaTurn | None:
        ticket = None if attempt.retries else self._limiter.at_once(attempt.job.spec.provider)
        return None if ticket is None else QuotaTurn(ticket, attempt, self._costs)

    async def turn(self, attempt: Attempt, prepared: Prepared) -> QuotaTurn:
        costs, certain = self._costs.when_asked(attempt)
        ticket = await self._limiter.acquire(
            attempt.job.spec.provider,
            costs,
            certain=certain,
            flow=attempt.job.flow,
            retry=attempt.retries > 0,
        )
        return QuotaTurn(ticket, attempt, self._costs)

    def is_down(self, provider: str) -> bool:
        stats = self._limiter.stats().get(provider)
        return stats is not None and stats.breaker == "open"

    def may_retry(self, attempt: Attempt) -> bool:
        return self._limiter.may_retry(attempt.job.spec.provider)

    async def close(self) -> None:
        await self._closing.aclose()


class QuotaTurn:
    """A ticket of the quota, with what it takes to say afterwards what it cost."""

    __slots__ = ("_attempt", "_costs", "_ticket")

    def __init__(self, ticket: Ticket, attempt: Attempt, costs: Costs) -> None:
        self._ticket, self._attempt, self._costs = ticket, attempt, costs

    def start(self) -> None:
        self._ticket.start()

    def release(self) -> None:
        self._ticket.release()

    def conclude(self, tried: Tried, happened: Failure | Reply) -> None:
        """A failed request stays charged as the provider charges it."""
        if isinstance(happened, Reply):
            learn = self._costs.observe if self._ticket.limited else self._costs.sample
            self._ticket.answered(tried.headers, usage=learn(self._attempt, happened))
            return
        self._ticket.failed(
            happened.signal,
            retry_after_s=happened.retry_after_s,
            reason=explain(happened),
            headers=tried.headers,
        )
