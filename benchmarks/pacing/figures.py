"""The arithmetic of the pacing benchmark: fairness, percentiles, peaks and overtaking, from counts
alone."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

BINS_PER_S = 10
"""The provider counts what it accepts per tenth of a second; a peak second is any ten in a row."""


def jain(shares: Sequence[float]) -> float:
    """Jain's index of fairness, (sum x)^2 / (n * sum x^2): 1 when all got the same, 1/n when one
    got everything."""
    squares = sum(share * share for share in shares)
    return sum(shares) ** 2 / (len(shares) * squares) if squares else 1.0


def utilisation(accepted: float, allowed: float) -> float:
    """The part of what the provider would have taken that it was given; 0 when it allows
    nothing."""
    return accepted / allowed if allowed else 0.0


def percentile(values: Iterable[float], share: float) -> float:
    """The smallest value that at least ``share`` of all values do not exceed (nearest rank); NaN
    for no values."""
    ordered = sorted(values)
    if not ordered:
        return math.nan
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def peak_per_second(bins: Mapping[int, float]) -> float:
    """Units in the fullest second, whichever ten neighbouring bins that is."""
    fullest = 0.0
    for last in bins:
        fullest = max(
            fullest, sum(bins.get(at, 0.0) for at in range(last - BINS_PER_S + 1, last + 1))
        )
    return fullest


class Line:
    """Those who wait, in the order they came; tells when one is served before another who came
    earlier."""

    def __init__(self) -> None:
        # keeps insertion order: the first key is the longest wait
        self._waiting: dict[int, None] = {}
        self._arrivals = 0

    def arrive(self) -> int:
        self._arrivals += 1
        self._waiting[self._arrivals] = None
        return self._arrivals

    def leave(self, number: int) -> bool:
        """Out of the line; True when one who came earlier still waits."""
        overtook = next(iter(self._waiting)) != number
        del self._waiting[number]
        return overtook
