"""Other clients of the same key: a Poisson load that uses a fixed share of every limit."""

from __future__ import annotations

import random
from collections.abc import Mapping

from penstock_simulate.limits.meters import Meter
from penstock_simulate.limits.timeline import Timeline

TOKENS_PER_CALL = 1_000  # of a foreign call where only tokens are limited
# arrivals further back are left out: no minute feels them, and a long pause costs no long catching
# up
MEMORY_S = 600.0


class ForeignLoad:
    """Takes ``share`` of each limit whether there is room or not, so that exactly the rest is left
    for the caller."""

    def __init__(self, share: float, meters: Mapping[str, Meter], seed: int) -> None:
        self.share = share
        self.taken = dict.fromkeys(meters, 0.0)  # units by dimension
        self._meters = meters
        self._random = random.Random(seed)
        self._running = False

    def start(self, timeline: Timeline, now: float) -> None:
        """Let the load begin; it goes on by itself until the share is 0."""
        if self._running or not self.share or not self._meters:
            return
        self._running, self._timeline = True, timeline
        timeline.add(now + self._gap_s(), self._arrive)

    def _arrive(self, at: float, now: float) -> None:
        if not self.share or not self._meters:
            self._running = False
            return
        at = max(at, now - MEMORY_S)
        per_s = self._per_s()
        for name, meter in self._meters.items():
            units = self.share * meter.rate / per_s
            meter.take(units, at)
            self.taken[name] = self.taken.get(name, 0.0) + units
        self._timeline.add(at + self._gap_s(), self._arrive)

    def _gap_s(self) -> float:
        return self._random.expovariate(self._per_s())

    def _per_s(self) -> float:
        """Calls per second: by the request limit where there is one, so that a call costs one
        request."""
        for name in ("requests", "requests_per_day"):
            if name in self._meters:
                return self.share * self._meters[name].rate
        return self.share * max(meter.rate for meter in self._meters.values()) / TOKENS_PER_CALL
