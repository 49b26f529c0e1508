"""The shared quota of Penstock behind the benchmark's adapter."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import redis.asyncio

from benchmarks.pacing.adapter import Ask, Setting
from benchmarks.pacing.provider import Answer
from penstock_ratelimit import PerSecond, Quota, SharedLimiter, Ticket

QUOTA = "pace"
LISTENS = hasattr(Ticket, "answered")
"""Whether this version of the limiter hears answers (headers, kinds of failure) or only settlements and pauses."""
KNOWS_FLOWS = "flow" in inspect.signature(SharedLimiter.acquire).parameters
DISCOVERS = any(field.name == "discover" for field in fields(Quota))


class Penstock:
    """Settings as delivered, but for burst and horizon, which the provider's depth decides."""

    def __init__(self, setting: Setting) -> None:
        limits = {dim: PerSecond(rate) for dim, rate in setting.rates.items()}
        self._client = redis.asyncio.Redis(port=setting.quota_port)
        told: dict[str, Any] = {"discover": True} if setting.told and DISCOVERS else {}
        quota = Quota(QUOTA, limits, burst_s=setting.burst_s, horizon_s=setting.horizon_s, **told)
        self._limiter = SharedLimiter(self._client, [quota])
        self._told = setting.told

    async def acquire(self, ask: Ask) -> Permission:
        options: dict[str, Any] = {"flow": _flow(ask.job)} if KNOWS_FLOWS else {}
        ticket = await self._limiter.acquire(QUOTA, ask.costs, certain=ask.certain, **options)
        ticket.start()
        return Permission(self._limiter, ticket, told=self._told)

    async def aclose(self) -> None:
        await self._limiter.aclose()
        await self._client.aclose()


class Permission:
    """A started ticket. Headers are shown to it only where the case says that limits are told."""

    def __init__(self, limiter: SharedLimiter, ticket: Any, *, told: bool) -> None:
        self._limiter, self._ticket, self._told = limiter, ticket, told

    async def answered(self, answer: Answer, actual: Mapping[str, float]) -> None:
        self._ticket.settle(actual)
        if LISTENS:
            self._ticket.answered(self._headers(answer))

    async def failed(self, answer: Answer) -> None:
        """It stays charged, as the provider charged it."""
        if LISTENS:
            from penstock_ratelimit.refusals import Signal

            self._ticket.failed(Signal.TRANSIENT, reason="server_error", headers=self._headers(answer))

    async def refused(self, answer: Answer) -> None:
        if not LISTENS:
            self._limiter.not_before(QUOTA, answer.retry_after_s)
            return
        from penstock_ratelimit.refusals import Signal

        self._ticket.failed(
            Signal.THROTTLED,
            retry_after_s=answer.retry_after_s,
            reason="rate_limited",
            headers=self._headers(answer),
        )

    def _headers(self, answer: Answer) -> Mapping[str, str] | None:
        return answer.headers if self._told else None


def _flow(job: str) -> Any:
    from penstock_ratelimit.fairness import Flow

    return Flow(job=job)
