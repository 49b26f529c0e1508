"""What a lane says of its engine, as metrics; `penstock status` reads the same from heartbeats."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from penstock_workers.lanes.registry import lane_row
from penstock_workers.metrics import catalogue
from penstock_workers.metrics.samples import Sample

BOUND_BY: Final = ("queue", "quota", "slots", "engine", "memory", "starting")


def engine_figures(lane: str, gauges: Mapping[str, float | str]) -> Iterator[Sample]:
    """Those that the lane's row gives a metric.

    The others, such as rates of items, are counted elsewhere."""
    metrics = lane_row(lane).gauges
    for name, value in gauges.items():
        if name in metrics and isinstance(value, (int, float)):
            metric, factor = metrics[name]
            yield metric(value * factor, lane)


def bound_figures(lane: str, bound: str) -> Iterator[Sample]:
    for by in BOUND_BY:
        yield catalogue.BOUND(float(by == bound), lane, by)
