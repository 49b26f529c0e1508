"""All queues of a fleet, those of models included, looked up now and then."""

from __future__ import annotations

from time import monotonic
from typing import Final

import redis

from penstock_ledger import QueueBook
from penstock_producer.feed.queues import queue_name
from penstock_producer.job.lanes import LANES
from penstock_workers.settings import CONTROL_LANE

LOOK_EACH_S: Final = 1.0
"""So late the first message of a new model reaches RabbitMQ."""


class FleetQueues:
    """Belongs to one thread. Raises redis-py's errors."""

    def __init__(self, client: redis.Redis) -> None:
        self._book = QueueBook(client)
        self._known: list[str] = []
        self._look_at = 0.0

    def now(self) -> list[str]:
        """The queues, in an order that stays."""
        if monotonic() >= self._look_at:
            self._known = [name for lane in LANES for name in self._book.of(queue_name(lane))]
            self._known.append(queue_name(CONTROL_LANE))
            self._look_at = monotonic() + LOOK_EACH_S
        return self._known
