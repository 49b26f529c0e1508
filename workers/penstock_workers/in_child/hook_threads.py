"""In a child: threads for hooks that are plain functions.

One that never returns blocks its thread until its child is ended.

Not a ThreadPoolExecutor: there, waiting for a thread would count against a hook's time, a stuck
hook would keep its place for good, and the interpreter would wait for it at its end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread
from typing import Any

from penstock_workers.children.running_calls import RunningCalls

HOOK_THREADS = 4  # hooks are small; heavier ones call libraries that use the cores by themselves


class HookThreads:
    """Calls plain functions, at most HOOK_THREADS at once. All of it runs on one event loop."""

    def __init__(self, running_calls: RunningCalls) -> None:
        self._running_calls = running_calls
        self._places = asyncio.Semaphore(HOOK_THREADS)
        self._idle: list[_HookThread] = []

    async def run(self, number: int, call: Callable[[], Any], timeout_s: float) -> Any:
        """What ``call``, which never raises, returns. The time counts from when a thread has it.

        Raises TimeoutError: then the thread goes on by itself until the child is ended.
        """

        def recorded() -> Any:
            with self._running_calls.in_thread(number):
                return call()

        async with self._places:
            thread = self._idle.pop() if self._idle else _HookThread()
            try:
                async with asyncio.timeout(timeout_s):
                    said = await thread.run(recorded)
            except BaseException:  # timed out, or the item was cancelled
                thread.end()
                raise
            self._idle.append(thread)
            return said

    def close(self) -> None:
        while self._idle:
            self._idle.pop().end()


class _HookThread:
    """One thread that makes one call at a time. It does not keep the process from ending."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[tuple[Callable[[], Any], asyncio.Future[Any]] | None] = (
            SimpleQueue()
        )
        Thread(target=self._work, name="hook", daemon=True).start()

    def run(self, call: Callable[[], Any]) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._calls.put((call, future))
        return future

    def end(self) -> None:
        """After the call that it makes now, if any."""
        self._calls.put(None)

    def _work(self) -> None:
        while (given := self._calls.get()) is not None:
            call, future = given
            said = call()
            try:
                future.get_loop().call_soon_threadsafe(_tell, future, said)
            except RuntimeError:
                return  # the loop has closed


def _tell(future: asyncio.Future[Any], said: Any) -> None:
    if not future.done():
        future.set_result(said)
