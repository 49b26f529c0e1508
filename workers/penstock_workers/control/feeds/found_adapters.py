"""Counts what waits for adapters that workers have found in a folder, for an autoscaler.

An autoscaler counts queues that its configuration names. The queues of these adapters are named by
workers, while they run and after that: so a pool that has gone to zero wakes for an adapter that it
has served before.
"""

from __future__ import annotations

from collections import Counter
from time import monotonic
from typing import Final

from penstock_ledger import RedisLedger
from penstock_producer.feed.queues import queue_name
from penstock_producer.job.lanes import LANES, has_own_model

LOOK_S: Final = 5.0  # an autoscaler asks every 10 s or so


class FoundAdapters:
    """Belongs to the control thread. Raises redis.RedisError."""

    def __init__(self, hot: RedisLedger) -> None:
        self._hot = hot
        # queues of models for which something was shown; bounded by the book of queues
        self._shown: set[str] = set()
        self._next_at = 0.0

    def look(self) -> None:
        """Count every ``LOOK_S``; do nothing in between."""
        if monotonic() < self._next_at:
            return
        self._next_at = monotonic() + LOOK_S
        for lane in filter(has_own_model, LANES):
            self._count(queue_name(lane))

    def _count(self, lane: str) -> None:
        found = self._hot.queues.found(lane)
        homes = {
            *found.values(),
            *(home for home in self._shown if self._hot.queues.is_of(lane, home)),
        }
        if not homes:
            return
        waiting = Counter(dict.fromkeys(homes, 0))
        for queue, depth in self._hot.depths(lane).items():
            if queue in found:
                waiting[found[queue]] += depth.queued + depth.relayed
        for home, number in waiting.items():
            self._hot.queues.show_found(home, number)
        self._shown = (self._shown - homes) | set(found.values())
