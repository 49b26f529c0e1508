"""Interleaved rounds: in each of them every contender makes the same calls, one after the other.

Whatever else the machine does meets all of them, and each figure is held against the bare loop of
its own round.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module, util
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from benchmarks.harness.fleet import Fleet, JobCost, fleet
from benchmarks.harness.ground import (
    ROOT,
    GroundError,
    RunningSimulator,
    folder,
    provider,
    redis_server,
    simulator,
    tests_on_path,
)
from benchmarks.harness.report import Row, median
from benchmarks.harness.targets import judge

OURS = "penstock"
CONCURRENCY = 256  # the default of a worker process
LATENCY_MS = 5.0  # so little that the worker and not the waiting is what bounds
SDK_CALLS = 1_500  # it is slow, and its cost per call does not depend on their number
PEER_TIMEOUT_S = 300
BARE, BARE_UVLOOP, SDK = "bare aiohttp", "bare aiohttp, uvloop", "bare OpenAI SDK"
PARTS: Mapping[str, Callable[[JobCost], float]] = {
    "whole path": lambda cost: cost.all_ms,
    "worker": lambda cost: cost.steady_ms,
    "redis": lambda cost: cost.redis_ms,
    "control and feeder": lambda cost: cost.control_ms,
    "submit": lambda cost: cost.submit_ms,
}
EXPLAINED = (
    "worker: its CPU between one fifth and four fifths of a job's items; redis, control, feeder "
    "and submit: of the whole job, its survey, feeding and assembly included"
)


class Contender(NamedTuple):
    """A fleet of its own: whose code it runs, with which variables beside the common ones, as how
    many workers."""

    checkout: Path = ROOT
    settings: Mapping[str, str] = MappingProxyType({})
    workers: int = 1


@dataclass
class Measured:
    """What the rounds brought, in their order."""

    items: int
    concurrency: int = CONCURRENCY
    fleets: dict[str, list[JobCost]] = field(default_factory=lambda: defaultdict(list))
    # milliseconds of CPU per call
    loops: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    def ratio(self, name: str, part: str) -> float:
        """The median of the rounds' own ratios to their bare loops."""
        return _over([PARTS[part](cost) for cost in self.fleets[name]], self.loops[BARE])

    def rows(self, named: str = "{part} / bare aiohttp") -> Iterator[Row]:
        """``named`` is how targets.py calls the ratios of ``OURS``."""
        bare = median(self.loops[BARE])
        for name, costs in self.fleets.items():
            for part, cost_of in PARTS.items():
                ratio, limit = (
                    self.ratio(name, part),
                    named.format(part=part) if name == OURS else "",
                )
                yield Row(
                    f"{name}: {part}",
                    f"{median(list(map(cost_of, costs))):.3f} ms",
                    f"{bare:.3f} ms",
                    f"{ratio:.2f}x",
                ).judged(judge(limit, ratio))
        for name, calls in self.loops.items():
            yield Row(
                name,
                f"{median(calls):.3f} ms",
                f"{bare:.3f} ms",
                f"{_over(calls, self.loops[BARE]):.2f}x",
            )

    def notes(self) -> Iterator[str]:
        yield (
            f"beside: a bare aiohttp loop, {self.concurrency} calls in flight; ratios are medians "
            "of the rounds' own"
        )
        yield EXPLAINED
        for name, costs in self.fleets.items():
            rounds = ", ".join(f"{cost.all_ms:.3f} (worker {cost.steady_ms:.3f})" for cost in costs)
            pace = ", ".join(f"{cost.items / cost.wall_s:,.0f}" for cost in costs)
            yield f"{name}: {rounds} ms; {pace} items/s from submit to the end of the job"
        for name, calls in self.loops.items():
            yield f"{name}: " + ", ".join(f"{call:.3f}" for call in calls) + " ms"


class Ground(NamedTuple):
    """What all contenders of a run meet."""

    concurrency: int = CONCURRENCY
    latency_ms: float = LATENCY_MS
    simulator: bool = False  # answers come from `penstock simulate`
    postgres: bool = False  # each fleet has a database of one PostgreSQL, in place of an SQLite


USUAL = Ground()


def measure(
    worker: str,
    items: int,
    rounds: int,
    contenders: Mapping[str, Contender],
    ground: Ground = USUAL,
) -> Measured:
    """``worker`` is the module that every contender's worker processes run."""
    measured = Measured(items, concurrency=ground.concurrency)
    with folder() as place, contextlib.ExitStack() as running:
        server = running.enter_context(answering(ground))
        new_database = databases(running) if ground.postgres else None
        fleets = {
            name: running.enter_context(
                _fleet(
                    worker,
                    place / f"fleet-{n}",
                    contender,
                    server,
                    ground,
                    new_database and new_database(),
                )
            )
            for n, (name, contender) in enumerate(contenders.items())
        }
        peers = dict(_peers(server, items, ground.concurrency))
        for number in range(rounds):
            for name in _turned([*fleets, *peers], number):
                if name in fleets:
                    measured.fleets[name].append(fleets[name].run(items))
                else:
                    measured.loops[name].append(peers[name]())
    return measured


