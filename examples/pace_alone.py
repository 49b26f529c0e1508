"""Pace calls with `penstock_ratelimit` alone: no fleet, no key.

With a Redis URL as argument, start it twice: they share.

python examples/pace_alone.py [redis://127.0.0.1:6379/0]
"""

from __future__ import annotations

import asyncio
import sys
import time

from penstock_ratelimit import BlockingLimiter, LocalLimiter, PerSecond, Quota, SharedLimiter, Usage

QUOTA = Quota("provider", {"requests": PerSecond(20), "tokens": PerSecond(4_000)})
CALLS = 60


async def answer(tokens: int) -> Usage:
    """Stands for the provider: every second answer is half as long as was reserved."""
    await asyncio.sleep(0.05)
    return Usage(input_tokens=tokens / 2, output_tokens=tokens / 4)


async def paced(redis_url: str | None) -> None:
    """Sixty calls at once; each sleeps until its own start time."""
    client = None
    if redis_url is not None:
        import redis.asyncio

        client = redis.asyncio.Redis.from_url(redis_url)
    limiter = LocalLimiter([QUOTA]) if client is None else SharedLimiter(client, [QUOTA])
    provider, began = limiter.quota("provider"), time.monotonic()

    async def call() -> None:
        async with provider.ticket(requests=1, tokens=300) as ticket:
            ticket.answered(usage=await answer(300))

    await asyncio.gather(*(call() for _ in range(CALLS)))
    used = limiter.stats()["provider"].used
    seconds = time.monotonic() - began
    print(
        f"async: {CALLS} calls in {seconds:.1f} s, {used['tokens']:.0f} tokens charged of "
        f"{300 * CALLS} reserved"
    )
    await limiter.aclose()
    if client is not None:
        await client.aclose()


def blocking(redis_url: str | None) -> None:
    """The same without asyncio."""
    with BlockingLimiter([QUOTA], redis_url) as limiter:
        began = time.monotonic()
        for _ in range(10):
            with limiter.ticket("provider", {"requests": 1, "tokens": 100}, timeout=30) as ticket:
                ticket.answered(usage=Usage(60, 40))
        print(f"blocking: 10 calls in {time.monotonic() - began:.1f} s")


if __name__ == "__main__":
    url = sys.argv[1] if len(sys.argv) > 1 else None
    asyncio.run(paced(url))
    blocking(url)
