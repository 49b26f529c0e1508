"""The ways in that other services use, through a running worker. One fleet serves all tests of this module."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from celery import Celery
from fleet import Fleet, until

from penstock_ledger import JobNotFound
from penstock_ledger.model import Job, JobState


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with Fleet(tmp_path_factory.mktemp("doors")) as fleet:
        fleet.provider.start("--latency-ms", "5")
        fleet.ready(fleet.worker(control=True))
        yield fleet


def found(fleet: Fleet, key: str) -> Job | None:
    try:
        return fleet.producer.status(key).job
    except JobNotFound:
        return None


def test_a_plain_celery_client_submits_a_job(fleet: Fleet) -> None:
    """`send_task("penstock.submit", …)` from an app that knows nothing of ours is one job, however often it is sent."""
    with fleet.explained():
        client = Celery("somebody-else", broker=fleet.redis.url, set_as_current=False)
        order = [str(fleet.source(20, "night")), {"prompt": "Summarise: {text}", "model": "m"}]
        for _ in range(3):
            client.send_task("penstock.submit", args=order, kwargs={"job_key": "night"}, queue="penstock.control")
        until(lambda: found(fleet, "night"), 30, "the job is accepted")
        job = found(fleet, "night")
        assert job is not None
        fleet.wait_for(job, JobState.COMPLETED, 60)
        assert fleet.account(job, 20).extra_calls == 0


def test_documents_pushed_one_by_one_become_results(fleet: Fleet) -> None:
    """An open job is worked on while it is filled, and ends when it is closed."""
    with fleet.explained():
        with fleet.producer.open_job(fleet.spec(), job_key="live") as live:
            for number in range(10):
                live.enqueue(f"early-{number}", {"text": "one"})
            live.flush()
            fleet.wait_for_outcomes(live.job, 10)
            for number in range(10):
                live.enqueue(f"late-{number}", {"text": "two"})
            assert live.close() == 20
        fleet.wait_for(live.job, JobState.COMPLETED, 60)
        names = {f"{when}-{number}" for when in ("early", "late") for number in range(10)}
        assert fleet.account(live.job, names).extra_calls == 0


def test_large_documents_travel_by_reference(fleet: Fleet, tmp_path: Path) -> None:
    """A body above 16 KiB is read again from the source by the worker, and answered like any other."""
    path = tmp_path / "large.jsonl"
    path.write_text("".join(f'{{"id": "d{n}", "text": "{"word " * 8_000}"}}\n' for n in range(5)))
    with fleet.explained():
        job = fleet.producer.submit(path, fleet.spec())
        fleet.wait_for(job, JobState.COMPLETED, 60)
        assert fleet.account(job, {f"d{n}" for n in range(5)}).extra_calls == 0


@pytest.mark.parametrize("message", ["not json", '{"body": "W10=", "headers": {}, "properties": {}}'])
def test_rubbish_in_the_queue_stops_nobody(fleet: Fleet, message: str) -> None:
    """A message that no worker can read is kept aside, and the documents behind it are answered."""
    with fleet.explained():
        fleet.redis.client().lpush("penstock.api", message)
        job = fleet.submit(10, key=f"behind {len(message)}")
        fleet.wait_for(job, JobState.COMPLETED, 60)
        assert message.encode() in fleet.redis.client().lrange("penstock:parked:unknown", 0, -1)


def test_a_job_for_a_provider_that_workers_lack_is_paused(fleet: Fleet) -> None:
    """Nothing is lost and nothing spins: the job waits, and its reason names the provider and the fix."""
    with fleet.explained():
        job = fleet.submit(5, key="elsewhere", provider="elsewhere")
        fleet.wait_for(job, JobState.PAUSED, 30)
        reason = fleet.producer.status(job.job_id).job.reason or ""
        assert "'elsewhere' is not configured" in reason
        assert "[providers.elsewhere]" in reason


def test_an_item_of_an_unknown_job_is_kept_aside(fleet: Fleet) -> None:
    """A well-formed item message whose job no ledger knows is put aside whole: nothing is dropped in silence."""
    from penstock_ledger.model import ItemKey
    from penstock_producer.wire import encode_item

    raw = encode_item(ItemKey("job_of_nobody", 1, "doc"), queue="penstock.api", body=b"{}", ref=None)
    with fleet.explained():
        client = fleet.redis.client()
        client.lpush("penstock.api", raw)
        until(
            lambda: any(b"job_of_nobody" in kept for kept in client.lrange("penstock:parked:unknown", 0, -1)),
            30,
            "kept",
        )
