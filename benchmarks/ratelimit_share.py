"""How well processes share one quota: utilisation, fairness, refusals, calls and CPU per item.

    python benchmarks/ratelimit_share.py [--processes 4] [--seconds 20] [--per-second 40] [--slots 60,60,10,4]

Starts a private redis-server for the quota and a second one that plays the provider: a strict bucket of one second per
dimension, which refuses (429) whatever does not fit. Every process keeps its slots busy with requests of random size.
CPU is that of the worker processes beyond the same loop without a limiter, at the same number of items.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import redis
import redis.asyncio

from penstock_ratelimit import PerSecond, Quota, SharedLimiter

WARM_UP_S = 4.0
TOKENS_PER_REQUEST = 1000

PROVIDER = """
local t = redis.call('TIME')
local now = t[1] + t[2] / 1e6
local at, requests, tokens = unpack(redis.call('HMGET', KEYS[1], 'at', 'requests', 'tokens'))
local per_second, tokens_per_second, cost = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local passed = now - (tonumber(at) or now)
requests = math.min((tonumber(requests) or per_second) + passed * per_second, per_second)
tokens = math.min((tonumber(tokens) or tokens_per_second) + passed * tokens_per_second, tokens_per_second)
local fits = requests >= 1 and tokens >= cost
if fits then requests, tokens = requests - 1, tokens - cost end
redis.call('HSET', KEYS[1], 'at', string.format('%.6f', now), 'requests', requests, 'tokens', tokens)
return fits and 1 or 0
"""


@dataclass(frozen=True)
class Load:
    """What each process is told; everything here is pickled."""

    quota_port: int
    provider_port: int
    per_second: float
    seconds: float
    slots: int
    latency_s: float
    seed: int
    start_at: float


@dataclass
class Tally:
    """What one process saw after the warm-up."""

    items: int = 0
    tokens: float = 0.0
    refused: int = 0
    calls: int = 0
    cpu_s: float = 0.0


@contextmanager
def redis_server() -> Iterator[int]:
    """A redis-server of our own on a free loopback port."""
    binary = shutil.which("redis-server")
    if binary is None:
        raise SystemExit("no redis-server on PATH: install one to run this benchmark")
    with socket.socket() as probe, tempfile.TemporaryDirectory() as folder:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
        probe.close()
        command = [binary, "--port", str(port), "--save", "", "--dir", folder]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            client = redis.Redis(port=port)
            for _ in range(200):
                try:
                    client.ping()
                    break
                except redis.ConnectionError:
                    time.sleep(0.02)
            yield port
        finally:
            process.terminate()
            process.wait()


def tokens_for(rng: random.Random) -> float:
    """Sizes with a long tail and a mean a fifth below ``TOKENS_PER_REQUEST``, so that requests bind."""
    return min(rng.lognormvariate(6.2, 1.0), 20 * TOKENS_PER_REQUEST)


async def work(load: Load) -> Tally:
    limits = {"requests": PerSecond(load.per_second), "tokens": PerSecond(load.per_second * TOKENS_PER_REQUEST)}
    quota_redis = redis.asyncio.Redis(port=load.quota_port)
    provider_redis = redis.asyncio.Redis(port=load.provider_port, max_connections=load.slots + 1)
    provider = provider_redis.register_script(PROVIDER)
    limiter = SharedLimiter(quota_redis, [Quota("q", limits, margin=1.0)])
    rng = random.Random(load.seed)
    tally = Tally()
    measured = False

    async def slot() -> None:
        while True:
            cost = tokens_for(rng)
            async with limiter.ticket("q", {"requests": 1, "tokens": cost}) as ticket:
                await asyncio.sleep(rng.uniform(0, 0.04))
                fits = await provider(keys=["p"], args=[load.per_second, limits["tokens"].amount, cost])
                if measured:
                    tally.items += 1
                    tally.tokens += cost
                    tally.refused += not fits
                await asyncio.sleep(load.latency_s)
                ticket.settle({"tokens": cost})

    await asyncio.sleep(max(0.0, load.start_at - time.time()))
    slots = [asyncio.create_task(slot()) for _ in range(load.slots)]
    await asyncio.sleep(WARM_UP_S)
    measured, calls = True, limiter.stats()["q"].calls
    await asyncio.sleep(load.seconds)
    measured, tally.calls = False, limiter.stats()["q"].calls - calls
    for task in slots:
        task.cancel()
    await asyncio.gather(*slots, return_exceptions=True)
    await limiter.aclose()
    await quota_redis.aclose()
    await provider_redis.aclose()
    return tally


def in_process(load: Load) -> Tally:
    return asyncio.run(work(load))


async def cpu_per_item(port: int, per_second: float, items: int) -> tuple[float, float, float]:
    """Microseconds of CPU per item of a loop of timers, of the same with the limiter, and its calls per item."""
    client = redis.asyncio.Redis(port=port)
    limits = {"requests": PerSecond(per_second), "tokens": PerSecond(per_second * TOKENS_PER_REQUEST)}
    limiter = SharedLimiter(client, [Quota("cpu", limits, margin=1.0)])
    await limiter.acquire("cpu", {"requests": 1, "tokens": 1})
    calls = limiter.stats()["cpu"].calls

    async def limited() -> None:
        async with limiter.ticket("cpu", {"requests": 1, "tokens": TOKENS_PER_REQUEST / 2}) as ticket:
            ticket.settle({"tokens": TOKENS_PER_REQUEST / 2 + 1})

    async def bare(start_at: float) -> None:
        future: asyncio.Future[None] = loop.create_future()
        loop.call_at(start_at, future.set_result, None)
        await future

    loop = asyncio.get_running_loop()
    began = time.process_time()
    await asyncio.gather(*(bare(loop.time() + n / per_second) for n in range(items)))
    bare_us = (time.process_time() - began) / items * 1e6
    began = time.process_time()
    await asyncio.gather(*(limited() for _ in range(items)))
    limited_us = (time.process_time() - began) / items * 1e6
    per_item = (limiter.stats()["cpu"].calls - calls) / items
    await limiter.aclose()
    await client.aclose()
    return bare_us, limited_us, per_item


async def free_path_us(rounds: int = 100_000) -> tuple[float, float]:
    """Microseconds per ``acquire``, and per whole ``async with ticket``, of a quota without limits."""
    limiter = SharedLimiter(redis.asyncio.Redis(port=1), [Quota("free")])
    costs = {"requests": 1.0, "tokens": 500.0}
    began = time.perf_counter()
    for _ in range(rounds):
        await limiter.acquire("free", costs)
    acquired = time.perf_counter()
    for _ in range(rounds):
        async with limiter.ticket("free", costs):
            pass
    return (acquired - began) / rounds * 1e6, (time.perf_counter() - acquired) / rounds * 1e6


def share(arguments: argparse.Namespace, quota_port: int, provider_port: int) -> dict[str, Any]:
    slots = [int(text) for text in arguments.slots.split(",")]
    processes = arguments.processes
    start_at = time.time() + 3.0
    loads = [
        Load(
            quota_port, provider_port, arguments.per_second, arguments.seconds, slots[n % len(slots)],
            arguments.latency, n, start_at,
        )
        for n in range(processes)
    ]  # fmt: skip
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        tallies = pool.map(in_process, loads, chunksize=1)
    counts = [tally.items for tally in tallies]
    total = sum(counts)
    used = (total, sum(tally.tokens for tally in tallies) / TOKENS_PER_REQUEST)
    return {
        "utilisation": round(max(used) / (arguments.per_second * arguments.seconds), 4),
        "refused": sum(tally.refused for tally in tallies),
        "items": counts,
        "jain": round(total**2 / (processes * sum(count**2 for count in counts)), 4),
        "calls_per_item": round(sum(tally.calls for tally in tallies) / total, 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--per-second", type=float, default=40.0)
    parser.add_argument("--slots", default="60", help="busy slots per process; a list gives each process its own")
    parser.add_argument("--latency", type=float, default=0.2, help="seconds a request takes")
    arguments = parser.parse_args()
    with ExitStack() as stack:
        quota_port, provider_port = (stack.enter_context(redis_server()) for _ in range(2))
        report = share(arguments, quota_port, provider_port)
        bare_us, limited_us, per_item = asyncio.run(cpu_per_item(quota_port, 2000.0, 6000))
        acquire_us, ticket_us = asyncio.run(free_path_us())
    report["cpu_us_per_item_at_2000_a_second"] = {
        "bare_timers": round(bare_us, 1),
        "with_limiter": round(limited_us, 1),
        "calls_per_item": round(per_item, 3),
    }
    report["no_limits_us"] = {"acquire": round(acquire_us, 2), "ticket": round(ticket_us, 2)}
    json.dump(report, sys.stdout, indent=2)
    print()


if __name__ == "__main__":
    main()
