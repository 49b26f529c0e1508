"""A small process beside a worker that hosts vLLM: when the worker is gone, however it ended,
nothing of its engine stays.

Run as ``python -m penstock_workers.lanes.gpu.engine.guard MARK``. Its input is a pipe from the
worker: each line names a file of shared memory that the engine uses, and its end is the end of the
worker.
"""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress

from penstock_workers.lanes.gpu.engine import processes

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
        """Shared memory to be removed once the worker is gone."""
        if self._process.stdin is not None:
            with suppress(OSError):  # killed: then the engine is only ended by the worker itself
                self._process.stdin.write("".join(f"{name}\n" for name in sorted(names)).encode())
                self._process.stdin.flush()

    def close(self) -> None:
        """The worker ends in order. The guard looks once more, and ends."""
        if self._process.stdin is not None:
            with suppress(OSError):
                self._process.stdin.close()
        self._process.wait(processes.GONE_S + 5)


def watch(mark: str) -> None:
    leftovers = {line.decode(errors="replace").strip() for line in sys.stdin.buffer}
    killed = processes.end(
        mark, {name for name in leftovers if name.startswith(processes.SHARED_MEMORY)}
    )
    if killed:
        os.write(2, f"the worker is gone: {killed} processes of its engine were ended\n".encode())


if __name__ == "__main__":
    watch(sys.argv[1])
