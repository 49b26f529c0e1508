"""How many tickets a process holds ahead of time: enough to ask Redis rarely, few enough to be fair and lose little."""

from __future__ import annotations

import math
from collections.abc import Iterable

from penstock_ratelimit.limits import Terms

MAX_WINDOW = 64
"""Most tickets one process holds unstarted, and most items in one call (0.1 ms of Redis; a crash loses no more)."""
LEARNING_RATE = 0.05
"""Weight of a new item in the mean cost: about the last twenty items."""


class Window:
    """Learns the mean cost of items and turns the quota's rate into a number of tickets."""

    def __init__(self, terms: Terms, horizon_s: float) -> None:
        self._horizon_s = horizon_s
        self.adopt(terms)

    def adopt(self, terms: Terms) -> None:
        """Work with other terms from now on; the mean is learned anew."""
        self._terms = terms
        self._mean: list[float] = []
        self.size = 1

    def learn(self, items: Iterable[tuple[float, ...]]) -> None:
        for item in items:
            if not self._mean:
                self._mean = list(item)
                continue
            for column, cost in enumerate(item):
                self._mean[column] += LEARNING_RATE * (cost - self._mean[column])

    def resize(self, processes: int) -> int:
        """W = clamp(ceil(horizon * items per second / processes), 1, 64); 1 until the first item told its cost."""
        if not self._mean:
            return self.size
        paces = (rate / mean for rate, mean in zip(self._terms.rates, self._mean, strict=False) if mean > 0)
        items_per_s = min(paces, default=math.inf)
        wanted = self._horizon_s * items_per_s / max(processes, 1)
        self.size = MAX_WINDOW if wanted >= MAX_WINDOW else max(1, math.ceil(wanted))
        return self.size

    @property
    def low_water(self) -> int:
        """Refill when no more than this many tickets are unstarted: half a window per call."""
        return self.size // 2
