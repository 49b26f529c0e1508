"""The shared quota as one process of the benchmark uses it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import redis.asyncio

from benchmarks.pacing.provider import Answer
from penstock_ratelimit import Flow, PerSecond, Quota, SharedLimiter, Signal, Ticket

QUOTA = "pace"


@dataclass(frozen=True, slots=True)
class Setting:
    """What the quota is given beforehand.

    Rates are units per second for all processes together."""

    quota_port: int
    rates: Mapping[str, float]
    burst_s: float
    horizon_s: float
    told: bool


@dataclass(frozen=True, slots=True)
class Ask:
    """One request for permission.

    ``certain`` is what is known for sure; the rest of ``costs`` is an estimate."""

    costs: Mapping[str, float]
    job: str
    certain: Mapping[str, float] | None = None


class Penstock:
    """Settings as delivered, but for burst and horizon, which the provider's depth decides."""

    def __init__(self, setting: Setting) -> None:
        limits = {dim: PerSecond(rate) for dim, rate in setting.rates.items()}
        self._client = redis.asyncio.Redis(port=setting.quota_port)
        quota = Quota(
            QUOTA,
            limits,
            burst_s=setting.burst_s,
            horizon_s=setting.horizon_s,
            discover=setting.told,
        )
        self._limiter = SharedLimiter(self._client, [quota])
        self._told = setting.told

    async def acquire(self, ask: Ask) -> Permission:
        """Wait for permission. May raise whatever the limiter raises; it is counted."""
        ticket = await self._limiter.acquire(
            QUOTA, ask.costs, certain=ask.certain, flow=Flow(job=ask.job)
        )
        ticket.start()
        return Permission(ticket, told=self._told)

    async def aclose(self) -> None:
        await self._limiter.aclose()
        await self._client.aclose()


class Permission:
    """A started ticket. Headers are shown to it only where the case says so."""

    def __init__(self, ticket: Ticket, *, told: bool) -> None:
        self._ticket, self._told = ticket, told

    async def answered(self, answer: Answer, actual: Mapping[str, float]) -> None:
        """A good answer came, which cost ``actual``."""
        self._ticket.settle(actual)
        self._ticket.answered(self._headers(answer))

    async def failed(self, answer: Answer) -> None:
        """The provider took it, charged for it, and broke (500)."""
        self._ticket.failed(Signal.TRANSIENT, reason="server_error", headers=self._headers(answer))

    async def refused(self, answer: Answer) -> None:
        """429: the fleet's next start waits for as long as the provider says; asking again is all
        there is to do."""
        self._ticket.failed(
            Signal.THROTTLED,
            retry_after_s=answer.retry_after_s,
            reason="rate_limited",
            headers=self._headers(answer),
        )

    def _headers(self, answer: Answer) -> Mapping[str, str] | None:
        return answer.headers if self._told else None
