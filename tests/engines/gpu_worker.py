"""A worker of a test's fleet that hosts vLLM, and jobs for it."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import psutil
from fleet import Fleet, Process, until

from penstock_ledger.model import Job
from penstock_workers.lanes.gpu.engine import guard

START_S = 300.0  # an engine imports vLLM three times over, on two cores
WORK_S = 240.0


def gpu_worker(
    fleet: Fleet,
    model: Path | str,
    *,
    in_process: bool,
    engine: dict[str, Any] | None = None,
    wait: bool = True,
    **settings: object,
) -> Process:
    """``wait``: until its engine is up."""
    arguments = {
        "max_model_len": 1024,
        "enforce_eager": True,
        "dtype": "bfloat16",
        "seed": 0,
        "gpu_memory_utilization": 0.5,
    } | (engine or {})
    worker = fleet.worker(
        128,
        lane="gpu",
        gpu__model=model,
        gpu__in_process=in_process,
        gpu__engine=json.dumps(arguments),
        gpu__max_num_seqs=64,
        gpu__max_num_batched_tokens=settings.pop("batched", 2048),
        **settings,
    )
    if not wait:
        return worker
    until(
        lambda: worker.popen.pid in fleet.heard_of() or not worker.alive,
        START_S,
        "the engine is up",
    )
    assert worker.alive, worker.tail()
    return worker


def engine_of(worker: Process) -> psutil.Process:
    """The engine core is the worker's own child; multiprocessing's tracker and the engine's guard
    are others."""
    children = psutil.Process(worker.popen.pid).children()
    return next(
        child
        for child in children
        if child.status() != psutil.STATUS_ZOMBIE
        and ("EngineCore" in child.name() or "EngineCore" in " ".join(child.cmdline()))
    )


def descendants(worker: Process) -> list[psutil.Process]:
    found: list[psutil.Process] = psutil.Process(worker.popen.pid).children(recursive=True)
    return found


def is_gone(process: psutil.Process) -> bool:
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def kill_with_all(worker: Process) -> None:
    """`kill -9` of a worker: all processes of its engine end by themselves, and leave no shared
    memory."""

    def memory_of_all() -> set[str]:
        return guard.shared_memory([process.pid for process in descendants(worker)])

    until(memory_of_all, START_S, "its engine has shared memory")  # it announces itself before that
    left, memory = descendants(worker), memory_of_all()
    assert len(left) > 2
    os.kill(worker.popen.pid, signal.SIGKILL)
    until(lambda: all(map(is_gone, left)), 15, "all of the engine's processes end with the worker")
    until(lambda: not any(map(os.path.exists, memory)), 5, "and its shared memory is freed")


def submit(fleet: Fleet, model: Path, documents: list[dict[str, Any]], **spec: object) -> Job:
    source = fleet.folder / "items.jsonl"
    source.write_text("".join(json.dumps(document) + "\n" for document in documents))
    fields = {"lane": "gpu", "model": str(model), "prompt": "Name a topic: {text}"} | spec
    return fleet.producer.submit(source, fields)
