"""Flower's broker page for our queues: what waits, what workers hold, and who consumes.

Flower's own knows each broker by its URL, and of Redis only the lists. This asks the fleet's Redis,
which knows of every message whatever the broker is, and reaches it as the fleet does (TLS, sockets,
users, Sentinels).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from typing import Any

from flower.api.tasks import GetQueueLengths
from flower.utils import prepend_url
from flower.views.broker import BrokerView
from flower.views.monitor import Metrics
from tornado.web import HTTPError

from penstock_ledger import QueueBook, RedisAddress, keys
from penstock_producer.feed.queues import queue_name
from penstock_producer.job.lanes import LANES, has_own_model
from penstock_workers.celery_app.app import CONTROL_QUEUE

TIMEOUT_S = 5.0  # of Redis, for one page
Row = dict[str, Any]  # as Flower's page and API have it


class QueueTable:
    """Implements what Flower calls a broker."""

    def __init__(self, redis_url: str, consumers: Counter[str]) -> None:
        self._redis_url = redis_url
        self._consumers = consumers

    async def queues(self, names: Iterable[str]) -> list[Row]:
        return await asyncio.get_running_loop().run_in_executor(None, self._read, sorted(names))

    def _read(self, names: list[str]) -> list[Row]:
        options = {"socket_timeout": TIMEOUT_S, "socket_connect_timeout": TIMEOUT_S}
        with (
            RedisAddress.parse(self._redis_url).connect(**options) as client,
            client.pipeline() as pipe,
        ):
            names = _with_models(QueueBook(client), names)
            for name in names:
                pipe.llen(name)
                pipe.hlen(keys.unacked(name))
                pipe.zcard(keys.delayed(name))
                pipe.zcard(keys.relayed(name))
            counts = iter(pipe.execute())
        rows: list[Row] = []
        for name in names:
            queued, unacked, delayed, relayed = (next(counts) for _ in range(4))
            rows.append(
                {
                    "name": name,
                    "messages": queued + unacked,
                    "messages_ready": queued + relayed,
                    "messages_unacknowledged": unacked - relayed,
                    "consumers": self._consumers[name],
                }
            )
            if delayed:
                rows.append({"name": f"{name}: retries that wait", "messages": delayed})
        return rows


def _with_models(book: QueueBook, names: list[str]) -> list[str]:
    """Lanes that host models have queues per model, which come and go."""
    models = (queue for lane in filter(has_own_model, LANES) for queue in book.of(queue_name(lane)))
    return sorted({*names, *models})


class OurQueues:
    """Mixed into Flower's handlers."""

    application: Any
    capp: Any

    def get_broker(self) -> QueueTable:
        alive = {
            name for name, worker in self.application.events.state.workers.items() if worker.alive
        }
        consumed = (
            queue["name"]
            for name, info in self.application.workers.items()
            if name in alive
            for queue in info.get("active_queues") or ()
        )
        return QueueTable(self.capp.parts.settings.redis_url, Counter(consumed))

    def get_active_queue_names(self) -> list[str]:
        """All queues of the fleet, with and without consumers: a full queue without one is what an
        operator looks for."""
        return [CONTROL_QUEUE, *(queue_name(lane) for lane in LANES)]


class OurBrokerView(OurQueues, BrokerView):  # type: ignore[misc]  # Flower is untyped
    """`/broker`."""


class OurQueueLengths(OurQueues, GetQueueLengths):  # type: ignore[misc]  # Flower is untyped
    """`/api/queues/length`."""


class OurMetrics(Metrics):  # type: ignore[misc]  # Flower is untyped
    """`/metrics`: names of hosts and tasks, which Flower shows without a login."""

    def prepare(self) -> None:
        if not self.current_user:
            raise HTTPError(401)


def handlers(prefix: str | None) -> list[tuple[str, type]]:
    """To be put before Flower's own."""
    pages = {
        "/broker": OurBrokerView,
        "/api/queues/length": OurQueueLengths,
        "/metrics": OurMetrics,
    }
    return [(prepend_url(path, prefix) if prefix else path, page) for path, page in pages.items()]
