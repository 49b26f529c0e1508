"""The worker processes of one-machine mode, with real processes and a clock of our own."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock_cli.errors import WorkersKeepCrashing
from penstock_cli.processes import supervisor as subject
from penstock_cli.processes.supervisor import MAX_QUICK_CRASHES, Supervisor

SLEEPER = "import time; print('up', flush=True); time.sleep(600)"
COUNTING = (
    "import signal, time\n"
    "signal.signal(15, lambda *_: print('asked', flush=True))\n"
    "print('up', flush=True)\n"
    "time.sleep(600)"
)
STUBBORN = (
    "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); "
    "time.sleep(600)"
)


class Fleet:
    """Supervisors of tests: a clock that the test sets, messages kept, everything stopped at the
    end."""

    def __init__(self, logs: Path) -> None:
        self.logs = logs
        self.now = 1000.0
        self.told: list[str] = []
        self.started: list[Supervisor] = []

    def start(self, code: str, count: int = 1) -> Supervisor:
        supervisor = Supervisor(
            lambda _: [sys.executable, "-c", code],
            count,
            environment=dict(os.environ),
            logs=self.logs,
            tell=self.told.append,
            clock=lambda: self.now,
        )
        self.started.append(supervisor)
        supervisor.start()
        return supervisor


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    fleet = Fleet(tmp_path)
    yield fleet
    for supervisor in fleet.started:
        supervisor.stop(0)


def pid_of(supervisor: Supervisor, index: int = 0) -> int:
    process = supervisor.workers[index].process
    assert process is not None
    assert process.pid is not None
    return process.pid


def eventually(condition: Callable[[], bool], timeout_s: float = 15.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.02)


def alive(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    return False


def test_a_crashed_worker_is_started_again_after_a_pause(fleet: Fleet) -> None:
    """A killed worker comes back, not at once but after the announced pause; the others go on."""
    supervisor = fleet.start(SLEEPER, count=2)
    killed, other = pid_of(supervisor, 0), pid_of(supervisor, 1)
    os.kill(killed, signal.SIGKILL)
    eventually(lambda: supervisor.alive == 1)
    supervisor.tick()
    supervisor.tick()
    assert supervisor.workers[0].process is None
    assert "worker 1 ended with signal SIGKILL; starting it again in 0.5 s" in fleet.told[0]
    fleet.now += 0.5
    supervisor.tick()
    assert pid_of(supervisor, 0) != killed
    assert (pid_of(supervisor, 1), supervisor.restarts) == (other, 1)


def test_workers_that_never_come_up_end_the_run(fleet: Fleet) -> None:
    """After a bounded number of crashes at start the fleet gives up and shows the end of the
    log."""
    supervisor = fleet.start("import sys; sys.exit('no module named turbine')")

    def crash_until_it_gives_up() -> None:
        for _ in range(2 * MAX_QUICK_CRASHES):
            process = supervisor.workers[0].process
            if process is not None:
                process.wait()
            fleet.now += 20
            supervisor.tick()

    told = rf"(?s)ended {MAX_QUICK_CRASHES} times.*status 1.*no module named turbine"
    with pytest.raises(WorkersKeepCrashing, match=told):
        crash_until_it_gives_up()


def test_a_crash_after_a_healthy_life_counts_as_the_first(fleet: Fleet) -> None:
    """Spot crashes over a long night never add up to giving up."""
    supervisor = fleet.start(SLEEPER)
    for _ in range(MAX_QUICK_CRASHES + 2):
        fleet.now += 60
        process = supervisor.workers[0].process
        assert process is not None
        process.kill()
        process.wait()
        supervisor.tick()
        fleet.now += 60
        supervisor.tick()
    assert supervisor.alive == 1


def test_stop_asks_first_and_kills_after_the_drain(fleet: Fleet) -> None:
    """A worker that ignores SIGTERM is killed when its drain time is over."""
    supervisor = fleet.start(STUBBORN)
    pid = pid_of(supervisor)
    eventually(lambda: "up" in (fleet.logs / "worker-1.log").read_text())
    supervisor.stop(drain_s=0.2)
    assert not alive(pid)


def test_workers_that_were_asked_to_end_are_asked_once(fleet: Fleet) -> None:
    """The files of a job are written meanwhile; a second SIGTERM would end a worker in a hurry."""
    supervisor = fleet.start(COUNTING)
    log = fleet.logs / "worker-1.log"
    eventually(lambda: "up" in log.read_text())
    supervisor.terminate()
    eventually(lambda: "asked" in log.read_text())
    supervisor.stop(0.5)
    assert log.read_text().count("asked") == 1


def test_stop_can_be_hurried(fleet: Fleet) -> None:
    """A second Ctrl-C ends the drain at once."""
    supervisor = fleet.start(STUBBORN)
    eventually(lambda: "up" in (fleet.logs / "worker-1.log").read_text())
    before = time.monotonic()
    supervisor.stop(drain_s=60, hurry=lambda: True)
    assert time.monotonic() - before < 30


def test_logs_are_bounded(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """A chatty worker fills two logs of bounded size, not the disk."""
    monkeypatch.setattr(subject, "MAX_LOG_BYTES", 1000)
    supervisor = fleet.start(
        "import time\n"
        "for _ in range(100): print('x' * 99, flush=True)\n"
        "print('end', flush=True)\n"
        "time.sleep(600)"
    )
    log = fleet.logs / "worker-1.log"
    eventually(lambda: log.read_text().endswith("end\n"))
    supervisor.tick()
    assert log.stat().st_size == 0
    assert (fleet.logs / "worker-1.log.1").stat().st_size == 100 * 100 + 4


PARENT = """
import os, sys, time
from pathlib import Path
from penstock_cli.processes.supervisor import Supervisor
child = (
    "import os, time; from penstock_cli.processes.signals import end_with_parent;"
    "end_with_parent(int(os.environ['PENSTOCK_PARENT_PID'])); print('up', flush=True); time.sleep(600)"
)
fleet = Supervisor(lambda _: [sys.executable, "-c", child], 2, environment=dict(os.environ), logs=Path(sys.argv[1]))
fleet.start()
print(*[w.process.pid for w in fleet.workers], flush=True)
time.sleep(600)
"""


def test_workers_end_when_their_parent_is_killed(tmp_path: Path) -> None:
    """kill -9 of `penstock run` leaves no worker behind."""
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    children = [int(pid) for pid in parent.stdout.readline().split()]
    assert len(children) == 2
    eventually(lambda: all("up" in (tmp_path / f"worker-{n}.log").read_text() for n in (1, 2)))
    parent.kill()
    parent.wait()
    parent.stdout.close()
    eventually(lambda: not any(alive(pid) for pid in children))


def test_a_worker_that_refuses_its_settings_is_not_started_again(fleet: Fleet) -> None:
    """Its status says that another start would end the same, and its log why (H4)."""
    supervisor = fleet.start("import sys; print('gpu.model: no such folder'); sys.exit(2)")
    process = supervisor.workers[0].process
    assert process is not None
    process.wait()
    with pytest.raises(WorkersKeepCrashing, match=r"(?s)cannot start .*no such folder"):
        supervisor.tick()
    assert supervisor.restarts == 0
