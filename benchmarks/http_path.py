"""(c) The whole path over HTTP, all processes of ours counted, beside loops that do nothing but call."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import util

from benchmarks.fleet import JobCost, fleet
from benchmarks.ground import ROOT, RunningSimulator, folder, redis_server, simulator, usage
from benchmarks.report import Report, Row, median

WORKER = "penstock_workers"
CONCURRENCY = 256  # the default of a worker process
LATENCY_MS, SIGMA = 10.0, 0.35  # 99 of 100 answers within 4 to 23 ms
ROUNDS = 3
SDK_CALLS = 4_000  # it is slow, and its cost per call does not depend on their number
PEER_TIMEOUT_S = 300

TARGET_MS = 0.45
TARGET_AIOHTTP = 4.0
TARGET_SDK = 1 / 3


def run(quick: bool) -> Report:
    items = 4_000 if quick else 20_000
    ours: list[JobCost] = []
    aiohttp: list[float] = []
    openai: list[float] = []
    with (
        folder() as place,
        redis_server(place) as server,
        simulator(LATENCY_MS, SIGMA) as provider,
        fleet(place / "fleet", server, worker=WORKER, concurrency=CONCURRENCY, base_url=provider.url) as running,
    ):
        at_start = usage(provider.pid).cpu_s
        for _ in range(1 if quick else ROUNDS):
            ours.append(running.run(items))
            aiohttp.append(peer("aiohttp", provider, items))
            if util.find_spec("openai") is not None:
                openai.append(peer("openai", provider, min(items, SDK_CALLS)))
        simulator_s = usage(provider.pid).cpu_s - at_start
    rows = _rows([cost.ours_ms for cost in ours], aiohttp, openai)
    return Report(f"(c) whole path over HTTP, {items:,} items, {len(ours)} round(s)", rows, _notes(ours, simulator_s))


def peer(name: str, provider: RunningSimulator, calls: int) -> float:
    """Milliseconds of CPU per call of a bare loop."""
    command = [sys.executable, "-m", "benchmarks.bare_loop", name, provider.url, str(calls), str(CONCURRENCY)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=PEER_TIMEOUT_S, check=True)
    return float(json.loads(done.stdout)["cpu_ms"])


def _rows(ours: list[float], aiohttp: list[float], openai: list[float]) -> list[Row]:
    own, bare = median(ours), median(aiohttp)
    rows = [
        Row("CPU per item, all our processes", f"{own:.3f} ms", "", "", f"<= {TARGET_MS} ms", own <= TARGET_MS),
        Row(
            "against a bare aiohttp loop", f"{own:.3f} ms", f"{bare:.3f} ms", f"{own / bare:.2f}x",
            f"<= {TARGET_AIOHTTP:g}x", own / bare <= TARGET_AIOHTTP,
        ),
    ]  # fmt: skip
    if not openai:
        return [*rows, Row("against a bare OpenAI-SDK loop", "skipped", "package openai is not installed")]
    sdk = median(openai)
    share = Row(
        "against a bare OpenAI-SDK loop", f"{own:.3f} ms", f"{sdk:.3f} ms", f"{own / sdk:.2f}x", "<= 0.33x",
        own / sdk <= TARGET_SDK,
    )  # fmt: skip
    return [*rows, share]


def _notes(ours: list[JobCost], simulator_s: float) -> list[str]:
    return [
        "of which: "
        + "; ".join(
            f"worker {c.worker_ms:.3f}, control and feeder {c.control_ms:.3f}, submit {c.submit_ms:.3f} ms" for c in ours
        ),
        "apart: redis-server " + ", ".join(f"{c.redis_ms:.3f}" for c in ours) + " ms per item; "
        f"simulator {simulator_s:.1f} s in all; wall clock " + ", ".join(f"{c.items / c.wall_s:,.0f}" for c in ours)
        + " items/s from submit to completed job",
    ]  # fmt: skip
