"""Tells Redis that this worker is alive and how much it holds; feeders size their window by it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Final

from penstock_ledger import RedisLedger

log = logging.getLogger(__name__)

INTERVAL_S = 5.0
ALIVE_S = 3 * INTERVAL_S  # a worker silent for longer may be dead: its slots claim nothing
KNOWS_MOVES: Final = "knows_moves"
"""Said by workers that look at a job's lane before they work on it; those of older releases do not
say it."""


class Heartbeat:
    """Sends one small write every few seconds.

    A missed one only makes the estimate of the fleet's size worse."""

    def __init__(
        self,
        hot: RedisLedger,
        name: str,
        describe: Callable[[], dict[str, str]],
        besides: Callable[[], None] | None = None,
    ) -> None:
        """Take what a heartbeat says.

        ``besides`` is called with each one, in its thread: what else has to be noted in Redis now
        and then."""
        self._hot = hot
        self._name = name
        self._describe = describe
        self._besides = besides
        self._due = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def beat(self) -> None:
        """Send a heartbeat now, and every few seconds from then on.

        Called on the loop."""
        self._due.set()
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="heartbeat")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            self._due.clear()
            try:
                await asyncio.to_thread(self._beat, self._describe())
            except Exception as error:
                log.debug("heartbeat not sent: %s; the next one is in %.0f s", error, INTERVAL_S)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(INTERVAL_S):
                    await self._due.wait()

    def _beat(self, info: dict[str, str]) -> None:
        self._hot.heartbeat(self._name, {**info, KNOWS_MOVES: "yes"})
        if self._besides is not None:
            self._besides()
