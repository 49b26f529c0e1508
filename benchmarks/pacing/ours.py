"""The shared quota of Penstock behind the benchmark's adapter."""

from __future__ import annotations

from collections.abc import Mapping

import redis.asyncio

from benchmarks.pacing.adapter import Ask, Setting
from benchmarks.pacing.provider import Answer
from penstock_ratelimit import Flow, PerSecond, Quota, SharedLimiter, Signal, Ticket

QUOTA = "pace"


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
        self._ticket.settle(actual)
        self._ticket.answered(self._headers(answer))

    async def failed(self, answer: Answer) -> None:
        self._ticket.failed(Signal.TRANSIENT, reason="server_error", headers=self._headers(answer))

    async def refused(self, answer: Answer) -> None:
        """The fleet's next start waits for as long as the provider says; asking again is all there
        is to do."""
        self._ticket.failed(
            Signal.THROTTLED,
            retry_after_s=answer.retry_after_s,
            reason="rate_limited",
            headers=self._headers(answer),
        )

    def _headers(self, answer: Answer) -> Mapping[str, str] | None:
        return answer.headers if self._told else None
