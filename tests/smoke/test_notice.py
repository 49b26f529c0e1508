"""A spot notice: SIGTERM, some seconds, the end.

What does not fit is in the queue when the process has gone, not later.

The lease is ten minutes here, so that whatever was left to it would stay away. Machines that vanish
without a notice are in test_kill_storm.py and test_single_faults.py: there leases end, and bring
back what was held.
"""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from fleet import Fleet, Process, until

from penstock_ledger.model import JobState
from penstock_producer.feed.queues import queue_name

LEASE_S = 600
WORK_MS = 40_000
DOCUMENTS = 100
# of the fleet's jobs; the simulator lists others, so a worker beside it has to be given the name
MODEL = "sim"

# (drain_seconds, notice): as clouds give it, and the same thing shorter.
NOTICES = [pytest.param(10, 15, marks=pytest.mark.long, id="full"), pytest.param(2, 7, id="short")]


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    with Fleet(tmp_path) as fleet:
        fleet.provider.start("--latency-ms", "5", "--latency-sigma", "0")
        yield fleet


def held_and_queued(fleet: Fleet, queue: str) -> tuple[int, int]:
    client: Any = fleet.redis.client()
    held = [name for name in client.scan_iter("unacked*") if client.type(name) == b"hash"]
    return sum(client.hlen(name) for name in held), client.llen(queue)


def end_by_notice(process: Process, notice_s: float) -> None:
    began = time.monotonic()
    process.send(signal.SIGTERM)
    assert process.wait(notice_s) == 0
    print(
        f"{process.name} ended after {time.monotonic() - began:.1f} s of a notice of {notice_s:g} s"
    )


def api_worker(fleet: Fleet, **settings: Any) -> Process:
    return fleet.worker(16, providers__default__adaptive=False, **settings)


def sidecar_worker(fleet: Fleet, **settings: Any) -> Process:
    return fleet.worker(
        16, lane="gpu", gpu__upstream_url=fleet.provider.url, gpu__names=f'["{MODEL}"]', **settings
    )


@pytest.mark.parametrize(("drain_s", "notice_s"), NOTICES)
@pytest.mark.parametrize(("lane", "start"), [("api", api_worker), ("gpu", sidecar_worker)])
def test_documents_are_back_in_the_queue_at_once(
    fleet: Fleet, lane: str, start: Callable[..., Process], drain_s: float, notice_s: float
) -> None:
    """40 s of work in flight: exit 0 before the notice is over, all of it in the queue, and another
    worker goes on."""
    fleet.control(window=DOCUMENTS)
    lease = {"visibility_timeout_s": LEASE_S, "drain_seconds": drain_s}
    worker = start(fleet, **lease)
    known = fleet.submit(8, key="known", lane=lane)
    # the provider's first answer, which others wait for
    fleet.wait_for(known, JobState.COMPLETED, 60)
    fleet.provider.tell(latency_ms=WORK_MS)
    job = fleet.submit(DOCUMENTS, key="long", lane=lane)
    queue = queue_name("gpu", MODEL) if lane == "gpu" else queue_name(lane)
    until(lambda: fleet.provider.in_flight() == 16, 30, "all slots are in flight")
    until(lambda: sum(held_and_queued(fleet, queue)) == DOCUMENTS, 30, "everything is fed")

    end_by_notice(worker, notice_s)
    assert held_and_queued(fleet, queue) == (0, DOCUMENTS)

    fleet.provider.tell(latency_ms=5)
    start(fleet, **lease)
    fleet.wait_for(job, JobState.COMPLETED, 60)
    assert fleet.account(job, DOCUMENTS).extra_calls == 16
    assert {result.attempts for result in fleet.producer.results(job.job_id)} == {1}


@contextmanager
def silent_server() -> Iterator[str]:
    """It accepts connections, and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.parametrize(("drain_s", "notice_s"), NOTICES)
def test_a_job_that_is_being_taken_in_is_taken_in_by_another(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, drain_s: float, notice_s: float
) -> None:
    """A control process that hangs in a source which does not answer ends in time, and the order is
    in the queue again."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "no-such-key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    client: Any = Celery("another-service", broker=fleet.redis.url, set_as_current=False)
    order = ["s3://corpora/tickets.jsonl", {"prompt": "Summarise: {text}", "model": "m"}]
    with silent_server() as url:
        process = fleet.control(
            visibility_timeout_s=LEASE_S,
            drain_seconds=drain_s,
            s3_endpoint_url=url,
            source_roots='["s3://corpora"]',
        )
        client.send_task(
            "penstock.submit", args=order, kwargs={"job_key": "night"}, queue="penstock.control"
        )
        until(
            lambda: held_and_queued(fleet, "penstock.control") == (1, 0),
            30,
            "the order is being worked on",
        )
        end_by_notice(process, notice_s)
    assert held_and_queued(fleet, "penstock.control") == (0, 1)
