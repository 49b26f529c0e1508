"""The whole fleet beside vLLM's own batch class, on the same items with the same engine,
in interleaved rounds."""

from __future__ import annotations

import contextlib
import statistics
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

from benchmarks.engines.items import items
from benchmarks.engines.offline_vllm import WARM_UP
from benchmarks.engines.setup import Setup
from benchmarks.engines.work import Work, contender
from benchmarks.engines.worker import worker_fleet
from benchmarks.harness.report import Report, Row
from benchmarks.harness.targets import judge

Run = Callable[[int, int], Work]  # how many items, numbered from which
Rounds = dict[str, list[tuple[Work, Work]]]  # the short and the long run of each round


def run(place: Path, setup: Setup) -> Report:
    with contextlib.ExitStack() as stack:
        peer = stack.enter_context(
            contender("benchmarks.engines.offline_vllm", setup, place / "offline.log")
        )
        lane = stack.enter_context(
            contender("benchmarks.engines.lane_alone", setup, place / "lane.log")
        )
        fleet = stack.enter_context(worker_fleet(place / "offline", setup))
        fleet.start()
        fleet.run(items(setup, setup.max_num_seqs, first=WARM_UP))
        ways: dict[str, Run] = {
            "chat": lambda number, first: peer.run("chat", number, first),
            "fleet": lambda number, first: fleet.run(items(setup, number, first=first)),
            "lane": lambda number, first: lane.run("lane", number, first),
            "generate": lambda number, first: peer.run("generate", number, first),
        }
        rounds = _rounds(setup, ways)
        starts = fleet.start_s, peer.start_s
    title = (
        f"offline, {setup.short:,} and {setup.items:,} items, median of {setup.rounds} "
        "interleaved rounds"
    )
    compared = [
        *_beside(rounds, "fleet", "chat", "fleet / LLM.chat"),
        *_beside(rounds, "lane", "chat", "lane alone / LLM.chat"),
        *_beside(rounds, "fleet", "generate", "fleet / LLM.generate, tokens made beforehand"),
    ]
    rows = [
        *(row for row, _ in compared),
        Row(
            "start until ready",
            f"{starts[0]:.1f} s",
            f"{starts[1]:.1f} s",
            f"{starts[0] / starts[1]:.2f}",
        ),
    ]
    return Report(title, rows, _notes(rounds), {row.what: ratio for row, ratio in compared})


def _rounds(setup: Setup, ways: dict[str, Run]) -> Rounds:
    """Each round has texts of its own, the same for all; who is first in one is last in the
    next."""
    rounds: Rounds = defaultdict(list)
    first = 0
    for number in range(setup.rounds):
        runs = list(ways.items())[:: -1 if number % 2 else 1]
        short = {way: run(setup.short, first) for way, run in runs}
        first += setup.short
        for way, run in runs:
            rounds[way].append((short[way], run(setup.items, first)))
        first += setup.items
    return rounds


def _beside(rounds: Rounds, ours: str, theirs: str, words: str) -> list[tuple[Row, float]]:
    """Short and long runs as they are, and what is between them; by the clock and by CPU."""
    pairs = list(zip(rounds[ours], rounds[theirs], strict=True))
    short = [(our_short, their_short) for (our_short, _), (their_short, _) in pairs]
    whole = [(our_long, their_long) for (_, our_long), (_, their_long) in pairs]
    steady = [
        (our_long.beyond(our_short), their_long.beyond(their_short))
        for (our_short, our_long), (their_short, their_long) in pairs
    ]
    named = {
        f"{short[0][0].items:,} items": short,
        f"{whole[0][0].items:,} items": whole,
        "start and end apart": steady,
    }
    return [
        _row(f"{words}, {which}, {by}", works, figure, unit)
        for which, works in named.items()
        for by, figure, unit in (
            ("by the clock", _per_s, "items/s"),
            ("by CPU", _per_cpu_s, "items/CPU s"),
        )
    ]


def _row(
    what: str, pairs: list[tuple[Work, Work]], figure: Callable[[Work], float], unit: str
) -> tuple[Row, float]:
    """Ratios are taken within a round: whatever else the machine does meets both."""
    ratio = statistics.median(figure(ours) / figure(theirs) for ours, theirs in pairs)
    measured, beside = (statistics.median(figure(pair[at]) for pair in pairs) for at in (0, 1))
    row = Row(what, f"{measured:,.1f} {unit}", f"{beside:,.1f} {unit}", f"{ratio:.3f}")
    return row.judged(judge(what, ratio)), ratio


def _per_s(work: Work) -> float:
    return work.per_s


def _per_cpu_s(work: Work) -> float:
    return work.per_cpu_s


def _notes(rounds: Rounds) -> list[str]:
    figures = [
        f"{way} {', '.join(f'{long.per_s:,.1f} and {long.per_cpu_s:,.1f}' for _, long in works)}"
        for way, works in rounds.items()
    ]
    return [
        "rounds, items per second and per CPU second: " + "; ".join(figures),
        "a fleet's run lasts from the moment when its worker takes the first item to the last "
        "outcome in the ledger; vLLM's and the lane's, one call or task group; all engines are "
        "warm and wait beside the one that runs",
    ]
