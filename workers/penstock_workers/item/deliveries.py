"""The interface between Celery and the item engine: deliveries go in, outcomes come back.

Two threads use it. The hub thread is the worker's main thread and owns all of Celery's state; the
loop thread runs one asyncio loop and owns the engine. Every engine method but ``stats`` is called
on the loop thread; bridge methods may be called there. ``handover.py`` is the bridge.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from penstock_workers.item.outcome import Outcome, Unreadable
from penstock_workers.metrics.samples import Sample

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Delivery:
    """One claimed message.

    Written by the hub thread before ``accept``, only read after; equal only to itself.

    ``kwargs`` and ``headers`` come from outside: they may have any shape, and the engine decides
    what odd ones become.
    """

    task_id: str
    # what the message carries as kwargs: a mapping in every message that Penstock sends
    kwargs: Any
    headers: Mapping[str, Any]  # Celery's request headers: root_id, stamps, timelimit, …
    retries: int = 0
    redelivered: bool = False  # another worker held this message before and did not conclude it
    queue: str = ""
    raw: bytes | None = None  # the message as it lay in the queue; None under the stock transport


class Bridge(Protocol):
    """The calls of the loop thread to the hub thread.

    Calls return at once; the hub works through them in order."""

    async def sure(self, *, anew: bool = False) -> None:
        """Wait while others may have, by now, what this worker holds.

        That is so after it stood still, and, ``anew``, after whatever the caller has heard of. What
        is another's is aborted before this returns."""

    def started(self, delivery: Delivery) -> None:
        """Send task-started: the item has left the waiting line."""

    def conclude(self, pairs: Sequence[tuple[Delivery, Outcome]]) -> None:
        """Take what attempts ended in, durable by now.

        A second outcome of a delivery, or one after ``abort``, is ignored."""


def set_aside(bridge: Bridge, delivery: Delivery) -> None:
    """Set aside an item that came to a queue where none are run: Penstock sends none there."""
    log.error(
        "item %s lies in %s, where no items are run; it is set aside",
        delivery.task_id,
        delivery.queue,
    )
    bridge.conclude([(delivery, Unreadable("no items are run from this queue"))])


class ItemEngine(Protocol):
    """The engine that runs items.

    The number of deliveries without an outcome is bounded by the worker's prefetch."""

    async def start(self, bridge: Bridge) -> None:
        """Start; called once, before the first ``accept``.

        An exception ends the worker with its message."""

    def accept(self, delivery: Delivery) -> None:
        """Take charge of a delivery. Must not block."""

    def abort(self, delivery: Delivery, why: str) -> None:
        """Stop working on an item whose lease is lost or task revoked; give no outcome."""

    async def drain(self, deadline_s: float) -> None:
        """Give each delivery its outcome within ``deadline_s`` seconds; no delivery comes any more.

        What has not started is released at once, so that others can take it; what does not finish
        in time, then. What has no outcome when this returns is given back by the pool.
        """

    async def stop(self) -> None:
        """Close what ``start`` opened.

        Called once, after ``drain``; on a cold shutdown without it."""

    def slots(self) -> int:
        """Return how many items it runs at once.

        Its start may find another number than `concurrency`; asked once it is up."""
        ...

    def resize(self, concurrency: int) -> None:
        """Run this many items at once from now on (`celery control pool_grow`)."""

    def stats(self) -> Mapping[str, int | float | str]:
        """Return figures for `celery inspect stats`, read from the hub thread.

        It must be cheap and safe to read there."""
        ...

    def stuck(self) -> str | None:
        """Return why the liveness probe must fail, such as a stuck loop; from the hub thread."""
        ...

    def trouble(self) -> str | None:
        """Return what the process waits for, in words for an operator; from the hub thread.

        A store that is down, for one."""
        ...

    def figures(self) -> Iterable[Sample]:
        """Return figures for Prometheus, before ``start`` has returned too; from any thread."""
        ...
