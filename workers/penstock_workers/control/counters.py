"""One control loop counts its work for its metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final

from penstock_ledger import FiringOutcome
from penstock_producer.job.lanes import LANES
from penstock_workers.metrics import catalogue
from penstock_workers.metrics.samples import Sample

_BY_LANE: Final = {
    "fed": catalogue.FED,
    "reconciles": catalogue.RECONCILES,
    "republished": catalogue.REPUBLISHED,
    "promoted": catalogue.PROMOTED,
}


class Counters:
    """Written by the control thread, read by any."""

    def __init__(self) -> None:
        self._by_lane = {name: Counter[str](dict.fromkeys(LANES, 0)) for name in _BY_LANE}
        self.windows: Mapping[str, int] = {}  # documents that may be outstanding, by lane
        self.ticks: Counter[str] = Counter(ok=0, failed=0)
        self.firings = Counter[FiringOutcome](dict.fromkeys(FiringOutcome, 0))
        self.tick_s = 0.0
        self.rebuilds = 0
        self.leads = 0

    def add(self, name: str, lane: str, number: int) -> None:
        self._by_lane[name][lane] += number

    def figures(self) -> Iterator[Sample]:
        for name, counts in self._by_lane.items():
            for lane, number in counts.items():
                yield _BY_LANE[name](number, lane)
        for lane, window in self.windows.items():
            yield catalogue.WINDOW(window, lane)
        for result, number in self.ticks.items():
            yield catalogue.TICKS(number, result)
        for outcome, number in self.firings.items():
            yield catalogue.FIRINGS(number, str(outcome))
        yield catalogue.TICK_SECONDS(self.tick_s)
        yield catalogue.REBUILDS(self.rebuilds)
        yield catalogue.LEADS(self.leads)
