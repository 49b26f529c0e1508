"""The threads in which a door does its blocking work."""

from __future__ import annotations

import asyncio
import threading
from functools import partial

import pytest

from penstock_gateway.backend import WorkThreads
from penstock_gateway.refused import Refused

SOON_S = 30.0  # for a thread of a busy machine to go on


async def test_the_thread_that_was_idle_last_takes_the_next_piece() -> None:
    """One thread does what comes one after the other, however many there are, and an error reaches
    who asked."""
    threads = WorkThreads(3)
    free = threading.Event()
    held = [asyncio.ensure_future(threads.run(lambda: free.wait(SOON_S))) for _ in range(3)]
    await asyncio.sleep(0)  # they are given
    free.set()
    assert all(await asyncio.gather(*held))
    assert len({await threads.run(threading.get_ident) for _ in range(5)}) == 1
    with pytest.raises(ZeroDivisionError):
        await threads.run(lambda: 1 // 0)
    await threads.close()


async def test_what_waits_is_done_in_its_order_unless_who_asked_has_gone() -> None:
    """A piece waits for a thread; one that is not asked for any more is never done; the end waits
    for all others, and nothing is taken after it."""
    threads, free, done = WorkThreads(1), threading.Event(), list[str]()
    first = asyncio.ensure_future(threads.run(lambda: free.wait(SOON_S)))
    await asyncio.sleep(0)  # it is given
    behind = {
        name: asyncio.ensure_future(threads.run(partial(done.append, name)))
        for name in ("b", "gone", "c")
    }
    await asyncio.sleep(0)
    behind["gone"].cancel()
    closing = asyncio.ensure_future(threads.close())
    await asyncio.sleep(0)
    free.set()
    await closing
    assert (done, await first) == (["b", "c"], True)
    with pytest.raises(Refused):
        await threads.run(lambda: None)
