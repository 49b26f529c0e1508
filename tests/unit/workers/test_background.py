"""Tasks that go on beside what an object does."""

from __future__ import annotations

import asyncio

from penstock_workers.background import BackgroundTasks


async def test_they_end_with_their_owner() -> None:
    """Also one that takes a moment to end, and one that fails as it does; closing again is fine."""
    tasks, ended = BackgroundTasks(), list[str]()

    async def work(name: str, *, fails: bool) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append(name)
            if fails:
                raise ValueError(name)

    running = [tasks.start(work(name, fails=name == "bad"), name) for name in ("good", "bad")]
    await asyncio.sleep(0)
    for _ in range(2):
        await tasks.close()
        assert sorted(ended) == ["bad", "good"]
    assert all(task.done() for task in running)


async def test_one_that_has_ended_is_forgotten() -> None:
    """A worker of months keeps nothing of those that came and went."""
    tasks = BackgroundTasks()

    async def work() -> None:
        """Ends at once."""

    await tasks.start(work(), "short")
    assert tasks._running == set()
