"""Which hooks run right now, and since when: what `penstock status` shows of one that hangs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from itertools import count
from time import monotonic

SHOWN_FROM_S = 5.0  # most calls take milliseconds, and are not worth a word


class HooksUnderWay:
    """Calls of hooks that have no answer yet, as many as items are in flight. On one event loop."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._numbers = count()
        self._began: dict[int, tuple[str, float]] = {}  # oldest first

    @contextlib.contextmanager
    def call(self, path: str) -> Iterator[None]:
        number = next(self._numbers)
        self._began[number] = path, self._clock()
        try:
            yield
        finally:
            del self._began[number]

    def described(self) -> Mapping[str, str]:
        """The hook that has run longest, for how many seconds, and in how many calls; empty while
        none takes long."""
        if not self._began:
            return {}
        path, began = next(iter(self._began.values()))
        seconds = self._clock() - began
        if seconds < SHOWN_FROM_S:
            return {}
        calls = sum(other == path for other, _ in self._began.values())
        return {"hook": path, "hook_s": f"{seconds:.0f}", "hook_calls": str(calls)}
