"""Admit: whose turn it is. A provider's requests wait for the shared quota, an engine's for room in the engine.

Waiting here costs no attempt. While it waits an item holds a slot but the ledger has not counted its start, so a crash is
never blamed on items that were only waiting.
"""

from __future__ import annotations

import contextlib
import hashlib
from typing import Protocol

from penstock_ledger import RedisAddress
from penstock_ratelimit import Limiter, PerMinute, Quota, SharedLimiter, Ticket
from penstock_workers.item.answer import Tried
from penstock_workers.item.attempt import Attempt
from penstock_workers.item.costs import Costs, metering
from penstock_workers.item.failures import Failure, Reply
from penstock_workers.item.fates import explain
from penstock_workers.item.lane import Prepared
from penstock_workers.lanes.gauges import GaugeWatch
from penstock_workers.settings import ProviderSettings, WorkerSettings

REDIS_TIMEOUT_S = 15.0  # a dead peer blocks forever without one


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


class Turn(Protocol):
    """The right of one item to start. Ended by ``conclude`` or ``release``; what comes after the first does nothing."""

    def start(self) -> None:
        """The request goes out now: what it costs is spent."""

    def conclude(self, tried: Tried, happened: Failure | Reply) -> None:
        """How it went."""

    def release(self) -> None:
        """Give back what was never started; safe in a ``finally``."""


class Admission(Protocol):
    """The runner's way to whatever there is too little of."""

    async def turn(self, attempt: Attempt, prepared: Prepared) -> Turn:
        """Wait for the turn of this attempt.

        Raises NeverFits when the request is larger than is ever allowed, QuotaHeld while the account is held.
        """
        ...

    def may_retry(self, attempt: Attempt) -> bool:
        """False while the fleet sends too many retries: this one is put off."""
        ...

    async def close(self) -> None: ...


class QuotaAdmission:
    """A provider's shared quota: what an item costs, whose turn it takes, how it went."""

    def __init__(self, limiter: Limiter, costs: Costs, closing: contextlib.AsyncExitStack | None = None) -> None:
        self._limiter = limiter
        self._costs = costs
        self._closing = closing or contextlib.AsyncExitStack()

    @classmethod
    def open(cls, settings: WorkerSettings) -> QuotaAdmission:
        """With everything that it takes in a worker. Call it on the event loop. Raises MissingApiKey."""
        closing = contextlib.AsyncExitStack()
        client = RedisAddress.parse(settings.redis_url).connect_async(socket_timeout=REDIS_TIMEOUT_S)
        closing.push_async_callback(client.aclose)
        limiter = SharedLimiter(client, quotas(settings))
        closing.push_async_callback(limiter.aclose)
        costs = Costs(settings.providers)
        costs.share(client)
        closing.push_async_callback(costs.close)
        pages = {name: provider.metrics_url for name, provider in settings.providers.items() if provider.metrics_url}
        gauges = GaugeWatch(pages, limiter.gauge, http_client=settings.http_client)
        gauges.start()
        closing.push_async_callback(gauges.close)
        return cls(limiter, costs, closing)

    async def turn(self, attempt: Attempt, prepared: Prepared) -> QuotaTurn:
        costs, certain = self._costs.when_asked(attempt)
        ticket = await self._limiter.acquire(
            attempt.job.spec.provider, costs, certain=certain, flow=attempt.job.flow, retry=attempt.retries > 0
        )
        return QuotaTurn(ticket, attempt, self._costs)

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


class Unpaced:
    """For a lane whose own queue is the limit: an item that has a slot starts at once."""

    async def turn(self, attempt: Attempt, prepared: Prepared) -> FreeTurn:
        return FreeTurn()

    def may_retry(self, attempt: Attempt) -> bool:
        return True

    async def close(self) -> None:
        """Nothing to close."""


class FreeTurn:
    """A turn that takes nothing from others."""

    def start(self) -> None:
        """Nothing to spend."""

    def conclude(self, tried: Tried, happened: Failure | Reply) -> None:
        """No quota learns from it."""

    def release(self) -> None:
        """Nothing to give back."""
