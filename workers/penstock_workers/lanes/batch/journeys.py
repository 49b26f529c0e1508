"""The provider batches that this worker leads: each is taken from the journal, and sees its end.

What the journeys of a worker share is made here: how many are uploaded and collected at a time, and
the event by which one that ends wakes those that wait for room.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Final

from penstock_ledger import ProviderBatch
from penstock_workers.failpoints import Failpoints
from penstock_workers.lanes.batch.answers import Collector
from penstock_workers.lanes.batch.apis.provider import BatchProvider
from penstock_workers.lanes.batch.ending import Ending
from penstock_workers.lanes.batch.jobs import Jobs, Reservations
from penstock_workers.lanes.batch.journey import Journey
from penstock_workers.lanes.batch.led_batch import Journal, LedBatch
from penstock_workers.lanes.batch.packer import Packing
from penstock_workers.lanes.batch.sending import Sending
from penstock_workers.lanes.batch.troubles import Troubles
from penstock_workers.lanes.batch.watching import Watching
from penstock_workers.settings import WorkerSettings

COLLECTED_AT_ONCE: Final = 2  # batches whose ids are held in memory
UPLOADED_AT_ONCE: Final = 2

Providers = Callable[[str], BatchProvider]  # by name; raises WorkerError


class Journeys:
    """The ways of all batches of this worker, on the event loop but for ``count``."""

    def __init__(
        self,
        settings: WorkerSettings,
        journal: Journal,
        jobs: Jobs,
        reservations: Reservations,
        packing: Packing,
        collector: Collector,
        providers: Providers,
        failpoints: Failpoints,
    ) -> None:
        self._settings, self._journal, self._jobs = settings, journal, jobs
        self._reservations, self._packing, self._collector = reservations, packing, collector
        self._providers, self._failpoints = providers, failpoints
        self._uploading = asyncio.Semaphore(UPLOADED_AT_ONCE)
        self._collecting = asyncio.Semaphore(COLLECTED_AT_ONCE)
        self._changed = asyncio.Event()
        self._led: dict[str, tuple[Journey, asyncio.Task[None]]] = {}

    async def take(self) -> None:
        """Take the batches that no worker leads now, and those that this one has packed."""
        self._led = {tag: pair for tag, pair in self._led.items() if not pair[1].done()}
        room = self._settings.batch.led_max - len(self._led)
        if room <= 0:
            return
        journal = self._journal
        led = [tag for journey, _ in self._led.values() for tag in journey.tags]
        known = [*self._settings.providers]
        taken = await asyncio.to_thread(
            lambda: journal.store.take(
                journal.owner, journal.lease_s, room, providers=known, besides=led
            )
        )
        for batch in taken:
            await self._jobs.look_if_new(batch.job_id)
            self._start(batch)

    async def close(self, deadline_s: float) -> None:
        """Let the steps under way end."""
        for journey, _ in self._led.values():
            journey.close()
        tasks = [task for _, task in self._led.values()]
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=deadline_s)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    def count(self) -> Counter[tuple[str, str]]:
        """Count batches by provider and state; from any thread."""
        batches = [journey.batch for journey, _ in tuple(self._led.values())]
        return Counter((batch.provider, str(batch.state)) for batch in batches)

    def _start(self, batch: ProviderBatch) -> None:
        journey = self._journey(batch)
        task = asyncio.create_task(journey.run(), name=f"provider batch {batch.tag}")
        self._led[batch.tag] = journey, task

    def _journey(self, batch: ProviderBatch) -> Journey:
        settings = self._settings
        led = LedBatch(
            batch,
            self._providers(batch.provider),
            self._journal,
            self._jobs,
            self._reservations,
            self._packing,
            self._failpoints,
            self._changed,
        )
        troubles = Troubles(led, settings)
        return Journey(
            led,
            troubles,
            Sending(led, settings, self._reservations, self._uploading),
            Watching(led, troubles, settings.batch),
            Ending(led, troubles, settings.batch, self._collector, self._collecting),
        )
