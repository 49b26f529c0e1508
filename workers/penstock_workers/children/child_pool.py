"""A few children, and the search for the call that kills them.

Calls share children. When one dies, its record of running calls mostly shows which call ended it;
the others are repeated at once. Where it does not, the pending calls are repeated in smaller groups
(64, 8, and then one at a time), until the call that ended the child is alone. After
``DEATHS_ALLOWED`` deaths it is given up with ``CallEndedChild``.

How the children of one worker are started: with its modules, its limits and its lane.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final

from penstock_workers.children.child import (
    HOOK_TIMEOUT_S,
    Child,
    ChildLimits,
    ChildLost,
    Involvement,
    LossCause,
)
from penstock_workers.children.protocol import ChildCall, ChildReply
from penstock_workers.errors import ChildBroken
from penstock_workers.settings import WorkerSettings

WIDTHS: Final = (64, 8, 1)  # calls at once in one child, by line
# one may have another cause, such as memory that ran out; two are the call's
DEATHS_ALLOWED: Final = 2
# times that a call is repeated in the same line because it was not what ended its child
SPARED_MAX: Final = 8
SPREAD: Final = 8  # calls in each child before another one is started

Start = Callable[[], Awaitable[Child]]


class CallEndedChild(Exception):
    """A call ended its child. ``cause`` tells how, ``deaths`` how often."""

    def __init__(self, cause: LossCause, deaths: int) -> None:
        super().__init__(cause, deaths)
        self.cause, self.deaths = cause, deaths


class ChildPool:
    """Children that share the work: ``processes`` of them take the first line of calls.

    None is started before the first call."""

    def __init__(self, start: Start, processes: int, widths: Sequence[int] = WIDTHS) -> None:
        narrow = [_Line(start, width, 1) for width in widths[1:]]
        self._lines = [_Line(start, widths[0], processes), *narrow]

    async def ask(
        self, call: ChildCall, line: int = 0, *, begins: Callable[[], None] = lambda: None
    ) -> ChildReply:
        """Return the answer of a child.

        ``begins`` hears of each time that the call is made, repeats after a death included.

        Raises CallEndedChild, and ChildBroken when no child can be started, or none that lives
        until it takes the call."""
        last = len(self._lines) - 1
        deaths = spared = 0
        while True:
            try:
                return await self._lines[line].ask(call, begins)
            except ChildLost as lost:
                if lost.involvement is Involvement.OTHER and spared < SPARED_MAX:
                    spared += 1
                # where no other call is
                elif lost.involvement is Involvement.OTHER and line == last:
                    raise ChildBroken(
                        f"{spared} processes for hooks and schemas ended before they took a call"
                    ) from lost
                elif lost.involvement is Involvement.THIS:
                    deaths += 1
                    if lost.cause is LossCause.STUCK or deaths >= DEATHS_ALLOWED:
                        raise CallEndedChild(lost.cause, deaths) from None
                    line = last
                else:
                    line = min(line + 1, last)

    async def close(self) -> None:
        for line in self._lines:
            await line.close()


class _Line:
    """A line of calls, with at most ``width`` at once in each of at most ``processes`` children."""

    def __init__(self, start: Start, width: int, processes: int) -> None:
        self._start, self._width, self._processes = start, width, processes
        self._places = asyncio.Semaphore(width * processes)
        self._starting = asyncio.Lock()
        self._children: list[Child] = []  # that take calls
        self._leaving: list[Child] = []  # retired, until the calls in them are answered

    async def ask(self, call: ChildCall, begins: Callable[[], None]) -> ChildReply:
        async with self._places:
            child = self._free(SPREAD) or await self._another()
            begins()
            return await child.ask(call)

    async def close(self) -> None:
        for child in (*self._children, *self._leaving):
            await child.end()
        self._children = []

    async def _another(self) -> Child:
        """Return the least busy child, or a new one while there may be more."""
        async with self._starting:
            found = self._free(SPREAD)
            if found is None and len(self._children) < self._processes:
                found = await self._start()
                self._children.append(found)
            found = found or self._free(self._width)
            assert found is not None, "the semaphore has as many places as the children together"
            return found

    def _free(self, width: int) -> Child | None:
        """Return the least busy child that has fewer than ``width`` calls."""
        for child in [child for child in self._children if not child.open]:
            self._children.remove(child)
            self._leaving = [left for left in (*self._leaving, child) if not left.lost]
        found = min(self._children, key=lambda child: child.in_flight, default=None)
        return found if found is not None and found.in_flight < min(width, self._width) else None


MB = 1024 * 1024


def child_starter(settings: WorkerSettings) -> Start:
    """Return what starts a child with these settings.

    They give the allowed hook modules, the memory limit of a child, and the lane of suspected
    items."""
    options = {
        "worker": os.getpid(),
        "path": list(sys.path),
        "allowed": list(settings.hook_modules),
        "hook_s": HOOK_TIMEOUT_S,
        "lane": settings.lane,
    }
    return partial(Child.start, options, ChildLimits(settings.hook_memory_mb * MB, HOOK_TIMEOUT_S))
