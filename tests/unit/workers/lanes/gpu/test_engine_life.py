"""When an engine counts as dead, and what is left of one that was killed.

No engine is needed to know."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from fleet import until

from penstock_workers.celery_app.ending import Ending
from penstock_workers.errors import InvalidFailpoint
from penstock_workers.failpoints import Failpoints, PlayedDeviceError
from penstock_workers.lanes.engine_faults import (
    LEAST_S,
    LOOK_S,
    FailureRun,
    StepWatch,
    is_lost,
    longest_step_s,
)
from penstock_workers.lanes.gpu.engine import guard
from penstock_workers.lanes.gpu.engine.adapters import Adapters
from penstock_workers.lanes.gpu.engine.child_engine import SHUTDOWN_S, ChildEngine
from penstock_workers.lanes.gpu.engine.engine_queue import EngineFigures
from penstock_workers.lanes.gpu.engine.guard import Guard
from penstock_workers.lanes.gpu.plugin import NAME, PLUGINS_VARIABLE, load_in_engines
from penstock_workers.lanes.gpu.settings import GpuSettings


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def watch(clock: Clock) -> StepWatch:
    made = StepWatch(20.0, clock)
    made.stepped(0, busy=False)
    return made


async def test_an_engine_that_was_shut_down_is_not_shut_down_by_its_finalizer() -> None:
    """vLLM's finalizer does that at Python's end, when its modules are gone: a traceback (H3)."""
    ended: list[float] = []

    class Llm:
        def shutdown(self, timeout: float) -> None:
            ended.append(timeout)

        def __del__(self) -> None:
            self.shutdown()  # type: ignore[call-arg] # as vLLM's does

    engine = ChildEngine(
        GpuSettings(model="m"), Adapters({}, "m"), EngineFigures(lambda _: None, lambda *_: None), 1
    )
    engine._llm = Llm()
    await engine.stop()
    assert ended == [SHUTDOWN_S]


def test_an_engine_that_makes_no_step_with_requests_inside_hangs(
    watch: StepWatch, clock: Clock
) -> None:
    """After the longest that a step may take, and not before; an idle one never does (H5)."""
    clock.now += 1_000
    assert watch.hangs() is None
    watch.entered()
    clock.now += 19
    assert watch.hangs() is None
    clock.now += 2
    assert "no step for 21 s with 1 requests in it" in str(watch.hangs())
    watch.stepped(0, busy=True)
    assert watch.hangs() is None
    watch.left()
    clock.now += 1_000
    assert watch.hangs() is None


def test_one_of_several_engines_hangs_beside_one_that_works(watch: StepWatch, clock: Clock) -> None:
    """In a data-parallel group the one that is silent with requests in it is found, whatever the
    others do."""
    watch.entered()
    watch.stepped(1, busy=True)
    for _ in range(30):
        clock.now += 1
        watch.stepped(0, busy=True)
    assert watch.hangs() is not None


def test_the_first_step_may_take_longer(clock: Clock) -> None:
    """Kernels are compiled in it."""
    made = StepWatch(20.0, clock)
    made.entered()
    clock.now += 100
    assert made.hangs() is None
    clock.now += 30
    assert made.hangs() is not None


def test_a_step_may_take_as_long_as_the_model_is_large() -> None:
    """A small model's hang is found within 30 s; seventy billion parameters are not called hung for
    one long step."""
    assert longest_step_s(5e8, 8_192, on_cpu=False) + LOOK_S < 30
    assert longest_step_s(7e10, 8_192, on_cpu=False) > 2 * 7e10 * 8_192 / 2e13 + LEAST_S - 1
    assert longest_step_s(1e9, 8_192, on_cpu=True) > 1_000


@pytest.mark.parametrize(
    ("said", "lost"),
    [
        ("CUDA error: an illegal memory access was encountered", True),
        ("NCCL error in: ProcessGroupNCCL.cpp:268, unhandled system error", True),
        ("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm`", True),
        ("HIP error: unspecified launch failure", True),
        ("CUDA out of memory. Tried to allocate 2.00 GiB", False),
        ("CUDA error: out of memory", False),
        ("index 5 is out of bounds", False),
    ],
)
def test_which_errors_mean_that_the_device_is_lost(said: str, lost: bool) -> None:
    """Those of CUDA, ROCm and NCCL, also where another error came of them; memory that is short is
    none."""
    assert is_lost(RuntimeError(said)) is lost
    try:
        raise ValueError("the batch failed") from RuntimeError(said)
    except ValueError as error:
        assert is_lost(error) is lost  # noqa: PT017 -- its cause is what matters


def test_a_run_of_failures_asks_for_a_probe_once() -> None:
    """An answer between them begins the count anew."""
    run = FailureRun(3)
    assert [run.failed() for _ in range(4)] == [False, False, True, False]
    run.answered()
    assert [run.failed() for _ in range(3)] == [False, False, True]


def test_a_device_error_can_be_played_at_the_engine_only() -> None:
    """The failpoint `engine:cuda` raises what torch would; elsewhere the act does not exist."""
    with pytest.raises(PlayedDeviceError, match="CUDA error"):
        Failpoints.parse("engine:cuda").hit("engine")
    with pytest.raises(InvalidFailpoint):
        Failpoints.parse("after_commit:cuda")


def test_a_worker_that_can_do_nothing_more_ends_with_a_status_that_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """By a drain, once, with the reason in its log; an orchestrator sees that it failed."""
    sent: list[int] = []
    monkeypatch.setattr("os.kill", lambda _pid, number: sent.append(number))
    made = Ending()
    assert made.status == 0
    made.begin("the encoder's device is lost")
    made.begin("again")
    assert (made.status, sent) == (1, [signal.SIGTERM])
    assert "the encoder's device is lost; this worker gives back what it holds" in caplog.text
    assert "again" not in caplog.text


def test_a_list_of_plugins_does_not_leave_ours_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """What an operator set stays, and the plugin that keeps signals from the engine is added;
    unset, vLLM loads all."""
    monkeypatch.setenv(PLUGINS_VARIABLE, "theirs")
    load_in_engines()
    load_in_engines()
    assert os.environ[PLUGINS_VARIABLE] == f"theirs,{NAME}"
    monkeypatch.delenv(PLUGINS_VARIABLE)
    load_in_engines()
    assert PLUGINS_VARIABLE not in os.environ


# -- what is left of an engine ---------------------------------------------------------------------

ENGINE = """
import mmap, os, signal, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
with open(sys.argv[1], "w+b") as file:
    file.truncate(4096)
    memory = mmap.mmap(file.fileno(), 4096)
