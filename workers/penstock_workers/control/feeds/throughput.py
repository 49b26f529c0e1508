"""How many documents a lane finishes per second, from counters that are looked at now and then."""

from __future__ import annotations

from collections.abc import Mapping

# what is left of an old figure at each look: answers that come in bursts count on for some seconds
FADE = 0.8


class Throughput:
    """The latest rate of a lane, or what is left of an earlier and higher one.

    Feeding by a momentary rate would leave workers idle."""

    def __init__(self) -> None:
        self.per_s = 0.0
        self._seen: dict[str, int] = {}
        self._at = 0.0

    def note(self, finished: Mapping[str, int], now: float) -> None:
        """Note how many documents each job has ``finished`` at ``now`` (seconds).

        A job counts from its second look on."""
        done = sum(
            max(0, count - self._seen[job]) for job, count in finished.items() if job in self._seen
        )
        if now > self._at:
            self.per_s = max(done / (now - self._at), FADE * self.per_s)
        self._seen, self._at = dict(finished), now
