"""A bound on what decoded images hold of a worker's memory, from their decoding until the engine
has answered."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from penstock_workers.lanes.gpu.engine.engines import EngineCall


class MediaMemory:
    """Used on one event loop.

    A call that is forgotten, however its item ended, gives back what it held."""

    def __init__(self, most_bytes: int, *, at_once: int) -> None:
        """``at_once``: threads that decode; the bound may be passed by what each of them decodes at
        that moment."""
        self._most = most_bytes
        self._turns = asyncio.Semaphore(at_once)
        self._held = 0
        self._freed = asyncio.Event()

    @property
    def held(self) -> int:
        return self._held

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait until there is memory to decode into."""
        async with self._turns:
            while self._held >= self._most:
                self._freed.clear()
                await self._freed.wait()
            yield

    def hold(self, call: EngineCall) -> None:
        if call.media_bytes:
            self._held += call.media_bytes
            weakref.finalize(
                call, self._free_soon, asyncio.get_running_loop(), call.media_bytes
            ).atexit = False

    def _free_soon(self, loop: asyncio.AbstractEventLoop, size: int) -> None:
        """A call can be forgotten in any thread."""
        with suppress(RuntimeError):  # the loop is closed, and nothing waits
            loop.call_soon_threadsafe(self._free, size)

    def _free(self, size: int) -> None:
        self._held -= size
        self._freed.set()
