"""How outcomes are shown: a table per case, each limiter beside Penstock's, then the targets and
whether they were met."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from benchmarks.pacing.adapter import LIMITERS, OURS
from benchmarks.pacing.case import Case
from benchmarks.pacing.outcome import Outcome, verdicts

HEADINGS = (
    "limiter",
    "util %",
    "429s",
    "429 %",
    "Jain proc",
    "Jain jobs",
    "calls/item",
    "x ours",
    "cmds/item",
    "Redis us/item",
    "x ours",
    "peak/limit",
    "overtaken",
    "wait p50 s",
    "p99 s",
    "remarks",
)
WIDE = 190


def show_case(case: Case, outcomes: Sequence[Outcome], skipped: Sequence[tuple[str, str]]) -> None:
    """``skipped`` are limiters that could not run, with the reason."""
    title = (
        f"{case.name}: {case.what}; {case.processes} process(es), {case.per_second:g} requests/s"
    )
    table = Table(title=title, title_justify="left")
    for heading in HEADINGS:
        table.add_column(
            heading,
            justify="left" if heading in ("limiter", "remarks") else "right",
            overflow="fold",
        )
    ours = next((outcome for outcome in outcomes if outcome.limiter == OURS), None)
    for outcome in outcomes:
        table.add_row(*_cells(outcome, ours))
    for name, why in skipped:
        table.add_row(name, *[""] * (len(HEADINGS) - 2), f"not run: {why}")
    console = Console(width=None if os.isatty(1) else WIDE)
    console.print(table)
    for verdict in verdicts(ours, case.targets) if ours is not None else ():
        said = "met" if verdict.met else "NOT MET"
        console.print(
            f"  {said:8}{verdict.what}: {verdict.measured} (target {verdict.target})",
            highlight=False,
        )


def _cells(outcome: Outcome, ours: Outcome | None) -> list[str]:
    return [
        f"{outcome.limiter} {LIMITERS[outcome.limiter].version}",
        f"{100 * outcome.utilisation:.1f}",
        f"{outcome.refused:,}",
        f"{100 * outcome.refused_share:.2f}",
        f"{outcome.jain:.3f}",
        f"{outcome.jain_jobs:.3f}",
        f"{outcome.calls_per_item:.2f}",
        _times(outcome.calls_per_item, ours.calls_per_item if ours else 0.0),
        f"{outcome.commands_per_item:.1f}",
        f"{outcome.redis_us_per_item:.0f}",
        _times(outcome.redis_us_per_item, ours.redis_us_per_item if ours else 0.0),
        f"{outcome.peak:.2f}",
        f"{outcome.inversions:,}",
        f"{outcome.wait_p50_s:.2f}",
        f"{outcome.wait_p99_s:.2f}",
        ", ".join(remarks(outcome)),
    ]


def _times(theirs: float, ours: float) -> str:
    return f"{theirs / ours:.1f}x" if ours and theirs else ""


def remarks(outcome: Outcome) -> list[str]:
    """What happened in this run and has no column."""
    found = [f"{count} {name}" for name, count in outcome.errors.items()]
    found += [f"{count} warnings of {name}" for name, count in outcome.warnings.items()]
    if outcome.failed:
        found.append(f"{outcome.failed} answers of 500")
    if outcome.never_fits:
        found.append(
            f"{outcome.never_fits} learned within {1000 * outcome.never_fits_s:.0f} ms that they "
            "never fit"
        )
    if not math.isnan(outcome.recovered_s):
        found.append(f"next start after {outcome.recovered_s:.1f} s")
    if outcome.foreign:
        found.append(f"others: {outcome.foreign} taken, {outcome.foreign_refused} refused")
    return found
