"""Other people's limiters behind the benchmark's adapter, each used as its documentation shows.

Those that know one number per key get two keys, requests first. All get the same burst, and wait
for as long as it takes. After a 429 they come back when the provider said, with jitter, and ask for
permission again: none of them listens to it.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Mapping
from typing import Any

from benchmarks.pacing.adapter import Ask, Setting
from benchmarks.pacing.provider import Answer

PATIENCE_S = 3600.0
BACKOFF_S = 0.5
BACKOFF_CAP_S = 8.0
POLL_S = (0.05, 0.15)
"""A limiter that only says yes or no is asked again after U(50, 150 ms): less often than that costs
it utilisation."""


class Granted:
    """Permission from a limiter that wants to hear nothing afterwards."""

    async def answered(self, answer: Answer, actual: Mapping[str, float]) -> None: ...

    async def failed(self, answer: Answer) -> None: ...

    async def refused(self, answer: Answer) -> None:
        await asyncio.sleep(answer.retry_after_s + random.uniform(0, BACKOFF_S))


GRANTED = Granted()


class Nothing:
    """No limiter: send, and on 429 wait as the provider says, plus full jitter that doubles while
    the refusals last."""

    def __init__(self, setting: Setting) -> None: ...

    async def acquire(self, ask: Ask) -> Unasked:
        return Unasked(ask.earlier)

    async def aclose(self) -> None: ...


class Unasked(Granted):
    """No permission was asked for."""

    def __init__(self, earlier: int) -> None:
        self._earlier = min(earlier, 10)

    async def refused(self, answer: Answer) -> None:
        backoff_s = min(BACKOFF_CAP_S, BACKOFF_S * 2**self._earlier)
        await asyncio.sleep(answer.retry_after_s + random.uniform(0, backoff_s))


async def _until_the_next_try() -> None:
    await asyncio.sleep(random.uniform(*POLL_S))


class ThrottledPy:
    """throttled-py, GCRA in Redis, blocking with its own waiting."""

    def __init__(self, setting: Setting) -> None:
        from throttled.asyncio import RedisStore, Throttled, rate_limiter

        store = RedisStore(server=f"redis://127.0.0.1:{setting.quota_port}/0")
        self._limiters = {
            dim: Throttled(
                key=dim,
                using="gcra",
                quota=rate_limiter.per_sec(
                    round(rate), burst=max(1, round(rate * setting.burst_s))
                ),
                store=store,
                timeout=PATIENCE_S,
            )
            for dim, rate in setting.rates.items()
        }

    async def acquire(self, ask: Ask) -> Granted:
        for dim, limiter in self._limiters.items():
            await limiter.limit(cost=math.ceil(ask.costs[dim]))
        return GRANTED

    async def aclose(self) -> None: ...


class PyrateLimiter:
    """pyrate-limiter, GCRA in Redis on the client's clock, blocking."""

    def __init__(self, setting: Setting) -> None:
        import redis.asyncio
        from pyrate_limiter import Duration, Limiter, Rate, RedisStateStore, StateBucket

        self._client = redis.asyncio.Redis(port=setting.quota_port)
        self._limiters = {
            dim: Limiter(
                StateBucket(
                    [
                        Rate(
                            round(rate),
                            Duration.SECOND,
                            burst=max(1, round(rate * setting.burst_s)),
                        )
                    ],
                    store=RedisStateStore(self._client, dim),
                )
            )
            for dim, rate in setting.rates.items()
        }

    async def acquire(self, ask: Ask) -> Granted:
        for dim, limiter in self._limiters.items():
            while not await limiter.try_acquire_async(dim, weight=math.ceil(ask.costs[dim])):
                await _until_the_next_try()
        return GRANTED

    async def aclose(self) -> None:
        await self._client.aclose()


class Limits:
    """limits, sliding window counter in Redis; it only says yes or no, so the caller polls."""

    def __init__(self, setting: Setting) -> None:
        from limits import RateLimitItemPerSecond
        from limits.aio.storage import RedisStorage
        from limits.aio.strategies import SlidingWindowCounterRateLimiter

        url = f"async+redis://127.0.0.1:{setting.quota_port}"
        self._strategy = SlidingWindowCounterRateLimiter(
            RedisStorage(url, implementation="redispy")
        )
        self._items = {
            dim: RateLimitItemPerSecond(round(rate), 1) for dim, rate in setting.rates.items()
        }

    async def acquire(self, ask: Ask) -> Granted:
        for dim, item in self._items.items():
            while not await self._strategy.hit(item, dim, cost=math.ceil(ask.costs[dim])):
                await _until_the_next_try()
        return GRANTED

    async def aclose(self) -> None: ...


class TokenThrottle:
    """token-throttle, several metrics reserved at once and refunded, under its distributed
    locks."""

    def __init__(self, setting: Setting) -> None:
        import redis.asyncio
        from token_throttle import (
            PerModelConfig,
            Quota,
            RateLimiter,
            RedisBackendBuilder,
            UsageQuotas,
        )

        pool = redis.asyncio.BlockingConnectionPool(
            port=setting.quota_port, max_connections=100, timeout=None
        )
        self._client = redis.asyncio.Redis(connection_pool=pool)
        quotas = [
            Quota(metric=dim, limit=round(rate), per_seconds=1)
            for dim, rate in setting.rates.items()
        ]
        self._limiter = RateLimiter(
            PerModelConfig(quotas=UsageQuotas(quotas)),
            backend=RedisBackendBuilder(self._client, key_prefix="pace"),
        )

    async def acquire(self, ask: Ask) -> Reservation:
        return Reservation(
            self._limiter,
            await self._limiter.acquire_capacity(usage=dict(ask.costs), model="m"),
            ask,
        )

    async def aclose(self) -> None:
        await self._limiter.aclose()
        await self._client.aclose()


class Reservation(Granted):
    """token-throttle's, which must be closed with what was used; what failed was used, too."""

    def __init__(self, limiter: Any, reservation: Any, ask: Ask) -> None:
        self._limiter, self._reservation, self._costs = limiter, reservation, dict(ask.costs)

    async def answered(self, answer: Answer, actual: Mapping[str, float]) -> None:
        await self._close({**self._costs, **actual})

    async def failed(self, answer: Answer) -> None:
        await self._close(self._costs)

    async def refused(self, answer: Answer) -> None:
        await self._close({dim: float(dim == "requests") for dim in self._costs})
        await super().refused(answer)

    async def _close(self, used: Mapping[str, float]) -> None:
        await self._limiter.refund_capacity(actual_usage=dict(used), reservation=self._reservation)


class AioLimiterSplit:
    """aiolimiter, which knows no other process: each gets an equal part of the quota."""

    def __init__(self, setting: Setting) -> None:
        from aiolimiter import AsyncLimiter

        part_s = setting.burst_s / setting.processes
        self._limiters = {
            dim: AsyncLimiter(rate * part_s, setting.burst_s) for dim, rate in setting.rates.items()
        }

    async def acquire(self, ask: Ask) -> Granted:
        for dim, limiter in self._limiters.items():
            # more than that it refuses
            await limiter.acquire(min(ask.costs[dim], limiter.max_rate))
        return GRANTED

    async def aclose(self) -> None: ...
