"""A run as a table that a person can follow, and the shortest one that still fails."""

from __future__ import annotations

from collections.abc import Sequence

from tests.explore.scenarios import Ground, Run, play

SHRINKS_MAX = 300  # runs that looking for a shorter history may take


def table(run: Run) -> str:
    """Return the history of a run: step, virtual time, who, what, and what became of it."""
    lines = [f"{'step':>5} {'time':>9}  {'who':<22} {'what':<60} fate"]
    lines += [
        f"{one.step:>5} {one.at:>9.3f}  {one.who:<22} {one.what:<60} "
        f"{'' if one.fate == 'ok' else one.fate}".rstrip()
        for one in run.history
    ]
    choices = ", ".join(sorted(run.taken))
    return "\n".join([*lines, f"choices of seed {run.seed}: {choices}", str(run.violation)])


def shrunk(ground: Ground, run: Run) -> Run:
    """Return the shortest run that was found with fewer choices, and the same invariant broken."""
    assert run.violation is not None
    best, runs, parts = run, 0, 2
    while runs < SHRINKS_MAX:
        names = sorted(best.taken)
        if not names:
            break
        size = max(1, len(names) // parts)
        for start in range(0, len(names), size):
            kept = frozenset(names[:start] + names[start + size :])
            tried = play(ground, run.seed, kept)
            runs += 1
            if (
                tried.violation is not None
                and tried.violation.invariant == run.violation.invariant
            ):
                best, parts = tried, max(2, parts - 1)
                break
            if runs >= SHRINKS_MAX:
                break
        else:
            if size == 1:
                break
            parts = min(len(names), parts * 2)
    return best


def names_of(runs: Sequence[Run]) -> list[int]:
    return [run.seed for run in runs]
