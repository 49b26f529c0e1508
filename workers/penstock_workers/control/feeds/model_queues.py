"""Looks after the queues of models: what dead workers held, and what an autoscaler has to know.

Where a model has workers they sweep their own leases. Without any, items that another worker could
answer by another name, or that a new model should answer, would stay held for ever; so the control
loop returns them to their queues.

An autoscaler counts queues that its configuration names. The queues of adapters that workers have
found in a folder are named by workers, while they run and after that; so what waits for them is
counted here, and a pool that has gone to zero wakes for an adapter that it has served before.
"""

from __future__ import annotations

import logging
from collections import Counter
from time import monotonic
from typing import Final

import redis

from penstock_ledger import RedisLedger
from penstock_producer.feed.queues import HOME, LOADS, queue_name
from penstock_producer.job.lanes import LANES, has_own_model
from penstock_workers.broker.lease_scripts import LeaseScripts, queue_keys

log = logging.getLogger(__name__)

SWEEPS_PER_TIMEOUT: Final = 2
"""A lease ends within a visibility timeout, and is found half of one later."""


class DeadHomes:
    """Returns what dead workers held, on the control thread. Raises redis.RedisError."""

    def __init__(self, hot: RedisLedger, client: redis.Redis, visibility_timeout_s: float) -> None:
        self._hot = hot
        self._client = client
        self._timeout_s = visibility_timeout_s
        self._next_at = 0.0

    def look(self) -> None:
        """Sweep twice per visibility timeout; do nothing in between."""
        if monotonic() < self._next_at:
            return
        self._next_at = monotonic() + self._timeout_s / SWEEPS_PER_TIMEOUT
        for lane in filter(has_own_model, LANES):
            self._sweep(lane)
            self._hot.queues.forget_idle(queue_name(lane))

    def _sweep(self, lane: str) -> None:
        """Return items held by dead workers of a lane to their queues.

        Queues whose workers were heard of in the last minute are left to them: their timeout may be
        a longer one. A worker that is still loading its model sweeps nothing yet, so it does not
        count.
        """
        alive = {
            seen.info.get(HOME, queue_name(lane))  # workers of earlier releases have the lane's
            for seen in self._hot.workers()
            if seen.info.get("lane") == lane and LOADS not in seen.info
        }
        for queue in self._hot.queues.of(queue_name(lane)):
            if queue in alive:
                continue
            where = queue_keys(queue, visibility_timeout_s=self._timeout_s)
            returned = LeaseScripts(self._client, where).restore(
                self._timeout_s / SWEEPS_PER_TIMEOUT
            )
            if returned > 0:
                log.warning(
                    "%d messages were held by workers of %s, which are gone; they are back",
                    returned,
                    queue,
                )


LOOK_S: Final = 5.0  # an autoscaler asks every 10 s or so


class FoundAdapters:
    """Counts what waits for found adapters, on the control thread. Raises redis.RedisError."""

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
