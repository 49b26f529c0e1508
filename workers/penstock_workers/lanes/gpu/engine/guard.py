"""Ends what a worker that hosts vLLM leaves behind: when the worker is gone, so is its engine.

It is a small process beside the worker, run as ``python -m penstock_workers.lanes.gpu.engine.guard
MARK``. Its input is a pipe from the worker: each line names a file of shared memory that the engine
uses, and its end is the end of the worker, however that came.

vLLM's processes are not all children of each other, and a process that is killed outright cleans
nothing up: a coordinator lives on for minutes, and shared memory until the machine starts anew. So
the processes of an engine are found by a mark in their environment.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

# set in the worker's environment; everything that it starts inherits it
MARK: Final = "PENSTOCK_ENGINE_MARK"
SHARED_MEMORY: Final = "/dev/shm/"  # noqa: S108 -- where Linux keeps it; nothing is made there
# a killed process is gone in milliseconds, one that frees much memory of a GPU in seconds
GONE_S: Final = 5.0
LOOK_S: Final = 0.05
# These carry the mark too: hooks and other children of the worker, and the one that tidies up after
# Python's own.
_NOT_ENGINES: Final = (b"penstock_workers.", b"multiprocessing.resource_tracker")


def marked(mark: str) -> list[int]:
    """Return the process ids of the engine with this mark, on Linux; elsewhere none is found."""
    wanted = f"{MARK}={mark}".encode()
    return [pid for pid in _all() if pid != os.getpid() and _is_engine(pid, wanted)]


def shared_memory(pids: list[int]) -> set[str]:
    """Return the files of shared memory that these processes use."""
    return {name for pid in pids for name in _mapped(pid)}


def end(mark: str, leftovers: set[str]) -> int:
    """Kill what is left of the engine, and remove ``leftovers`` and what it still used.

    Returns how many were killed."""
    killed: set[int] = set()
    until = time.monotonic() + GONE_S
    while (pids := marked(mark)) and time.monotonic() < until:
        leftovers = leftovers | shared_memory(pids)
        for pid in pids:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
                killed.add(pid)
        time.sleep(LOOK_S)
    # what another process uses is that one's as well
    for name in leftovers - shared_memory(_all()):
        with suppress(OSError):
            Path(name).unlink()
    return len(killed)


def _all() -> list[int]:
    with suppress(OSError):
        return [int(entry) for entry in os.listdir("/proc") if entry.isdecimal()]
    return []


def _is_engine(pid: int, wanted: bytes) -> bool:
    try:
        if wanted not in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            return False
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:  # another user's, or gone
        return False
    return bool(command) and not any(word in command for word in _NOT_ENGINES)


def _mapped(pid: int) -> Iterator[str]:
    try:
        lines = Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines()
    except OSError:
        return
    for line in lines:
        _, found, name = line.partition(SHARED_MEMORY)
        if found and not name.endswith(" (deleted)"):
            yield SHARED_MEMORY + name


PROGRAM = "penstock_workers.lanes.gpu.engine.guard"


class Guard:
    """The worker's end. Started once in a worker; engines come and go."""

    def __init__(self, mark: str) -> None:
        # In a session of its own: what is sent to the worker's group must not reach it.
        self._process = subprocess.Popen(  # noqa: S603 -- this very module
            [sys.executable, "-P", "-m", PROGRAM, mark],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def note(self, names: set[str]) -> None:
        """Note shared memory that is to be removed once the worker is gone."""
        if self._process.stdin is not None:
            with suppress(OSError):  # killed: then the engine is only ended by the worker itself
                self._process.stdin.write("".join(f"{name}\n" for name in sorted(names)).encode())
                self._process.stdin.flush()

    def close(self) -> None:
        """End the guard as the worker ends in order; it looks once more first."""
        if self._process.stdin is not None:
            with suppress(OSError):
                self._process.stdin.close()
        self._process.wait(GONE_S + 5)


def watch(mark: str) -> None:
    leftovers = {line.decode(errors="replace").strip() for line in sys.stdin.buffer}
    killed = end(mark, {name for name in leftovers if name.startswith(SHARED_MEMORY)})
    if killed:
        os.write(2, f"the worker is gone: {killed} processes of its engine were ended\n".encode())


if __name__ == "__main__":
    watch(sys.argv[1])
