"""A gpu worker over a server beside it: real HTTP, the simulator in vLLM's place, and no `vllm`
installed."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from fleet import Fleet, Process, until

from penstock_ledger.model import JobState

SLOW = ("--like", "vllm", "--max-concurrency", "16", "--latency-ms", "400", "--latency-sigma", "0")
QUICK = ("--like", "vllm", "--max-concurrency", "64", "--latency-ms", "50", "--latency-sigma", "0")
# twenty seconds of the slow server's work: the job must not be over before the test has looked
DOCUMENTS = 800
PROMPT_ONLY = {"lane": "gpu", "model": None, "prompt": "Name a topic: {text}"}


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    with Fleet(tmp_path) as fleet:
        yield fleet


def sidecar_worker(fleet: Fleet, **settings: object) -> Process:
    chosen = {"gpu__upstream_url": fleet.provider.url, "gpu__max_num_seqs": 64} | settings
    return fleet.worker(128, lane="gpu", **chosen)


def said(worker: Process, words: str) -> bool:
    return words in worker.log.read_text(errors="replace")


def test_it_waits_for_the_model_and_outlives_its_server(fleet: Fleet) -> None:
    """Nothing is claimed before the model is loaded; a server that dies takes no attempt along; its
    line stays short."""
    fleet.control()
    worker = sidecar_worker(fleet)
    job = fleet.submit(DOCUMENTS, **PROMPT_ONLY)
    until(lambda: said(worker, "waiting for the model"), 30, "the worker waits")
    until(lambda: fleet.depths(job)["queued"], 30, "items wait in the queue")
    assert worker.popen.pid not in fleet.heard_of()

    fleet.provider.start(*SLOW)
    fleet.wait_for_outcomes(job, 150)
    # 64 are believed to fit, and a quarter more; the gauges say that 16 run, so 20 are enough.
    until(lambda: fleet.provider.in_flight() <= 24, 30, "the room follows the server's gauges")
    # Status shows the worker's last heartbeat, which may be older than what the provider says now.
    until(
        lambda: "gpu: 1 engine · 16 running" in fleet.penstock("status", job.job_id),
        30,
        "status follows them",
    )

    fleet.provider.kill()
    until(lambda: said(worker, "does not answer"), 30, "the worker notices")
    fleet.provider.start(*QUICK)
    fleet.wait_for(job, JobState.COMPLETED, 60)
    account = fleet.account(job, DOCUMENTS)
    assert (account.dead, account.extra_calls <= 80) == ({}, True)
    assert {result.attempts for result in fleet.producer.results(job.job_id)} == {1}


def test_a_model_that_does_not_come_ends_the_worker(fleet: Fleet) -> None:
    """After the limit the worker says which address, which limit and which setting, and ends with
    status 1.

    One that gets SIGTERM while it waits ends at once, with the status of an ordinary end.
    """
    impatient, patient = sidecar_worker(fleet, gpu__upstream_wait_s=1), sidecar_worker(fleet)
    assert impatient.wait(30) == 1
    assert said(impatient, "gpu.upstream_wait_s = 1 s")
    assert said(impatient, "PENSTOCK_GPU__UPSTREAM_WAIT_S")
    until(lambda: said(patient, "waiting for the model"), 30, "the other one waits")
    patient.send(signal.SIGTERM)
    assert patient.wait(5) == 0