print("up", flush=True)
signal.pause()
"""


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, subprocess.Popen[bytes], Path]]:
    """Its mark, a process that has it and does not end by itself, and its shared memory."""
    mark = uuid.uuid4().hex
    memory = Path(guard.SHARED_MEMORY) / f"penstock-test-{mark}"
    process = subprocess.Popen(
        [sys.executable, "-c", ENGINE, str(memory)],
        env={**os.environ, guard.MARK: mark},
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"up\n"
    yield mark, process, memory
    process.kill()
    process.wait()
    process.stdout.close()
    memory.unlink(missing_ok=True)


def test_nothing_of_an_engine_outlives_its_worker(
    engine: tuple[str, subprocess.Popen[bytes], Path],
) -> None:
    """The worker is gone without a word: its guard kills what has its mark, stopped or not, and
    frees the shared memory (H11)."""
    mark, process, memory = engine
    process.send_signal(signal.SIGSTOP)
    other = subprocess.Popen(
        [sys.executable, "-c", "import signal; signal.pause()"], start_new_session=True
    )
    guard = Guard(mark)
    try:
        assert guard._process.stdin is not None
        guard._process.stdin.close()  # as the kernel does when the worker is killed
        until(lambda: process.poll() is not None, 10, "the engine is ended")
        until(lambda: guard._process.poll() is not None, 10, "the guard ends by itself")
        assert not memory.exists()
        assert other.poll() is None, "what has another mark is left alone"
    finally:
        other.kill()
        other.wait()


def test_memory_of_an_engine_that_is_gone_already_is_freed(
    engine: tuple[str, subprocess.Popen[bytes], Path],
) -> None:
    """What the worker named to its guard before is removed, though no process is left that could
    show it (H11)."""
    mark, process, memory = engine
    assert str(memory) in guard.shared_memory(guard.marked(mark))
    beside = Guard(mark)
    beside.note({str(memory), "/etc/passwd-is-not-shared-memory"})
    process.kill()
    process.wait()
    beside.close()
    assert not memory.exists()


def test_children_of_the_worker_that_are_no_engine_are_spared(tmp_path: Path) -> None:
    """Hooks inherit the mark as well, and are known by the program that they run."""
    mark = uuid.uuid4().hex
    module = "penstock_workers.lanes.gpu.engine.guard"
    child = subprocess.Popen(
        [sys.executable, "-m", module, "another"],
        stdin=subprocess.PIPE,
        env={**os.environ, guard.MARK: mark},
    )
    try:
        assert guard.marked(mark) == []
    finally:
        child.communicate()
