"""What others pay for the same calls: `python -m benchmarks.harness.bare_loop aiohttp|openai URL
CALLS CONCURRENCY [uvloop]`.

One asyncio loop, so many coroutines in flight, bodies made beforehand, each answer parsed and
dropped: nothing is stored, shared or survives a crash. Prints milliseconds of CPU per call and
calls per second as JSON.
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

import orjson

from benchmarks.harness.documents import request_body

WARM_UP_CALLS = 1_000
TIMEOUT_S = 300.0  # of the SDK, which by its own takes a busy machine for a server that is away

Call = Callable[[dict[str, Any]], Awaitable[object]]


async def with_aiohttp(
    base_url: str, bodies: Sequence[dict[str, Any]], concurrency: int
) -> dict[str, float]:
    import aiohttp

    headers = {"Content-Type": "application/json"}
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def call(body: dict[str, Any]) -> object:
            async with session.post(
                f"{base_url}/chat/completions", data=orjson.dumps(body), headers=headers
            ) as response:
                response.raise_for_status()
                return orjson.loads(await response.read())

        return await measured(call, bodies, concurrency)


async def with_openai(
    base_url: str, bodies: Sequence[dict[str, Any]], concurrency: int
) -> dict[str, float]:
    from openai import AsyncOpenAI  # type: ignore[import-not-found,unused-ignore]  # an optional peer

    async with AsyncOpenAI(
        base_url=base_url, api_key="none", max_retries=0, timeout=TIMEOUT_S
    ) as client:

        async def call(body: dict[str, Any]) -> object:
            return await client.chat.completions.create(**body)

        return await measured(call, bodies, concurrency)


async def measured(
    call: Call, bodies: Sequence[dict[str, Any]], concurrency: int
) -> dict[str, float]:
    await _all(call, iter(bodies[:WARM_UP_CALLS]), concurrency)
    cpu, wall = _cpu_s(), time.monotonic()
    await _all(call, iter(bodies), concurrency)
    cpu_s, wall_s = _cpu_s() - cpu, time.monotonic() - wall
    return {"cpu_ms": cpu_s * 1000 / len(bodies), "per_s": len(bodies) / wall_s}


async def _all(call: Call, bodies: Iterator[dict[str, Any]], concurrency: int) -> None:
    async def slot() -> None:
        for body in bodies:  # shared: each body is taken once
            await call(body)

    await asyncio.gather(*(slot() for _ in range(concurrency)))


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def main() -> None:
    peer, base_url, calls, concurrency = (
        sys.argv[1],
        sys.argv[2],
        int(sys.argv[3]),
        int(sys.argv[4]),
    )
    bodies = [request_body(n) for n in range(calls)]
    run = {"aiohttp": with_aiohttp, "openai": with_openai}[peer]
    with asyncio.Runner(loop_factory=_uvloop() if "uvloop" in sys.argv[5:] else None) as runner:
        print(json.dumps(runner.run(run(base_url, bodies, concurrency))))


def _uvloop() -> Callable[[], asyncio.AbstractEventLoop]:
    import uvloop  # on demand: only one of the peers needs it

    return uvloop.new_event_loop


if __name__ == "__main__":
    main()
