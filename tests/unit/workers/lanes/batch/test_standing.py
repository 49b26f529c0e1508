"""What a worker of the `batch` lane knows of the jobs of its batches."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from penstock_ledger import (
    Database,
    FeedKind,
    JobState,
    JobStore,
    NewJob,
    RedisLedger,
    StepsTaken,
    open_database,
)
from penstock_ledger.reasons import by_hand
from penstock_workers.item.run.reading import JobBook, read_job
from penstock_workers.lanes.batch.jobs import Jobs, Standing
from penstock_workers.settings import WorkerSettings


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    database = open_database(f"sqlite:///{tmp_path}/ledger.db")
    database.migrate()
    yield database
    database.close()


@pytest.fixture
def jobs(db: Database) -> Jobs:
    views = JobBook(read_job(JobStore(db), WorkerSettings()))
    hot = RedisLedger(redis.Redis(), "epoch")  # nothing here asks Redis
    return Jobs(JobStore(db), hot, views, StepsTaken(db))


def submit(db: Database, job_id: str) -> None:
    JobStore(db).create(
        NewJob(job_id, job_id, {"lane": "batch"}, {"kind": "file"}, "digest", 10, FeedKind.SOURCE)
    )


async def test_a_job_younger_than_the_latest_look_runs(db: Database, jobs: Jobs) -> None:
    """A batch of it that this worker takes over from another one is not cancelled."""
    jobs.note([])
    submit(db, "young")
    await jobs.look_if_new("young")
    assert jobs.standing("young") is Standing.RUNS


async def test_a_job_that_is_over_or_gone_ends(db: Database, jobs: Jobs) -> None:
    """What is at the provider is cancelled then."""
    submit(db, "over")
    JobStore(db).set_state(
        "over", JobState.FAILED, why=by_hand("its source changed"), expect={JobState.RUNNING}
    )
    for job_id in ("over", "purged"):
        await jobs.look_if_new(job_id)
        assert jobs.standing(job_id) is Standing.ENDS
