"""`doors`: calls that wait, through our door and gpu lane and through `vllm serve`, and many
prompts in one call to each.

Both have an engine of their own, warm, with the same arguments; they take turns, round by round,
with the same texts. The two do not do the same: ours commits each prompt to the ledger first,
queues it, and keeps its answer; vLLM's server keeps nothing.
"""

from __future__ import annotations

import os
import subprocess
import time
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.engines.items import items
from benchmarks.engines.setup import SERVED_AS, Setup, tests_module, variables
from benchmarks.engines.vllm_command import COMMAND, flags, named_vllm
from benchmarks.engines.work import LOG_END, cpu_seconds, end_group
from benchmarks.engines.worker import START_TIMEOUT_S, WorkerFleet, worker_fleet
from benchmarks.harness.callers import Calls, Request, calls, medians
from benchmarks.harness.door import door
from benchmarks.harness.ground import ROOT, GroundError
from benchmarks.harness.report import Report, Row

CHAT: Final = "/v1/chat/completions"
TOGETHER: Final = 64  # prompts of one call
CALLERS: Final = (1, 16)
WARM_UP: Final = 10_000_000  # numbers of texts that no round has
LOOK_EACH_S: Final = 0.1
WAYS: Final = ("Penstock", "vllm serve")


@dataclass(frozen=True, slots=True)
class Way:
    """One server, and what it has used so far."""

    port: int
    cpu_s: Callable[[], float]
    together: Callable[[int], Request]  # the call with TOGETHER prompts, numbered from which


def run(place: Path, setup: Setup) -> Report:
    found: dict[tuple[str, str], list[Calls]] = defaultdict(list)
    with worker_fleet(place / "doors", setup) as fleet, _vllm(place, setup) as theirs:
        fleet.start()
        folder = place / "doors"
        with door(folder, fleet.database_url, fleet.server.url) as (port, pid):
            ways = dict(
                zip(WAYS, (_ours(setup, fleet, port, pid), _theirs(setup, *theirs)), strict=True)
            )
            for way in ways.values():
                _measured(setup, way, WARM_UP)
            for number in range(setup.rounds):
                for name, way in list(ways.items())[:: -1 if number % 2 else 1]:
                    for case, taken in _measured(setup, way, number * setup.items).items():
                        found[name, case].append(taken)
    rows = [row for case in dict.fromkeys(case for _, case in found) for row in _rows(case, found)]
    notes = [
        "Penstock: door, ledger, queue, worker, engine, ledger, answer; CPU of them all and Redis",
        "vllm serve: server and engine; nothing is kept. Many prompts in one call: POST "
        "/v1/batch/sync beside POST /v1/chat/completions/batch",
    ]
    return Report(
        f"doors, answers of {setup.output_tokens} tokens, {setup.rounds} interleaved rounds, "
        "medians",
        rows,
        notes,
    )


def _measured(setup: Setup, way: Way, first: int) -> dict[str, Calls]:
    """By case; each call has a text of its own."""
    each = max(2, setup.items // 100)
    found = {
        f"{TOGETHER} prompts in one call": _weighed(
            way, 1, max(2, each // 10), lambda _, at: way.together(first + at * TOGETHER)
        )
    }
    first += setup.items // 2
    for callers in CALLERS:
        bodies = [item["body"] for item in items(setup, callers * each, first=first)]
        first += callers * each

        def ask(caller: int, at: int, bodies: list[dict[str, object]] = bodies) -> Request:
            return Request("POST", CHAT, bodies[caller * each + at])

        found[f"{callers} caller{'s' if callers > 1 else ''}"] = _weighed(way, callers, each, ask)
    return found


def _weighed(way: Way, callers: int, each: int, ask: Callable[[int, int], Request]) -> Calls:
    before = way.cpu_s()
    found = calls(way.port, callers, each, ask)
    return found._replace(cpu_ms=(way.cpu_s() - before) * 1e3 / (callers * each))


def _ours(setup: Setup, fleet: WorkerFleet, port: int, pid: int) -> Way:
    def together(first: int) -> Request:
        bodies = [item["body"] for item in items(setup, TOGETHER, first=first)]
        shared = {name: value for name, value in bodies[0].items() if name != "messages"}
        return Request(
            "POST", "/v1/batch/sync", shared | {"prompts": [body["messages"] for body in bodies]}
        )

    return Way(port, lambda: fleet.cpu_s() + cpu_seconds(pid), together)


def _theirs(setup: Setup, port: int, pid: int) -> Way:
    def together(first: int) -> Request:
        bodies = [item["body"] for item in items(setup, TOGETHER, first=first)]
        return Request(
            "POST", f"{CHAT}/batch", bodies[0] | {"messages": [body["messages"] for body in bodies]}
        )

    return Way(port, lambda: cpu_seconds(pid), together)


@contextmanager
def _vllm(place: Path, setup: Setup) -> Iterator[tuple[int, int]]:
    """The port of `vllm serve` and its process, ready."""
    port, log = tests_module("servers").free_port(), place / "vllm-serve.log"
    command = [
        *COMMAND,
        "serve",
        setup.model,
        "--served-model-name",
        SERVED_AS,
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        *flags({name: value for name, value in setup.arguments.items() if name != "model"}),
    ]
    with log.open("wb") as out:
        running = subprocess.Popen(
            command,
            env=os.environ | variables(setup) | named_vllm(place),
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    try:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not _answers(port):
            if running.poll() is not None or time.monotonic() > deadline:
                raise GroundError(
                    f"vllm serve did not start:\n{log.read_text(errors='replace')[-LOG_END:]}"
                )
            time.sleep(LOOK_EACH_S)
        yield port, running.pid
    finally:
        end_group(running)


def _answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
            return True
    except OSError:
        return False


def _rows(case: str, found: dict[tuple[str, str], list[Calls]]) -> Iterator[Row]:
    ours, theirs = (medians(found[name, case]) for name in WAYS)
    for what, mine, other in (
        ("p50", ours.p50_ms, theirs.p50_ms),
        ("p99", ours.p99_ms, theirs.p99_ms),
        ("CPU of a call", ours.cpu_ms, theirs.cpu_ms),
    ):
        yield Row(f"{case}: {what}", f"{mine:.1f} ms", f"{other:.1f} ms", f"{mine / other:.2f}x")
    yield Row(
        f"{case}: calls a second",
        f"{ours.per_s:.1f}",
        f"{theirs.per_s:.1f}",
        f"{ours.per_s / theirs.per_s:.2f}x",
    )
