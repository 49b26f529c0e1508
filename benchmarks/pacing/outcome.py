"""What one run of one case came to, and whether the promises were held."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from benchmarks.pacing.case import Targets


@dataclass(frozen=True, slots=True)
class Outcome:
    """Figures of the measured time.

    NaN where nothing could be counted. Shares are of 1, times in seconds."""

    seconds: float
    items: int
    utilisation: float
    refused: int
    jain: float
    jain_jobs: float
    calls_per_item: float
    redis_us_per_item: float
    peak: float  # accepted in the fullest second over the rate
    inversions: int
    wait_p50_s: float
    wait_p99_s: float
    failed: int = 0
    never_fits: int = 0
    never_fits_s: float = 0.0
    recovered_s: float = math.nan  # from the end of the trouble to the next accepted request
    foreign: int = 0
    foreign_refused: int = 0
    errors: Mapping[str, int] = field(default_factory=dict)
    warnings: Mapping[str, int] = field(default_factory=dict)  # logged, by logger

    @property
    def refused_share(self) -> float:
        """Of all that was sent, failures included."""
        return self.refused / max(1, self.items + self.refused)


@dataclass(frozen=True, slots=True)
class Verdict:
    """One promise and what came of it."""

    what: str
    measured: str
    target: str
    met: bool


def verdicts(outcome: Outcome, targets: Targets) -> list[Verdict]:
    """A figure that could not be counted (NaN) meets no target."""
    found = []

    def at_least(what: str, figure: float, target: float | None, text: str) -> None:
        if target is not None:
            found.append(
                Verdict(what, format(figure, text), ">= " + format(target, text), figure >= target)
            )

    def at_most(what: str, figure: float, target: float | None, text: str) -> None:
        if target is not None:
            found.append(
                Verdict(what, format(figure, text), "<= " + format(target, text), figure <= target)
            )

    at_least("utilisation", outcome.utilisation, targets.utilisation, ".1%")
    at_most("429s", outcome.refused, targets.refused, ",d")
    at_most("429s of all sends", outcome.refused_share, targets.refused_share, ".2%")
    at_least("Jain over processes", outcome.jain, targets.jain, ".3f")
    at_least("Jain over jobs", outcome.jain_jobs, targets.jain_jobs, ".3f")
    at_most("Redis calls per item", outcome.calls_per_item, targets.calls_per_item, ".2f")
    at_most(
        "seconds without a start after the trouble", outcome.recovered_s, targets.recovered_s, ".1f"
    )
    at_most("errors of the limiter", sum(outcome.errors.values()), targets.errors, ",d")
    return found
