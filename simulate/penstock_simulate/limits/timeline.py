"""What happens at a known time, done at the next look: no task and no timer waits for it."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from itertools import count

Event = Callable[[float, float], None]  # (when it was due, the time now)


class Timeline:
    """Events in the order in which they are due.

    The caller looks before anything that they could change."""

    def __init__(self) -> None:
        self._due: list[tuple[float, int, Event]] = []
        self._numbers = count()
        self.next_at = math.inf

    def add(self, at: float, event: Event) -> None:
        heapq.heappush(self._due, (at, next(self._numbers), event))
        self.next_at = self._due[0][0]

    def run(self, now: float) -> None:
        """Everything due by ``now``, including what these events add."""
        while self.next_at <= now:
            at, _, event = heapq.heappop(self._due)
            self.next_at = self._due[0][0] if self._due else math.inf
            event(at, now)
