"""Engines that hang, that lose their device, and that are left behind: a whole fleet with vLLM in
processes of its own."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from engines.gpu_worker import (
    WORK_S,
    descendants,
    engine_of,
    gpu_worker,
    is_gone,
    kill_with_all,
    submit,
)
from fleet import Fleet, until

from penstock_ledger.model import JobState

PARAMS = {"max_tokens": 48, "temperature": 0, "ignore_eos": True}
STALL_S = 8  # for a tiny model, on cores that others use as well


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    with Fleet(tmp_path) as running:
        yield running


def texts(number: int) -> list[dict[str, str]]:
    return [{"id": f"doc-{n}", "text": f"review {n}"} for n in range(number)]


def test_a_hung_engine_is_found_and_its_items_are_tried_again_without_a_count(
    fleet: Fleet, tiny_llama: Path
) -> None:
    """SIGSTOP on the engine core, with hundreds inside: it is ended and built anew, and no attempt
    is lost (H5)."""
    fleet.control()
    worker = gpu_worker(fleet, tiny_llama, in_process=False, gpu__stall_s=STALL_S)
    job = submit(fleet, tiny_llama, texts(300), params=PARAMS, timeout_s=600.0)
    fleet.wait_for_outcomes(job, 30, WORK_S)
    core = engine_of(worker)
    core.suspend()
    stopped = time.monotonic()
    until(lambda: is_gone(core), 60, "the stopped engine is ended")
    assert time.monotonic() - stopped < STALL_S + 30
    fleet.wait_for(job, JobState.COMPLETED, WORK_S)
    assert fleet.account(job, 300).dead == {}
    assert {result.attempts for result in fleet.producer.results(job.job_id)} == {1}
    assert worker.alive, "a new engine took the place of the hung one"
    assert "it hangs: it has made no step for" in worker.log.read_text()
    assert "retried: engine_died " in fleet.penstock("status", job.job_id)


def test_a_worker_whose_device_is_lost_ends_with_a_status_and_a_reason(
    fleet: Fleet, tiny_llama: Path
) -> None:
    """Every request meets an error of CUDA, in every engine that is built: nothing is dead, and the
    worker takes itself out."""
    fleet.control()
    worker = gpu_worker(
        fleet,
        tiny_llama,
        in_process=True,
        gpu__rebuilds_max=0,
        failpoints="engine:cuda",
        drain_seconds=1,
    )
    job = submit(fleet, tiny_llama, texts(100), params=PARAMS)
    assert worker.wait(90) == 1
    assert "this worker gives back what it holds and ends with status 1" in worker.log.read_text()
    assert "CUDA error" in worker.log.read_text()
    assert fleet.finished(job) == 0
    gpu_worker(fleet, tiny_llama, in_process=True)
    fleet.wait_for(job, JobState.COMPLETED, WORK_S)
    assert fleet.account(job, 100).dead == {}


@pytest.mark.parametrize("parallel", ["data_parallel_size", "tensor_parallel_size"])
def test_nothing_of_a_group_of_engines_outlives_a_worker_that_is_killed(
    fleet: Fleet, tiny_llama: Path, monkeypatch: pytest.MonkeyPatch, parallel: str
) -> None:
    """`kill -9` with a group of engines, or of processes of one: cores, coordinator and shared
    memory are gone in seconds (H11).

    Also where the operator lists plugins of vLLM, and the list leaves Penstock's out. One engine is
    in test_gpu_fleet.py.
    """
    monkeypatch.setenv("VLLM_PLUGINS", "someone-elses")
    # a CPU's own: its cores are one group of memory here
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    worker = gpu_worker(fleet, tiny_llama, in_process=False, engine={parallel: 2})
    assert len(descendants(worker)) > 4
    kill_with_all(worker)


def test_a_worker_that_is_told_to_stop_while_its_model_loads_ends_with_its_engine(
    fleet: Fleet, tiny_llama: Path
) -> None:
    """SIGTERM when the first process of the engine is there: the worker ends before the load would
    have, and leaves nothing."""
    worker = gpu_worker(fleet, tiny_llama, in_process=False, wait=False)
    until(
        lambda: any("spawn_main" in " ".join(one.cmdline()) for one in descendants(worker)),
        WORK_S,
        "an engine starts",
    )
    started = descendants(worker)
    worker.popen.send_signal(signal.SIGTERM)
    assert worker.wait(60) == 0
    assert "its start is given up" in worker.log.read_text()
    until(lambda: all(is_gone(one) for one in started), 15, "nothing of the engine is left")
