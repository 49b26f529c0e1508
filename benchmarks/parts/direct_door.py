"""(s) Calls that wait: through the door and a fleet, beside the direct call to the same provider.

The provider answers after LATENCY_MS. Direct calls and calls through the door take turns, round by round, from the same
threads; CPU is that of door, worker, control and Redis together, by the calls of the round.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from urllib.parse import urlsplit

from benchmarks.harness.callers import Calls, Request, calls, medians, weighed
from benchmarks.harness.door import door
from benchmarks.harness.fleet import fleet
from benchmarks.harness.ground import folder, provider, redis_server
from benchmarks.harness.report import Report, Row

WORKER = "penstock_workers"
LATENCY_MS = 20.0
CALLERS = (1, 16, 64)
CALLS, ROUNDS = 640, 5  # of a round, by all callers together; a quarter of it by one
QUICK_CALLS, QUICK_ROUNDS = 160, 2
PATH = "/v1/chat/completions"


def run(quick: bool) -> Report:
    number, rounds = (QUICK_CALLS, QUICK_ROUNDS) if quick else (CALLS, ROUNDS)
    direct: dict[int, list[Calls]] = defaultdict(list)
    through: dict[int, list[Calls]] = defaultdict(list)
    with folder() as place, redis_server(place) as server, provider(LATENCY_MS) as answering:
        port = urlsplit(answering.url).port or 0
        with (
            fleet(place / "fleet", server, worker=WORKER, concurrency=128, base_url=answering.url) as running,
            door(place, running.database_url, server.url, place / "fleet" / "penstock.toml") as (door_port, door_pid),
        ):
            calls(door_port, 1, 10, chat)
            for _ in range(rounds):
                for callers in CALLERS:
                    each = calls_of_each(number, callers)
                    direct[callers].append(calls(port, callers, each, chat))
                    pids = (door_pid, *running.pids)
                    through[callers].append(weighed(door_port, callers, each, chat, pids))
    title = f"(s) calls that wait, provider of {LATENCY_MS:g} ms, {rounds} round(s), medians"
    return Report(title, [row for callers in CALLERS for row in _rows(callers, through[callers], direct[callers])])


def calls_of_each(number: int, callers: int) -> int:
    """Of each caller, where all of them make this number; a quarter of it where there is one."""
    return max(1, number // callers // (4 if callers == 1 else 1))


def chat(caller: int, at: int) -> Request:
    """Each says something else, so that no answer serves two."""
    text = f"Summarise review {caller}-{at}-{time.monotonic_ns()}"
    return Request("POST", PATH, {"model": "sim-small", "messages": [{"role": "user", "content": text}]})


def in_words(callers: int) -> str:
    return f"{callers} caller{'s' if callers > 1 else ''}"


def _rows(callers: int, through: list[Calls], direct: list[Calls]) -> Iterator[Row]:
    ours, theirs, who = medians(through), medians(direct), in_words(callers)
    for name, mine, other in (("p50", ours.p50_ms, theirs.p50_ms), ("p99", ours.p99_ms, theirs.p99_ms)):
        yield Row(f"{who}: {name}", f"{mine:.1f} ms", f"{other:.1f} ms direct", f"+{mine - other:.1f} ms")
    yield Row(f"{who}: CPU of a call", f"{ours.cpu_ms:.2f} ms", f"{ours.first_ms:.2f} ms of it the door's")
    yield Row(f"{who}: calls a second", f"{ours.per_s:.0f}", f"{theirs.per_s:.0f} direct")
