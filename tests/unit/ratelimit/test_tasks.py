"""A task that talks to Redis ends when it is cancelled, whatever a library makes of a
cancellation."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from penstock_ratelimit.shared import dispatcher


async def test_a_task_that_lost_a_cancellation_is_told_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As asyncio.wait_for does it before Python 3.12: the first cancellation is gone, and the task
    goes on."""
    monkeypatch.setattr(dispatcher, "CANCEL_AGAIN_S", 0.001)
    lost = 0

    async def loses_two() -> None:
        nonlocal lost
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                if lost == 2:
                    raise
                lost += 1

    task = asyncio.create_task(loses_two())
    await asyncio.sleep(0)
    await dispatcher.cancel_and_wait(task)
    assert (task.cancelled(), lost) == (True, 2)


async def test_a_task_that_failed_has_ended() -> None:
    """Ending a task that has failed already does not raise its error again."""

    async def fails() -> None:
        raise OSError("away")

    task = asyncio.create_task(fails())
    with contextlib.suppress(OSError):
        await task
    await dispatcher.cancel_and_wait(task)
