"""After a switch back: what still lies in a RabbitMQ that was the broker before is needed in Redis."""

from __future__ import annotations

import logging
from time import monotonic

import redis

from penstock_producer.lanes import LANES
from penstock_workers.broker.amqp.lane import LaneShovel
from penstock_workers.settings import CONTROL_LANE, WorkerSettings, process_name

log = logging.getLogger(__name__)


class SwitchBack:
    """Where Redis is the broker: messages that still lie in a RabbitMQ that was it before come back to their lists."""

    def __init__(self, client: redis.Redis, settings: WorkerSettings) -> None:
        self._lanes = [
            LaneShovel(client, lane, settings.visibility_timeout_s, owner=process_name())
            for lane in (*LANES, CONTROL_LANE)
        ]
        self._each_s = settings.visibility_timeout_s
        self._next_at = 0.0

    def look(self) -> None:
        """Each visibility timeout; does nothing in between. Raises Redis's errors."""
        if monotonic() < self._next_at:
            return
        self._next_at = monotonic() + self._each_s
        for lane in self._lanes:
            returned = lane.recall_unclaimed()
            if returned:
                log.warning("%d messages of %s lay in RabbitMQ; they are back in Redis", returned, lane.queue)
