"""Returns what the workers of a model held when the last of them died.

Where a model has workers they sweep their own leases. Without any, items that another worker could
answer by another name, or that a new model should answer, would stay held for ever; so the control
loop returns them to their queues.
"""

from __future__ import annotations

import logging
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
    """Belongs to the control thread. Raises redis.RedisError."""

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
