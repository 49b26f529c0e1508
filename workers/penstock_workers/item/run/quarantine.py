"""Suspects are tried apart.

An item that was in flight twice when its worker died runs in a child process, with others like it.

If the child survives, none of them was the cause (they were only in flight beside it, or the worker
was killed from outside) and their answers count as any other. If it dies, its record of running
calls and smaller groups find the cause (children/child_pool.py), which becomes the dead letter
`worker_crashed`; the items in the worker are not affected.

What still kills the worker from inside a child (a hook that sends its parent a signal, say) is
found by counting: each such death makes the group smaller in which its items run next, and
``CRASHES_MAX`` of them are a dead letter whatever happens. Waiting for a place is not counted as a
start, so it is never held against an item.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Final, Protocol

import msgspec

from penstock_workers.children.child_pool import WIDTHS, CallEndedChild, ChildPool
from penstock_workers.children.protocol import Infer, Inferred
from penstock_workers.item.answer import NoAnswer, Tried
from penstock_workers.item.attempt import Attempt
from penstock_workers.item.failures import Failure
from penstock_workers.item.lane import Prepared, Turn

# one crash may be that of an item beside it, or a spot notice; two make a suspect
SUSPECT_AFTER_CRASHES: Final = 2
# From here on an item runs in smaller groups. A crash of its own ends a child, not the worker, so
# what goes on counting is mostly a fleet that is killed from outside: the first such deaths cost no
# speed.
NARROWER_AFTER_CRASHES: Final = (4, 5)
CRASHES_MAX: Final = 7  # starts that were never concluded; one more is not tried


def line_of(crashes: int) -> int:
    """Return how narrow the group is in which an item with so many crashes runs.

    0 is the widest."""
    return sum(crashes >= limit for limit in NARROWER_AFTER_CRASHES)


def crashed_too_often(crashes: int) -> Failure:
    detail = (
        f"{crashes} times its worker died during an attempt, the last times in a process of its own"
    )
    return Failure("worker_crashed", detail, None)


def died_alone(crashes: int) -> NoAnswer:
    return NoAnswer(
        "worker_crashed",
        f"its process died {crashes} times in the fleet, and again when it ran alone",
        0,
    )


class Quarantine(Protocol):
    """The place of suspects, where one that ends its process ends no other item's attempt."""

    def place(self, attempt: Attempt) -> AbstractAsyncContextManager[None]:
        """Wait until the item may be tried, in a group as narrow as its crashes ask for."""
        ...

    async def infer(self, attempt: Attempt, prepared: Prepared, turn: Turn) -> Tried:
        """Return the item's answer, or ``died_alone`` when it ends what runs it."""
        ...


class ChildQuarantine:
    """Suspects in children of their own. The pool belongs to the worker, which closes it."""

    def __init__(self, child_pool: ChildPool, children: int) -> None:
        self._child_pool = child_pool
        self._cells = Cells([WIDTHS[0] * children, *WIDTHS[1:]])

    @asynccontextmanager
    async def place(self, attempt: Attempt) -> AsyncIterator[None]:
        attempt.line = line_of(attempt.crashes)
        async with self._cells.place(attempt.line):
            yield

    async def infer(self, attempt: Attempt, prepared: Prepared, turn: Turn) -> Tried:
        """Return the item's answer, or ``died_alone`` when it ended its process, alone in it."""
        call = Infer(
            attempt.key.doc_id, msgspec.msgpack.encode(prepared.request), prepared.request.timeout_s
        )
        attempt.calls -= 1  # counted anew for each child that may have sent it

        def begins() -> None:
            attempt.calls += 1  # a child that dies may have sent it: then it is billed

        try:
            said = await self._child_pool.ask(call, attempt.line, begins=begins)
        except CallEndedChild:
            return died_alone(attempt.crashes)
        return (
            said.tried()
            if isinstance(said, Inferred)
            else NoAnswer("unexpected_error", str(said), 0)
        )


class Cells:
    """Places in groups: ``widths[line]`` items of one line at once, and never two lines together.

    So nothing that is under heavier suspicion adds to the crashes of others. Lines take turns, a
    full group each.
    """

    def __init__(self, widths: Sequence[int]) -> None:
        self._widths = widths
        # bounded by the prefetch
        self._waiting: list[deque[asyncio.Future[None]]] = [deque() for _ in widths]
        self._line = 0  # whose turn it is
        self._inside = 0

    @asynccontextmanager
    async def place(self, line: int) -> AsyncIterator[None]:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[line].append(waiter)
        self._let_in()
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self._leave()
            raise
        try:
            yield
        finally:
            self._leave()

    def _leave(self) -> None:
        self._inside -= 1
        self._let_in()

    def _let_in(self) -> None:
        for waiting in self._waiting:
            while waiting and waiting[0].done():
                waiting.popleft()
        if self._inside == 0:
            turns = [
                (self._line + step) % len(self._widths) for step in range(1, len(self._widths) + 1)
            ]
            self._line = next((line for line in turns if self._waiting[line]), self._line)
        elif any(waiting for line, waiting in enumerate(self._waiting) if line != self._line):
            return  # the group that is inside is the last of its turn
        waiting = self._waiting[self._line]
        while waiting and self._inside < self._widths[self._line]:
            waiter = waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                self._inside += 1
