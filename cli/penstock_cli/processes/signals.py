"""End processes of one machine: by Ctrl-C and SIGTERM, or with the one that started them.

A worker ends with its `penstock run`, even if that was killed with kill -9: the kernel sends
SIGTERM at once (Linux, PR_SET_PDEATHSIG); a thread watches as well, because not every kernel does,
and because a worker that does not finish in time must end anyway: a run that resumes the job needs
the machine.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, Self

from penstock_cli.errors import Interrupted

WATCH_INTERVAL_S = 0.5  # where the kernel does not tell of the end of a process
ORPHAN_DRAIN_S = 20.0  # for an orderly end; the leases of what is cut off then expire by themselves
_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15


def end_with_parent(parent_pid: int) -> None:
    """Make this process end soon after ``parent_pid``, its parent, has ended."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    threading.Thread(target=_outlive, args=(parent_pid,), name="orphan-watch", daemon=True).start()


def _outlive(parent_pid: int) -> None:
    """Watch from the moment on when the parent has ended.

    Linux tells of it; elsewhere it is looked for."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):  # an old kernel, or it has ended
            parent = os.pidfd_open(parent_pid)
            ends = select.poll()
            ends.register(parent, select.POLLIN)
            if os.getppid() == parent_pid:  # else another process may have its number by now
                ends.poll()
            os.close(parent)
    watch(lambda: os.getppid() != parent_pid)


def name_process(name: str) -> None:
    """Give this process a name in ``ps``, of which Linux keeps fifteen characters."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode())


def watch(
    orphaned: Callable[[], bool],
    end: Callable[[signal.Signals], None] = lambda number: os.kill(os.getpid(), number),
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Wait until ``orphaned``, then ask this process to end, then make it."""
    while not orphaned():
        sleep(WATCH_INTERVAL_S)
    end(signal.SIGTERM)
    sleep(ORPHAN_DRAIN_S)
    end(signal.SIGKILL)


SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupts:
    """Until ``defer`` is called an interrupt raises Interrupted where it strikes.

    After that it is only counted.

    Main thread only, like signal handlers themselves.
    """

    def __init__(self) -> None:
        self.count = 0  # written by the signal handler, read by the loop that it interrupts
        self._deferred = False
        self._before: dict[signal.Signals, Any] = {}

    def defer(self, deferred: bool = True) -> None:
        self._deferred = deferred

    @contextlib.contextmanager
    def undeferred(self) -> Iterator[None]:
        """Raise Interrupted in the block, as before ``defer``."""
        self.defer(False)
        try:
            yield
        finally:
            self.defer()

    @property
    def asked(self) -> bool:
        return self.count > 0

    def hurry(self) -> bool:
        return self.count > 1

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._strike) for number in SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _strike(self, _number: int, _frame: FrameType | None) -> None:
        self.count += 1
        if not self._deferred:
            raise Interrupted("interrupted")
