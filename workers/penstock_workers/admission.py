"""Admit: ask the shared quota for a start time before anything is sent, and tell it afterwards what was used.

Waiting here costs no attempt. While it waits an item holds a slot but the ledger has not counted its start, so a crash is
never blamed on items that were only waiting.
"""

from __future__ import annotations

from collections.abc import Mapping

import orjson

from penstock_ratelimit import Estimator, Limiter, PerMinute, Quota, Rate, Ticket
from penstock_workers.flight import Flight
from penstock_workers.judge import Failure, Reply
from penstock_workers.settings import ProviderSettings

REQUESTS, TOKENS = "requests", "tokens"
DEFAULT_OUTPUT_TOKENS = 256  # assumed for a body that names no max_tokens, until the job's own answers teach better
_OUTPUT_FIELDS = ("max_completion_tokens", "max_tokens", "max_output_tokens")


def quotas(providers: Mapping[str, ProviderSettings]) -> list[Quota]:
    """One quota per provider; a provider without limits gets one that never waits."""
    return [Quota(name, limits=_limits(provider)) for name, provider in providers.items()]


def _limits(provider: ProviderSettings) -> dict[str, Rate]:
    limits: dict[str, Rate] = {}
    if provider.rpm is not None:
        limits[REQUESTS] = PerMinute(provider.rpm)
    if provider.tpm is not None:
        limits[TOKENS] = PerMinute(provider.tpm)
    return limits


class Admission:
    """Costs of a request before it is sent, corrected by what it turned out to cost."""

    def __init__(self, limiter: Limiter) -> None:
        self._limiter = limiter
        self._estimator = Estimator()

    async def ticket(self, flight: Flight) -> Ticket:
        """Wait for this flight's start time. Raises NeverFits when the request is larger than the quota ever allows."""
        return await self._limiter.acquire(flight.job.spec.provider, self._costs(flight))

    def settle(self, flight: Flight, ticket: Ticket, happened: Failure | Reply) -> None:
        """Correct the reservation. A failed request stays charged: providers count it too."""
        if flight.job.provider.tpm is None or not isinstance(happened, Reply):
            return
        if happened.prompt_tokens is None:
            return
        used = happened.prompt_tokens + (happened.completion_tokens or 0)
        self._estimator.observe(flight.job.job_id, _weight(flight), used)
        ticket.settle({TOKENS: used})

    def hold_back(self, flight: Flight, seconds: float) -> None:
        """The provider said "not now": nobody of the fleet sends to it for so long."""
        self._limiter.not_before(flight.job.spec.provider, seconds)

    async def close(self) -> None:
        await self._limiter.aclose()

    def _costs(self, flight: Flight) -> dict[str, float]:
        if flight.job.provider.tpm is None:
            return {REQUESTS: 1}
        return {REQUESTS: 1, TOKENS: self._estimator.estimate(flight.job.job_id, _weight(flight))}


def _weight(flight: Flight) -> int:
    """Characters that stand for the whole call: the request's own, and four for each output token asked for."""
    return len(flight.body) + 4 * _output_asked(flight.body)


def _output_asked(body: bytes) -> int:
    fields = orjson.loads(body)
    return next((fields[name] for name in _OUTPUT_FIELDS if isinstance(fields.get(name), int)), DEFAULT_OUTPUT_TOKENS)
