"""(c) The whole path over HTTP, every process of ours counted, beside loops that do nothing but call.

Rounds are interleaved: in each round every contender makes the same calls to the same provider, one after the other, so
that whatever else the machine does meets all of them. `python -m benchmarks.http_path --beside CHECKOUT` adds the code of
another checkout as a contender, `--setting PENSTOCK_UVLOOP=false` this code with another setting: so changes are measured.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import util
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from benchmarks.fleet import Fleet, JobCost, fleet
from benchmarks.ground import ROOT, RunningSimulator, folder, provider, redis_server
from benchmarks.report import Report, Row, median, show
from benchmarks.targets import met, target

WORKER = "penstock_workers"
CONCURRENCY = 256  # the default of a worker process
LATENCY_MS = 5.0  # so little that the worker and not the waiting is what bounds
ITEMS, ROUNDS = 20_000, 5
QUICK_ITEMS, QUICK_ROUNDS = 6_000, 2  # about a minute
SDK_CALLS = 1_500  # it is slow, and its cost per call does not depend on their number
PEER_TIMEOUT_S = 300
BARE, BARE_UVLOOP, SDK = "bare aiohttp", "bare aiohttp, uvloop", "bare OpenAI SDK"


class Contender(NamedTuple):
    """A fleet of its own: whose code it runs, with which variables beside the common ones."""

    checkout: Path = ROOT
    settings: Mapping[str, str] = MappingProxyType({})


Costs = dict[str, list[JobCost]]  # by the fleet's name, one per round
Calls = dict[str, list[float]]  # by the loop's name, milliseconds of CPU per call


def run(quick: bool) -> Report:
    items, rounds = (QUICK_ITEMS, QUICK_ROUNDS) if quick else (ITEMS, ROUNDS)
    return measure(items, rounds, {"penstock": Contender()})


def measure(items: int, rounds: int, contenders: Mapping[str, Contender]) -> Report:
    ours: Costs = defaultdict(list)
    bare: Calls = defaultdict(list)
    with folder() as place, provider(LATENCY_MS) as server, contextlib.ExitStack() as running:
        fleets = {
            name: running.enter_context(_fleet(place / f"fleet-{n}", contender, server))
            for n, (name, contender) in enumerate(contenders.items())
        }
        peers = dict(_peers(server, items))
        for number in range(rounds):
            for name in _turned([*fleets, *peers], number):
                if name in fleets:
                    ours[name].append(fleets[name].run(items))
                else:
                    bare[name].append(peers[name]())
    return _report(items, ours, bare)


@contextlib.contextmanager
def _fleet(place: Path, contender: Contender, server: RunningSimulator) -> Iterator[Fleet]:
    with (
        redis_server(place) as redis,
        fleet(
            place, redis, worker=WORKER, concurrency=CONCURRENCY, base_url=server.url, checkout=contender.checkout,
            settings=contender.settings,
        ) as running,
    ):  # fmt: skip
        yield running


def _peers(server: RunningSimulator, items: int) -> Iterator[tuple[str, Callable[[], float]]]:
    yield BARE, lambda: peer("aiohttp", server, items)
    if util.find_spec("uvloop") is not None:
        yield BARE_UVLOOP, lambda: peer("aiohttp", server, items, "uvloop")
    if util.find_spec("openai") is not None:
        yield SDK, lambda: peer("openai", server, min(items, SDK_CALLS))


def peer(name: str, server: RunningSimulator, calls: int, *more: str) -> float:
    """Milliseconds of CPU per call of a bare loop."""
    command = [sys.executable, "-m", "benchmarks.bare_loop", name, server.url, str(calls), str(CONCURRENCY), *more]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=PEER_TIMEOUT_S, check=True)
    return float(json.loads(done.stdout)["cpu_ms"])


def _turned(names: Sequence[str], number: int) -> list[str]:
    """Another one begins in each round."""
    first = number % len(names)
    return [*names[first:], *names[:first]]


def _report(items: int, ours: Costs, bare: Calls) -> Report:
    rows: list[Row] = []
    first = next(iter(ours))
    for name in ours:
        rows += _rows(name, ours[name], bare[BARE], held=name == first)
    rows += [
        Row(name, f"{median(calls):.3f} ms", "", f"{_over(calls, bare[BARE]):.2f}x bare")
        for name, calls in bare.items()
    ]
    ratios = {
        "whole path / bare aiohttp": _over([cost.all_ms for cost in ours[first]], bare[BARE]),
        "worker / bare aiohttp": _over([cost.steady_ms for cost in ours[first]], bare[BARE]),
        "redis / bare aiohttp": _over([cost.redis_ms for cost in ours[first]], bare[BARE]),
    }
    title = f"(c) whole path over HTTP, {items:,} items, {len(ours[first])} round(s), medians of the rounds"
    return Report(title, rows, list(_notes(ours, bare)), ratios)


def _rows(name: str, costs: Sequence[JobCost], bare: Sequence[float], *, held: bool) -> Iterator[Row]:
    parts: dict[str, list[float]] = {
        "whole path": [cost.all_ms for cost in costs],
        "worker": [cost.steady_ms for cost in costs],
        "redis": [cost.redis_ms for cost in costs],
        "control and feeder": [cost.control_ms for cost in costs],
        "submit": [cost.submit_ms for cost in costs],
    }
    for part, figures in parts.items():
        ratio, limit = _over(figures, bare), f"{part} / bare aiohttp"
        yield Row(
            f"{name}: {part}", f"{median(figures):.3f} ms", f"{median(bare):.3f} ms {BARE}", f"{ratio:.2f}x",
            target(limit) if held else "", met(limit, ratio) if held else None,
        )  # fmt: skip


def _over(figures: Sequence[float], beside: Sequence[float]) -> float:
    """The median of the rounds' own ratios: both of a round met the same machine."""
    return median([one / other for one, other in zip(figures, beside, strict=True)])


def _notes(ours: Costs, bare: Calls) -> Iterator[str]:
    yield (
        "worker: its CPU between one fifth and four fifths of a job's items; redis, control, feeder and submit: of the "
        "whole job, its survey, feeding and assembly included"
    )
    for name, costs in ours.items():
        rounds = ", ".join(f"{cost.all_ms:.3f} (worker {cost.steady_ms:.3f})" for cost in costs)
        pace = ", ".join(f"{cost.items / cost.wall_s:,.0f}" for cost in costs)
        yield f"{name}: {rounds} ms; {pace} items/s from submit to the end of the job"
    for name, calls in bare.items():
        yield f"{name}: " + ", ".join(f"{call:.3f}" for call in calls) + " ms"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.http_path", description=__doc__)
    parser.add_argument("--items", type=int, default=QUICK_ITEMS, help="documents of each job (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=QUICK_ROUNDS, help="how often each takes its turn")
    parser.add_argument(
        "--beside", type=Path, action="append", default=[], metavar="CHECKOUT",
        help="another checkout, whose code runs in this environment and takes its turn in each round",
    )  # fmt: skip
    parser.add_argument(
        "--setting", action="append", default=[], metavar="NAME=VALUE",
        help="this code with an environment variable of its own, which takes its turn likewise",
    )  # fmt: skip
    arguments = parser.parse_args()
    contenders = {"penstock": Contender()}
    contenders |= {path.resolve().name: Contender(path.resolve()) for path in arguments.beside}
    contenders |= {text: Contender(settings=dict([text.split("=", 1)])) for text in arguments.setting}
    show(measure(arguments.items, arguments.rounds, contenders))


if __name__ == "__main__":
    main()
