"""The seam between Celery and the items: what the pool hands to an engine, and what it hears back.

Two threads meet here. The hub thread is the worker's main thread and owns all of Celery's state; the loop thread runs
one asyncio loop and owns the engine. Every engine method but ``stats`` is called on the loop thread; bridge methods may
be called there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from penstock_workers.metrics.samples import Sample


@dataclass(slots=True, eq=False)
class Delivery:
    """One claimed message. Written by the hub thread before ``accept``, only read after; equal only to itself.

    ``kwargs`` and ``headers`` come from outside: they may have any shape, and the engine decides what odd ones become.
    """

    task_id: str
    kwargs: Any  # what the message carries as kwargs: a mapping in every message of ours
    headers: Mapping[str, Any]  # Celery's request headers: root_id, stamps, timelimit, …
    retries: int = 0
    redelivered: bool = False  # somebody held this message before and did not conclude it
    queue: str = ""
    raw: bytes | None = None  # the message as it lay in the queue; None under the stock transport


@dataclass(frozen=True, slots=True)
class Acked:
    """Concluded and durable: acknowledge the message. ``ok`` chooses task-succeeded or task-failed."""

    ok: bool = True
    error: str | None = None
    runtime_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Retried:
    """The engine has durably scheduled the next try: acknowledge this message and send task-retried."""

    error: str
    after_s: float


@dataclass(frozen=True, slots=True)
class GivenBack:
    """Not concluded here: the message returns to the front of its queue at once, without an event."""

    why: str


@dataclass(frozen=True, slots=True)
class SetAside:
    """No worker of this fleet can make sense of the message: keep it whole for a person, and send task-rejected."""

    why: str


Verdict = Acked | Retried | GivenBack | SetAside


class Bridge(Protocol):
    """From the loop thread to the hub thread. Calls return at once; the hub works through them in order."""

    def started(self, delivery: Delivery) -> None:
        """The item has left the waiting line: send task-started."""

    def conclude(self, pairs: Sequence[tuple[Delivery, Verdict]]) -> None:
        """The fate of some deliveries. A second verdict for a delivery, or one after ``abort``, is ignored."""


class ItemEngine(Protocol):
    """What runs items. The number of deliveries without a verdict is bounded by the worker's prefetch."""

    async def start(self, bridge: Bridge) -> None:
        """Called once, before the first ``accept``. An exception ends the worker with its message."""

    def accept(self, delivery: Delivery) -> None:
        """Take charge of a delivery. Must not block."""

    def abort(self, delivery: Delivery, why: str) -> None:
        """The lease is lost or the task is revoked: stop working on it. No verdict is awaited."""

    async def drain(self, deadline_s: float) -> None:
        """No delivery comes any more: give each one its verdict within ``deadline_s`` seconds.

        What has not started gets ``GivenBack`` at once, so that others can take it; what does not finish in time, then.
        What has no verdict when this returns is given back by the pool.
        """

    async def stop(self) -> None:
        """Close what ``start`` opened. Called once, after ``drain``; on a cold shutdown without it."""

    def resize(self, concurrency: int) -> None:
        """Run this many items at once from now on (`celery control pool_grow`)."""

    def stats(self) -> Mapping[str, int | float | str]:
        """Figures for `celery inspect stats`, read from the hub thread: must be cheap and safe to read there."""
        ...

    def stuck(self) -> str | None:
        """Why this process must not say that it lives, such as a loop that never comes back; from the hub thread."""
        ...

    def trouble(self) -> str | None:
        """What the process waits for, such as a store that is away, in words for a person; from the hub thread."""
        ...

    def figures(self) -> Iterable[Sample]:
        """Figures for Prometheus, before ``start`` has returned too; from any thread."""
        ...
