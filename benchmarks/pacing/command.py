"""The command line of `python -m benchmarks.pace`: which cases with which limiters, how long, and
what is handed back."""

from __future__ import annotations

import argparse
import json
import math
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.harness.ground import folder, redis_server
from benchmarks.harness.report import Report, Row, machine
from benchmarks.pacing.adapter import LIMITERS, OURS
from benchmarks.pacing.alone import Alone, alone, show_alone
from benchmarks.pacing.arena import ALL_PROCESSES_S, Arena, arena, as_json
from benchmarks.pacing.case import Case
from benchmarks.pacing.cases import CASES
from benchmarks.pacing.outcome import Outcome, verdicts
from benchmarks.pacing.tables import show_case
from benchmarks.pacing.whole import FLEET, run_fleet

SECONDS, QUICK_SECONDS = 20.0, 4.0
QUICK_WARM_UP_S = 2.0
ALONE = "alone"
ALONE_S = 25.0
FLEET_S = 45.0
Runs = list[tuple[Case, list[str]]]


def report(quick: bool) -> Report:
    """One table of the promises that the cases of ``--quick`` make, for `python -m benchmarks
    q`."""
    chosen = plan(_usual(quick=True), list(LIMITERS), quick)
    rows: list[Row] = []
    with arena() as place:
        for case, limiters in chosen:
            outcomes = _run_case(place, case, limiters, QUICK_SECONDS if quick else SECONDS, quick)
            rows += _rows(case, outcomes)
    notes = [f"{name}: {why}" for name in LIMITERS if (why := LIMITERS[name].missing()) is not None]
    return Report("(q) shared quota; beside it the best of the other limiters", rows, notes)


def plan(names: Sequence[str], limiters: Sequence[str], quick: bool) -> Runs:
    """Ours runs every case, the others those that name them; a quick look shows one other where it
    is not the first case."""
    runs: Runs = []
    for case in (CASES[name] for name in names if name in CASES):
        peers = case.peers[-1:] if quick and runs else case.peers
        runs.append((case, [name for name in limiters if name == OURS or name in peers]))
    return runs


def duration_s(runs: Runs, seconds: float, quick: bool) -> float:
    """About how long the runs take."""
    return sum(
        len([name for name in limiters if LIMITERS[name].missing() is None])
        * (
            _warm_up(case, quick)
            + max(seconds, case.least_s)
            + ALL_PROCESSES_S
            + case.processes / 4
        )
        for case, limiters in runs
    )


def main() -> None:
    arguments = _arguments()
    # so that servers and folders go, too
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))
    seconds = arguments.seconds or (QUICK_SECONDS if arguments.quick else SECONDS)
    names = arguments.only or _usual(arguments.quick)
    runs = plan(names, arguments.limiters or list(LIMITERS), arguments.quick)
    extra_s = (ALONE_S if ALONE in names else 0.0) + (FLEET_S + seconds if FLEET in names else 0.0)
    with folder() as place, redis_server(place) as server:
        print(machine(server.client()))
    minutes = (duration_s(runs, seconds, arguments.quick) + extra_s) / 60
    print(
        f"{sum(len(limiters) for _, limiters in runs)} runs, about {minutes:.1f} minutes in all",
        flush=True,
    )
    found: dict[str, Any] = {"cases": []}
    with arena() as ring:
        for case, limiters in runs:
            for outcome in _run_case(ring, case, limiters, seconds, arguments.quick):
                found["cases"].append(as_json(outcome))
        if ALONE in names:
            found[ALONE] = _alone(ring, arguments.limiters or list(LIMITERS))
    if FLEET in names:
        found[FLEET] = run_fleet(seconds)
    text = json.dumps(_plain(found), indent=1, allow_nan=False)
    if arguments.json is not None:
        arguments.json.write_text(text + "\n")
    else:
        print(text)


def _run_case(
    place: Arena, case: Case, limiters: Sequence[str], seconds: float, quick: bool
) -> list[Outcome]:
    """Each limiter in its turn; those that are not installed are named with the table."""
    timed = replace(case, warm_up_s=_warm_up(case, quick))
    skipped = [(name, why) for name in limiters if (why := LIMITERS[name].missing()) is not None]
    there = [name for name in limiters if LIMITERS[name].missing() is None]
    outcomes = [place.run(timed, name, max(seconds, case.least_s)) for name in there]
    show_case(case, outcomes, skipped)
    print(flush=True)
    return outcomes


def _warm_up(case: Case, quick: bool) -> float:
    return min(case.warm_up_s, QUICK_WARM_UP_S) if quick else case.warm_up_s


def _alone(place: Arena, limiters: Sequence[str]) -> list[dict[str, Any]]:
    found: list[Alone] = [
        alone(place, name) for name in limiters if LIMITERS[name].missing() is None
    ]
    return show_alone(found)


def _plain(found: Any) -> Any:
    """What JSON can say: a figure that could not be counted is null."""
    if isinstance(found, dict):
        return {name: _plain(value) for name, value in found.items()}
    if isinstance(found, list | tuple):
        return [_plain(value) for value in found]
    return None if isinstance(found, float) and not math.isfinite(found) else found


def _rows(case: Case, outcomes: Sequence[Outcome]) -> list[Row]:
    ours = next(outcome for outcome in outcomes if outcome.limiter == OURS)
    others = [outcome for outcome in outcomes if outcome.limiter != OURS]
    best = max(
        others,
        key=lambda outcome: (outcome.utilisation - outcome.refused_share, outcome.jain),
        default=None,
    )
    beside = ""
    if best is not None:
        beside = (
            f"{best.limiter}: {best.utilisation:.1%}, {best.refused} 429s, Jain {best.jain:.3f}"
        )
        beside += f", {best.calls_per_item:.1f} calls"
    return [
        Row(
            f"{case.name}: {verdict.what}",
            verdict.measured,
            beside if number == 0 else "",
            "",
            verdict.target,
            verdict.met,
        )
        for number, verdict in enumerate(verdicts(ours, case.targets))
    ]


def _usual(quick: bool) -> list[str]:
    return [name for name, case in CASES.items() if case.quick] if quick else [*CASES, ALONE, FLEET]


def _arguments() -> argparse.Namespace:
    def names_of(known: Sequence[str]) -> Any:
        def names(text: str) -> list[str]:
            chosen = text.split(",")
            for name in chosen:
                if name not in known:
                    raise argparse.ArgumentTypeError(f"{name!r} is not one of {', '.join(known)}")
            return chosen

        return names

    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.pace", description="the shared quota beside other limiters"
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="a few cases, a few seconds each: a look, not a figure to quote",
    )
    parser.add_argument(
        "--only",
        type=names_of([*CASES, ALONE, FLEET]),
        help="cases: " + ", ".join([*CASES, ALONE, FLEET]),
    )
    parser.add_argument("--limiters", type=names_of(list(LIMITERS)), help=", ".join(LIMITERS))
    parser.add_argument(
        "--seconds", type=float, help=f"measured after each warm-up; {SECONDS:g} if not said"
    )
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write the figures there instead of printing them"
    )
    return parser.parse_args()
