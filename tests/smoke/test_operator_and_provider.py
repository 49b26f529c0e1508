"""What people do to a running job, and what providers do to it.

One fleet serves all tests of this module."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
from fleet import Fleet, until

from penstock_ledger import JobConflict
from penstock_ledger.model import Job, JobState
from penstock_ledger.stores.jobs import LIVE
from penstock_producer import Producer

WORKERS, CONCURRENCY = 2, 8
IN_FLIGHT = 2 * WORKERS * CONCURRENCY
SUBMITTERS = 8


@pytest.fixture(scope="module")
def shared_fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with Fleet(tmp_path_factory.mktemp("fleet")) as fleet:
        fleet.provider.start()
        fleet.control()
        fleet.ready(*(fleet.worker(CONCURRENCY) for _ in range(WORKERS)))
        yield fleet


@pytest.fixture
def fleet(shared_fleet: Fleet) -> Iterator[Fleet]:
    shared_fleet.provider.kill()
    yield shared_fleet
    for job in shared_fleet.producer._jobs.list(states=LIVE):
        shared_fleet.producer.cancel(job.job_id)


def test_provider_outage(fleet: Fleet) -> None:
    """A provider that is gone for seconds costs no document: no dead letter, and the job
    completes."""
    with fleet.explained():
        fleet.provider.start("--latency-ms", "100")
        job = fleet.submit(400, key="outage")
        fleet.wait_for_outcomes(job, 50)
        fleet.provider.kill()
        fleet.wait_until_retried(job, 10)
        fleet.provider.start("--latency-ms", "20")
        fleet.wait_for(job, JobState.COMPLETED, 60)
        account = fleet.account(job, 400)
        assert account.dead == {}
        assert account.extra_calls <= IN_FLIGHT


@pytest.mark.parametrize(
    ("flags", "reason"),
    [(("--api-key", "another"), "unauthorized"), (("--credit-calls", "30"), "out_of_credit")],
    ids=["wrong key", "out of credit"],
)
def test_account_trouble_pauses_the_job(fleet: Fleet, flags: tuple[str, ...], reason: str) -> None:
    """The job pauses and says why; once the account is in order and the job resumed, every document
    gets its result."""
    with fleet.explained():
        fleet.provider.start("--latency-ms", "50", *flags)
        job = fleet.submit(200, key=reason)
        fleet.wait_for(job, JobState.PAUSED, 60)
        assert reason in str(fleet.producer.status(job.job_id).job.reason)
        fleet.wait_for_quiet(job)
        fleet.provider.kill()
        fleet.provider.start("--latency-ms", "20")
        assert fleet.producer.resume(job.job_id)
        fleet.wait_for(job, JobState.COMPLETED, 60)
        account = fleet.account(job, 200)
        assert account.dead == {}
        assert account.extra_calls <= IN_FLIGHT
        assert {result.attempts for result in fleet.producer.results(job.job_id)} == {1}


def test_pause_and_resume(fleet: Fleet) -> None:
    """A paused job makes no call once its calls in flight have ended; resumed, it completes without
    a call too many."""
    with fleet.explained():
        fleet.provider.start("--latency-ms", "200")
        job = fleet.submit(200, key="pause")
        fleet.wait_for_outcomes(job, 30)
        assert fleet.producer.pause(job.job_id)
        fleet.wait_for_quiet(job)
        called = fleet.provider.calls(job).total()
        assert called < 200
        assert fleet.finished(job) == called
        assert fleet.producer.resume(job.job_id)
        fleet.wait_for(job, JobState.COMPLETED, 60)
        account = fleet.account(job, 200)
        assert (account.extra_calls, account.dead) == (0, {})


@pytest.mark.parametrize("paused", [False, True], ids=["running", "paused"])
def test_cancel(fleet: Fleet, paused: bool) -> None:
    """Results plus dead letters `cancelled` are the whole job; what was paid for has its result,
    the rest is not called."""
    with fleet.explained():
        fleet.provider.start("--latency-ms", "300")
        job = fleet.submit(1_000, key=f"cancel-{paused}")
        fleet.wait_for_outcomes(job, 30)
        if paused:
            assert fleet.producer.pause(job.job_id)
            fleet.wait_for_quiet(job)
        assert fleet.producer.cancel(job.job_id)
        fleet.wait_for(job, JobState.CANCELLED, 60)
        account = fleet.account(job, 1_000)
        assert set(account.dead.values()) == {"cancelled"}
        assert account.results == account.calls.keys()
        counters = fleet.counters(job)
        assert (counters["succeeded"], counters["dead"]) == (
            len(account.results),
            len(account.dead),
        )


def test_cancel_of_a_job_whose_source_is_gone(fleet: Fleet) -> None:
    """It ends all the same, and says why some documents have no dead letter."""
    with fleet.explained():
        fleet.provider.start("--latency-ms", "300")
        job = fleet.submit(1_000, key="gone")
        fleet.wait_for_outcomes(job, 30)
        (fleet.sources / "gone.jsonl").unlink()
        assert fleet.producer.cancel(job.job_id)
        fleet.wait_for(job, JobState.CANCELLED, 60)
        assert "source_unavailable" in str(fleet.producer.status(job.job_id).job.reason)
        until(
            lambda: (
                fleet.producer.status(job.job_id).counts.succeeded
                == fleet.provider.calls(job).total()
            ),
            30,
            "what was paid for has its result",
        )
        fleet.wait_for_quiet(job)


def test_submitting_twice(fleet: Fleet) -> None:
    """Eight at once under one key make one job, repeated later it is that job and makes no call;
    another body conflicts."""
    with fleet.explained():
        fleet.provider.start("--latency-ms", "20")
        source = fleet.source(100, "twice")
        together = Barrier(SUBMITTERS)

        def submit(_: int) -> Job:
            with Producer(database_url=fleet.database_url) as producer:
                together.wait()
                return producer.submit(source, fleet.spec(), job_key="twice")

        with ThreadPoolExecutor(SUBMITTERS) as threads:
            jobs = list(threads.map(submit, range(SUBMITTERS)))
        assert len({job.job_id for job in jobs}) == 1
        fleet.wait_for(jobs[0], JobState.COMPLETED, 60)
        again = fleet.producer.submit(source, fleet.spec(), job_key="twice")
        assert (again.job_id, again.state) == (jobs[0].job_id, JobState.COMPLETED)
        with pytest.raises(JobConflict):
            fleet.producer.submit(source, fleet.spec(prompt="Translate: {text}"), job_key="twice")
        with pytest.raises(JobConflict):
            fleet.producer.submit(fleet.source(101, "more"), fleet.spec(), job_key="twice")
        account = fleet.account(jobs[0], 100)
        assert (account.calls.total(), account.dead) == (100, {})
