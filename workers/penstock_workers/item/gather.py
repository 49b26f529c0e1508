"""Turn many single requests into few group calls: the one place where items wait for each other.

A ``Gatherer`` collects what is put into it and hands it to ``flush`` in groups. Only one flush is under way at a time, so
while the database is slow the next group grows by itself: the slower the store, the better the batching.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

T = TypeVar("T")


class Gatherer(Generic[T]):
    """Groups of at most ``group_max`` things, each flushed at most ``linger_s`` after its first thing arrived.

    What waits here is bounded by the caller: every waiting thing is an item in flight, and those are bounded by prefetch.
    ``flush`` must not raise; it owns its retries. All methods belong to the event loop that ``start`` was called on.
    """

    def __init__(self, flush: Callable[[Sequence[T]], Awaitable[None]], *, group_max: int, linger_s: float) -> None:
        self._flush = flush
        self._group_max = group_max
        self._linger_s = linger_s
        self._waiting: list[T] = []
        self._arrived = asyncio.Event()
        self._full = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._hurried = False  # somebody waits for an empty gatherer: do not linger
        self._closing = False
        self._loop_task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._loop_task = asyncio.create_task(self._run(), name=f"gather-{self._flush.__name__}")

    def put(self, thing: T) -> None:
        self._waiting.append(thing)
        if len(self._waiting) == 1:
            self._idle.clear()
            self._arrived.set()
        if len(self._waiting) >= self._group_max:
            self._full.set()

    def __len__(self) -> int:
        """Things that wait for the next group."""
        return len(self._waiting)

    async def flush(self) -> None:
        """Return once everything that was put in before this call has been flushed."""
        self._hurried = True
        self._full.set()
        await self._idle.wait()
        self._hurried = False

    async def close(self) -> None:
        """Flush what waits, then end."""
        self._closing = True
        self._arrived.set()
        self._full.set()
        if self._loop_task is not None:
            await self._loop_task

    async def _run(self) -> None:
        while True:
            await self._arrived.wait()
            if self._linger_s and not (self._closing or self._hurried):
                await self._linger()
            group = self._take()
            if group:
                await self._flush(group)
            if not self._waiting:
                self._idle.set()
                if self._closing:
                    return

    async def _linger(self) -> None:
        try:
            async with asyncio.timeout(self._linger_s):
                await self._full.wait()
        except TimeoutError:
            pass

    def _take(self) -> list[T]:
        group, self._waiting = self._waiting[: self._group_max], self._waiting[self._group_max :]
        if len(self._waiting) < self._group_max:
            self._full.clear()
        if not self._waiting and not self._closing:
            self._arrived.clear()
        return group
