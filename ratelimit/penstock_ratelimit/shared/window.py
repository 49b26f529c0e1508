"""How many tickets a process holds ahead of time: enough to ask Redis rarely, few enough to be fair and lose little."""

from __future__ import annotations

import math

MAX_WINDOW = 64
"""Most tickets one process holds unstarted, and most items in one call (0.1 ms of Redis; a crash loses no more)."""


class Window:
    """W = clamp(ceil(horizon / pace / processes), 1, 64).

    A process gets its part in proportion to the tickets it holds, so all must work with the same pace: the one that
    Redis learns from the whole fleet. Until it is known the window is one ticket.
    """

    def __init__(self, horizon_s: float) -> None:
        self._horizon_s = horizon_s
        self.size = 1

    def resize(self, pace_s: float, processes: int) -> None:
        """``pace_s`` is seconds per item for the whole fleet; 0 when unknown."""
        if pace_s <= 0:
            return
        wanted = self._horizon_s / pace_s / max(processes, 1)
        self.size = MAX_WINDOW if wanted >= MAX_WINDOW else max(1, math.ceil(wanted))

    @property
    def low_water(self) -> int:
        """Refill when no more than this many tickets are unstarted: half a window per call."""
        return self.size // 2
