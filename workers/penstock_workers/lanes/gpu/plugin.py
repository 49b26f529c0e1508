"""Loaded by vLLM into each of its processes: an engine ends with the worker that hosts it, and not before.

Without this an engine whose worker was killed outright lives on and keeps the GPU's memory, so that the next worker on the
machine has none; and a signal to the worker's process group (Ctrl-C, many supervisors) ends it under the items in it.
"""

from __future__ import annotations

import os
import signal
import threading
import time

WORKER_VARIABLE = "PENSTOCK_ENGINE_OF"  # the pid of the worker; set in its own environment, inherited by its engine
WATCH_S = 0.5


def end_with_worker() -> None:
    """Acts in a direct child of a worker only."""
    worker = os.environ.get(WORKER_VARIABLE, "")
    if worker.isdecimal() and os.getppid() == int(worker):
        os.setpgrp()  # before its own children are started, which inherit it
        threading.Thread(target=_watch, args=(int(worker),), name="penstock-worker-watch", daemon=True).start()


def _watch(worker: int) -> None:
    while os.getppid() == worker:
        time.sleep(WATCH_S)
    os.kill(os.getpid(), signal.SIGKILL)  # no worker is left to answer; vLLM's own workers end with this process
