"""(h) HTTP clients alone: a bare aiohttp loop, aiohttp behind the worker's interface, and the lean
client, on both loops.

Each round runs every client once, in a process of its own, against the same simulator: CPU per
call, so that a busy machine meets all of them alike.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence
from importlib import util
from typing import Any

import orjson

from benchmarks.harness.documents import request_body
from benchmarks.harness.ground import ROOT, simulator
from benchmarks.harness.report import Report, Row, median
from benchmarks.peers.bare_loop import measured, with_aiohttp
from penstock_workers.http import ClientName, Target, make_client

CONCURRENCY = 256  # the default of a worker process
LATENCY_MS, SIGMA = 5.0, 0.35
ROUNDS = 5
LIMIT_S = 60.0  # of one call
PEER_TIMEOUT_S = 300
TARGET = 0.4  # of the bare loop's CPU: what a worker that costs less than that loop can afford
UVLOOP = "+uvloop"
PEERS = ("bare aiohttp", "aiohttp", "lean")


def run(quick: bool) -> Report:
    calls, rounds = (3_000, 1) if quick else (10_000, ROUNDS)
    loops = ("", UVLOOP) if util.find_spec("uvloop") is not None else ("",)
    costs: dict[str, list[float]] = defaultdict(list)
    with simulator(LATENCY_MS, SIGMA) as provider:
        for _ in range(rounds):
            for name in (peer + loop for loop in loops for peer in PEERS):
                costs[name].append(_cost_us(name, provider.url, calls))
    rows = [_row(name, found, costs["bare aiohttp"]) for name, found in costs.items()]
    return Report(f"(h) HTTP clients alone, {calls:,} calls, {rounds} round(s), medians", rows)


def _cost_us(name: str, url: str, calls: int) -> float:
    command = [sys.executable, "-m", "benchmarks.parts.http_clients", name, url, str(calls)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, timeout=PEER_TIMEOUT_S, check=True
    )
    return float(json.loads(done.stdout)["cpu_ms"]) * 1000


def _row(name: str, found: list[float], bare: list[float]) -> Row:
    ratio = median(found) / median(bare)
    shown = f"{median(found):.0f} us ({min(found):.0f} to {max(found):.0f})"
    if name != "lean":
        return Row(f"CPU per call, {name}", shown, "", f"{ratio:.2f}x")
    return Row(
        f"CPU per call, {name}",
        shown,
        f"{median(bare):.0f} us",
        f"{ratio:.2f}x",
        f"<= {TARGET}x",
        ratio <= TARGET,
    )


async def _with_client(
    name: ClientName, base_url: str, bodies: Sequence[dict[str, Any]]
) -> dict[str, float]:
    client = make_client(name)
    target = Target.of(f"{base_url}/chat/completions", {"Content-Type": "application/json"})

    async def call(body: dict[str, Any]) -> object:
        answer = await client.post(
            target,
            orjson.dumps(body),
            headers={"X-Client-Request-Id": "job:document"},
            timeout_s=LIMIT_S,
        )
        if answer.status != 200:
            raise RuntimeError(f"the simulator answered {answer.status}")
        return orjson.loads(answer.body)

    try:
        return await measured(call, bodies, CONCURRENCY)
    finally:
        await client.close()


async def _peer(name: str, url: str, bodies: Sequence[dict[str, Any]]) -> dict[str, float]:
    if name == "bare aiohttp":
        return await with_aiohttp(url, bodies, CONCURRENCY)
    return await _with_client("lean" if name == "lean" else "aiohttp", url, bodies)


def main() -> None:
    name, url, calls = sys.argv[1], sys.argv[2], int(sys.argv[3])
    running = _peer(name.removesuffix(UVLOOP), url, [request_body(n) for n in range(calls)])
    if name.endswith(UVLOOP):
        import uvloop

        print(json.dumps(uvloop.run(running)))
    else:
        print(json.dumps(asyncio.run(running)))


if __name__ == "__main__":
    main()
