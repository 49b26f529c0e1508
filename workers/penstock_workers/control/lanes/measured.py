"""Measures how many documents a job finishes in its lane over the last minutes, and at what cost.

The latest rate of each lane is kept as well."""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Final, NamedTuple

__all__ = ["Measured", "Rate"]

WINDOW_S: Final = 300.0
LEAST_S: Final = 20.0
"""Of a measure: shorter ones say how answers come in bursts."""
FRESH_S: Final = 3_600.0
"""What another job of the lane was measured at says something for so long."""
KEPT: Final = 1_000
"""Jobs and lanes whose measures are kept, each some hundred bytes."""

LaneOf = tuple[str, str, str | None]
"""Lane, provider and model."""


class Rate(NamedTuple):
    per_s: float
    usd_each: float | None  # None: nothing was paid for
    seconds: float  # that it was measured over
    at: float


class _Look(NamedTuple):
    at: float
    finished: int
    cost_usd: float


class Measured:
    """The measured pace of jobs and lanes, on the control thread. Times are those of one clock."""

    def __init__(self) -> None:
        self._looks: OrderedDict[tuple[str, str], deque[_Look]] = OrderedDict()  # by job and lane
        self._lanes: OrderedDict[LaneOf, Rate] = OrderedDict()

    def note(self, job_id: str, of: LaneOf, finished: int, cost_usd: float, now: float) -> None:
        """Note that so many documents of a job have an outcome; it is in this lane now."""
        looks = self._looks.setdefault((job_id, of[0]), deque())
        if looks and (finished < looks[-1].finished or now - looks[-1].at > WINDOW_S):
            looks.clear()  # a replay, or it was elsewhere in between
        looks.append(_Look(now, finished, cost_usd))
        while len(looks) > 2 and now - looks[1].at >= WINDOW_S:
            looks.popleft()
        rate = self.of_job(job_id, of[0])
        if rate is not None and rate.per_s > 0:
            self._lanes[of] = rate
            self._lanes.move_to_end(of)
        self._looks.move_to_end((job_id, of[0]))
        for book in (self._looks, self._lanes):
            if len(book) > KEPT:
                book.popitem(last=False)

    def of_job(self, job_id: str, lane: str) -> Rate | None:
        """Return the job's rate in this lane; None before it was there long enough."""
        looks = self._looks.get((job_id, lane))
        if not looks or (seconds := looks[-1].at - looks[0].at) < LEAST_S:
            return None
        done, paid = looks[-1].finished - looks[0].finished, looks[-1].cost_usd - looks[0].cost_usd
        return Rate(
            done / seconds, paid / done if done and paid > 0 else None, seconds, looks[-1].at
        )

    def of_lane(self, of: LaneOf, now: float) -> Rate | None:
        """Return the latest rate of any job in a lane; None where it is too long ago."""
        rate = self._lanes.get(of)
        return rate if rate is not None and now - rate.at <= FRESH_S else None

    def forget(self, job_id: str, lane: str) -> None:
        """Forget a job that leaves this lane: if it comes back it is measured anew."""
        self._looks.pop((job_id, lane), None)
