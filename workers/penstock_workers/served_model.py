"""Makes known which model a worker has.

Its heartbeat says so, and it takes items from the queues of that model. A server beside the worker
may come back with another model, or get adapters while it runs; so the lane is looked at now and
then, and what it serves is taken up anew. Items of a model that is gone stay in its queue.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final

from penstock_ledger import RedisLedger
from penstock_producer.feed.queues import HOME, LOADS, SERVES, Served, queue_name
from penstock_workers.item.run.models import ModelCheck
from penstock_workers.lanes.registry import home_queue
from penstock_workers.settings import WorkerSettings

log = logging.getLogger(__name__)

LOOK_S: Final = 1.0  # at what the lane says that it serves
Consume = Callable[[Sequence[str], Sequence[str]], None]
"""Has the worker take messages of the first queues, and no more of the second."""


class ServedModel:
    """The model of one worker whose lane hosts one.

    On the item loop, but for ``note_queues``."""

    def __init__(
        self,
        settings: WorkerSettings,
        loads: Served,
        hot: RedisLedger,
        check: ModelCheck,
        *,
        consume: Consume | None,
        announce: Callable[[], None],
    ) -> None:
        """Begin with what the settings say of the model, which is ``loads``.

        ``announce`` sends a heartbeat at once."""
        self._lane, self._home, self._loads = settings.lane, home_queue(settings), loads
        self._hot, self._check, self._consume, self._announce = hot, check, consume, announce
        self._served: Served | None = None  # once it is up
        # names that the settings do not say; also an earlier worker of this model
        self._has_found = True
        self._following: asyncio.Task[None] | None = None

    async def open(self, served: Callable[[], Served]) -> None:
        """Make known what the lane serves, now that it is up.

        ``served`` returns that, and is asked again as long as the worker runs."""
        self._take_up(served())
        # before the first claim: what is held there must be found
        await asyncio.to_thread(self.note_queues)
        self._following = asyncio.create_task(self._follow(served), name="served model")

    async def close(self) -> None:
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)

    def announcement(self) -> dict[str, str]:
        """Return what each heartbeat says.

        A worker whose model loads takes and keeps nothing yet."""
        if self._served is None:
            return {LOADS: self._loads.to_text(), "concurrency": "0"}
        return {SERVES: self._served.to_text(), HOME: self._home}

    def note_queues(self) -> None:
        """Note the queues of this model in Redis.

        The control loop looks after those that are noted. This runs in a thread, now and with each
        heartbeat.
        """
        if self._served is not None:
            lane, queues = queue_name(self._lane), self._served.queues(self._lane)
            self._hot.queues.note(lane, queues, by_worker=True)
            found = set(queues).difference(self._loads.queues(self._lane))
            if found or self._has_found:
                self._hot.queues.note_found(lane, self._home, found)
            self._has_found = bool(found)

    async def _follow(self, served: Callable[[], Served]) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            found = served()
            if found != self._served:
                log.warning("this worker serves %s from now on", ", ".join(found.every_name))
                self._take_up(found)
                self._announce()

    def _take_up(self, served: Served) -> None:
        before = () if self._served is None else self._served.queues(self._lane)
        now = served.queues(self._lane)
        self._served = served
        self._check.open(served)
        if self._consume is not None:
            self._consume(now, [queue for queue in before if queue not in now])
