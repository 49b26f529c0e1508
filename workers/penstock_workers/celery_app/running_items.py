"""The items that run in this worker, as the hub thread knows them.

Items that leave this worker without an outcome: revoked, given back, or lost with their lease.

Used by the hub thread.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, KeysView, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from celery.worker.state import task_ready, task_reserved

from penstock_workers.broker.acks import Acks
from penstock_workers.broker.leases import BrokerAction, Leases
from penstock_workers.celery_app.engine_thread import EngineThread
from penstock_workers.item.deliveries import Delivery

LATE_KEPT = 20_000  # late acknowledgements whose redelivered copies are still expected; 2 MB


@dataclass(slots=True, eq=False)
class RunningItem:
    """One item, from ``accept`` to its outcome."""

    pid: int  # made up: Celery identifies a running task by its process
    delivery: Delivery
    request: Any  # celery.worker.request.Request
    message: Any  # kombu's; replaced when a redelivered copy is adopted


class RunningItems:
    """The items in this worker, by delivery, by made-up process id and by delivery tag.

    Bounded by prefetch; the hub thread's."""

    def __init__(self) -> None:
        self._pids = count(1)
        self._by_delivery: dict[Delivery, RunningItem] = {}
        self._by_pid: dict[int, RunningItem] = {}
        self._by_tag: dict[str, RunningItem] = {}

    def __len__(self) -> int:
        return len(self._by_delivery)

    def add(self, delivery: Delivery, request: Any) -> None:
        item = RunningItem(next(self._pids), delivery, request, request.message)
        self._by_delivery[delivery] = self._by_pid[item.pid] = item
        self._by_tag[request.message.delivery_tag] = item

    def discard(self, item: RunningItem) -> None:
        self._by_delivery.pop(item.delivery, None)
        self._by_pid.pop(item.pid, None)
        if self._by_tag.get(item.message.delivery_tag) is item:
            del self._by_tag[item.message.delivery_tag]

    def of_delivery(self, delivery: Delivery) -> RunningItem | None:
        return self._by_delivery.get(delivery)

    def of_pid(self, pid: int) -> RunningItem | None:
        return self._by_pid.get(pid)

    def of_tag(self, tag: str) -> RunningItem | None:
        return self._by_tag.get(tag)

    def all(self) -> list[RunningItem]:
        return list(self._by_delivery.values())

    def tags(self) -> KeysView[str]:
        return self._by_tag.keys()


class LateAcks:
    """Tags that were concluded here, which the broker may not know.

    Their redelivered copies are not run again.

    A tag is recognised once: the same item may come again later for a good reason, as a retry or
    from a parked job."""

    def __init__(self) -> None:
        self._tags: OrderedDict[str, None] = OrderedDict()

    def add(self, tags: Iterable[str]) -> None:
        for tag in tags:
            self._tags[tag] = None
            if len(self._tags) > LATE_KEPT:
                self._tags.popitem(last=False)

    def recognise(self, message: Any) -> bool:
        tag = message.delivery_tag
        if tag not in self._tags or not message.delivery_info.get("redelivered"):
            return False
        del self._tags[tag]
        return True


class Withdrawals:
    """Takes items back from the engine; ``counts`` are shown by `inspect stats`."""

    def __init__(
        self,
        engine: EngineThread,
        items: RunningItems,
        acks: Acks,
        late: LateAcks,
        counts: dict[str, int],
    ) -> None:
        self._engine = engine
        self._items = items
        self._acks = acks
        self._late = late
        self._counts = counts

    def give_back(self, item: RunningItem) -> None:
        """Return an item to its queue, without an event."""
        self._counts["given-back"] += 1
        self._let_go(item)
        self._acks.give_back(item.message)

    def revoke(self, pid: int) -> RunningItem | None:
        """Stop the running item that Celery has revoked, and return it."""
        item = self._items.of_pid(pid)
        if item is not None:
            self.abort(item, "it was revoked")
        return item

    def abort(self, item: RunningItem, why: str) -> None:
        self._items.discard(item)
        self._engine.abort(item.delivery, why)

    def lose(self, tags: Iterable[str], leases: Leases) -> None:
        """Stop running items that other workers may hold by now."""
        for tag in tags:
            item = self._items.of_tag(tag)
            if item is not None and tag not in leases:  # else this process has claimed it again
                self._counts["lost-leases"] += 1
                self._let_go(item)
                self._engine.abort(item.delivery, "its lease was lost")

    def note_late(self, action: BrokerAction, tags: Sequence[str]) -> None:
        """Recognise the copies of these, which were concluded after their lease was lost."""
        self._counts["lost-leases"] += len(tags)
        if action is BrokerAction.ACK:
            self._late.add(tags)

    def adopt(self, item: RunningItem, message: Any) -> None:
        """Go on with the run of a message that the broker sent again.

        Its lease was lost, or the connection.

        The run goes on."""
        self._counts["adopted"] += 1
        item.message = item.request.on_ack.message = message
        task_reserved(item.request)

    def _let_go(self, item: RunningItem) -> None:
        """Have Celery forget an item; from here on nothing may acknowledge it."""
        self._items.discard(item)
        item.request.acknowledged = True
        task_ready(item.request)
