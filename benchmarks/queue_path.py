"""(b) The queue path alone: our transport and pool with an engine that does nothing, beside stock
Celery's pools.

All run the same messages with late acknowledgement, from full queues, in turn, on one Redis. Stock
Celery runs a task that returns at once. CPU is that of a worker's whole process tree.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from importlib import util
from pathlib import Path

import psutil

from benchmarks.harness.ground import ROOT, RunningRedis, folder, redis_server
from benchmarks.harness.report import Report, Row, median
from penstock_ledger.model import ItemKey
from penstock_producer.feed.wire import encode_item

QUEUE = "penstock.api"
WORKER = "benchmarks.harness.queue_worker"
STOCK = ("prefork", "threads", "gevent")
TARGET_RATIO = 6.0
TARGET_MS = 0.15
START_TIMEOUT_S = 60.0
WARM_UP = 500  # items, not measured: imports and caches
BODY = json.dumps({"model": "m", "messages": [{"role": "user", "content": "x" * 200}]}).encode()


class Pace(tuple[float, float]):
    """Items per second, and milliseconds of CPU per item."""

    @property
    def per_second(self) -> float:
        return self[0]

    @property
    def cpu_ms(self) -> float:
        return self[1]


def run(quick: bool) -> Report:
    rounds, ours_items, stock_items = (1, 15_000, 2_000) if quick else (3, 60_000, 6_000)
    pools = ["penstock", *(pool for pool in STOCK if pool != "gevent" or util.find_spec("gevent"))]
    paces: dict[str, list[Pace]] = {pool: [] for pool in pools}
    with folder() as place, redis_server(place) as server:
        for _ in range(rounds):
            for pool in pools:
                paces[pool].append(
                    _measure(pool, ours_items if pool == "penstock" else stock_items, server, place)
                )
    ours = paces.pop("penstock")
    rows = [_row_of_ours(ours)] + [_row(pool, stock, ours) for pool, stock in paces.items()]
    title = (
        f"(b) queue path, no-op engine, {ours_items:,} items beside {stock_items:,}, {rounds} "
        "round(s)"
    )
    return Report(
        title,
        rows,
        ["stock pools: acks_late, no result backend, prefork -c 2, threads and gevent -c 64"],
    )


def _row_of_ours(paces: list[Pace]) -> Row:
    cpu_ms = median([pace.cpu_ms for pace in paces])
    per_second = median([pace.per_second for pace in paces])
    return Row(
        "one worker process",
        f"{per_second:,.0f}/s, {cpu_ms:.3f} ms",
        "",
        "",
        f"<= {TARGET_MS} ms",
        cpu_ms <= TARGET_MS,
    )


def _row(pool: str, stock: list[Pace], ours: list[Pace]) -> Row:
    """Ratios are those of each round's neighbours: the machine may be busier in one round than in
    the next."""
    ratio = median(
        [mine.per_second / theirs.per_second for mine, theirs in zip(ours, stock, strict=True)]
    )
    cpu_ratio = median(
        [theirs.cpu_ms / mine.cpu_ms for mine, theirs in zip(ours, stock, strict=True)]
    )
    measured = (
        f"{median([p.per_second for p in ours]):,.0f}/s, {median([p.cpu_ms for p in ours]):.3f} ms"
    )
    beside = (
        f"{median([p.per_second for p in stock]):,.0f}/s, {median([p.cpu_ms for p in stock]):.3f} "
        "ms"
    )
    target = f">= {TARGET_RATIO:.0f}x items/s"
    return Row(
        f"beside {pool}",
        measured,
        beside,
        f"{ratio:.1f}x, CPU 1/{cpu_ratio:.1f}",
        target,
        ratio >= TARGET_RATIO,
    )


def _measure(pool: str, items: int, server: RunningRedis, place: Path) -> Pace:
    client = server.client()
    client.flushall()
    _publish(server, WARM_UP, "warm")
    with (place / f"{pool}.log").open("wb") as log:
        worker = subprocess.Popen(
            [sys.executable, "-m", WORKER, pool, server.url],
            cwd=ROOT,
            stdout=log,
            stderr=log,
            env={**os.environ},
        )
    try:
        _until_empty(server, worker)
        _publish(server, items, "measured")
        before_s, began, left = _cpu_s(worker.pid), time.perf_counter(), _held(server)
        _until_empty(server, worker)
        took_s = time.perf_counter() - began
        return Pace((left / took_s, (_cpu_s(worker.pid) - before_s) / left * 1e3))
    finally:
        worker.terminate()
        try:
            worker.wait(15)
        except subprocess.TimeoutExpired:
            worker.kill()
            worker.wait()


def _publish(server: RunningRedis, items: int, job: str) -> None:
    """In one transaction: the worker finds all at once."""
    pipe = server.client().pipeline(transaction=True)
    for n in range(items):
        pipe.lpush(
            QUEUE,
            encode_item(ItemKey(job, 1, f"document-{n:07d}"), queue=QUEUE, body=BODY, ref=None),
        )
    pipe.execute()


def _held(server: RunningRedis) -> int:
    client = server.client()
    return int(client.llen(QUEUE)) + int(client.hlen("unacked.api"))


def _until_empty(server: RunningRedis, worker: subprocess.Popen[bytes]) -> None:
    progress_at, last = time.monotonic(), -1
    while left := _held(server):
        if left != last:
            progress_at, last = time.monotonic(), left
        if worker.poll() is not None or time.monotonic() - progress_at > START_TIMEOUT_S:
            raise RuntimeError(
                f"the worker stopped with {left} items left; its log lies in the benchmark's folder"
            )
        time.sleep(0.01)


def _cpu_s(pid: int) -> float:
    """Of the whole tree: prefork works in children."""
    parent = psutil.Process(pid)
    times = [process.cpu_times() for process in [parent, *parent.children(recursive=True)]]
    return sum(float(time.user + time.system) for time in times)
