"""(s) Calls that wait: through the door and a fleet, beside the direct call to the same provider.

The provider answers after LATENCY_MS. Direct calls and calls through the door take turns, round by round, from the same
threads; CPU is that of door, worker, control and Redis together, by the calls of the round.
"""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple
from urllib.parse import urlsplit

from benchmarks.harness.door import door
from benchmarks.harness.fleet import fleet
from benchmarks.harness.ground import GroundError, folder, provider, redis_server, usage
from benchmarks.harness.report import Report, Row, median

WORKER = "penstock_workers"
LATENCY_MS = 20.0
CALLERS = (1, 16, 64)
CALLS, ROUNDS = 640, 5  # of a round, by all callers together; a quarter of it by one
QUICK_CALLS, QUICK_ROUNDS = 160, 2
PATH = "/v1/chat/completions"


class Round(NamedTuple):
    p50_ms: float
    p99_ms: float
    per_s: float
    cpu_ms: float = 0.0  # of a call
    door_ms: float = 0.0  # of it: the door's own


def run(quick: bool) -> Report:
    calls, rounds = (QUICK_CALLS, QUICK_ROUNDS) if quick else (CALLS, ROUNDS)
    direct: dict[int, list[Round]] = defaultdict(list)
    through: dict[int, list[Round]] = defaultdict(list)
    with folder() as place, redis_server(place) as server, provider(LATENCY_MS) as answering:
        port = urlsplit(answering.url).port or 0
        with (
            fleet(place / "fleet", server, worker=WORKER, concurrency=128, base_url=answering.url) as running,
            door(place, running.database_url, server.url, place / "fleet" / "penstock.toml") as (door_port, door_pid),
        ):
            _round(door_port, 1, 10)
            for _ in range(rounds):
                for callers in CALLERS:
                    each = max(1, calls // callers // (4 if callers == 1 else 1))
                    direct[callers].append(_round(port, callers, each))
                    before, door_before = running.usages(), usage(door_pid)
                    one = _round(door_port, callers, each)
                    after, door_after = running.usages(), usage(door_pid)
                    door_s = door_after.cpu_s - door_before.cpu_s
                    all_s = door_s + sum(b.cpu_s - a.cpu_s for a, b in zip(before, after, strict=True))
                    number = callers * each
                    through[callers].append(one._replace(cpu_ms=all_s * 1e3 / number, door_ms=door_s * 1e3 / number))
    title = f"(s) calls that wait, provider of {LATENCY_MS:g} ms, {rounds} round(s), medians"
    return Report(title, [row for callers in CALLERS for row in _rows(callers, through[callers], direct[callers])])


def _round(port: int, callers: int, each: int) -> Round:
    took: list[float] = []
    failed: list[str] = []

    def call(number: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=90)
        try:
            for at in range(each):
                text = f"Summarise review {number}-{at}-{time.monotonic_ns()}"
                body = json.dumps({"model": "sim-small", "messages": [{"role": "user", "content": text}]})
                began = time.perf_counter()
                connection.request("POST", PATH, body, {"content-type": "application/json"})
                answer = connection.getresponse()
                said = answer.read()
                took.append((time.perf_counter() - began) * 1e3)
                if answer.status != 200:
                    failed.append(f"{answer.status}: {said[:200]!r}")
        finally:
            connection.close()

    threads = [threading.Thread(target=call, args=(number,)) for number in range(callers)]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed or len(took) < callers * each:
        raise GroundError(f"{len(failed)} calls of {callers * each} failed: {failed[:1]}")
    took.sort()
    return Round(took[len(took) // 2], took[int(len(took) * 0.99)], len(took) / (time.perf_counter() - began))


def _rows(callers: int, through: list[Round], direct: list[Round]) -> Iterator[Row]:
    def medians(rounds: list[Round]) -> Round:
        return Round(*(median(values) for values in zip(*rounds, strict=True)))

    ours, theirs = medians(through), medians(direct)
    who = f"{callers} caller{'s' if callers > 1 else ''}"
    for name, mine, other in (("p50", ours.p50_ms, theirs.p50_ms), ("p99", ours.p99_ms, theirs.p99_ms)):
        yield Row(f"{who}: {name}", f"{mine:.1f} ms", f"{other:.1f} ms direct", f"+{mine - other:.1f} ms")
    yield Row(f"{who}: CPU of a call", f"{ours.cpu_ms:.2f} ms", f"{ours.door_ms:.2f} ms of it the door's")
    yield Row(f"{who}: calls a second", f"{ours.per_s:.0f}", f"{theirs.per_s:.0f} direct")
