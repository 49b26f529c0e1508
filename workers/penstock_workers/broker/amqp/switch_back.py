"""After a switch from RabbitMQ back to Redis: messages that are still in RabbitMQ return to their
lists in Redis."""

from __future__ import annotations

import logging
from time import monotonic

import redis

from penstock_workers.broker.amqp.fleet_queues import FleetQueues
from penstock_workers.broker.amqp.relay_scripts import RelayScripts
from penstock_workers.settings import WorkerSettings

log = logging.getLogger(__name__)


class SwitchBack:
    """Recalls messages that an earlier RabbitMQ broker still has, in a fleet whose broker is
    Redis."""

    def __init__(self, client: redis.Redis, settings: WorkerSettings) -> None:
        self._client = client
        self._queues = FleetQueues(client)
        self._each_s = settings.visibility_timeout_s
        self._next_at = 0.0

    def look(self) -> None:
        """Recall once per visibility timeout; does nothing in between. Raises Redis's errors."""
        if monotonic() < self._next_at:
            return
        self._next_at = monotonic() + self._each_s
        for queue in self._queues.now():
            returned = RelayScripts(self._client, queue, self._each_s).recall_unclaimed()
            if returned:
                log.warning(
                    "%d messages of %s were still in RabbitMQ; they are back in Redis",
                    returned,
                    queue,
                )
