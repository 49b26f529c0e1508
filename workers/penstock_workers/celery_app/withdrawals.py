"""Items that leave this worker without an outcome: revoked, given back, or lost with their lease.

Used by the hub thread."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from celery.worker.state import task_ready, task_reserved

from penstock_workers.broker.acks import Acks
from penstock_workers.broker.held import BrokerAction
from penstock_workers.broker.leases import Leases
from penstock_workers.celery_app.engine_thread import EngineThread
from penstock_workers.celery_app.running_items import LateAcks, RunningItem, RunningItems


class Withdrawals:
    """``counts`` are shown by `inspect stats`."""

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
        """To its queue, without an event."""
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
        """Other workers may hold these by now: stop running them here."""
        for tag in tags:
            item = self._items.of_tag(tag)
            if item is not None and tag not in leases:  # else this process has claimed it again
                self._counts["lost-leases"] += 1
                self._let_go(item)
                self._engine.abort(item.delivery, "its lease was lost")

    def note_late(self, action: BrokerAction, tags: Sequence[str]) -> None:
        """These were concluded after their lease was lost: recognise their redelivered copies."""
        self._counts["lost-leases"] += len(tags)
        if action is BrokerAction.ACK:
            self._late.add(tags)

    def adopt(self, item: RunningItem, message: Any) -> None:
        """The lease was lost, or the connection: the broker sent what is still running here.

        The run goes on."""
        self._counts["adopted"] += 1
        item.message = item.request.on_ack.message = message
        task_reserved(item.request)

    def _let_go(self, item: RunningItem) -> None:
        """Celery forgets it; from here on nothing may acknowledge it."""
        self._items.discard(item)
        item.request.acknowledged = True
        task_ready(item.request)
