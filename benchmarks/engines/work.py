"""What running some items took, in the lane or without it; and the processes of a benchmark that
say so in one line of JSON."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import psutil

from benchmarks.engines.setup import Setup, variables
from benchmarks.harness.ground import ROOT, GroundError

LOG_END = 3_000  # characters shown of a process that failed
MARK = b"FIGURES "  # before the line that counts: engines print a lot


@dataclass(frozen=True, slots=True)
class Work:
    """One round of items."""

    items: int
    seconds: float
    cpu_s: float = 0.0  # of all processes that worked on it

    @property
    def per_s(self) -> float:
        return self.items / self.seconds

    @property
    def per_cpu_s(self) -> float:
        """Beside other work on the machine the fairer figure."""
        return self.items / self.cpu_s if self.cpu_s else 0.0

    def beyond(self, short: Work) -> Work:
        """What the further items of this longer run took: its start and its end are those of the
        short one."""
        return Work(
            self.items - short.items,
            self.seconds - short.seconds,
            self.cpu_s - short.cpu_s,
        )


def cpu_seconds(*pids: int) -> float:
    """Used so far by these processes and their living descendants, all threads together."""
    roots = [psutil.Process(pid) for pid in pids or (os.getpid(),)]
    family = [member for root in roots for member in (root, *root.children(recursive=True))]
    times = [member.cpu_times() for member in family]
    return float(sum(used.user + used.system for used in times))


@contextlib.contextmanager
def contender(module: str, setup: Setup, log: Path) -> Iterator[Contender]:
    """``python -m module`` with the setup, its engine warm; it runs what it is asked to, and is
    ended with all its own."""
    with log.open("wb") as errors:
        running = subprocess.Popen(
            [sys.executable, "-m", module, setup.to_json()],
            env=os.environ | variables(setup),
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
        )
    try:
        yield Contender(running, log)
    finally:
        end_group(running)


class Contender:
    """Raises GroundError where the process ends in the middle."""

    def __init__(self, running: subprocess.Popen[bytes], log: Path) -> None:
        self._running, self._log = running, log
        self.start_s = float(self._heard())

    def run(self, way: str, number: int, first: int) -> Work:
        assert self._running.stdin is not None, "it was started with pipes"
        self._running.stdin.write(orjson.dumps([way, number, first]) + b"\n")
        self._running.stdin.flush()
        return Work(**self._heard())

    def _heard(self) -> Any:
        assert self._running.stdout is not None, "it was started with pipes"
        for line in self._running.stdout:
            if line.startswith(MARK):
                return orjson.loads(line.removeprefix(MARK))
        tail = self._log.read_text(errors="replace")[-LOG_END:]
        raise GroundError(f"{self._running.args!s:.60} ended ({self._running.wait()}):\n{tail}")


def orders() -> Iterator[tuple[str, int, int]]:
    """In the contender: which way to run how many items, numbered from which; until its parent has
    no more."""
    for line in sys.stdin:
        way, number, first = orjson.loads(line)
        yield way, number, first


def say(told: float | Work) -> None:
    print(MARK.decode() + orjson.dumps(told).decode(), flush=True)


def end_group(running: subprocess.Popen[bytes]) -> None:
    """Kill a process that leads a session of its own, with all that it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(running.pid, signal.SIGKILL)
    running.wait()


def setup_of(arguments: Sequence[str]) -> Setup:
    """The one argument of a process that ``contender`` started."""
    return Setup.from_json(arguments[1])
