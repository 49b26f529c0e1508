"""Loaded by vLLM into each of its processes: a signal to the worker's process group does not reach the engine.

Ctrl-C and many supervisors send such signals, and an engine that gets one ends under the items in it, before the worker
has drained. That an engine ends with its worker is up to ``guard.py``.
"""

from __future__ import annotations

import os

WORKER_VARIABLE = "PENSTOCK_ENGINE_OF"  # the pid of the worker; set in its own environment, inherited by its engine
NAME = "penstock"  # of this plugin, as vLLM lists it
PLUGINS_VARIABLE = "VLLM_PLUGINS"  # where it is set, vLLM loads no plugin that it does not name


def end_with_worker() -> None:
    """Acts in a direct child of a worker only."""
    worker = os.environ.get(WORKER_VARIABLE, "")
    if worker.isdecimal() and os.getppid() == int(worker):
        os.setpgrp()  # before its own children are started, which inherit it


def load_in_engines() -> None:
    """In the worker, before it starts an engine: a list of plugins that the operator set must not leave this one out."""
    os.environ[WORKER_VARIABLE] = str(os.getpid())
    named = os.environ.get(PLUGINS_VARIABLE)
    if named is not None and NAME not in named.split(","):
        os.environ[PLUGINS_VARIABLE] = f"{named},{NAME}" if named else NAME
