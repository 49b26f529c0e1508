"""Threads in which requests are made ready, and whose results come back to the loop in groups.

An executor wakes the loop for each result, and makes three locks for each call; on a busy loop that
costs more than a template. Here the loop is woken once for all that is ready by the time it looks.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeVar

Result = TypeVar("Result")
_Asked = tuple[Callable[[], Any], "asyncio.Future[Any]"]


class PrepareThreads:
    """Of one event loop. How many wait is bounded by those who ask: the runner's slots."""

    def __init__(self, number: int) -> None:
        self._asked: SimpleQueue[_Asked | None] = SimpleQueue()
        self._ready: deque[tuple[asyncio.Future[Any], Any, BaseException | None]] = deque()
        self._loop_is_called = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._threads = [
            threading.Thread(target=self._work, name=f"prepare_{place}", daemon=True)
            for place in range(number)
        ]

    async def run(self, step: Callable[[], Result]) -> Result:
        """What ``step`` returns or raises, in one of the threads.

        One that is cancelled while it waits is not begun."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            for thread in self._threads:
                thread.start()
        future: asyncio.Future[Result] = self._loop.create_future()
        self._asked.put((step, future))
        return await future

    def close(self) -> None:
        """The threads end after the step that each of them has begun; nothing may wait any more."""
        for _ in self._threads:
            self._asked.put(None)

    def _work(self) -> None:
        while self._take_one():
            pass

    def _take_one(self) -> bool:
        """Wait for a step, and do it. False when it is time to end.

        In a frame of its own: a thread that waits keeps nothing of its last request, whose images
        count until it is forgotten.
        """
        asked = self._asked.get()
        if asked is None:
            return False
        step, future = asked
        if future.cancelled():
            return True
        try:
            self._ready.append((future, step(), None))
        except BaseException as error:
            self._ready.append((future, None, error))
        if (
            not self._loop_is_called
        ):  # the loop takes this back before it looks, so that none is overlooked
            self._loop_is_called = True
            self._call_loop()
        return True

    def _call_loop(self) -> None:
        assert self._loop is not None, "it is known before the threads start"
        try:
            self._loop.call_soon_threadsafe(self._deliver)
        except RuntimeError:  # it is closed, and nothing waits
            self._asked.put(None)

    def _deliver(self) -> None:
        self._loop_is_called = False
        while self._ready:
            future, result, error = self._ready.popleft()
            if future.done():
                continue
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)
