"""How fast jobs go now: what has ended between looks at them over the last seconds."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Final, NamedTuple

__all__ = ["Speeds"]

SPAN_S: Final = 30.0
LEAST_S: Final = 1.5  # between the first and the last look: a shorter span wavers
STALE_S: Final = 120.0  # a look from before says nothing of now
LOOKS_MAX: Final = 64  # of one job: many people may look at once
KEPT: Final = 512  # jobs; the one that was looked at longest ago goes first


class _Look(NamedTuple):
    at: float
    finished: int
    tokens: int


class Speeds:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen: OrderedDict[str, deque[_Look]] = OrderedDict()  # under the lock
        self._lock = threading.Lock()

    def note(self, job_id: str, finished: int, tokens: int) -> tuple[float, float] | None:
        """Return documents and tokens per second; None where this is the first look for a while."""
        look = _Look(self._clock(), finished, tokens)
        with self._lock:
            looks = self._seen.setdefault(job_id, deque(maxlen=LOOKS_MAX))
            self._seen.move_to_end(job_id)
            if looks and look.at - looks[-1].at > STALE_S:
                looks.clear()
            looks.append(look)
            while len(looks) > 2 and look.at - looks[1].at > SPAN_S:
                looks.popleft()
            while len(self._seen) > KEPT:
                self._seen.popitem(last=False)
            first = looks[0]
        seconds = look.at - first.at
        if seconds < LEAST_S:
            return None
        return max(0.0, (finished - first.finished) / seconds), max(
            0.0, (tokens - first.tokens) / seconds
        )
