"""Redis dies, forgets or is emptied while a job runs: it costs time, never a document, and little
is paid twice."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from fleet import Fleet

from penstock_ledger.model import Job, JobState

DOCUMENTS, WORKERS, CONCURRENCY = 300, 2, 16
PREFETCH = 2 * CONCURRENCY  # running, or answered and waiting for the group commit


def started_job(fleet: Fleet) -> Job:
    """A job of a few seconds, a fifth of it done."""
    fleet.provider.start("--latency-ms", "700")
    fleet.control()
    fleet.ready(*(fleet.worker(CONCURRENCY) for _ in range(WORKERS)))
    job = fleet.submit(DOCUMENTS)
    fleet.wait_for_outcomes(job, DOCUMENTS // 5)
    return job


def restart_with_its_file(fleet: Fleet) -> None:
    fleet.redis.kill()
    fleet.redis.restart()


def restart_with_nothing(fleet: Fleet) -> None:
    fleet.redis.kill()
    fleet.redis.restart(wipe=True)


def flush(fleet: Fleet) -> None:
    fleet.redis.flush()


@pytest.mark.parametrize(
    "fault", [restart_with_its_file, restart_with_nothing, flush], ids=lambda fault: fault.__name__
)
def test_redis_fault(tmp_path: Path, fault: Callable[[Fleet], None]) -> None:
    """Every document gets its one result, and no more calls are made twice than were in flight."""
    with Fleet(tmp_path) as fleet:
        job = started_job(fleet)
        fault(fleet)
        finished = {result.key.doc_id for result in fleet.producer.results(job.job_id)}
        assert len(finished) < DOCUMENTS, "the fault came too late"
        fleet.wait_for(job, JobState.COMPLETED, 60)
        account = fleet.account(job, DOCUMENTS)
        print(
            f"{fault.__name__}: {len(finished)} of {DOCUMENTS} finished before, "
            f"{account.extra_calls} calls twice"
        )
        assert account.dead == {}
        assert account.extra_calls <= WORKERS * PREFETCH
        assert {account.calls[document] for document in finished} == {1}
        counted = fleet.counters(job)
        assert (counted["succeeded"], counted.get("dead", 0)) == (DOCUMENTS, 0)
