"""The command line of `python -m benchmarks.pace`: which cases, and how long."""

from __future__ import annotations

import argparse
import math
import signal
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from benchmarks.harness.ground import folder, redis_server
from benchmarks.harness.report import Report, Row, machine, show
from benchmarks.pacing.arena import arena
from benchmarks.pacing.case import Case
from benchmarks.pacing.cases import CASES
from benchmarks.pacing.outcome import Outcome, verdicts

SECONDS: Final = 20.0
QUICK_SECONDS: Final = 4.0
QUICK_WARM_UP_S: Final = 2.0
QUICK: Final = tuple(name for name, case in CASES.items() if case.quick)


def report(quick: bool) -> Report:
    """One table of the promises that the cases of ``--quick`` make, for `python -m benchmarks
    q`."""
    return _report(QUICK, QUICK_SECONDS if quick else SECONDS, quick)


def main() -> None:
    arguments = _arguments()
    # so that servers and folders go, too
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))
    seconds = arguments.seconds or (QUICK_SECONDS if arguments.quick else SECONDS)
    with folder() as place, redis_server(place) as server:
        print(machine(server.client()), flush=True)
    names = arguments.only or (QUICK if arguments.quick else tuple(CASES))
    show(_report(names, seconds, arguments.quick))


def _report(names: Sequence[str], seconds: float, quick: bool) -> Report:
    rows: list[Row] = []
    with arena() as place:
        for case in (CASES[name] for name in names):
            warm_up_s = min(case.warm_up_s, QUICK_WARM_UP_S) if quick else case.warm_up_s
            timed = replace(case, warm_up_s=warm_up_s)
            rows += _rows(case, place.run(timed, max(seconds, case.least_s)))
    return Report("(q) shared quota, against a strict provider", rows)


def _rows(case: Case, outcome: Outcome) -> Iterator[Row]:
    """One row a promise; what else the run came to stands beside the first."""
    beside = ", ".join(_remarks(outcome))
    for verdict in verdicts(outcome, case.targets):
        what = f"{case.name} ({case.what}): {verdict.what}"
        yield Row(what, verdict.measured, beside, "", verdict.target, verdict.met)
        beside = ""


def _remarks(outcome: Outcome) -> Iterator[str]:
    yield f"{outcome.utilisation:.1%} used, {outcome.refused} 429s, {outcome.items:,} items"
    yield f"Jain {outcome.jain:.3f}, over jobs {outcome.jain_jobs:.3f}"
    yield f"Redis {outcome.calls_per_item:.2f} calls, {outcome.redis_us_per_item:.0f} us an item"
    yield f"fullest second {outcome.peak:.2f} of the limit, {outcome.inversions} overtaken"
    yield f"wait p50 {outcome.wait_p50_s:.2f} s, p99 {outcome.wait_p99_s:.2f} s"
    yield from (f"{count} {name}" for name, count in outcome.errors.items())
    yield from (f"{count} warnings of {name}" for name, count in outcome.warnings.items())
    if outcome.failed:
        yield f"{outcome.failed} answers of 500"
    if outcome.never_fits:
        within = 1000 * outcome.never_fits_s
        yield f"{outcome.never_fits} learned within {within:.0f} ms that they never fit"
    if not math.isnan(outcome.recovered_s):
        yield f"next start after {outcome.recovered_s:.1f} s"
    if outcome.foreign:
        yield f"others: {outcome.foreign} taken, {outcome.foreign_refused} refused"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.pace", description="the shared quota against a strict provider"
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="a few cases, a few seconds each: a look, not a figure to quote",
    )
    parser.add_argument("--only", type=_names, help="cases: " + ", ".join(CASES))
    parser.add_argument(
        "--seconds", type=float, help=f"measured after each warm-up; {SECONDS:g} if not said"
    )
    return parser.parse_args()


def _names(text: str) -> list[str]:
    names = text.split(",")
    for name in names:
        if name not in CASES:
            raise argparse.ArgumentTypeError(f"{name!r} is not one of {', '.join(CASES)}")
    return names
