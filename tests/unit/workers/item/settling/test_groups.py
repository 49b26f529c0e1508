"""The gatherer turns single puts into groups and loses none."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from penstock_workers.item.settling.groups import Gatherer


class Recorder:
    def __init__(self) -> None:
        self.groups: list[list[int]] = []
        self.flushed = asyncio.Event()
        self.gate = asyncio.Event()
        self.gate.set()

    async def flush(self, group: Sequence[int]) -> None:
        await self.gate.wait()
        self.groups.append(list(group))
        self.flushed.set()


async def test_a_full_group_goes_at_once() -> None:
    """``group_max`` things are flushed without waiting for the linger."""
    recorder = Recorder()
    gatherer = Gatherer(recorder.flush, group_max=3, linger_s=3600)
    gatherer.start()
    for number in range(3):
        gatherer.put(number)
    await asyncio.wait_for(recorder.flushed.wait(), 5)
    assert recorder.groups == [[0, 1, 2]]
    await gatherer.close()


async def test_what_comes_during_a_flush_is_the_next_group() -> None:
    """While one flush is under way others gather, in order, up to the group's maximum."""
    recorder = Recorder()
    recorder.gate.clear()
    gatherer = Gatherer(recorder.flush, group_max=4, linger_s=0)
    gatherer.start()
    gatherer.put(0)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    for number in range(1, 7):
        gatherer.put(number)
    recorder.gate.set()
    await gatherer.close()
    assert recorder.groups == [[0], [1, 2, 3, 4], [5, 6]]


async def test_close_flushes_what_waits() -> None:
    """Nothing that was put in is lost when the gatherer closes in the middle of a linger."""
    recorder = Recorder()
    gatherer = Gatherer(recorder.flush, group_max=100, linger_s=3600)
    gatherer.start()
    gatherer.put(1)
    await asyncio.sleep(0)
    gatherer.put(2)
    await asyncio.wait_for(gatherer.close(), 5)
    assert recorder.groups == [[1, 2]]


async def test_what_came_during_a_flush_is_asked_about_again() -> None:
    """Whether what waits is to go at once is asked once more before it lingers: the flush that
    has ended meanwhile may be what others waited for."""
    recorder = Recorder()
    is_last = False
    gatherer = Gatherer(
        recorder.flush, group_max=100, linger_s=3600, at_once=lambda _thing, _number: is_last
    )
    gatherer.put(1)
    is_last = True
    gatherer.start()
    await asyncio.wait_for(recorder.flushed.wait(), 5)
    assert recorder.groups == [[1]]
    await gatherer.close()


async def test_what_callers_wait_for_goes_at_once() -> None:
    """A thing that is to go at once takes what has gathered with it; others linger."""
    recorder = Recorder()
    gatherer = Gatherer(
        recorder.flush, group_max=100, linger_s=3600, at_once=lambda thing, _: thing == 7
    )
    gatherer.start()
    gatherer.put(1)
    gatherer.put(7)
    await asyncio.wait_for(recorder.flushed.wait(), 5)
    assert recorder.groups == [[1, 7]]
    gatherer.put(2)
    assert len(gatherer) == 1
    await gatherer.close()
    assert recorder.groups == [[1, 7], [2]]
