"""The processes of an engine, found by a mark in their environment, and the shared memory that they
would leave behind.

vLLM's processes are not all children of each other, and a process that is killed outright cleans
nothing up: a coordinator lives on for minutes, and shared memory until the machine starts anew.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

MARK: Final = (
    "PENSTOCK_ENGINE_MARK"  # set in the worker's environment; everything that it starts inherits it
)
SHARED_MEMORY: Final = "/dev/shm/"  # noqa: S108 -- where Linux keeps it; nothing is made there
GONE_S: Final = (
    5.0  # a killed process is gone in milliseconds, one that frees much memory of a GPU in seconds
)
LOOK_S: Final = 0.05
# These carry the mark too: hooks and other children of the worker, and the one that tidies up after
# Python's own.
_NOT_ENGINES: Final = (b"penstock_workers.", b"multiprocessing.resource_tracker")


def marked(mark: str) -> list[int]:
    """Process ids of the engine with this mark, on Linux; elsewhere none is found."""
    wanted = f"{MARK}={mark}".encode()
    return [pid for pid in _all() if pid != os.getpid() and _is_engine(pid, wanted)]


def shared_memory(pids: list[int]) -> set[str]:
    """Files of shared memory that these processes use."""
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
    for name in leftovers - shared_memory(
        _all()
    ):  # what another process uses is that one's as well
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
