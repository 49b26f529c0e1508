"""One process alone: what permission costs without waiting, beside the floor of one round trip and
of a bare timer."""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.pacing.adapter import LIMITERS, OURS, Ask, Setting
from benchmarks.pacing.arena import Arena
from benchmarks.pacing.figures import percentile
from benchmarks.pacing.provider import REQUESTS, TOKENS, Answer

ROUNDS = 400
WARM_UP_ROUNDS = 50
FREE_ROUNDS = 50_000
TIMER_ITEMS, TIMER_RATE = 4000, 2000.0
RATES = {REQUESTS: 10_000.0, TOKENS: 10_000_000.0}
"""Far above what one caller at a time can use: no call ever waits."""
TOKENS_EACH = 500.0
TIMEOUT_S = 120.0
FINE = Answer(True, 0.0, {})


@dataclass(frozen=True, slots=True)
class Alone:
    """Microseconds. NaN-free: what a limiter does not have is None."""

    limiter: str
    acquire_p50_us: float
    acquire_p99_us: float
    ping_p50_us: float  # the floor of anything shared: one PING on the same connection type
    cpu_us_per_item: float | None = None  # Penstock's at 2,000 a second, with settlement
    bare_cpu_us_per_item: float | None = None  # the same timers without a limiter
    free_acquire_us: float | None = None  # a quota without limits


def alone(place: Arena, limiter: str) -> Alone:
    """In a process of its own, so that no limiter pays for another's imports."""
    place.quota.flushall()
    spawn = multiprocessing.get_context("spawn")
    near, far = spawn.Pipe()
    process = spawn.Process(target=_main, args=(far, place.quota_port, limiter), daemon=True)
    process.start()
    far.close()
    if not near.poll(TIMEOUT_S):
        process.kill()
        raise RuntimeError(f"{limiter} alone: no answer within {TIMEOUT_S:.0f} s")
    found: Alone = near.recv()
    process.join()
    return found


def show_alone(found: Sequence[Alone]) -> list[dict[str, Any]]:
    table = Table(title="alone: permission without waiting, one caller", title_justify="left")
    for heading in (
        "limiter",
        "acquire p50 us",
        "p99 us",
        "bare PING p50 us",
        "x PING",
        "CPU us/item at 2,000/s",
    ):
        table.add_column(heading, justify="left" if heading == "limiter" else "right")
    for one in found:
        ratio = one.acquire_p50_us / one.ping_p50_us
        cpu = ""
        if one.cpu_us_per_item is not None and one.bare_cpu_us_per_item is not None:
            cpu = f"{one.cpu_us_per_item:.0f} (bare timers {one.bare_cpu_us_per_item:.0f})"
        table.add_row(
            one.limiter,
            f"{one.acquire_p50_us:.0f}",
            f"{one.acquire_p99_us:.0f}",
            f"{one.ping_p50_us:.0f}",
            f"{ratio:.2f}x",
            cpu,
        )
    Console(width=120).print(table)
    for one in found:
        if one.free_acquire_us is not None:
            print(f"  a quota without limits: {one.free_acquire_us:.2f} us per acquire")
    return [asdict(one) for one in found]


def _main(pipe: Connection, port: int, limiter: str) -> None:
    pipe.send(asyncio.run(_measure(port, limiter)))


async def _measure(port: int, limiter: str) -> Alone:
    adapter = LIMITERS[limiter].open(Setting(port, RATES, 1, 0.5, 1.0, told=False))
    ask = Ask({REQUESTS: 1.0, TOKENS: TOKENS_EACH}, "job-0")
    took = []
    for number in range(WARM_UP_ROUNDS + ROUNDS):
        began = time.perf_counter()
        grant = await adapter.acquire(ask)
        if number >= WARM_UP_ROUNDS:
            took.append((time.perf_counter() - began) * 1e6)
        await grant.answered(FINE, {TOKENS: TOKENS_EACH})
    await adapter.aclose()
    pings = await _pings(port)
    p50, p99 = percentile(took, 0.5), percentile(took, 0.99)
    if limiter != OURS:
        return Alone(limiter, p50, p99, percentile(pings, 0.5))
    limited_us, bare_us = await _cpu_per_item(port)
    return Alone(limiter, p50, p99, percentile(pings, 0.5), limited_us, bare_us, await _free_us())


async def _pings(port: int) -> list[float]:
    import redis.asyncio

    client, took = redis.asyncio.Redis(port=port), []
    for _ in range(WARM_UP_ROUNDS + ROUNDS):
        began = time.perf_counter()
        await client.execute_command("PING")  # type: ignore[no-untyped-call]  # untyped in redis-py
        took.append((time.perf_counter() - began) * 1e6)
    await client.aclose()
    return took[WARM_UP_ROUNDS:]


async def _cpu_per_item(port: int) -> tuple[float, float]:
    """Microseconds of CPU per item: with tickets that are settled, and of bare timers at the same
    moments."""
    import redis.asyncio

    from penstock_ratelimit import PerSecond, Quota, SharedLimiter

    client = redis.asyncio.Redis(port=port)
    limits = {REQUESTS: PerSecond(TIMER_RATE), TOKENS: PerSecond(TIMER_RATE * 1000)}
    limiter = SharedLimiter(client, [Quota("cpu", limits, margin=1.0)])
    loop = asyncio.get_running_loop()

    async def limited() -> None:
        async with limiter.ticket("cpu", {REQUESTS: 1, TOKENS: TOKENS_EACH}) as ticket:
            ticket.settle({TOKENS: TOKENS_EACH + 1})

    async def bare(start_at: float) -> None:
        future: asyncio.Future[None] = loop.create_future()
        loop.call_at(start_at, future.set_result, None)
        await future

    await limited()
    began, now = time.process_time(), loop.time()
    await asyncio.gather(*(bare(now + n / TIMER_RATE) for n in range(TIMER_ITEMS)))
    bare_us = (time.process_time() - began) / TIMER_ITEMS * 1e6
    began = time.process_time()
    await asyncio.gather(*(limited() for _ in range(TIMER_ITEMS)))
    limited_us = (time.process_time() - began) / TIMER_ITEMS * 1e6
    await limiter.aclose()
    await client.aclose()
    return limited_us, bare_us


async def _free_us() -> float:
    """A quota without limits never waits and touches no Redis."""
    import redis.asyncio

    from penstock_ratelimit import Quota, SharedLimiter

    client = redis.asyncio.Redis(port=1)
    limiter = SharedLimiter(client, [Quota("free")])
    costs = {REQUESTS: 1.0, TOKENS: TOKENS_EACH}
    began = time.perf_counter()
    for _ in range(FREE_ROUNDS):
        await limiter.acquire("free", costs)
    free_us = (time.perf_counter() - began) / FREE_ROUNDS * 1e6
    await limiter.aclose()
    await client.aclose()
    return free_us
