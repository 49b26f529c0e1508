"""`penstock control`: jobs move without a worker that leads them, and the door for Celery clients has somebody behind it."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from celery import Celery
from fleet import Fleet, until

from penstock_ledger import JobNotFound
from penstock_ledger.model import Job, JobState
from penstock_producer.wire import encode_item, queue_name


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    with Fleet(tmp_path) as fleet:
        fleet.provider.start("--latency-ms", "5")
        yield fleet


def job_of(fleet: Fleet, key: str) -> Job | None:
    try:
        return fleet.producer.status(key).job
    except JobNotFound:
        return None


def test_jobs_of_celery_clients_are_taken_in_and_finished(fleet: Fleet) -> None:
    """With workers that have no part in control, two control processes serve the door; one that is killed is not missed."""
    first, second = fleet.control(), fleet.control()
    fleet.worker(8)
    client = Celery("somebody-else", broker=fleet.redis.url, set_as_current=False)

    def send(key: str) -> Job:
        order = [str(fleet.source(200, key)), {"prompt": "Summarise: {text}", "model": "m"}]
        client.send_task("penstock.submit", args=order, kwargs={"job_key": key}, queue="penstock.control")
        until(lambda: job_of(fleet, key), 30, "the job is accepted")
        job = job_of(fleet, key)
        assert job is not None
        return job

    job = send("first")
    fleet.wait_for_outcomes(job, 20)
    first.kill()
    later = send("second")
    for one in (job, later):
        fleet.wait_for(one, JobState.COMPLETED, 60)
        assert fleet.account(one, 200).extra_calls == 0
    second.send(signal.SIGTERM)
    assert second.wait(10) == 0


def test_an_item_in_the_queue_for_jobs_is_kept_aside(fleet: Fleet) -> None:
    """A control process runs no documents: one that was sent to it by mistake is kept whole, for a person."""
    from penstock_ledger.model import ItemKey

    client = fleet.redis.client()
    raw = encode_item(ItemKey("job", 1, "doc"), queue=queue_name("control"), body=b"{}", ref=None)
    client.lpush(queue_name("control"), raw)
    fleet.control()
    until(lambda: client.lrange("penstock:parked:unknown", 0, -1), 30, "the message is kept aside")


def test_without_tables_the_exit_status_says_so(tmp_path: Path) -> None:
    """A process that cannot start does not end as if it had been told to."""
    with Fleet(tmp_path) as fleet:
        empty = f"sqlite:///{tmp_path}/empty.db"
        processes = [fleet.control(database_url=empty), fleet.worker(database_url=empty)]
        assert [process.wait(30) for process in processes] == [1, 1]
