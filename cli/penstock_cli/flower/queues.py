"""Flower's broker page for our queues: what waits, what workers hold, and who consumes.

Flower's own knows each broker by its URL, and of Redis only the lists. This asks through kombu's connection, so that it
reaches whatever the fleet reaches (TLS, sockets, users), and counts what is unacknowledged.
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

from penstock_ledger import keys
from penstock_producer.spec import LANES
from penstock_producer.wire import queue_name
from penstock_workers.app import CONTROL_QUEUE

Row = dict[str, Any]  # as Flower's page and API have it


class QueueTable:
    """Implements what Flower calls a broker."""

    def __init__(self, capp: Any, consumers: Counter[str]) -> None:
        self._capp = capp
        self._consumers = consumers

    async def queues(self, names: Iterable[str]) -> list[Row]:
        return await asyncio.get_running_loop().run_in_executor(None, self._read, sorted(names))

    def _read(self, names: list[str]) -> list[Row]:
        with self._capp.connection_for_read() as connection, connection.default_channel.client.pipeline() as pipe:
            for name in names:
                pipe.llen(name)
                pipe.hlen(keys.unacked(name))
                pipe.zcard(keys.delayed(name))
            counts = iter(pipe.execute())
        rows: list[Row] = []
        for name in names:
            ready, unacked, delayed = next(counts), next(counts), next(counts)
            rows.append({
                "name": name, "messages": ready + unacked, "messages_ready": ready,
                "messages_unacknowledged": unacked, "consumers": self._consumers[name],
            })  # fmt: skip
            if delayed:
                rows.append({"name": f"{name}: retries that wait", "messages": delayed})
        return rows


class OurQueues:
    """Mixed into Flower's handlers."""

    application: Any
    capp: Any

    def get_broker(self) -> QueueTable:
        alive = {name for name, worker in self.application.events.state.workers.items() if worker.alive}
        consumed = (
            queue["name"]
            for name, info in self.application.workers.items()
            if name in alive
            for queue in info.get("active_queues") or ()
        )
        return QueueTable(self.capp, Counter(consumed))

    def get_active_queue_names(self) -> list[str]:
        """All of ours, whether somebody consumes them or not: a full queue without a consumer is what one looks for."""
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
    pages = {"/broker": OurBrokerView, "/api/queues/length": OurQueueLengths, "/metrics": OurMetrics}
    return [(prepend_url(path, prefix) if prefix else path, page) for path, page in pages.items()]