def answering(ground: Ground) -> contextlib.AbstractContextManager[RunningSimulator]:
    """The provider of a run, while it runs."""
    return simulator(ground.latency_ms, 0.0) if ground.simulator else provider(ground.latency_ms)


def databases(running: contextlib.ExitStack) -> Callable[[], str]:
    """Makes databases in one PostgreSQL, which writes as a real one does."""
    with tests_on_path():
        server = import_module("servers").Postgres.start(fsync=True)
    running.callback(server.stop)
    made: Callable[[], str] = server.new_database
    return made


@contextlib.contextmanager
def _fleet(
    worker: str,
    place: Path,
    contender: Contender,
    server: RunningSimulator,
    ground: Ground,
    database_url: str | None,
) -> Iterator[Fleet]:
    with (
        redis_server(place) as redis,
        fleet(
            place,
            redis,
            worker=worker,
            concurrency=ground.concurrency,
            base_url=server.url,
            checkout=contender.checkout,
            settings=contender.settings,
            workers=contender.workers,
            database_url=database_url,
        ) as running,
    ):
        yield running


def _peers(
    server: RunningSimulator, items: int, concurrency: int
) -> Iterator[tuple[str, Callable[[], float]]]:
    yield BARE, lambda: _peer("aiohttp", server, items, concurrency)
    if util.find_spec("uvloop") is not None:
        yield BARE_UVLOOP, lambda: _peer("aiohttp", server, items, concurrency, "uvloop")
    if util.find_spec("openai") is not None:
        yield SDK, lambda: _peer("openai", server, min(items, SDK_CALLS), concurrency)


def _peer(name: str, server: RunningSimulator, calls: int, concurrency: int, *more: str) -> float:
    """Milliseconds of CPU per call of a bare loop."""
    command = [
        sys.executable,
        "-m",
        "benchmarks.harness.bare_loop",
        name,
        server.url,
        str(calls),
        str(concurrency),
        *more,
    ]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=PEER_TIMEOUT_S, check=False
    )
    if done.returncode:
        raise GroundError(f"the {name} loop failed: {done.stderr.strip().splitlines()[-1:]}")
    return float(json.loads(done.stdout)["cpu_ms"])


def _turned(names: Sequence[str], number: int) -> list[str]:
    """Another one begins in each round."""
    first = number % len(names)
    return [*names[first:], *names[:first]]


def _over(figures: Sequence[float], beside: Sequence[float]) -> float:
    return median([one / other for one, other in zip(figures, beside, strict=True)])


def arguments(
    program: str, description: str | None, items: int, rounds: int, latency_ms: float = LATENCY_MS
) -> argparse.ArgumentParser:
    """Of a benchmark that measures changes: other checkouts and other settings take their turns in
    each round."""
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks.{program}", description=description
    )
    parser.add_argument(
        "--items", type=int, default=items, help="documents of each job (default %(default)s)"
    )
    parser.add_argument(
        "--rounds", type=int, default=rounds, help="how often each takes its turn (%(default)s)"
    )
    parser.add_argument(
        "--beside",
        type=Path,
        action="append",
        default=[],
        metavar="CHECKOUT",
        help=(
            "another checkout, whose code runs in this environment and takes its turn in each round"
        ),
    )
    parser.add_argument(
        "--setting",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="this code with an environment variable of its own, which takes its turn likewise",
    )
    parser.add_argument(
        "--simulator",
        action="store_true",
        help=(
            "answers from `penstock simulate`, which costs as much as a client, in place of the "
            "benchmark's own server"
        ),
    )
    parser.add_argument(
        "--concurrency",
        type=int,
        default=CONCURRENCY,
        help="slots of a worker (default %(default)s)",
    )
    parser.add_argument(
        "--latency-ms", type=float, default=latency_ms, help="of an answer (default %(default)s)"
    )
    parser.add_argument("--postgres", action="store_true", help="a PostgreSQL in place of SQLite")
    return parser


def ground_of(given: argparse.Namespace) -> Ground:
    return Ground(given.concurrency, given.latency_ms, given.simulator, given.postgres)


def contenders(given: argparse.Namespace) -> dict[str, Contender]:
    return (
        {OURS: Contender()}
        | {path.resolve().name: Contender(path.resolve()) for path in given.beside}
        | {text: Contender(settings=dict([text.split("=", 1)])) for text in given.setting}
    )
