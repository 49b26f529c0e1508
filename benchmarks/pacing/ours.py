"""The shared quota of Penstock behind the benchmark's adapter."""

from __future__ import annotations

from collections.abc import Mapping

import redis.asyncio

from benchmarks.pacing.adapter import Ask, Setting
from benchmarks.pacing.provider import Answer
from penstock_ratelimit import PerSecond, Quota, SharedLimiter, Ticket

QUOTA = "pace"


class Penstock:
    """Settings as delivered, but for burst and horizon, which the provider's depth decides."""

    def __init__(self, setting: Setting) -> None:
        limits = {dim: PerSecond(rate) for dim, rate in setting.rates.items()}
        self._client = redis.asyncio.Redis(port=setting.quota_port)
        quota = Quota(QUOTA, limits, burst_s=setting.burst_s, horizon_s=setting.horizon_s)
        self._limiter = SharedLimiter(self._client, [quota])

    async def acquire(self, ask: Ask) -> Permission:
        ticket = await self._limiter.acquire(QUOTA, ask.costs, certain=ask.certain)
        ticket.start()
        return Permission(self._limiter, ticket)

    async def aclose(self) -> None:
        await self._limiter.aclose()
        await self._client.aclose()


class Permission:
    """A started ticket."""

    def __init__(self, limiter: SharedLimiter, ticket: Ticket) -> None:
        self._limiter, self._ticket = limiter, ticket

    async def answered(self, answer: Answer, actual: Mapping[str, float]) -> None:
        self._ticket.settle(actual)

    async def failed(self, answer: Answer) -> None:
        """It stays charged, as the provider charged it."""

    async def refused(self, answer: Answer) -> None:
        self._limiter.not_before(QUOTA, answer.retry_after_s)
