"""Figures of a running job: exact ones from SQL, moved along by Redis counters in between.

Counting a million rows takes a while, so it is done as rarely as its own duration asks for. Also
keeps, per job, the figures that would die with Redis or with this process.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock_cli.state import write_private
from penstock_ledger import RETRIED

if TYPE_CHECKING:
    from penstock_ledger.model import Counts
    from penstock_producer.reporting.engines import Engines

COUNT_SHARE = 0.05  # of the time at most this much goes into counting rows
COUNT_PAUSE_S = 1.0  # and never more often than this
RATE_SPAN_S = 15.0  # the speed shown is that of the last seconds, not of the whole night
KEPT_STATS = ("calls", "rate_limited", "skipped", "repairs", "fallbacks", "escalations")


def _kept(stats: Mapping[str, Any]) -> dict[str, int]:
    reasons = [name for name in stats if name.startswith(RETRIED)]
    return {name: int(stats.get(name, 0)) for name in (*KEPT_STATS, *reasons)}


@dataclass(frozen=True, slots=True)
class JobFigures:
    """One look at a job."""

    total: int | None
    succeeded: int = 0
    succeeded_after_retry: int = 0
    dead: int = 0
    retries: int = 0
    retried_by_reason: Mapping[str, int] = field(default_factory=dict)
    rate_limited: int = 0
    repairs: int = 0
    fallbacks: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost_microusd: int = 0
    unpriced: int = 0  # answers of which no price is known
    deduplicated: int = 0
    cached: int = 0
    # held by workers: running, waiting for a slot, or waiting for the group commit
    claimed: int = 0
    queued: int = 0
    delayed: int = 0
    workers: int = 0
    engines: Engines | None = None  # of the job's lane; None where none reports
    batches: str | None = None  # where its documents go in batches: how far they are
    seconds: float = 0.0
    per_second: float = 0.0
    reasons: tuple[str, ...] = ()  # what keeps the job from going faster, or at all
    cause: str | None = None  # why calls failed lately

    @property
    def finished(self) -> int:
        return self.succeeded + self.dead

    @property
    def seconds_left(self) -> float | None:
        """None while nothing is known: no total, or nothing moves."""
        if self.total is None or self.per_second <= 0:
            return None
        return max(0, self.total - self.finished) / self.per_second


class Counter:
    """SQL counts, corrected by what the Redis counters did since they were taken."""

    def __init__(
        self,
        count: Callable[[], Counts],
        stats: Callable[[], Mapping[str, int]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._count = count
        self._stats = stats
        self._clock = clock
        self._next_count = 0.0
        self._counts: Counts | None = None
        self._at_count: dict[str, int] = {}
        self.stats: dict[str, int] = {}  # the counters of the latest look

    def look(self) -> tuple[Counts, dict[str, int]]:
        """Return the latest SQL counts, and how far each Redis counter has moved since then."""
        now = self._clock()
        self.stats = dict(self._stats())
        if self._counts is None or now >= self._next_count:
            self._at_count = self.stats
            self._counts = self._count()
            took = self._clock() - now
            self._next_count = now + max(COUNT_PAUSE_S, took / COUNT_SHARE)
        return self._counts, {
            name: max(0, self.stats[name] - self._at_count.get(name, 0)) for name in self.stats
        }


@dataclass
class Speed:
    """Documents per second over the last few seconds."""

    span_s: float = RATE_SPAN_S
    # bounded by the span and the rate of looks
    _seen: deque[tuple[float, int]] = field(default_factory=deque)

    def update(self, now: float, finished: int) -> float:
        self._seen.append((now, finished))
        while len(self._seen) > 2 and now - self._seen[0][0] > self.span_s:
            self._seen.popleft()
        first_at, first = self._seen[0]
        return max(0.0, (finished - first) / (now - first_at)) if now > first_at else 0.0


@dataclass(frozen=True)
class KeptFigures:
    """The seconds of work and the Redis-only counters of earlier runs of a job, in a small file."""

    path: Path
    seconds: float = 0.0
    stats: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def load(cls, path: Path) -> KeptFigures:
        """Load them; zero when there are none or they are damaged, as they only decorate."""
        try:
            stored = json.loads(path.read_bytes())
            return cls(path, float(stored["seconds"]), _kept(stored["stats"]))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return cls(path)

    def merged(self, stats: Mapping[str, int]) -> dict[str, int]:
        """Return the larger of both for each counter: counters only grow."""
        names = dict.fromkeys([*_kept(self.stats), *_kept(stats)])
        return {name: max(self.stats.get(name, 0), stats.get(name, 0)) for name in names}

    def save(self, seconds: float, stats: Mapping[str, int]) -> None:
        fresh = self.path.with_suffix(".new")
        write_private(
            fresh, json.dumps({"seconds": round(seconds, 3), "stats": self.merged(stats)})
        )
        fresh.replace(self.path)
