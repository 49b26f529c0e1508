"""Items of this process that make the same request: the first asks and is sent, the others wait in
a line behind it."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable
from enum import Enum
from typing import Final

from penstock_ledger import InFlight, RequestName
from penstock_ledger.model import Result

WAIT_S: Final = 5.0
"""How long an item waits here: then its message goes into the delayed set, so that others find room
in this worker."""
KNOWN_S: Final = 60.0
"""How long an answer is kept in memory: until it is settled, and for the next equal ones."""
KNOWN_BYTES_MAX: Final = 16 * 1024 * 1024
KNOWN_MAX: Final = 4_096
"""Of answers in memory; the one that was learned first makes room."""


class Turn(Enum):
    """What an item learns beside an answer."""

    LEAD = "send it, for all who wait"
    ALONE = (
        "send it, and do not wait for others: the request has failed, or its answer is too large "
        "to share"
    )


Found = Result | InFlight | Turn


class _Line:
    def __init__(self, began: float) -> None:
        self.began = began
        self.waiting: deque[asyncio.Future[Found]] = deque()  # bounded by what the worker holds


class Lines:
    """One line for each request that is on its way. On the item loop."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lines: dict[RequestName, _Line] = {}

    async def join(self, name: RequestName) -> Found:
        """LEAD for the first, and for the next one when the first has given up."""
        line = self._lines.get(name)
        if line is None:
            self._lines[name] = _Line(self._clock())
            return Turn.LEAD
        future: asyncio.Future[Found] = asyncio.get_running_loop().create_future()
        line.waiting.append(future)
        try:
            await asyncio.wait((future,), timeout=WAIT_S)
        except asyncio.CancelledError:
            if future.done() and future.result() is Turn.LEAD:
                self.pass_on(name)
            raise
        finally:
            if not future.done():
                future.cancel()
        return InFlight(self._clock() - line.began) if future.cancelled() else future.result()

    def pass_on(self, name: RequestName) -> bool:
        """The one that leads gives up: the next one does. False when no one waits."""
        line = self._lines[name]
        while line.waiting:
            future = line.waiting.popleft()
            if not future.done():
                future.set_result(Turn.LEAD)
                return True
        del self._lines[name]
        return False

    def tell(self, name: RequestName, found: Found) -> None:
        """The end of the line: all who wait in it learn this."""
        for future in self._lines.pop(name).waiting:
            if not future.done():
                future.set_result(found)


class KnownAnswers:
    """What this process has learned lately of requests: their answers, or that they are not to be
    waited for."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._known: OrderedDict[RequestName, tuple[Result | Turn, float]] = OrderedDict()
        self._bytes = 0

    def get(self, name: RequestName) -> Result | Turn | None:
        found = self._known.get(name)
        if found is None:
            return None
        if found[1] < self._clock():
            self._forget(name)
            return None
        return found[0]

    def put(self, name: RequestName, found: Result | Turn) -> None:
        if name in self._known:
            self._forget(name)
        self._known[name] = (found, self._clock() + KNOWN_S)
        self._bytes += _size(found)
        while self._bytes > KNOWN_BYTES_MAX or len(self._known) > KNOWN_MAX:
            self._forget(next(iter(self._known)))

    def _forget(self, name: RequestName) -> None:
        self._bytes -= _size(self._known.pop(name)[0])


def _size(found: Result | Turn) -> int:
    return len(found.body) if isinstance(found, Result) else 0
