"""The items that run in this worker, as the hub thread knows them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, KeysView
from dataclasses import dataclass
from itertools import count
from typing import Any

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
    """Tags that were concluded here, which the broker may not know: their redelivered copies are
    not run again.

    A tag is recognised once: the same item may come again later for a good reason, as a retry or
    from a parked job.
    """

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
