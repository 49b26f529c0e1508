"""How Flower takes events in: never more of them waiting than it can hold, and never long away from
a broker that is back."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any, NoReturn

from celery.events import EventReceiver
from flower.events import Events

log = logging.getLogger(__name__)

# events read and not yet taken in: half a minute of what a fleet sends. Twice as many of ``KEPT``
WAITING_MAX = 50_000
KEPT = frozenset({"task-failed", "task-retried", "task-rejected", "task-revoked"})
RETRY_MAX_S = 10.0  # Flower's own doubles for ever
TELL_EACH_S = 60.0


class BoundedEvents(Events):  # type: ignore[misc]  # Flower is untyped
    """Flower reads in a thread and takes in on its loop, through a list without a limit.

    Here it has one.

    ``waiting`` is written by both threads: it may be off by a few, and comes back to 0 only
    roughly.
    """

    state: Any

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.waiting = 0
        self.dropped = 0
        self._told_at = 0.0

    def start(self) -> None:
        """Flower first asks for events after five seconds."""
        super().start()
        if self.enable_events:
            self.io_loop.add_callback(self.on_enable_events)

    def on_event(self, event: Mapping[str, Any]) -> None:
        """Called by the reading thread. Heartbeats always pass."""
        kind = event["type"]
        if kind.startswith("task-") and self.waiting >= WAITING_MAX * (2 if kind in KEPT else 1):
            self._drop()
            return
        self.waiting += 1
        self.io_loop.add_callback(self._take, event)

    def _take(self, event: Mapping[str, Any]) -> None:
        self.waiting -= 1
        assert self.state is not None, "made with this object"
        self.state.event(event)

    def _drop(self) -> None:
        self.dropped += 1
        if time.monotonic() - self._told_at > TELL_EACH_S:
            self._told_at = time.monotonic()
            log.warning(
                "events come faster than Flower takes them; %d left out: lower event_sample",
                self.dropped,
            )

    def run(self) -> NoReturn:
        """Read until the process ends; the thread is a daemon."""
        wait_s = 1.0
        while True:
            try:
                with self.capp.connection() as connection:
                    receiver = EventReceiver(
                        connection, handlers={"*": self.on_event}, app=self.capp
                    )
                    wait_s = 1.0
                    receiver.capture(limit=None, timeout=None, wakeup=True)
            except Exception as error:
                log.warning("no events: %s; trying again in %.0f s", error, wait_s)
                time.sleep(wait_s)
                wait_s = min(RETRY_MAX_S, 2 * wait_s)
