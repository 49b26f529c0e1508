"""A run as a table that a person can follow, and the shortest one that still fails."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from explore.scenarios import Ground, Run, play

RUNS_MAX: Final = 250  # that looking for a shorter history may take
KEPT: Final = Path(__file__).parent / "regressions.json"
"""Seeds that found a fault, with the choices that did it where few of all did."""
LONGEST: Final = 400
"""Lines of a history that are shown: of a longer one its end, and before that what is no routine
call."""


def table(run: Run) -> str:
    """Return the history of a run: step, virtual time, who, what, and what became of it."""
    shown = [*run.history]
    if len(shown) > LONGEST:
        told = [one for one in shown[:-LONGEST] if one.fate != "ok"]
        shown = [*told, *shown[-LONGEST:]]
    lines = [f"{'step':>5} {'time':>9}  {'who':<24} {'what':<58} fate"]
    lines += [
        f"{one.step:>5} {one.at:>9.3f}  {one.who:<24} {one.what:<58} "
        f"{'' if one.fate == 'ok' else one.fate}".rstrip()
        for one in shown
    ]
    kept = {"seed": run.seed, "found": str(run.violation), "choices": sorted(run.taken)}
    return "\n".join([*lines, str(run.violation), json.dumps(kept)])


def shrunk(ground: Ground, run: Run) -> Run:
    """Return the shortest run that was found with fewer choices, and the same invariant broken.

    Choices of one kind go together first, then halves, quarters and so on."""
    best, runs = run, 0

    def without(names: Sequence[str]) -> bool:
        nonlocal best, runs
        if not names or runs >= RUNS_MAX:
            return False
        runs += 1
        tried = play(ground, run.seed, frozenset(best.taken) - frozenset(names))
        if tried.violation is None or run.violation is None:
            return False
        if tried.violation.invariant != run.violation.invariant:
            return False
        best = tried
        return True

    for kind in sorted({name.partition(" ")[0] for name in run.taken}):
        without([name for name in best.taken if name.partition(" ")[0] == kind])
    parts = 2
    while runs < RUNS_MAX and best.taken:
        names = sorted(best.taken)
        size = max(1, len(names) // parts)
        tried = [without(names[at : at + size]) for at in range(0, len(names), size)]
        if any(tried):
            parts = max(2, parts - 1)
        elif size == 1:
            break
        else:
            parts *= 2
    return best


def kept() -> list[dict[str, Any]]:
    """Return the seeds that are kept, with what each has found."""
    found: list[dict[str, Any]] = json.loads(KEPT.read_text())
    return found
