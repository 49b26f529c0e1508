"""What a control process knows of queues, which have the names of models: jobs may name any."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

from penstock_ledger import Memory, RedisLedger, WorkerSeen
from penstock_ledger.model import Job, JobState
from penstock_workers.control.feeds.feed_windows import LOOK_EVERY_S, FeedWindows
from penstock_workers.control.feeds.specs import Specs


class Hot:
    """A Redis with one worker, of the lane's own queue."""

    def workers(self) -> list[WorkerSeen]:
        return [WorkerSeen("w", 0.0, {"lane": "gpu", "concurrency": "8"})]

    def memory(self) -> Memory:
        return Memory(1, 0, "noeviction")

    def finished_of(self, jobs: Iterable[str]) -> list[int]:
        return [0 for _ in jobs]


def test_queues_of_jobs_that_are_over_are_forgotten() -> None:
    """The queue of a worker stays: what it did lately says how much the next job is fed."""
    now = 0.0
    specs = Specs()
    windows = FeedWindows(cast(RedisLedger, Hot()), None, specs, lambda: now)
    for number in range(30):
        now += LOOK_EVERY_S
        name = f"job_{number}"
        spec = {"lane": "gpu", "prompt": "{text}", "model": f"model-{number}"}
        job = Job(name, name, spec, {}, name, JobState.RUNNING, None, 1, 1, 0.0, None)
        windows.update([job], {name: [5]})
        windows.for_feed(job, 1)
        windows.note_fed(job, 1)
    assert len(windows._turns) <= 2
    assert len(windows._sizes._pace) <= 3
