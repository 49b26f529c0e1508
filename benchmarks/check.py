"""`--check`: holds the measured ratios against targets.py, and says of each miss what it is and where it is argued."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from benchmarks.targets import TARGETS


def letters() -> list[str]:
    """The benchmarks that have targets."""
    return sorted({target.benchmark for target in TARGETS.values()})


def missed(measured: Mapping[str, float], ran: Collection[str] = ()) -> list[str]:
    """One line for each target that is not met, or was not measured by the benchmarks that ``ran``; none named: all."""
    lines: list[str] = []
    for name, target in TARGETS.items():
        if ran and target.benchmark not in ran:
            continue
        ratio = measured.get(name)
        if ratio is None:
            lines.append(f"{name}: not measured; benchmark {target.benchmark} should tell it")
        elif not target.met(ratio):
            lines.append(f"{name}: {ratio:.2f}x, and {target} is the limit; see {target.argued}")
    return lines
