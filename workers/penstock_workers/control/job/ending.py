"""Notices that a job is about to end, so that its last outcome is seen before the next usual tick.

A control loop polls. Near a job's end it polls more often, as long as outcomes keep coming: where
the last calls take many seconds, a fifth of a second more does not matter.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

ENDING_DOCUMENTS = 64  # at most so many are under way: what a worker settles in about one group
ENDING_FOR_S = 2.0  # after the latest outcome
ENDING_INTERVAL_S = 0.04  # a tick costs 1 to 2 ms


class JobEnding:
    """Belongs to the control thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # job that is all read -> documents under way, since when so many
        self._moved: dict[str, tuple[int, float]] = {}

    def note(self, job_id: str, under_way: int) -> None:
        """Note how many documents are under way of a job that is led here and read to its end."""
        known = self._moved.get(job_id)
        if known is None or known[0] != under_way:
            self._moved[job_id] = (under_way, self._clock())

    def interval_s(self, usual_s: float) -> float:
        """Return how long the loop may wait for its next tick."""
        now = self._clock()
        ends = any(
            under_way <= ENDING_DOCUMENTS and now - since < ENDING_FOR_S
            for under_way, since in self._moved.values()
        )
        return min(usual_s, ENDING_INTERVAL_S) if ends else usual_s

    def keep_only(self, live: Collection[str]) -> None:
        """Forget jobs that have ended."""
        self._moved = {job_id: moved for job_id, moved in self._moved.items() if job_id in live}
