"""Tasks of one owner go on beside others, and so do threads in which a model computes.

Tasks end with their owner. A thread that computes may still be at work when its process ends.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
from collections.abc import Callable, Coroutine
from typing import Any, NoReturn


class ComputingThread(threading.Thread):
    """A daemon: a device that never answers does not keep the process from ending."""

    def __init__(self, target: Callable[[], None], name: str) -> None:
        super().__init__(target=target, name=name, daemon=True)


def exit_process(status: int) -> NoReturn:
    """End this process as ``sys.exit`` does; at once where a model still computes.

    The libraries that compute have threads of their own, and abort the process (SIGABRT) that takes
    them down while they are at work: a worker whose drain was over would look as if it had crashed.
    """
    if not any(isinstance(thread, ComputingThread) for thread in threading.enumerate()):
        sys.exit(status)
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


class BackgroundTasks:
    """The tasks of one owner. On one event loop."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name=name)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    async def close(self) -> None:
        """Cancel them, and wait until they have ended."""
        ending = list(self._running)
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)
