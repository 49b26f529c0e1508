"""A spot notice that the worker finds by itself: it drains, gives its items back uncounted, and
waits for the machine's end."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from fleet import Fleet, until
from metadata_services import Aws

from penstock_ledger.model import JobState

LEASE_S = 600  # what were left to it would stay away
DOCUMENTS = 60
SLOTS = 8
NOTICE_S = 8.0


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    with Fleet(tmp_path) as fleet:
        fleet.provider.start("--latency-ms", "5", "--latency-sigma", "0")
        yield fleet


def held_and_queued(fleet: Fleet) -> tuple[int, int]:
    client: Any = fleet.redis.client()
    held = [name for name in client.scan_iter("unacked*") if client.type(name) == b"hash"]
    return sum(client.hlen(name) for name in held), client.llen("penstock.api")


def test_a_worker_drains_on_a_notice(fleet: Fleet) -> None:
    """All is back in the queue before the machine ends, no attempt is counted, and nothing is taken
    up again there."""
    service = Aws()
    settings: dict[str, Any] = {
        "visibility_timeout_s": LEASE_S,
        "providers__default__adaptive": False,
    }
    with service.serving():
        fleet.control(window=DOCUMENTS)
        spot: dict[str, Any] = {"spot_notices": "aws", "spot_notices_url": service.url}
        worker = fleet.worker(SLOTS, drain_seconds=30, **spot, **settings)
        known = fleet.submit(8, key="known")
        fleet.wait_for(known, JobState.COMPLETED, 60)
        fleet.provider.tell(latency_ms=60_000)
        job = fleet.submit(DOCUMENTS, key="long")
        until(lambda: fleet.provider.in_flight() == SLOTS, 30, "all slots are in flight")
        until(lambda: sum(held_and_queued(fleet)) == DOCUMENTS, 30, "everything is fed")

        ends_at = time.time() + NOTICE_S
        service.notice = {
            "action": "terminate",
            "time": datetime.fromtimestamp(ends_at, UTC).isoformat(),
        }
        until(
            lambda: held_and_queued(fleet) == (0, DOCUMENTS),
            NOTICE_S,
            "all documents are back in the queue",
        )
        until(lambda: "drained; waiting for SIGTERM" in worker.tail(), 15, "the worker has drained")
        assert worker.alive, "an orchestrator would start it again on this machine"
        assert "spot notice of aws: terminate" in worker.tail()
        # as one that was started again all the same
        again = fleet.worker(SLOTS, **spot, **settings)
        until(lambda: "spot notice of aws" in again.tail(), 30, "the notice is seen at once")
        for process in (worker, again):
            process.send(signal.SIGTERM)
            assert process.wait(30) == 0
        assert held_and_queued(fleet) == (0, DOCUMENTS)

    fleet.provider.tell(latency_ms=5)
    fleet.worker(SLOTS, **settings)
    fleet.wait_for(job, JobState.COMPLETED, 60)
    fleet.account(job, DOCUMENTS)
    assert {result.attempts for result in fleet.producer.results(job.job_id)} == {1}
