"""What a random sample says of all documents, with an interval.

It is the bootstrap, helped by the sizes of all requests.

The size of each request is known before it is sent, and so is the sum of all sizes. Where what is
measured goes with the size (as prompt tokens do), the sum over all documents is therefore known far
better than the sample's mean says: the estimate is that of regression, mean times number plus slope
times what the sample's sizes miss. Where it does not, the slope is about none.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

__all__ = ["CONFIDENCE", "Interval", "extrapolated", "share_of_largest"]

CONFIDENCE: Final = 0.9
RESAMPLES: Final = 600
# beyond so many documents they are resampled in random groups, which says the same of a mean
GROUPS_MAX: Final = 200
SLOPE_FROM: Final = 20  # documents: a slope that fewer say is more chance than slope
LARGEST: Final = 0.01  # of the sample


class Interval(NamedTuple):
    """A sum over all documents."""

    low: float
    middle: float
    high: float


def extrapolated(
    sizes: Sequence[float],
    measured: Mapping[str, Sequence[float]],
    documents: int,
    all_sizes: float,
    *,
    seed: int = 0,
) -> dict[str, Interval]:
    """Return the sums over ``documents`` with ``all_sizes`` together, from a sample.

    The sample is drawn without replacement. CONFIDENCE of the intervals hold the true sum. Seeded:
    the same sample says the same.

    A sample of all documents has no interval left; of a part of them it shrinks by the share that
    was seen.
    """
    number = len(sizes)
    if number == 0:
        return {}
    luck = random.Random(seed)
    cells = _cells(sizes, measured, luck)
    unseen = max(0.0, 1 - number / documents) ** 0.5
    middles = _sums(cells, range(len(cells)), documents, all_sizes, sloped=number >= SLOPE_FROM)
    found: dict[str, list[float]] = {name: [] for name in measured}
    places = range(len(cells))
    for _ in range(RESAMPLES if len(cells) > 1 else 1):
        drawn = luck.choices(places, k=len(cells))
        for name, value in _sums(
            cells, drawn, documents, all_sizes, sloped=number >= SLOPE_FROM
        ).items():
            found[name].append(middles[name] + (value - middles[name]) * unseen)
    return {name: _between(sorted(values), middles[name]) for name, values in found.items()}


def share_of_largest(values: Sequence[float]) -> float:
    """Return how much of the sum the largest hundredth of the sample makes.

    That is one document at least.
    """
    total = sum(values)
    if total <= 0:
        return 0.0
    most = sorted(values, reverse=True)[: max(1, round(len(values) * LARGEST))]
    return sum(most) / total


class _Cell(NamedTuple):
    """Means over one document, or over a group of them."""

    size: float
    values: Mapping[str, float]


def _cells(
    sizes: Sequence[float], measured: Mapping[str, Sequence[float]], luck: random.Random
) -> list[_Cell]:
    order = list(range(len(sizes)))
    luck.shuffle(order)
    groups = min(len(order), GROUPS_MAX)
    return [
        _Cell(
            sum(sizes[one] for one in part) / len(part),
            {
                name: sum(values[one] for one in part) / len(part)
                for name, values in measured.items()
            },
        )
        for part in (order[first::groups] for first in range(groups))
    ]


def _sums(
    cells: Sequence[_Cell], drawn: Sequence[int], documents: int, all_sizes: float, *, sloped: bool
) -> dict[str, float]:
    number = len(drawn)
    mean_size = sum(cells[one].size for one in drawn) / number
    spread = sum((cells[one].size - mean_size) ** 2 for one in drawn)
    missed = all_sizes - documents * mean_size
    sums = {}
    for name in cells[0].values:
        mean = sum(cells[one].values[name] for one in drawn) / number
        slope = 0.0
        if sloped and spread > 0:
            slope = (
                sum(
                    (cells[one].size - mean_size) * (cells[one].values[name] - mean)
                    for one in drawn
                )
                / spread
            )
        sums[name] = max(0.0, documents * mean + slope * missed)
    return sums


def _between(values: Sequence[float], middle: float) -> Interval:
    edge = (1 - CONFIDENCE) / 2
    last = len(values) - 1
    return Interval(values[round(edge * last)], middle, values[round((1 - edge) * last)])
