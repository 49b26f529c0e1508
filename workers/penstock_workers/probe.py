"""Is this process alive, ready, started? Files that it touches, and the small program that an orchestrator asks.

A process with the setting ``probe_dir`` keeps three files there: ``started`` from the end of its start-up (the model is
loaded) on, ``ready`` while it takes work, and ``alive``, touched by the loop that does the work. ``penstock-probe alive``
looks at the last one's age. No server is asked, so no server's outage ends a worker that waits for it as it should.

A worker touches ``alive`` by rules of its own (pulse.py); any other loop does it at each turn::

    probes = ProbeFiles(settings.probe_dir)  # None: nothing is written
    probes.started()
    probes.ready()
    while …:
        probes.alive()
    probes.unready()  # first thing at the end

Only the standard library is imported here: the program runs every few seconds beside each worker. It is the one module
besides settings.py that reads the environment.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

ALIVE, READY, STARTED = "alive", "ready", "started"
STATES = (ALIVE, READY, STARTED)
MAX_AGE_S = 60.0  # of ``alive``, which is touched every few seconds: a loop that is busy for so long is stuck
DIR_VARIABLE = "PENSTOCK_PROBE_DIR"


class ProbeFiles:
    """Written by the process that they tell about. A folder that cannot be written raises OSError when this is made.

    Each file names the process that wrote it: those of an earlier one, in a folder that outlived it, count for nothing.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._owner = _owner(os.getpid())
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            for state in STATES:
                (folder / state).unlink(missing_ok=True)

    def started(self) -> None:
        """Start-up is over: from now on ``alive`` is what counts."""
        self._write(STARTED)
        self.alive()

    def alive(self) -> None:
        self._touch(ALIVE)

    def ready(self) -> None:
        self._touch(READY)

    def unready(self) -> None:
        if self._folder is not None:
            with suppress(OSError):
                (self._folder / READY).unlink(missing_ok=True)

    def _touch(self, state: str) -> None:
        if self._folder is not None:
            try:
                os.utime(self._folder / state)
            except FileNotFoundError:
                self._write(state)
            except OSError:  # a full or vanished disk: the age of the file tells
                pass

    def _write(self, state: str) -> None:
        if self._folder is not None:
            with suppress(OSError):
                (self._folder / state).write_text(self._owner, "utf-8")


def check(folder: Path, state: str, max_age_s: float = MAX_AGE_S) -> str | None:
    """Why the answer is no; None when it is yes."""
    path = folder / state
    try:
        writer, touched = path.read_text("utf-8"), path.stat().st_mtime
    except OSError as error:
        return f"not {state}: {path}: {error.strerror}"
    if not _lives(writer):
        return f"not {state}: {path} was written by a process that has ended"
    age_s = time.time() - touched
    if state == ALIVE and age_s > max_age_s:
        return f"not {state}: {path} was touched {age_s:.0f} s ago, more than {max_age_s:g}: the loop does no work"
    return None


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 0: yes; 1: no; 2: the question is wrong. One line says why."""
    parser = argparse.ArgumentParser(prog="penstock-probe", description="Ask a worker on this machine how it does.")
    parser.add_argument("state", choices=STATES)
    parser.add_argument("--dir", default=os.environ.get(DIR_VARIABLE), help=f"probe_dir of the worker; {DIR_VARIABLE}")
    parser.add_argument("--max-age", type=float, default=MAX_AGE_S, metavar="S", help="seconds; default %(default)g")
    asked = parser.parse_args(arguments)
    if not asked.dir:
        parser.error(f"give --dir or set {DIR_VARIABLE} to the worker's probe_dir")
    no = check(Path(asked.dir), asked.state, asked.max_age)
    sys.stdout.write(f"{no or asked.state}\n")
    return 0 if no is None else 1


def _owner(pid: int) -> str:
    """Pid and start time: pids come again, above all in containers."""
    return f"{pid} {_start_of(pid) or ''}"


def _start_of(pid: int) -> str | None:
    """In ticks since the machine's boot; None where there is no /proc, or no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return None


def _lives(owner: str) -> bool:
    pid, _, start = owner.partition(" ")
    return not start or _start_of(int(pid)) == start


if __name__ == "__main__":
    sys.exit(main())
