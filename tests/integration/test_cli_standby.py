"""Workers of `penstock run` that stand by: real processes, their settings handed over on standard input."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from penstock_cli.run import standby as subject
from penstock_cli.run.standby import Standby

# As a worker does: wait for the settings, then say which there are.
CHILD = """
import os, sys
from penstock_cli.run.standby import await_settings
if not await_settings():
    sys.exit(7)
print("lease", os.environ.get("PENSTOCK_VISIBILITY_TIMEOUT_S"), "old", os.environ.get("PENSTOCK_REDIS_URL"), flush=True)
"""


@pytest.fixture
def code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "worker_command", lambda lane, number: [sys.executable, "-c", CHILD])


@pytest.mark.usefixtures("code")
def test_a_process_gets_exactly_the_settings_that_are_handed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is handed over is in force, what the command itself was given is not, and the log is the worker's own."""
    monkeypatch.setenv("PENSTOCK_REDIS_URL", "redis://of-the-fleet")
    log = tmp_path / "worker-1.log"
    with Standby("api", 1) as standby:
        process = standby.take(1, {"PENSTOCK_VISIBILITY_TIMEOUT_S": "15.0"}, log)
        assert process is not None
        assert standby.take(1, {}, log) is None, "each process is one worker"
    assert process.wait(timeout=60) == 0
    assert log.read_text() == "lease 15.0 old None\n"


@pytest.mark.usefixtures("code")
def test_processes_that_are_not_needed_end_with_the_command(tmp_path: Path) -> None:
    """A command that ends before its workers start (bad usage, a finished job) leaves no process behind."""
    with Standby("api", 2) as standby:
        waiting = list(standby._waiting.values())
        assert len(waiting) == 2
    assert all(process.poll() is not None for process in waiting)


def test_a_process_without_a_command_ends_by_itself() -> None:
    """`penstock run` was killed before it handed settings over: standard input ends, and so does the process."""
    process = subprocess.Popen([sys.executable, "-c", CHILD], stdin=subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(timeout=60) == 7


@pytest.mark.usefixtures("code")
def test_a_process_that_died_is_not_taken(tmp_path: Path) -> None:
    """A worker that could not import its modules is started anew by the supervisor, whose log says why."""
    with Standby("api", 1) as standby:
        (process,) = standby._waiting.values()
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        assert standby.take(1, {}, tmp_path / "worker-1.log") is None
