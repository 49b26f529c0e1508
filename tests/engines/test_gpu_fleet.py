"""A whole fleet whose worker hosts vLLM: engines that are killed, items that kill them, and the
drain."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from engines.gpu_worker import WORK_S, engine_of, gpu_worker, kill_with_all, submit
from fleet import Fleet, until

from penstock_ledger.model import Job, JobState

# half a minute of work on two cores: enough for a look, two deaths and what follows them
ITEMS = 3_000
LONG = "word " * 3_000


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    with Fleet(tmp_path) as running:
        yield running


def attempts(fleet: Fleet, job: Job) -> set[int]:
    return {result.attempts for result in fleet.producer.results(job.job_id)}


def test_an_engine_killed_in_the_middle_is_built_anew_and_a_drained_worker_hands_over(
    fleet: Fleet, tiny_llama: Path
) -> None:
    """3,000 items, one of a hundred too long.

    The engine is SIGKILLed; the worker's group gets SIGTERM; another worker is killed.

    Every item has one outcome, no attempt is lost to the deaths, and nothing of an engine outlives
    its worker (H11).
    """
    fleet.control()
    worker = gpu_worker(fleet, tiny_llama, in_process=False, drain_seconds=1)
    texts = [
        {"id": f"doc-{n}", "text": LONG if n % 100 == 50 else f"review {n}"} for n in range(ITEMS)
    ]
    job = submit(
        fleet, tiny_llama, texts, params={"max_tokens": 48, "temperature": 0, "ignore_eos": True}
    )

    fleet.wait_for_outcomes(job, 60, WORK_S)
    said = fleet.penstock("status", job.job_id)
    assert "gpu: 1 engine · " in said
    assert "bound by " in said
    engine_of(worker).kill()
    # more than can be on its way from the first engine
    fleet.wait_for_outcomes(job, fleet.finished(job) + 100, WORK_S)
    assert worker.alive, "the worker outlives its engine"

    engine = engine_of(worker)
    os.killpg(worker.popen.pid, signal.SIGTERM)  # as Ctrl-C and many supervisors do
    assert worker.wait(60) == 0
    assert fleet.finished(job) < ITEMS, "the drain is shorter than what was left"
    until(
        lambda: not fleet.depths(job)["unacked"], 5, "what did not fit is back in the queue at once"
    )
    assert not engine.is_running()

    worker = gpu_worker(fleet, tiny_llama, in_process=False)
    kill_with_all(worker)

    gpu_worker(fleet, tiny_llama, in_process=True)
    fleet.wait_for(job, JobState.COMPLETED, WORK_S)
    account = fleet.account(job, ITEMS)
    assert account.dead == {f"doc-{n}": "context_overflow" for n in range(50, ITEMS, 100)}
    assert attempts(fleet, job) == {1}


def test_an_item_that_kills_engines_is_found_and_the_others_have_their_results(
    fleet: Fleet, tiny_llama: Path
) -> None:
    """A real one: in this CPU build of vLLM a seed with a temperature and a chunked prompt ends the
    engine."""
    fleet.control()
    worker = gpu_worker(fleet, tiny_llama, in_process=True, batched=128)
    culprit: dict[str, Any] = {
        "seed": 1,
        "temperature": 1.0,
        "max_tokens": 8,
        "messages": [{"role": "user", "content": "word " * 300}],
    }
    plain: dict[str, Any] = {"temperature": 0, "max_tokens": 8, "ignore_eos": True}
    lines = []
    for n in range(80):
        body = (
            dict(culprit)
            if n == 7
            else plain | {"messages": [{"role": "user", "content": f"review {n}"}]}
        )
        body["model"] = str(tiny_llama)
        lines.append(
            {"custom_id": f"doc-{n}", "method": "POST", "url": "/v1/chat/completions", "body": body}
        )
    job = submit(fleet, tiny_llama, lines, prompt=None)
    fleet.wait_for(job, JobState.COMPLETED, WORK_S)
    account = fleet.account(job, 80)
    assert account.dead == {"doc-7": "worker_crashed"}
    assert worker.alive
