"""What running some items took, in the lane or without it; and the processes of a benchmark that say so in one line of JSON."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import orjson
import psutil

from benchmarks.engines.setup import Setup, variables
from benchmarks.ground import ROOT, GroundError

RUN_TIMEOUT_S = 3_600
LOG_END = 3_000  # characters shown of a process that failed
MARK = "FIGURES "  # before the line that counts: engines print a lot


@dataclass(frozen=True, slots=True)
class Work:
    """One round of items."""

    items: int
    seconds: float
    tokens: int  # prompt and answer
    cached: int = 0  # prompt tokens that were computed before
    prompt: int = 0
    cpu_s: float = 0.0  # of all processes that worked on it

    @property
    def per_s(self) -> float:
        return self.items / self.seconds

    @property
    def per_cpu_s(self) -> float:
        """Beside other work on the machine the fairer figure."""
        return self.items / self.cpu_s if self.cpu_s else 0.0

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.seconds

    @property
    def hit_rate(self) -> float:
        return self.cached / self.prompt if self.prompt else 0.0


@dataclass(frozen=True, slots=True)
class Session:
    """What one process did with its engine."""

    start_s: float
    rounds: dict[str, list[Work]]  # by way of running them

    def best(self, way: str) -> Work:
        return max(self.rounds[way], key=lambda work: work.per_s)

    def middle(self, way: str) -> Work:
        """The median round."""
        ordered = sorted(self.rounds[way], key=lambda work: work.per_s)
        return ordered[len(ordered) // 2]


def cpu_seconds(*pids: int) -> float:
    """Used so far by these processes and their living descendants, all threads together."""
    roots = [psutil.Process(pid) for pid in pids or (os.getpid(),)]
    family = [member for root in roots for member in (root, *root.children(recursive=True))]
    times = [member.cpu_times() for member in family]
    return float(sum(used.user + used.system for used in times))


def say(session: Session) -> None:
    print(MARK + orjson.dumps(asdict(session)).decode(), flush=True)


def session_of(module: str, setup: Setup, log: Path) -> Session:
    """Run ``python -m module`` with the setup; all that it started is ended with it. Raises GroundError."""
    with log.open("wb") as errors:
        running = subprocess.Popen(
            [sys.executable, "-m", module, setup.to_json()], env=os.environ | variables(setup), cwd=ROOT,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, start_new_session=True,
        )  # fmt: skip
        try:
            printed, _ = running.communicate(timeout=RUN_TIMEOUT_S)
        finally:
            end_group(running)
    lines = [line for line in printed.decode(errors="replace").splitlines() if line.startswith(MARK)]
    if not lines:
        raise GroundError(
            f"{module} said nothing ({running.returncode}):\n{log.read_text(errors='replace')[-LOG_END:]}"
        )
    return _session(orjson.loads(lines[-1].removeprefix(MARK)))


def end_group(running: subprocess.Popen[bytes]) -> None:
    """Kill a process that leads a session of its own, with all that it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(running.pid, signal.SIGKILL)
    running.wait()


def _session(told: dict[str, object]) -> Session:
    rounds = told["rounds"]
    assert isinstance(rounds, dict)
    return Session(
        float(str(told["start_s"])), {way: [Work(**work) for work in works] for way, works in rounds.items()}
    )


def setup_of(arguments: Sequence[str]) -> Setup:
    """The one argument of a process that ``session_of`` started."""
    return Setup.from_json(arguments[1])
