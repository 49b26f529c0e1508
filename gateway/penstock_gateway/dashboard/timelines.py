"""How jobs went over time, counted seldom enough: it reads every row of a job.

A small job is counted while its page waits. A large one is counted by a thread of its own, one at a
time, and its page shows what was counted last until the next count is there; between two counts of
a job that runs twenty times as long passes as one took.

How fast a job goes now is what has ended between looks at it over the last seconds.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Final, NamedTuple

from penstock_ledger import Job, OutcomeStore, PenstockError
from penstock_producer.reporting.timeline import Timeline, timeline_of

__all__ = ["Speeds", "Timelines"]

SPAN_S: Final = 30.0
LEAST_S: Final = 1.5  # between the first and the last look: a shorter span wavers
STALE_S: Final = 120.0  # a look from before says nothing of now
LOOKS_MAX: Final = 64  # of one job: many people may look at once
JOBS_KEPT: Final = 512  # jobs; the one that was looked at longest ago goes first

log = logging.getLogger("penstock.gateway")

KEPT: Final = 256  # jobs, each some kilobytes; the one that was looked at longest ago goes first
AT_ONCE: Final = 20_000  # documents that a page waits for: some hundredths of a second
SHARE: Final = 20.0  # times as long as a count took pass until the next one
PAUSE_S: Final = 2.0  # and at least so long: less than between two looks of a page


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
            while len(self._seen) > JOBS_KEPT:
                self._seen.popitem(last=False)
            first = looks[0]
        seconds = look.at - first.at
        if seconds < LEAST_S:
            return None
        return max(0.0, (finished - first.finished) / seconds), max(
            0.0, (tokens - first.tokens) / seconds
        )


class _Counted(NamedTuple):
    timeline: Timeline
    finished: int
    generation: int
    next_at: float


class Timelines:
    def __init__(self, outcomes: OutcomeStore, clock: Callable[[], float] = time.monotonic) -> None:
        self._outcomes = outcomes
        self._clock = clock
        # written and read under the lock, as the next
        self._counted: OrderedDict[str, _Counted] = OrderedDict()
        self._counting = False
        self._lock = threading.Lock()

    def of(self, job: Job, finished: int) -> Timeline | None:
        """Return the job's timeline; None where it is counted now for the first time."""
        with self._lock:
            known = self._counted.get(job.job_id)
            if known is not None:
                self._counted.move_to_end(job.job_id)
                same = (known.finished, known.generation) == (finished, job.generation)
                if (same and job.state.final) or self._clock() < known.next_at:
                    return known.timeline
            if finished > AT_ONCE:
                if not self._counting:
                    self._counting = True
                    threading.Thread(
                        target=self._count_beside, args=(job, finished), daemon=True
                    ).start()
                return None if known is None else known.timeline
        return self._count(job, finished)

    def _count_beside(self, job: Job, finished: int) -> None:
        try:
            self._count(job, finished)
        except PenstockError as error:
            log.warning("the timeline of job %s was not counted: %s", job.job_id, error)
        finally:
            with self._lock:
                self._counting = False

    def _count(self, job: Job, finished: int) -> Timeline:
        began = self._clock()
        timeline = timeline_of(self._outcomes, job)
        now = self._clock()
        entry = _Counted(
            timeline, finished, job.generation, now + max(PAUSE_S, SHARE * (now - began))
        )
        with self._lock:
            self._counted[job.job_id] = entry
            while len(self._counted) > KEPT:
                self._counted.popitem(last=False)
        return timeline
