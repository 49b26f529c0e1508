"""Worker processes that start beside the rest: they import what a worker needs while the job is still checked and read.

`penstock run` starts them first. Each waits for one line of JSON on its standard input: its settings, known once the
private Redis runs, and the file for its log. A standard input that ends without a line means that no worker is wanted.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from penstock_cli.run.orphan import PARENT_PID_VARIABLE
from penstock_cli.settings import adopt_settings, child_environment

FLAG = "--settings-from-stdin"


def worker_command(lane: str, number: int) -> list[str]:
    return [sys.executable, "-m", "penstock_cli", "worker", "--lane", lane, "--name", f"local-{number}"]


class Standby:
    """``count`` processes that wait for their settings; those that were not taken end with the context."""

    def __init__(self, lane: str, count: int) -> None:
        environment = {**child_environment({}), PARENT_PID_VARIABLE: str(os.getpid())}
        self._waiting = {
            number: _started([*worker_command(lane, number), FLAG], environment) for number in range(1, count + 1)
        }

    def take(self, number: int, variables: Mapping[str, str], log: Path) -> subprocess.Popen[bytes] | None:
        """Hand its settings to a waiting process, which is the caller's from now on; None where none waits."""
        process = self._waiting.pop(number, None)
        if process is None:
            return None
        assert process.stdin is not None
        line = json.dumps({"variables": dict(variables), "log": str(log)})
        try:
            with process.stdin:
                process.stdin.write(line.encode() + b"\n")
        except BrokenPipeError:  # it could not import its modules: a fresh one says why in its log
            process.wait()
            return None
        return process

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._waiting.values():
            process.kill()  # it has done nothing yet
            process.wait()
            if process.stdin is not None:
                process.stdin.close()
        self._waiting.clear()


def await_settings() -> bool:
    """The worker's half: wait for the line and act on it. False when there is none, and no worker is wanted."""
    line = sys.stdin.buffer.readline()
    if not line:
        return False
    given = json.loads(line)
    _log_into(Path(given["log"]))
    adopt_settings(given["variables"])
    return True


def _started(command: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(  # noqa: S603 -- our own interpreter and command line
        command,
        env=dict(environment),
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C is for the parent, which then decides
    )


def _log_into(path: Path) -> None:
    """On a full disk there is no log."""
    with contextlib.suppress(OSError):
        log = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.close(log)
