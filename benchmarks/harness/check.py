"""`--check`: holds the measured ratios to their limits in targets.py, and says of each miss what it
is and where it is argued."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping, Sequence

from benchmarks.harness.targets import OF_ENGINES, TARGETS


def letters() -> list[str]:
    """The benchmarks of `python -m benchmarks` that have ratios to be held."""
    return sorted({target.benchmark for target in TARGETS.values()} - {OF_ENGINES})


def missed(measured: Mapping[str, float], ran: Collection[str] = ()) -> list[str]:
    """One line for each ratio beyond what it is held to, or not measured by the benchmarks that
    ``ran``; none named: all of `python -m benchmarks`."""
    lines: list[str] = []
    for name, target in TARGETS.items():
        if target.benchmark not in (ran or letters()):
            continue
        ratio = measured.get(name)
        if ratio is None:
            lines.append(f"{name}: not measured; benchmark {target.benchmark} measures it")
        elif not target.held.met(ratio):
            lines.append(
                f"{name}: {ratio:.2f}x, and {target.held} is the limit ({target.measured or 0:g}x "
                f"was measured before); see {target.argued}"
            )
    return lines


def end_by(misses: Sequence[str]) -> None:
    """Exit status 1 where a ratio is beyond its limit."""
    for line in misses:
        print(f"beyond its limit: {line}", file=sys.stderr)
    if misses:
        sys.exit(1)
    print("every ratio is within its limit")
