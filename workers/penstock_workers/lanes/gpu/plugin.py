"""Loaded by vLLM into each of its processes: an engine ends when the worker that hosts it is gone, even by kill -9.

Without this the engine lives on and keeps the GPU's memory, so that the next worker on the machine has none.
"""

from __future__ import annotations

import os
import signal
import threading
import time

WORKER_VARIABLE = "PENSTOCK_ENGINE_OF"  # the pid of the worker; set in its own environment, inherited by its engine
WATCH_S = 0.5


def end_with_worker() -> None:
    """Does nothing but in a direct child of a worker of ours."""
    worker = os.environ.get(WORKER_VARIABLE, "")
    if worker.isdecimal() and os.getppid() == int(worker):
        threading.Thread(target=_watch, args=(int(worker),), name="penstock-worker-watch", daemon=True).start()


def _watch(worker: int) -> None:
    while os.getppid() == worker:
        time.sleep(WATCH_S)
    os.kill(os.getpid(), signal.SIGKILL)  # nobody is left to answer to; vLLM's own workers end with this process
