"""A process that runs the control loop and no items.

It has the interface of the engine that runs items, so `penstock control` is a worker like any
other, with its drain, its events and its broker connection; its one queue takes the jobs that
Celery clients submit.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Iterator, Mapping
from importlib.metadata import version

from penstock_workers.control.loop import Control, start_control
from penstock_workers.decided_times import DecidedTimes
from penstock_workers.item.deliveries import Bridge, Delivery, set_aside
from penstock_workers.metrics import catalogue
from penstock_workers.metrics.samples import Sample
from penstock_workers.settings import CONTROL_LANE, WorkerSettings

log = logging.getLogger(__name__)


class ControlEngine:
    """Implements ``deliveries.ItemEngine``."""

    def __init__(self, settings: WorkerSettings, decided: DecidedTimes | None = None) -> None:
        self._settings = settings
        self._decided = decided
        self._loop_runs = contextlib.ExitStack()
        self._bridge: Bridge | None = None
        self._control: Control | None = None

    async def start(self, bridge: Bridge) -> None:
        self._bridge = bridge
        self._control = self._loop_runs.enter_context(start_control(self._settings, self._decided))

    def accept(self, delivery: Delivery) -> None:
        """Set aside an item that was sent to this queue by mistake."""
        assert self._bridge is not None, "start() comes first"
        set_aside(self._bridge, delivery)

    def abort(self, delivery: Delivery, why: str) -> None:
        """Do nothing, since nothing runs here."""

    async def drain(self, deadline_s: float) -> None:
        """End the loop after its tick, and hand over its leases.

        One that is stuck in a tick loses them by time."""
        ended, this_loop = asyncio.Event(), asyncio.get_running_loop()

        def end() -> None:
            self._loop_runs.close()
            with contextlib.suppress(RuntimeError):  # this loop is closed already
                this_loop.call_soon_threadsafe(ended.set)

        threading.Thread(target=end, name="control-end", daemon=True).start()
        try:
            await asyncio.wait_for(ended.wait(), deadline_s)
        except TimeoutError:
            log.warning(
                "the control loop is still busy after %g s; others lead its jobs when its leases "
                "end",
                deadline_s,
            )

    async def stop(self) -> None:
        """Let daemon threads that ``drain`` could not end go on until the process ends."""

    def slots(self) -> int:
        """Return in how many places tasks from Celery clients run."""
        return self._settings.concurrency

    def resize(self, concurrency: int) -> None:
        """Do nothing, since there is always one loop."""

    def stats(self) -> Mapping[str, int | float | str]:
        return {}

    def stuck(self) -> str | None:
        if self._control is None or self._control.is_turning():
            return None
        return "the control loop has been stuck in one round for minutes"

    def trouble(self) -> str | None:
        return None

    def figures(self) -> Iterator[Sample]:
        yield catalogue.INFO(1, CONTROL_LANE, version("penstock"))
        if self._control is not None:
            yield from self._control.figures()
