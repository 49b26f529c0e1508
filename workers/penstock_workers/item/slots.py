"""How many items are in flight at once: a counting semaphore that can be resized, and closed for the drain."""

from __future__ import annotations

import asyncio

from penstock_ratelimit.fairness import DEFAULT_FLOW, FairLine, Flow

TURN = 1.0  # what a slot costs its flow: nobody knows yet how long the item will take


class Slots:
    """First come, first served inside a flow, and fair between flows. Used on one event loop."""

    def __init__(self, size: int) -> None:
        self.size = size
        # bounded by the prefetch: each waiter is a claimed message
        self._waiting: FairLine[asyncio.Future[None]] = FairLine(gone=asyncio.Future.done)
        self._closed = False
        self.taken = 0

    async def take(self, flow: Flow) -> None:
        """Wait for a slot; whoever has one calls ``give_up``. Raises CancelledError once the slots are closed."""
        if self._closed:
            raise asyncio.CancelledError("this worker is draining")
        if self.taken < self.size and not self._waiting:
            self.taken += 1
            return
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.push(waiter, flow, TURN)
        try:
            await waiter  # whoever wakes us has taken the slot for us
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self.give_up()
            raise

    def place(self, flow: Flow = DEFAULT_FLOW) -> Place:
        """A slot that its holder may leave before the block ends."""
        return Place(self, flow)

    def resize(self, size: int) -> None:
        """Growing lets waiters in at once; shrinking takes effect as running items end."""
        self.size = size
        self._wake()

    def close(self) -> None:
        """Nobody gets a slot any more; those who wait are cancelled."""
        self._closed = True
        while (waiter := self._waiting.pop()) is not None:
            waiter.cancel()

    def give_up(self) -> None:
        """Called once for each slot that was taken."""
        self.taken -= 1
        self._wake()

    def _wake(self) -> None:
        while self.taken < self.size and (waiter := self._waiting.pop()) is not None:
            self.taken += 1
            waiter.set_result(None)


class Place:
    """One slot of ``Slots``, for one block."""

    __slots__ = ("_flow", "_slots", "_taken")

    def __init__(self, slots: Slots, flow: Flow) -> None:
        self._slots, self._flow = slots, flow
        self._taken = False

    async def __aenter__(self) -> Place:
        await self._slots.take(self._flow)
        self._taken = True
        return self

    async def __aexit__(self, *_: object) -> None:
        self.leave()

    def leave(self) -> None:
        """Let somebody else in; leaving again changes nothing."""
        if self._taken:
            self._taken = False
            self._slots.give_up()
