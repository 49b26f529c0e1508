"""Requests are made ready in threads, and the loop is woken for groups of them."""

from __future__ import annotations

import asyncio
import threading
import weakref
from typing import Any

import pytest

from penstock_workers.lanes.gpu.gpu_lane import PrepareThreads


@pytest.mark.parametrize("number", [1, 4])
async def test_each_step_gives_its_own_result_or_error(number: int) -> None:
    """Thousands at once, some of which raise: each gets what its own step came to."""
    threads = PrepareThreads(number)

    def step(value: int) -> int:
        if value % 7 == 0:
            raise ValueError(value)
        return value * 2

    asked = [threads.run(lambda value=value: step(value)) for value in range(2_000)]  # type: ignore[misc]
    came = await asyncio.gather(*asked, return_exceptions=True)
    threads.close()
    assert [one for value, one in enumerate(came) if value % 7] == [
        value * 2 for value in range(2_000) if value % 7
    ]
    assert [one.args for one in came if isinstance(one, ValueError)] == [
        (value,) for value in range(0, 2_000, 7)
    ]


async def test_the_loop_is_woken_once_for_what_is_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    """While it is busy a hundred results gather, and one call fetches them."""
    threads, loop = PrepareThreads(2), asyncio.get_running_loop()
    await threads.run(lambda: None)
    calls: list[object] = []
    call = loop.call_soon_threadsafe

    def counted(*step: Any) -> Any:
        calls.append(step)
        return call(*step)

    monkeypatch.setattr(loop, "call_soon_threadsafe", counted)
    left = threading.Semaphore(0)
    tasks = [asyncio.create_task(threads.run(left.release)) for _ in range(100)]
    await asyncio.sleep(0)  # all have asked
    for _ in range(100):
        left.acquire(timeout=10)  # the loop stands still until all are done
    await asyncio.gather(*tasks)
    threads.close()
    assert len(calls) <= 3


async def test_what_is_cancelled_in_line_is_not_begun_and_harms_no_other() -> None:
    """An item that leaves while it waits costs no thread anything; one that leaves in the middle
    loses its result only."""
    threads = PrepareThreads(1)
    began, go = threading.Event(), threading.Event()
    done: list[str] = []

    def slow() -> str:
        began.set()
        go.wait(10)
        done.append("slow")
        return "slow"

    first = asyncio.create_task(threads.run(slow))
    await asyncio.to_thread(began.wait, 10)
    second = asyncio.create_task(threads.run(lambda: done.append("second")))
    third = asyncio.create_task(threads.run(lambda: "third"))
    await asyncio.sleep(0)
    first.cancel()
    second.cancel()
    await asyncio.gather(first, second, return_exceptions=True)
    go.set()
    assert await asyncio.wait_for(third, 10) == "third"
    threads.close()
    assert done == ["slow"]


async def test_its_threads_end() -> None:
    """None is left behind by a lane that was closed."""
    threads = PrepareThreads(3)
    await threads.run(lambda: None)
    threads.close()
    for thread in threads._threads:
        await asyncio.to_thread(thread.join, 10)
    assert not any(thread.is_alive() for thread in threads._threads)


async def test_a_thread_that_waits_keeps_nothing_of_what_it_made() -> None:
    """Images of a request count against the memory until it is forgotten: kept by idle threads,
    they would let no other in."""

    class Made:
        """Something that can be seen to be gone."""

    threads = PrepareThreads(2)
    made = [weakref.ref(await threads.run(Made)) for _ in range(4)]
    async with asyncio.timeout(10):
        while any(one() is not None for one in made):  # noqa: ASYNC110 -- a thread sets no event as it begins to wait
            await asyncio.sleep(0)
    threads.close()
