"""Several processes on one quota, played in one loop: real Redis, virtual time, exact numbers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from servers import RedisServer

from penstock_ratelimit import PerSecond, Quota, SharedLimiter
from penstock_ratelimit.testing import BlockingScripts, run_virtual

QUOTA = Quota("q", {"requests": PerSecond(40)}, burst_s=0.5, horizon_s=1.0, margin=1.0)


class Fleet:
    """Limiters that stand for processes; ``redis.fault`` takes the server from all of them."""

    def __init__(self, server: RedisServer, stack: AsyncExitStack) -> None:
        self.raw = server.client(decode_responses=True)
        self.redis = BlockingScripts(self.raw)
        self._stack = stack
        self.starts: dict[str, list[float]] = {}

    def process(self, quota: Quota = QUOTA) -> SharedLimiter:
        clock = asyncio.get_running_loop().time
        limiter = SharedLimiter(self.redis, [quota], clock_us=lambda: 10**15 + round(clock() * 1e6))
        self._stack.push_async_callback(limiter.aclose)
        return limiter

    def work(self, name: str, limiter: SharedLimiter, slots: int, *, cost: float = 1.0) -> None:
        """Keep ``slots`` callers busy for ever, noting when each was let go."""
        starts = self.starts.setdefault(name, [])

        async def slot() -> None:
            while True:
                async with limiter.ticket("q", {"requests": cost}):
                    starts.append(now())
                    await asyncio.sleep(0.05)

        for _ in range(slots):
            task = asyncio.create_task(slot())
            self._stack.push_async_callback(cancelled, task)

    def all_starts(self) -> list[float]:
        return [start for starts in self.starts.values() for start in starts]

    def count(self, name: str, since: float) -> int:
        return sum(start >= since for start in self.starts[name])


async def cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def now() -> float:
    return asyncio.get_running_loop().time()


Play = Callable[[Fleet], Coroutine[Any, Any, None]]


@asynccontextmanager
async def fleet(server: RedisServer) -> AsyncIterator[Fleet]:
    async with AsyncExitStack() as stack:
        yield Fleet(server, stack)


def run(server: RedisServer, body: Play) -> None:
    """Plays ``body`` on a fleet without processes yet, in virtual time."""

    async def main() -> None:
        async with fleet(server) as one:
            await body(one)

    run_virtual(main())
