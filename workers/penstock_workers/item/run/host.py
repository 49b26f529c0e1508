"""The tasks of all items that a worker holds: one for each delivery, until it has its outcome."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping

from penstock_workers.item.deliveries import Delivery
from penstock_workers.item.run.runner import ItemRunner
from penstock_workers.item.settling.settle import Settler
from penstock_workers.item.slots import ItemWaits
from penstock_workers.metrics import catalogue
from penstock_workers.metrics.samples import Sample

log = logging.getLogger(__name__)


class ItemHost:
    """Lets the runner try hundreds of items at once.

    On the item loop, but for ``stats``, ``figures`` and ``bound``."""

    def __init__(self, runner: ItemRunner, settler: Settler, waits: ItemWaits) -> None:
        self.runner = runner
        self.settler = settler
        self._waits = waits
        self._tasks: dict[Delivery, asyncio.Task[None]] = {}

    def accept(self, delivery: Delivery) -> None:
        self._tasks[delivery] = asyncio.create_task(self._run(delivery))

    def abort(self, delivery: Delivery, why: str) -> None:
        """Stop paying for an item that this worker has lost.

        What its attempt ends in is not asked for any more."""
        task = self._tasks.get(delivery)
        if task is not None:
            log.info("item %s: stopped, %s", delivery.task_id, why)
            task.cancel()

    async def drain(self, deadline_s: float) -> None:
        """Release what has not begun, finish what ends in ``deadline_s``, release the rest."""
        self._waits.close()
        self.runner.runs.close()
        self.runner.lane.drain()
        tasks = list(self._tasks.values())
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=deadline_s)
            for task in late:
                task.cancel()
            if late:
                log.warning(
                    "drain: %d items did not end in %.0f s and go back to their queues",
                    len(late),
                    deadline_s,
                )
                await asyncio.wait(late)
        await self.settler.flush()

    async def stop(self) -> None:
        """End what still runs."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def resize(self, concurrency: int) -> None:
        self._waits.slots.resize(concurrency)

    def __len__(self) -> int:
        """Return how many items have no outcome yet."""
        return len(self._tasks)

    def stats(self) -> Mapping[str, int | float | str]:
        return {
            "held": len(self._tasks),
            "in-flight": self._waits.slots.taken,
            "commits": self.settler.groups,
        }

    def figures(self, lane: str) -> Iterator[Sample]:
        yield catalogue.SLOTS(self._waits.slots.size, lane)
        yield catalogue.SLOTS_TAKEN(self._waits.slots.taken, lane)
        yield catalogue.ADMITTING(len(self._waits.admission), lane)

    def suspects(self) -> int:
        """Return how many items wait for a place apart from others."""
        return len(self._waits.apart)

    def bound(self) -> str:
        """Return what limits a worker without an engine: its queue, the quota, or its slots."""
        slots = self._waits.slots
        if slots.taken < slots.size:
            return "queue"
        return "quota" if 2 * len(self._waits.admission) >= slots.size else "slots"

    async def _run(self, delivery: Delivery) -> None:
        settled = await self.runner.run(delivery)
        self._tasks.pop(delivery, None)
        self.settler.put(settled)
