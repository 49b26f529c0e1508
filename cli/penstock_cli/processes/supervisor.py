"""Worker processes of one machine: started, logged, restarted after a crash, ended with us.

`penstock run` keeps those of its job by it, and `penstock worker --gpus` one for each card.
No thread of its own: the fleet calls ``tick`` a few times a second. The other half, how a worker
notices that its parent is gone, is in ``signals.py``.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol

from penstock_cli.errors import WorkersKeepCrashing
from penstock_cli.settings import PARENT_PID_VARIABLE
from penstock_cli.show.terminal import last_lines
from penstock_cli.state import private_opener
from penstock_ledger.errors import EXIT_USAGE

BACKOFF_BASE_S = 0.5
# and the signal's number: the exit status of what a signal has ended, as shells have it
SIGNALLED = 128


class Process(Protocol):
    """The part of a worker's process that we use: ``Popen`` and ``ForkedWorker`` have it."""

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
    log: Path | None  # None: it writes where we do
    process: Process | None = None
    up_since: float | None = None  # on the supervisor's clock; None until it is up
    start_again_at: float = 0.0
    quick_crashes: int = 0
    status: int | None = None  # of its last process that has ended
    over: bool = False  # it is not started again


@dataclass(frozen=True, slots=True)
class Policy:
    """The meaning of one worker's end."""

    # one that ends with 0 has finished, one that keeps crashing is given up; the others go on
    each_alone: bool = False
    pause_base_s: float = BACKOFF_BASE_S  # before the second start; doubled with each quick crash
    # whether its start is over: a crash before it is a quick one
    is_up: Callable[[int], bool] = lambda _: True
    name: Callable[[int], str] = lambda number: f"worker {number}"
    log: Callable[[int], str] = lambda number: f"worker-{number}"  # the file's name
    # of one worker, beside those of all
    variables: Callable[[int], Mapping[str, str]] = lambda _: {}
    umask: int = -1  # of its process; -1 leaves it: model files that workers fetch are often shared


Take = Callable[[int, Path], Process | None]
"""Forks the worker of this number, with this log; None where nothing can be forked."""


ONE_MACHINE = Policy()
"""Of `penstock run`: its workers are alike, so that one that never comes up speaks for all."""


def exit_status(status: int) -> int:
    """Return the exit status of a process as a shell has it."""
    return status if status >= 0 else SIGNALLED - status


def describe(status: int) -> str:
    """Return ``signal SIGKILL`` or ``status 3``."""
    if status >= 0:
        return f"status {status}"
    try:
        return f"signal {signal.Signals(-status).name}"
    except ValueError:
        return f"signal {-status}"


MAX_LOG_BYTES = 10_000_000  # per worker; one older log of the same size is kept beside it
BOUND_LOGS_EACH_S = 1.0
# a worker that lived this long has started well: its next crash counts as the first
HEALTHY_AFTER_S = 30.0
# crashes in a row, each within HEALTHY_AFTER_S of its start, before the fleet gives up
MAX_QUICK_CRASHES = 5
BACKOFF_CAP_S = 15.0
POLL_S = 0.05


