"""Items wait in a worker for a slot, for their turn, for what must be read.

A drain ends all of these waits."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from penstock_ratelimit import Flow
from penstock_ratelimit.for_penstock import DEFAULT_FLOW, FairLine
from penstock_workers.item.failures import TurnedAway
from penstock_workers.item.outcome import Released

TURN = 1.0  # what a slot costs its flow: how long the item will take is not known yet
IDLE_SHARE = 8  # one slot in so many may wait for the group commit while items wait for slots
# CPU of an item, at least. Commits that come more often than the slots can turn round let no more
# items in, and each costs as much CPU as ten items.
ITEM_CPU_S = 0.0001
# Where all that is in flight is answered, nothing is gained by waiting for more: but so often only,
# as items that come one by one are cheaper together.
ALL_ANSWERED_S = 0.05


class Slots:
    """The places of items in flight: first come, first served, fair between flows.

    On one event loop.

    In flight is an item from its turn until its outcome is in SQL: the calls that a death of this
    process may repeat are those of the items in its slots."""

    def __init__(self, size: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.size = size
        self._clock = clock
        self._said_short_at = float("-inf")
        # bounded by the prefetch: each waiter is a claimed message
        self._waiting: FairLine[asyncio.Future[None]] = FairLine(gone=asyncio.Future.done)
        self._closed = False
        self.taken = 0

    async def take(self, flow: Flow) -> None:
        """Wait for a slot, to be ended by ``give_up``.

        Raises CancelledError once the slots are closed."""
        if self._closed:
            raise asyncio.CancelledError("this worker is draining")
        if self.taken < self.size and not self._waiting:
            self.taken += 1
            return
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.push(waiter, flow, TURN)
        try:
            await waiter  # ``_wake`` takes the slot for the waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self.give_up()
            raise

    async def place(self, flow: Flow = DEFAULT_FLOW) -> SlotPlace:
        """Wait for a slot, which its holder may leave and take again. Raises as ``take`` does."""
        await self.take(flow)
        return SlotPlace(self, flow)

    def are_short(self, answered: int, all_of_them: bool = False) -> bool:
        """Return whether so many outcomes, which hold slots, are to be stored at once.

        Where they hold all slots that are taken, nothing more is answered until others come. Where
        items wait for slots and many are held, that is said once in the time in which the slots can
        turn round, unless ``all_of_them``."""
        silent_s = self._clock() - self._said_short_at
        if not self._waiting:
            is_short = answered >= self.taken and silent_s >= ALL_ANSWERED_S
        elif answered >= self.taken:
            is_short = self.taken >= self.size
        else:
            is_short = (
                self.taken >= self.size
                and not all_of_them
                and answered * IDLE_SHARE >= self.size
                and silent_s >= self.size * ITEM_CPU_S
            )
        if is_short:
            self._said_short_at = self._clock()
        return is_short

    def resize(self, size: int) -> None:
        """Change the number of slots.

        Growing lets waiters in at once; shrinking takes effect as running items end."""
        self.size = size
        self._wake()

    def close(self) -> None:
        """Hand out no slot any more; those who wait are cancelled."""
        self._closed = True
        while (waiter := self._waiting.pop()) is not None:
            waiter.cancel()

    def give_up(self) -> None:
        """Leave a slot; called once for each that was taken."""
        self.taken -= 1
        self._wake()

    def _wake(self) -> None:
        while self.taken < self.size and (waiter := self._waiting.pop()) is not None:
            self.taken += 1
            waiter.set_result(None)


class SlotPlace:
    """One slot of ``Slots``, until its holder leaves it."""

    __slots__ = ("_flow", "_slots", "_taken")

    def __init__(self, slots: Slots, flow: Flow) -> None:
        self._slots = slots
        self._flow = flow
        self._taken = True

    async def take_again(self) -> None:
        """Wait for a slot in place of the one that was left. Raises as ``Slots.take`` does."""
        await self._slots.take(self._flow)
        self._taken = True

    def leave(self) -> None:
        """Free the slot; leaving again changes nothing."""
        if self._taken:
            self._taken = False
            self._slots.give_up()


class Waiting:
    """Items that wait for one thing while their start is not counted.

    ``with`` it, a task is one of them."""

    __slots__ = ("_closed", "_tasks")

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closed = False

    def __len__(self) -> int:
        return len(self._tasks)

    @property
    def is_closed(self) -> bool:
        return self._closed

    def __enter__(self) -> None:
        if self._closed:
            raise TurnedAway(Released("this worker is draining"))
        task = asyncio.current_task()
        assert task is not None, "items run in tasks"
        self._tasks.add(task)

    def __exit__(self, *_: object) -> None:
        task = asyncio.current_task()
        assert task is not None, "items run in tasks"
        self._tasks.discard(task)

    def close(self) -> None:
        """Cancel those who wait, and let no other wait."""
        self._closed = True
        for task in self._tasks:
            task.cancel()


class ItemWaits:
    """All that items of one loop wait for."""

    def __init__(self, concurrency: int) -> None:
        self.slots = Slots(concurrency)
        self.admission = Waiting()  # in a slot, for the quota or for room in the engine
        self.others = Waiting()  # for the ledger or a source to be read
        self.apart = Waiting()  # suspects, for a place in the quarantine

    def close(self) -> None:
        self.slots.close()
        self.admission.close()
        self.others.close()
        self.apart.close()
