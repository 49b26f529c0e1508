"""Metrics, samples and histograms for Prometheus."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

Kind = Literal["counter", "gauge", "histogram"]


@dataclass(frozen=True, slots=True)
class Metric:
    """One entry of the catalogue.

    Labels have few values each, and never name a job, a document or a process."""

    name: str  # as expressions write it
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    unit: str = ""
    source: str = "worker"  # the kind of process that has it
    bounds: tuple[float, ...] = ()  # of a histogram's buckets

    def __str__(self) -> str:
        return self.name

    def __call__(self, value: float | Spread, *labels: str) -> Sample:
        """Make one sample.

        Raises ValueError for another number of labels than the catalogue promises."""
        if len(labels) != len(self.labels):
            raise ValueError(f"{self.name} takes the labels {self.labels}, not {labels}")
        return Sample(self, labels, value)


class Sample(NamedTuple):
    metric: Metric
    labels: tuple[str, ...]
    value: float | Spread


Source = Callable[[], Iterable[Sample]]


class Spread:
    """A histogram.

    Written by one thread; a reader may see the sum one observation behind the buckets."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def buckets(self) -> list[tuple[str, float]]:
        """Return upper bounds and cumulative counts, as Prometheus has them."""
        found, seen = list[tuple[str, float]](), 0
        for bound, count in zip((*map(str, self.bounds), "+Inf"), self.counts, strict=True):
            seen += count
            found.append((bound, float(seen)))
        return found
