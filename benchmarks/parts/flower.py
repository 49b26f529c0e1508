"""(f) Flower beside a fleet at full pace: what its events cost the worker, and what they cost
Flower.

One worker with the no-op lane, one item of a thousand a dead letter. First each way of sending
events by itself; then jobs in pairs, without Flower and with it, and a long stretch with it. Flower
shares the machine with all the rest.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from celery import Celery

from benchmarks.harness.fleet import Fleet, JobCost, fleet
from benchmarks.harness.ground import (
    GroundError,
    RunningRedis,
    folder,
    process,
    redis_server,
    usage,
)
from benchmarks.harness.report import Report, Row, median
from benchmarks.noop_path import CONCURRENCY, enable_events
from benchmarks.parts.flower_worker import FAILS_EACH
from penstock_cli.flower import MAX_TASKS
from penstock_workers.celery_app.events import EVENTS_PER_ITEM

WORKER = "benchmarks.parts.flower_worker"
PACE_TARGET = 0.9  # items a second with Flower attached, over those without
GROWTH_MAX = 1.25  # of Flower's memory from the mark where its table is full to the end
OFF = "events off"
WAYS: dict[str, tuple[str, bool, dict[str, str]]] = {
    OFF: ("api", False, {}),
    "Celery's own events, not read": ("stock", True, {}),
    "grouped, of every item": ("api", True, {"PENSTOCK_EVENT_SAMPLE": "1"}),
    "grouped and sampled by pace (the default)": ("api", True, {}),
}  # the worker's argument, whether task events are on, and settings
UP_TIMEOUT_S = 30.0
SETTLE_S = 3.0  # for the last events to be read
MARKS = 5
REPLAY_PER_S = 3_000.0  # events: above what workers send together
MIB = 2**20


@dataclass(frozen=True)
class Mark:
    """Flower after so many items."""

    items: int
    rss: int
    events: float
    failed: float
    cpu_s: float


def run(quick: bool) -> Report:
    sizes = (
        Sizes(10_000, 1, 5_000, 2, 10_000, 2, 60_000)
        if quick
        else Sizes(15_000, 1, 20_000, 4, 110_000, 2, 1_000_000)
    )
    with folder() as place, redis_server(place) as server:
        ways = _ways(place, server, sizes)
        report = _attached(place, server, sizes)
        alone = _replayed(place, server, sizes.replayed)
    rows = [*ways, *report.rows, *alone.rows]
    return Report(
        f"(f) Flower beside {sizes.attached:,} items", rows, [*report.notes, *alone.notes]
    )


@dataclass(frozen=True)
class Sizes:
    """Items per job and number of jobs: of each way alone, of neighbours without and with Flower,
    of the long stretch."""

    alone: int
    rounds: int
    neighbour: int
    pairs: int
    long: int
    longs: int
    replayed: int  # events, at REPLAY_PER_S

    @property
    def attached(self) -> int:
        return self.neighbour * self.pairs + self.long * self.longs


# -- each way of sending events, with no reader ----------------------------------------------------


def _ways(place: Path, server: RunningRedis, sizes: Sizes) -> list[Row]:
    """Each round runs all of them in turn: the machine may be busier in one round than in the
    next."""
    found: dict[str, list[tuple[JobCost, int]]] = {name: [] for name in WAYS}
    for number in range(sizes.rounds):
        for name, (lane, on, variables) in WAYS.items():
            where = place / f"{number}-{len(found[name])}-{lane}-{len(variables)}-{on}"
            found[name].append(_cost(where, server, sizes.alone, lane, on=on, **variables))
    off = [cost for cost, _ in found[OFF]]
    rows = [_way(name, costs, off) for name, costs in found.items()]
    print(*rows, sep="\n", file=sys.stderr, flush=True)
    return rows


def _cost(
    place: Path, server: RunningRedis, items: int, lane: str, *, on: bool, **variables: str
) -> tuple[JobCost, int]:
    """And the number of PUBLISHes."""
    server.client().flushall()
    with (
        _variables(variables),
        fleet(place, server, worker=WORKER, concurrency=CONCURRENCY, lane=lane) as running,
    ):
        if on:
            enable_events(server)
        before = _publishes(server)
        return running.run(items), _publishes(server) - before


def _way(name: str, costs: list[tuple[JobCost, int]], off: list[JobCost]) -> Row:
    pace = median([cost.items / cost.wall_s for cost, _ in costs])
    worker, redis = (
        median(figures)
        for figures in zip(*[(c.worker_ms, c.redis_ms) for c, _ in costs], strict=True)
    )
    publishes = median([publishes / cost.items for cost, publishes in costs])
    ratio = median(
        [cost.worker_ms / beside.worker_ms for (cost, _), beside in zip(costs, off, strict=True)]
    )
    measured = (
        f"{pace:,.0f}/s, worker {worker:.3f} ms, redis {redis:.3f} ms, {publishes:.4f} PUBLISH per "
        "item"
    )
    return Row(name, measured, "", f"CPU {ratio:.2f}x")


# -- with Flower -----------------------------------------------------------------------------------


def _attached(place: Path, server: RunningRedis, sizes: Sizes) -> Report:
    server.client().flushall()
    off: list[JobCost] = []
    on: list[JobCost] = []
    with (
        fleet(place / "fleet", server, worker=WORKER, concurrency=CONCURRENCY) as running,
        _flower(place, server) as (pid, url),
    ):
        marks = [_mark(pid, url, 0)]
        published = 0
        for size in [sizes.neighbour] * sizes.pairs + [sizes.long] * sizes.longs:
            if size == sizes.neighbour:
                off.append(_without(pid, server, running, size))
            enable_events(server)
            before = _publishes(server)
            on.append(running.run(size))
            print("off", off[-1], "on", on[-1], sep="\n  ", file=sys.stderr, flush=True)
            published += _publishes(server) - before
            time.sleep(SETTLE_S)
            marks.append(_mark(pid, url, sum(cost.items for cost in on)))
            print(_told(marks[-1]), file=sys.stderr, flush=True)
    return _report(off, on, marks, published)


def _without(pid: int, server: RunningRedis, running: Fleet, items: int) -> JobCost:
    """As if there were no Flower: it is held still, and nothing is sent to it."""
    os.kill(pid, signal.SIGSTOP)
    try:
        _disable_events(server)
        return running.run(items)
    finally:
        os.kill(pid, signal.SIGCONT)


def _report(off: list[JobCost], on: list[JobCost], marks: list[Mark], publishes: int) -> Report:
    total, last = sum(cost.items for cost in on), marks[-1]
    full = next((mark for mark in marks if mark.items >= total / 3), last)
    dead, events = sum(cost.dead for cost in on), last.events - marks[0].events
    pairs = list(zip(off, on, strict=False))  # each detached job and the one after it
    ratio = median([a.wall_s / b.wall_s for a, b in pairs])
    cpu_ratio = median([b.worker_ms / a.worker_ms for a, b in pairs])
    paces = [
        median([cost.items / cost.wall_s for cost in costs]) for costs in zip(*pairs, strict=True)
    ]
    cpus = [median([cost.worker_ms for cost in costs]) for costs in zip(*pairs, strict=True)]
    growth = last.rss / full.rss
    cpu_s, wall_s = last.cpu_s - marks[0].cpu_s, sum(cost.wall_s for cost in on)
    rows = [
        Row(
            "items per second, Flower attached",
            f"{paces[1]:,.0f}",
            f"detached {paces[0]:,.0f}",
            f"{ratio:.2f}x",
            f">= {PACE_TARGET}x",
            ratio >= PACE_TARGET,
        ),
        Row("CPU per item, worker", f"{cpus[1]:.3f} ms", f"{cpus[0]:.3f} ms", f"{cpu_ratio:.2f}x"),
        Row("task events and PUBLISHes per item", f"{events / total:.3f}, {publishes / total:.4f}"),
        Row(
            "dead letters that Flower shows",
            f"{last.failed:,.0f}",
            f"{dead:,}",
            "",
            "all",
            last.failed == dead,
        ),
        Row(
            "Flower's memory at the end",
            f"{last.rss / MIB:.0f} MiB",
            f"{full.rss / MIB:.0f} MiB at {full.items:,}",
            f"{growth:.2f}x",
            f"<= {GROWTH_MAX}x",
            growth <= GROWTH_MAX,
        ),
        Row(
            "Flower's CPU, share of one core",
            f"{cpu_s / wall_s:.0%}",
            "",
            f"{cpu_s / max(1, events) * 1e6:.0f} us per event",
        ),
    ]
    notes = [
        f"{len(pairs)} pairs of {off[0].items:,} items; one of {FAILS_EACH:,} items fails",
        *map(_told, marks),
    ]
    return Report("", rows, notes)


def _told(mark: Mark) -> str:
    return (
        f"at {mark.items:>9,} items: Flower {mark.rss / MIB:.0f} MiB, {mark.events:,.0f} task "
        f"events, {mark.cpu_s:.0f} s CPU"
    )


# -- Flower alone ----------------------------------------------------------------------------------


def _replayed(place: Path, server: RunningRedis, events: int) -> Report:
    """More than a large fleet sends: does Flower keep up, and does its memory cease to grow?"""
    server.client().flushall()
    with _flower(place, server) as (pid, url):
        marks = [_mark(pid, url, 0)]
        began = time.monotonic()
        for _ in range(MARKS):
            _send(server, events // MARKS // EVENTS_PER_ITEM)
            marks.append(_mark(pid, url, 0))
            print("replayed:", _told(marks[-1]), file=sys.stderr, flush=True)
        wall_s = time.monotonic() - began
    sent = events // MARKS // EVENTS_PER_ITEM * EVENTS_PER_ITEM * MARKS
    first, last = marks[1], marks[-1]
    taken, cpu_s = last.events - marks[0].events, last.cpu_s - marks[0].cpu_s
    # else it must still grow
    growth, is_full = (last.rss / first.rss, first.events >= EVENTS_PER_ITEM * MAX_TASKS)
    rows = [
        Row(
            f"events that Flower alone took in, sent at {REPLAY_PER_S:,.0f} a second",
            f"{taken:,.0f}",
            f"{sent:,}",
            f"{taken / sent:.3f}x",
            "all",
            taken == sent,
        ),
        Row(
            "its memory after them",
            f"{last.rss / MIB:.0f} MiB",
            f"{first.rss / MIB:.0f} MiB at {first.events:,.0f}",
            f"{growth:.2f}x",
            f"<= {GROWTH_MAX}x",
            growth <= GROWTH_MAX if is_full else None,
        ),
        Row(
            "its CPU",
            f"{cpu_s / wall_s:.0%} of a core",
            "",
            f"{cpu_s / taken * 1e6:.0f} us per event",
        ),
    ]
    return Report("", rows, [f"replayed: {_told(mark)}" for mark in marks])


def _send(server: RunningRedis, items: int) -> None:
    """Whole items, in groups as workers send them."""
    group = 300  # items, of which a dispatcher makes one message
    with (
        Celery("bench", broker=server.url, set_as_current=False) as app,
        app.connection() as connection,
    ):
        sender = app.events.Dispatcher(connection, hostname="replay@bench", buffer_group=["task"])
        sender.buffer_limit, sender.on_send_buffered = 10 * group * EVENTS_PER_ITEM, None
        began = time.monotonic()
        for n in range(items):
            tag = f"job_replayed:{time.time_ns()}-{n}"
            shown = {
                "name": "penstock.item",
                "args": "()",
                "kwargs": f"{{'job': 'job_replayed', 'gen': 1, 'doc': '{n}'}}",
            }
            sender.send("task-received", uuid=tag, root_id="job_replayed", retries=0, **shown)
            sender.send("task-started", uuid=tag)
            sender.send("task-succeeded", uuid=tag, result=None, runtime=0.5)
            if n % group == group - 1:
                sender.flush()
                time.sleep(max(0.0, began + n * EVENTS_PER_ITEM / REPLAY_PER_S - time.monotonic()))
        sender.flush()
        time.sleep(SETTLE_S)


@contextlib.contextmanager
def _flower(place: Path, server: RunningRedis) -> Iterator[tuple[int, str]]:
    log = place / "flower.log"
    command = [sys.executable, "-m", "penstock_cli", "flower", "--port", "0"]
    with process(command, variables={"PENSTOCK_REDIS_URL": server.url}, log=log) as running:
        deadline = time.monotonic() + UP_TIMEOUT_S
        while (found := re.search(r"serves (\S+?)/ for", log.read_text())) is None:
            if time.monotonic() > deadline or running.poll() is not None:
                raise GroundError(f"Flower does not serve: {log.read_text()[-2000:]}")
            time.sleep(0.1)
        yield running.pid, found[1]


def _mark(pid: int, url: str, items: int) -> Mark:
    with urllib.request.urlopen(f"{url}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    counted = {
        kind: float(n)
        for kind, n in re.findall(r'flower_events_total\{.*?type="(task-[a-z]+)".*?\} (\S+)', text)
    }
    rss = int(psutil.Process(pid).memory_info().rss)
    return Mark(
        items, rss, sum(counted.values()), counted.get("task-failed", 0.0), usage(pid).cpu_s
    )


def _publishes(server: RunningRedis) -> int:
    stats: Any = server.client().info("commandstats")
    return int(stats.get("cmdstat_publish", {}).get("calls", 0))


def _disable_events(server: RunningRedis) -> None:
    with Celery("bench", broker=server.url, set_as_current=False) as app:
        app.control.disable_events(reply=True, timeout=2)


@contextlib.contextmanager
def _variables(variables: dict[str, str]) -> Iterator[None]:
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in variables:
            del os.environ[name]
