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
                self.give_up()
            raise

    async def __aexit__(self, *_: object) -> None:
        self.give_up()

    def place(self) -> Place:
        """A slot that its holder may leave before the block ends."""
        return Place(self)

    def resize(self, size: int) -> None:
        """Growing lets waiters in at once; shrinking takes effect as running items end."""
        self._size = size
        self._wake()

    def close(self) -> None:
        """Nobody gets a slot any more; those who wait are cancelled."""
        self._closed = True
        while self._waiting:
            self._waiting.popleft().cancel()

    def give_up(self) -> None:
        """Called once for each slot that was taken."""
        self.taken -= 1
        self._wake()

    def _wake(self) -> None:
        while self._waiting and self.taken < self._size:
            waiter = self._waiting.popleft()
            if not waiter.done():
                self.taken += 1
                waiter.set_result(None)


class Place:
    """One slot of ``Slots``, for one block."""

    __slots__ = ("_slots", "_taken")

    def __init__(self, slots: Slots) -> None:
        self._slots = slots
        self._taken = False

    async def __aenter__(self) -> Place:
        await self._slots.__aenter__()
        self._taken = True
        return self

    async def __aexit__(self, *_: object) -> None:
        self.leave()

    def leave(self) -> None:
        """Let somebody else in; leaving again changes nothing."""
        if self._taken:
            self._taken = False
            self._slots.give_up()
