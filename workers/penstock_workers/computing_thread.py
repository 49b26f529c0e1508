"""Threads in which a model computes, and the end of a process in which one still does."""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable
from typing import NoReturn


class ComputingThread(threading.Thread):
    """A daemon: a device that never answers does not keep the process from ending."""

    def __init__(self, target: Callable[[], None], name: str) -> None:
        super().__init__(target=target, name=name, daemon=True)


def exit_process(status: int) -> NoReturn:
    """End this process as ``sys.exit`` does; at once where a model still computes.

    The libraries that compute have threads of their own, and abort the process (SIGABRT) that takes
    them down while they are at work: a worker whose drain was over would look as if it had crashed.
    """
    if not any(isinstance(thread, ComputingThread) for thread in threading.enumerate()):
        sys.exit(status)
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
