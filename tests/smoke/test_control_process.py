"""`penstock control`: jobs move without a worker that leads them, and the door for Celery clients
is answered."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from celery import Celery
from fleet import Fleet, until

from penstock_ledger import JobNotFound
from penstock_ledger.model import Job, JobState
from penstock_producer.feed.wire import encode_item, queue_name


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


def test_jobs_of_celery_clients_are_taken_in_and_handed_over(fleet: Fleet) -> None:
    """With workers that have no part in control, a control process serves the door and leads.

    After SIGTERM in the middle it ends with 0, and the next one leads at once: no lease is waited
    for.
    """
    roots = f'["{fleet.sources}"]'
    first = fleet.control(window=20, source_roots=roots)
    fleet.worker(8, source_roots=roots)
    client = Celery("another-service", broker=fleet.redis.url, set_as_current=False)
    order = [str(fleet.source(300)), {"prompt": "Summarise: {text}", "model": "m"}]
    client.send_task(
        "penstock.submit", args=order, kwargs={"job_key": "night"}, queue="penstock.control"
    )
    until(lambda: job_of(fleet, "night"), 30, "the job is accepted")
    job = job_of(fleet, "night")
    assert job is not None
    fleet.wait_for_outcomes(job, 20)
    first.send(signal.SIGTERM)
    assert first.wait(10) == 0
    assert fleet.finished(job) < 300
    assert fleet.producer._jobs.lease_feed(job.job_id, 1, "the next one", 0.1) is not None
    fleet.control(source_roots=roots)
    fleet.wait_for(job, JobState.COMPLETED, 60)
    assert fleet.account(job, 300).extra_calls == 0


def test_an_item_in_the_queue_for_jobs_is_kept_aside(fleet: Fleet) -> None:
    """A control process runs no documents: one that was sent to it by mistake is kept whole, for a
    person."""
    from penstock_ledger.model import ItemKey

    client = fleet.redis.client()
    raw = encode_item(ItemKey("job", 1, "doc"), queue=queue_name("control"), body=b"{}", ref=None)
    client.lpush(queue_name("control"), raw)
    fleet.control()
    until(lambda: client.lrange("penstock:parked:unknown", 0, -1), 30, "the message is kept aside")


def test_without_tables_the_exit_status_says_so(tmp_path: Path) -> None:
    """A process that cannot start does not end as if it had got SIGTERM."""
    with Fleet(tmp_path) as fleet:
        empty = f"sqlite:///{tmp_path}/empty.db"
        processes = [fleet.control(database_url=empty), fleet.worker(database_url=empty)]
        assert [process.wait(30) for process in processes] == [2, 2]


def test_a_control_process_is_watched_as_workers_are(fleet: Fleet, tmp_path: Path) -> None:
    """Its probe files and its page of metrics are those of any worker: started, ready and alive,
    and what its loop did."""
    import urllib.request

    from servers import free_port

    probes, port = tmp_path / "probes", free_port()
    process = fleet.control(probe_dir=probes, metrics_port=port)
    until(lambda: (probes / "ready").exists(), 30, "it is ready")
    assert {path.name for path in probes.iterdir()} == {"started", "ready", "alive"}

    def ticks() -> bool:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as page:
            return 'penstock_control_ticks_total{result="ok"}' in page.read().decode()

    until(ticks, 30, "its page tells of ticks")
    process.send(signal.SIGTERM)
    assert process.wait(10) == 0
    assert not (probes / "ready").exists()
