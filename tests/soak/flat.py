"""Whether a series of measures is flat: the one decision of the soak, without a clock or a fleet.

A leak is small beside the noise of one sample, and steady. So what counts is the growth over the
whole time that the median of all slopes gives (Theil and Sen): half of the samples may be wrong in
any way before it moves, and a series that goes up and down around one level has none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

WARM_UP = 1 / 3  # of the time: caches fill, allocators take their arenas, every fault comes once
LEAST = 12  # samples after it: the slopes of fewer are luck


class Sample(NamedTuple):
    """A measure and when it was taken."""

    at: float  # seconds
    value: float


@dataclass(frozen=True)
class Bound:
    """How much a series may grow in the time that is looked at."""

    share: float  # of its level
    floor: float  # in its own unit: what a small level may grow by all the same
    why: str


@dataclass(frozen=True)
class Finding:
    """What a series has done since its warm-up."""

    first: float  # the median of its first third
    last: float  # of its last
    growth: float  # by the median of slopes, over the time between
    most: float  # that was allowed
    enough: bool  # samples to say anything

    @property
    def flat(self) -> bool:
        """Whether it may be called so; shrinking is no leak."""
        return self.enough and self.growth <= self.most


def found(series: Sequence[Sample], bound: Bound) -> Finding:
    """Return what a series has done since its warm-up."""
    begin = series[0].at + WARM_UP * (series[-1].at - series[0].at) if series else 0.0
    later = [sample for sample in series if sample.at >= begin]
    if len(later) < LEAST:
        return Finding(0.0, 0.0, 0.0, 0.0, enough=False)
    values = [sample.value for sample in later]
    third = len(values) // 3
    growth = _slope(later) * (later[-1].at - later[0].at)
    most = max(bound.share * median(values), bound.floor)
    return Finding(median(values[:third]), median(values[-third:]), growth, most, enough=True)


def _slope(samples: Sequence[Sample]) -> float:
    """Return the median of the slopes between all pairs."""
    return median(
        (later.value - earlier.value) / (later.at - earlier.at)
        for place, earlier in enumerate(samples)
        for later in samples[place + 1 :]
        if later.at > earlier.at
    )


def per(series: Sequence[Sample], of: Sequence[Sample]) -> list[Sample]:
    """Return what one count has grown by for each one that another has, between two samples.

    Where the other stood still its next step counts for both times."""
    rates: list[Sample] = []
    before: tuple[float, float] | None = None
    other: Mapping[float, float] = dict(of)
    for at, value in series:
        if at not in other:
            continue
        if before is not None and other[at] > before[1]:
            rates.append(Sample(at, (value - before[0]) / (other[at] - before[1])))
        elif before is not None:
            continue
        before = value, other[at]
    return rates
