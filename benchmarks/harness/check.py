"""`--check`: holds the measured ratios to their limits in targets.py, and says of each miss what it
is and where it is argued."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from benchmarks.harness.targets import TARGETS


def letters() -> list[str]:
    """The benchmarks that have ratios to be held."""
    return sorted({target.benchmark for target in TARGETS.values()})


def missed(measured: Mapping[str, float], ran: Collection[str] = ()) -> list[str]:
    """One line for each ratio beyond what it is held to, or not measured by the benchmarks that
    ``ran``; none named: all."""
    lines: list[str] = []
    for name, target in TARGETS.items():
        if ran and target.benchmark not in ran:
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
