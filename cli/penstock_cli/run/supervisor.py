"""Worker processes of one-machine mode: started, logged, started again when they crash, ended with their parent.

No thread of its own: the fleet calls ``tick`` a few times a second. The other half, how a worker notices
that its parent is gone, is ``orphan.py``.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol

from penstock_cli.errors import WorkersKeepCrashing
from penstock_cli.run.orphan import PARENT_PID_VARIABLE
from penstock_cli.show.text import last_lines

MAX_LOG_BYTES = 10_000_000  # per worker; one older log of the same size is kept beside it
HEALTHY_AFTER_S = 30.0  # a worker that lived this long has started well: its next crash counts as the first
MAX_QUICK_CRASHES = 5  # crashes in a row, each within HEALTHY_AFTER_S of its start, before the fleet gives up
BACKOFF_BASE_S = 0.5
BACKOFF_CAP_S = 15.0
POLL_S = 0.05


class Process(Protocol):
    """What we use of a worker's process: ``subprocess.Popen`` and ``ForkedWorker`` have it."""

    @property
    def pid(self) -> int | None: ...
    @property
    def returncode(self) -> int | None: ...
    def poll(self) -> int | None: ...
    def wait(self) -> int: ...
    def terminate(self) -> None: ...
    def kill(self) -> None: ...


@dataclass
class Worker:
    """One place in the fleet. ``process`` is None while it waits for its next start."""

    number: int
    log: Path
    process: Process | None = None
    started_at: float = 0.0  # on the supervisor's clock
    start_again_at: float = 0.0
    quick_crashes: int = 0


Take = Callable[[int, Path], Process | None]
"""Forks the worker of this number, with this log; None where nothing can be forked."""


class Supervisor:
    """Keeps ``count`` worker processes running until ``stop``. Not thread-safe: one thread drives it.

    ``command`` starts the worker of a number where ``take`` gives none.
    """

    def __init__(
        self,
        command: Callable[[int], Sequence[str]],
        count: int,
        *,
        environment: Mapping[str, str],
        logs: Path,
        take: Take = lambda _number, _log: None,
        tell: Callable[[str], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._command = command
        self._environment = {**environment, PARENT_PID_VARIABLE: str(os.getpid())}
        self._tell = tell
        self._take = take
        self._clock = clock
        self.workers = [Worker(number, logs / f"worker-{number}.log") for number in range(1, count + 1)]
        self.restarts = 0

    def start(self) -> None:
        for worker in self.workers:
            self._spawn(worker)

    def tick(self) -> None:
        """Notice crashes, start again what is due, keep logs bounded. Raises WorkersKeepCrashing."""
        for worker in self.workers:
            if worker.process is None:
                if self._clock() >= worker.start_again_at:
                    self.restarts += 1
                    self._spawn(worker)
            elif (status := worker.process.poll()) is not None:
                self._crashed(worker, status)
            _bound_log(worker.log)

    @property
    def alive(self) -> int:
        return sum(1 for worker in self.workers if worker.process is not None and worker.process.poll() is None)

    def stop(
        self,
        drain_s: float,
        hurry: Callable[[], bool] = lambda: False,
        waiting: Callable[[float], None] = lambda _: None,
    ) -> None:
        """Ask all to finish what they hold (SIGTERM); after ``drain_s``, or when ``hurry`` says so, SIGKILL.

        ``waiting`` gets the seconds that are left, again and again while it lasts.
        """
        running = [worker.process for worker in self.workers if worker.process is not None]
        for process in running:
            process.terminate()
        deadline = time.monotonic() + drain_s
        while any(process.poll() is None for process in running):
            if time.monotonic() > deadline or hurry():
                break
            waiting(deadline - time.monotonic())
            time.sleep(POLL_S)
        for process in running:
            if process.poll() is None:
                process.kill()
            process.wait()
        for worker in self.workers:
            worker.process = None

    def _spawn(self, worker: Worker) -> None:
        worker.process = self._take(worker.number, worker.log) or self._started(worker)
        worker.started_at = self._clock()

    def _started(self, worker: Worker) -> subprocess.Popen[bytes]:
        with _opened(worker.log) as log:
            return subprocess.Popen(  # noqa: S603 -- our own interpreter and command line
                self._command(worker.number),
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is for the parent, which then decides
            )

    def _crashed(self, worker: Worker, status: int) -> None:
        lived = self._clock() - worker.started_at
        worker.process = None
        worker.quick_crashes = worker.quick_crashes + 1 if lived < HEALTHY_AFTER_S else 1
        if worker.quick_crashes >= MAX_QUICK_CRASHES:
            raise WorkersKeepCrashing(
                f"worker {worker.number} ended {worker.quick_crashes} times in a row within {HEALTHY_AFTER_S:.0f} s "
                f"of its start, the last time with {describe(status)}. "
                f"Its log, {worker.log}, ends with:\n{last_lines(worker.log)}"
            )
        pause = min(BACKOFF_CAP_S, BACKOFF_BASE_S * 2 ** (worker.quick_crashes - 1))
        worker.start_again_at = self._clock() + pause
        self._tell(
            f"worker {worker.number} ended with {describe(status)}; starting it again in {pause:.1f} s "
            f"(what it held goes to the others). Log: {worker.log}"
        )


def describe(status: int) -> str:
    """``signal SIGKILL`` or ``status 3``."""
    if status >= 0:
        return f"status {status}"
    try:
        return f"signal {signal.Signals(-status).name}"
    except ValueError:
        return f"signal {-status}"


def _opened(log: Path) -> IO[bytes]:
    """For appending, so that the file may be emptied while a worker writes to it. On a full disk there is no log."""
    try:
        return log.open("ab")
    except OSError:
        return open(os.devnull, "ab")


def _bound_log(log: Path) -> None:
    """Copy, then empty: the worker keeps its open file. Lines written in between are lost, which a log may lose."""
    with contextlib.suppress(OSError):  # it is not there yet, or the disk is full: then it does not grow either
        if log.stat().st_size > MAX_LOG_BYTES:
            shutil.copyfile(log, log.with_suffix(".log.1"))
            os.truncate(log, 0)
