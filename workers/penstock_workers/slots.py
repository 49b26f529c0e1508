"""How many items are in flight at once: a counting semaphore that can be resized, and closed for the drain."""

from __future__ import annotations

import asyncio
from collections import deque


class Slots:
    """First come, first served. Used on one event loop."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._waiting: deque[asyncio.Future[None]] = (
            deque()
        )  # bounded by the prefetch: each waiter is a claimed message
        self._closed = False
        self.taken = 0

    async def __aenter__(self) -> None:
        if self._closed:
            raise asyncio.CancelledError("this worker is draining")
        if self.taken < self._size and not self._waiting:
            self.taken += 1
            return
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        try:
            await waiter  # whoever wakes us has taken the slot for us
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self._give_up()
            raise

    async def __aexit__(self, *_: object) -> None:
        self._give_up()

    def resize(self, size: int) -> None:
        """Growing lets waiters in at once; shrinking takes effect as running items end."""
        self._size = size
        self._wake()

    def close(self) -> None:
        """Nobody gets a slot any more; those who wait are cancelled."""
        self._closed = True
        while self._waiting:
            self._waiting.popleft().cancel()

    def _give_up(self) -> None:
        self.taken -= 1
        self._wake()

    def _wake(self) -> None:
        while self._waiting and self.taken < self._size:
            waiter = self._waiting.popleft()
            if not waiter.done():
                self.taken += 1
                waiter.set_result(None)