class Supervisor:
    """Keeps ``count`` worker processes running until ``stop``.

    Not thread-safe: one thread drives it.

    ``command`` starts the worker of a number where ``take`` gives none.
    """

    def __init__(
        self,
        command: Callable[[int], Sequence[str]],
        count: int,
        *,
        environment: Mapping[str, str],
        logs: Path | None,
        take: Take = lambda _number, _log: None,
        tell: Callable[[str], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
        policy: Policy = ONE_MACHINE,
    ) -> None:
        self._policy = policy
        self._command = command
        self._environment = {**environment, PARENT_PID_VARIABLE: str(os.getpid())}
        self._tell = tell
        self._take = take
        self._clock = clock
        self.workers = [
            Worker(number, None if logs is None else logs / f"{policy.log(number)}.log")
            for number in range(1, count + 1)
        ]
        self.restarts = 0
        self._bound_logs_at = 0.0  # on the clock
        self._is_ending = False

    def start(self) -> None:
        for worker in self.workers:
            self._spawn(worker)

    def tick(self) -> None:
        """Notice crashes, start again what is due, keep logs bounded.

        Raises WorkersKeepCrashing."""
        bounds_logs = self._clock() >= self._bound_logs_at
        if bounds_logs:
            self._bound_logs_at = self._clock() + BOUND_LOGS_EACH_S
        for worker in self.workers:
            if worker.over:
                continue
            if worker.process is None:
                if self._clock() >= worker.start_again_at:
                    self.restarts += 1
                    self._spawn(worker)
            elif (status := worker.process.poll()) is not None:
                self._ended(worker, status)
            else:
                self._note_up(worker)
            if bounds_logs and worker.log is not None:
                _bound_log(worker.log)

    def kill(self, number: int, why: str) -> None:
        """End a worker that does no work; ``tick`` then takes it as crashed."""
        worker = self.workers[number - 1]
        if worker.process is not None:
            self._tell(f"{self._policy.name(number)} is killed: {why}")
            worker.process.kill()

    @property
    def over(self) -> bool:
        """No worker runs, and none will be started again."""
        return all(worker.over for worker in self.workers)

    @property
    def worst_status(self) -> int:
        """Of how each worker has ended last, as an exit status."""
        return max(
            (exit_status(worker.status) for worker in self.workers if worker.status is not None),
            default=0,
        )

    @property
    def alive(self) -> int:
        return sum(
            1
            for worker in self.workers
            if worker.process is not None and worker.process.poll() is None
        )

    def terminate(self) -> None:
        """Ask all to finish what they hold (SIGTERM), once; ``stop`` waits for them."""
        if not self._is_ending:
            self._is_ending = True
            for worker in self.workers:
                if worker.process is not None:
                    worker.process.terminate()

    def stop(
        self,
        drain_s: float,
        hurry: Callable[[], bool] = lambda: False,
        waiting: Callable[[float], None] = lambda _: None,
    ) -> None:
        """Ask all to finish what they hold (SIGTERM).

        After ``drain_s``, or when ``hurry`` says so, SIGKILL.

        ``waiting`` gets the seconds that are left, again and again while it lasts.
        """
        self.terminate()
        running = [worker.process for worker in self.workers if worker.process is not None]
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
            if worker.process is not None:
                worker.status = worker.process.returncode
            worker.process = None

    def _spawn(self, worker: Worker) -> None:
        taken = None if worker.log is None else self._take(worker.number, worker.log)
        worker.process = taken or self._started(worker)
        worker.up_since = None
        self._note_up(worker)

    def _note_up(self, worker: Worker) -> None:
        if worker.up_since is None and self._policy.is_up(worker.number):
            worker.up_since = self._clock()

    def _started(self, worker: Worker) -> subprocess.Popen[bytes]:
        with _opened(worker.log) as log:
            return subprocess.Popen(  # noqa: S603 -- our own interpreter and command line
                self._command(worker.number),
                env={**self._environment, **self._policy.variables(worker.number)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is for the parent, which then decides
                umask=self._policy.umask,
            )

    def _ended(self, worker: Worker, status: int) -> None:
        worker.process, worker.status = None, status
        name = self._policy.name(worker.number)
        if status == 0 and self._policy.each_alone:
            worker.over = True
            self._tell(
                f"{name} has ended by itself with {describe(status)}: it is not started again"
            )
            return
        if status == EXIT_USAGE:
            self._give_up(worker, f"{name} cannot start with these settings ({describe(status)})")
            return
        lived = 0.0 if worker.up_since is None else self._clock() - worker.up_since
        worker.quick_crashes = worker.quick_crashes + 1 if lived < HEALTHY_AFTER_S else 1
        if worker.quick_crashes >= MAX_QUICK_CRASHES:
            self._give_up(
                worker,
                f"{name} ended {worker.quick_crashes} times in a row within "
                f"{HEALTHY_AFTER_S:.0f} s of its start, the last time with {describe(status)}",
            )
            return
        pause = min(BACKOFF_CAP_S, self._policy.pause_base_s * 2 ** (worker.quick_crashes - 1))
        worker.start_again_at = self._clock() + pause
        self._tell(
            f"{name} ended with {describe(status)}; starting it again in {pause:.1f} s (what it "
            f"held goes to the others){'' if worker.log is None else f'. Log: {worker.log}'}"
        )

    def _give_up(self, worker: Worker, why: str) -> None:
        """Give a worker up that keeps crashing, or that another start would not help.

        Raises WorkersKeepCrashing where the others would do no better.
        """
        if self._policy.each_alone:
            worker.over = True
            self._tell(
                f"{why}: it is given up until this command is started again; its own log lines say "
                "why it ends"
            )
            return
        ending = (
            ""
            if worker.log is None
            else f" Its log, {worker.log}, ends with:\n{last_lines(worker.log)}"
        )
        raise WorkersKeepCrashing(f"{why}.{ending}")


def _opened(log: Path | None) -> IO[bytes]:
    """Open a log to append to, so that it may be emptied while a worker writes to it.

    On a full disk there is no log.
    """
    if log is None:
        return os.fdopen(os.dup(sys.stderr.fileno()), "ab")
    try:
        return open(log, "ab", opener=private_opener)
    except OSError:
        return open(os.devnull, "ab")


def _bound_log(log: Path) -> None:
    """Copy, then empty: the worker keeps its open file.

    Lines written in between are lost, which a log may lose."""
    # it is not there yet, or the disk is full: then it does not grow either
    with contextlib.suppress(OSError):
        if log.stat().st_size > MAX_LOG_BYTES:
            shutil.copy(log, log.with_suffix(".log.1"))  # with its mode
            os.truncate(log, 0)
