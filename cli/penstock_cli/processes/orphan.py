"""How a worker process ends when the `penstock run` that started it is gone, even by kill -9.

The kernel sends SIGTERM at once (Linux, PR_SET_PDEATHSIG); a thread watches as well, because not
every kernel does, and because a worker that does not finish in time must end anyway: a run that
resumes the job needs the machine.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Callable

WATCH_INTERVAL_S = 0.5
ORPHAN_DRAIN_S = 20.0  # for an orderly end; the leases of what is cut off then expire by themselves
_PR_SET_PDEATHSIG = 1


def end_with_parent(parent_pid: int) -> None:
    """From now on this process ends soon after ``parent_pid``, its parent, has ended."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    threading.Thread(
        target=watch, args=(lambda: os.getppid() != parent_pid,), name="orphan-watch", daemon=True
    ).start()


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
