"""vLLM loads this module into each of its processes, by the entry point in pyproject.toml.

It keeps signals to the worker's process group from the engine: Ctrl-C and many supervisors send
such signals, and an engine that gets one ends under the items in it, before the worker has drained.
(An engine ends with its worker by ``guard.py``.) And it corrects LoRA on CPUs, see
``keep_base_rows``.
"""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Callable
from typing import Any

# the pid of the worker; set in its own environment, inherited by its engine
WORKER_VARIABLE = "PENSTOCK_ENGINE_OF"
NAME = "penstock"  # of this plugin, as vLLM lists it
PLUGINS_VARIABLE = "VLLM_PLUGINS"  # where it is set, vLLM loads no plugin that it does not name


CPU_LORA_MODULES = ("vllm.lora.ops.torch_ops.lora_ops", "vllm.lora.punica_wrapper.punica_cpu")
CPU_LORA_OPS = ("bgmv_shrink", "bgmv_expand", "bgmv_expand_slice")


def load() -> None:
    """Act in a process of vLLM's; vLLM may call this several times in one process."""
    leave_process_group()
    if importlib.import_module("vllm.platforms").current_platform.is_cpu():
        correct_cpu_lora()


def correct_cpu_lora() -> None:
    """Replace vLLM's LoRA operations for CPUs in the modules that call them.

    They take the adapter number -1, which stands for "no adapter", as the index of the last slot,
    so that requests for the base model are computed with the weights of another request's adapter
    (vLLM 0.32; its pull request 48421).
    """
    for module in map(importlib.import_module, CPU_LORA_MODULES):
        for name in CPU_LORA_OPS:
            operation = getattr(module, name)
            if not hasattr(operation, "__wrapped__"):
                setattr(module, name, keep_base_rows(operation))


def keep_base_rows(operation: Callable[..., None]) -> Callable[..., None]:
    """Return ``operation`` such that it leaves some output rows as they were.

    They are those whose adapter number is negative."""

    @functools.wraps(operation)
    def kept(
        inputs: Any, weights: Any, output: Any, adapter_numbers: Any, *rest: Any, **options: Any
    ) -> None:
        before = output.clone()
        operation(inputs, weights, output, adapter_numbers, *rest, **options)
        output.copy_(output.where((adapter_numbers >= 0).unsqueeze(1), before))

    return kept


def leave_process_group() -> None:
    """Leave the worker's process group, in a direct child of a worker only."""
    worker = os.environ.get(WORKER_VARIABLE, "")
    if worker.isdecimal() and os.getppid() == int(worker):
        os.setpgrp()  # before its own children are started, which inherit it


def load_in_engines() -> None:
    """Have vLLM load this module, in the worker before it starts an engine.

    A list of plugins that the operator set must not leave this one out."""
    os.environ[WORKER_VARIABLE] = str(os.getpid())
    named = os.environ.get(PLUGINS_VARIABLE)
    if named is not None and NAME not in named.split(","):
        os.environ[PLUGINS_VARIABLE] = f"{named},{NAME}" if named else NAME
