"""Ends a task that calls Redis."""

from __future__ import annotations

import asyncio
from typing import Any, Final

CANCEL_AGAIN_S: Final = 0.1


async def cancel_and_wait(task: asyncio.Task[Any]) -> None:
    """Cancel a task until it has ended; what it raises is dropped.

    Once is not enough: redis-py sends through asyncio.wait_for, which before Python 3.12 loses a
    cancellation that comes at the same moment as the end of what it waits for (cpython#86296).
    """
    while not task.done():
        task.cancel()
        await asyncio.wait({task}, timeout=CANCEL_AGAIN_S)
