"""One worker process of a supervisor: its place in the fleet, and what its end means."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

BACKOFF_BASE_S = 0.5
SIGNALLED = (
    128  # and the signal's number: the exit status of what a signal has ended, as shells have it
)


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
    log: Path | None  # None: it writes where we do
    process: Process | None = None
    up_since: float | None = None  # on the supervisor's clock; None until it is up
    start_again_at: float = 0.0
    quick_crashes: int = 0
    status: int | None = None  # of its last process that has ended
    over: bool = False  # it is not started again


@dataclass(frozen=True, slots=True)
class Policy:
    """What the end of one worker means."""

    # one that ends with 0 has finished, one that keeps crashing is given up; the others go on
    each_alone: bool = False
    pause_base_s: float = BACKOFF_BASE_S  # before the second start; doubled with each quick crash
    is_up: Callable[[int], bool] = lambda _: (
        True
    )  # whether its start is over: a crash before it is a quick one
    name: Callable[[int], str] = lambda number: f"worker {number}"
    log: Callable[[int], str] = lambda number: f"worker-{number}"  # the file's name
    variables: Callable[[int], Mapping[str, str]] = (
        lambda _: {}
    )  # of one worker, beside those of all
    umask: int = -1  # of its process; -1 leaves it: model files that workers fetch are often shared


Take = Callable[[int, Path], Process | None]
"""Forks the worker of this number, with this log; None where nothing can be forked."""


ONE_MACHINE = Policy()
"""Of `penstock run`: its workers are alike, so that one that never comes up speaks for all."""


def exit_status(status: int) -> int:
    """Of a process, as a shell has it."""
    return status if status >= 0 else SIGNALLED - status


def describe(status: int) -> str:
    """``signal SIGKILL`` or ``status 3``."""
    if status >= 0:
        return f"status {status}"
    try:
        return f"signal {signal.Signals(-status).name}"
    except ValueError:
        return f"signal {-status}"
