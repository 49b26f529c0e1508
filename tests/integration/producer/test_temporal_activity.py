"""A job as an activity of Temporal: the package's own environment, a real fleet."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fleet import Fleet, until

pytest.importorskip("temporalio", reason="temporalio is not installed")

from temporalio.activity import ActivityCancellationDetails
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from penstock_ledger import JobState
from penstock_producer import ProducerSettings
from penstock_producer.integrations.temporal import JobRequest, PenstockActivities

POLL_S = 0.05


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with Fleet(tmp_path_factory.mktemp("temporal")) as fleet:
        fleet.provider.start("--latency-ms", "10")
        fleet.ready(fleet.worker(control=True))
        yield fleet


@pytest.fixture
def activities(fleet: Fleet) -> PenstockActivities:
    return PenstockActivities(ProducerSettings(database_url=fleet.database_url))


def request(source: Path, **more: Any) -> JobRequest:
    return JobRequest(str(source), Fleet.spec(), poll_s=POLL_S, **more)


def environment(workflow: str) -> ActivityEnvironment:
    environment = ActivityEnvironment()
    environment.info = replace(environment.info, workflow_id=workflow)
    return environment


async def test_an_activity_returns_what_came_of_its_job(
    fleet: Fleet, activities: PenstockActivities
) -> None:
    """Counts and cost come back and in heartbeats; an attempt after that finds the same job and
    asks nothing again."""
    beats: list[Any] = []
    first = environment("label")
    first.on_heartbeat = lambda *details: beats.extend(details)
    asked = request(fleet.source(20, "label"))
    summary = await first.run(activities.run_job, asked)
    assert (summary["state"], summary["succeeded"], summary["dead"], summary["total"]) == (
        "completed",
        20,
        0,
        20,
    )
    assert summary["job_key"] == "label.test-run.test"
    assert beats[-1] == summary
    calls = fleet.provider_calls()
    assert await environment("label").run(activities.run_job, asked) == summary
    assert fleet.provider_calls() == calls


async def test_what_only_an_edit_corrects_is_not_tried_again(
    fleet: Fleet, activities: PenstockActivities
) -> None:
    """A spec that is refused and too many dead letters end the activity for good; a source that is
    not there may come."""
    source = fleet.source(3, "odd")
    with pytest.raises(ApplicationError, match="prompt") as refused:
        await environment("odd").run(
            activities.run_job, JobRequest(str(source), {"prompt": "{", "model": "m"})
        )
    assert refused.value.non_retryable
    with pytest.raises(ApplicationError) as absent:
        await environment("absent").run(activities.run_job, request(fleet.folder / "absent.jsonl"))
    assert not absent.value.non_retryable
    source.write_text('{"id": "a", "text": "x"}\n{"id": "b"}\n')
    allowed = replace(request(source), spec=Fleet.spec(max_bad_rows=1), max_dead=0.4)
    with pytest.raises(ApplicationError, match="1 of 2 documents are dead letters") as dead:
        await environment("dead").run(activities.run_job, allowed)
    assert dead.value.non_retryable


async def test_a_workflow_that_cancels_cancels_the_job(
    fleet: Fleet, activities: PenstockActivities
) -> None:
    """A cancelled activity cancels its job; one whose worker shuts down leaves it running for the
    next attempt."""
    for name, shutdown in (("ends", True), ("stops", False)):
        started = environment(name)
        waiting = asyncio.ensure_future(
            started.run(activities.run_job, request(fleet.source(4_000, name)))
        )
        key = f"{name}.test-run.test"
        await asyncio.to_thread(until, lambda key=key: _exists(fleet, key), 30, "the job is there")  # type: ignore[misc]
        if shutdown:
            started.worker_shutdown()
        started.cancel(
            ActivityCancellationDetails(worker_shutdown=shutdown, cancel_requested=not shutdown)
        )
        with pytest.raises(asyncio.CancelledError):
            await waiting
        state = fleet.producer.status(key).job.state
        if shutdown:
            assert state is JobState.RUNNING
            fleet.producer.cancel(key)
        else:
            assert state in (JobState.CANCELLING, JobState.CANCELLED)


def _exists(fleet: Fleet, key: str) -> bool:
    return any(job.job_key == key for job in fleet.producer._jobs.list(limit=10))
