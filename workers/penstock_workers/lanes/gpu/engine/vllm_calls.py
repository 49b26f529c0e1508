"""What both kinds of engine have in common: prompts, options and errors in vLLM's terms and in
Penstock's."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Callable
from typing import Any

from penstock_workers.errors import BadEngineSettings
from penstock_workers.failpoints import PlayedDeviceError
from penstock_workers.lanes.gpu.engine.engines import (
    EngineBusy,
    EngineCall,
    EngineDied,
    EngineFault,
    RequestRefused,
)
from penstock_workers.lanes.gpu.engine.upstream import upstream
from penstock_workers.lanes.gpu.settings import GpuSettings

# Faults of the request; before 0.3x these had no common ancestor but ValueError, and some not even
# that.
CLIENT_ERRORS = frozenset(
    {"VLLMClientError", "VLLMNotFoundError", "VLLMUnprocessableEntityError", "ValueError"}
)


def prompt(call: EngineCall, model_config: Any) -> Any:
    """In the form of vLLM's own renderer, where this vLLM has one: else it would render it again,
    in another thread."""
    if call.rendered is not None:
        return call.rendered
    make = _tokens_input()
    if make is None or getattr(model_config, "is_encoder_decoder", False):
        return {"prompt_token_ids": call.token_ids}
    return make(call.token_ids)


@functools.cache
def _tokens_input() -> Callable[[list[int]], Any] | None:
    try:
        make: Callable[[list[int]], Any] = upstream("vllm.inputs", "tokens_input")
    except BadEngineSettings:
        return None  # an older one
    return make


def is_pooling(params: Any) -> bool:
    return type(params).__name__ == "PoolingParams"


def options(arguments: Any, note: Callable[[Any, Any, int], None]) -> dict[str, Any]:
    """What both kinds of engine are made from: vLLM's config of these arguments, and a logger that
    reports each step.

    Offline use, so that defaults are those of vLLM's own batch class. The model's files decide
    whether it pools, so that is known with the config only: a pooled answer has no tokens, and
    vLLM's engine ends where it is to show only the first.
    """
    context = upstream("vllm.usage.usage_lib", "UsageContext").LLM_CLASS
    config = arguments.create_engine_config(context)
    if config.model_config.runner_type == "pooling":
        config.scheduler_config.stream_interval = 1
    return {
        "vllm_config": config,
        "usage_context": context,
        "stat_loggers": [_tap(note)],
        "disable_log_stats": arguments.disable_log_stats,
    }


def _tap(note: Callable[[Any, Any, int], None]) -> Callable[[Any, int], Any]:
    """A stat logger factory. vLLM calls ``record`` once per step of each engine."""
    base = upstream("vllm.v1.metrics.loggers", "StatLoggerBase")

    class Tap(base):  # type: ignore[misc, valid-type]  # looked up, so that no checker can know it
        def __init__(self, vllm_config: Any, engine_index: int = 0) -> None:
            self._engine = engine_index

        def record(self, scheduler_stats: Any, iteration_stats: Any, *_: Any, **__: Any) -> None:
            note(scheduler_stats, iteration_stats, self._engine)

        def log_engine_initialized(self) -> None:
            """The worker says itself that its engine is up."""

    return Tap


@contextlib.contextmanager
def explained(settings: GpuSettings) -> Any:
    try:
        yield
    except Exception as error:
        raise BadEngineSettings(
            f"the engine for gpu.model = {settings.model!r} does not start: "
            f"{type(error).__name__}: {error}; its own log above this line says why (memory, a "
            "missing folder and a wrong dtype are the usual reasons)"
        ) from error


@contextlib.contextmanager
def failpoint_as_fault() -> Any:
    """An error of the device that a failpoint plays, as the engine would report it."""
    try:
        yield
    except PlayedDeviceError as error:
        raise EngineFault(str(error)) from error


@contextlib.contextmanager
def translated() -> Any:
    """vLLM's exceptions as this module's.

    Their classes moved between versions, so they are recognised by name and ancestry."""
    try:
        yield
    except (EngineDied, asyncio.CancelledError):
        raise
    except Exception as error:
        ancestry = {kind.__name__ for kind in type(error).__mro__}
        if "EngineDeadError" in ancestry:
            raise EngineDied(str(error)) from error
        if ancestry & {"QueueOverflowError", "MaxQueuedTokensError", "GracefulHTTPError"}:
            raise EngineBusy(str(error)) from error
        if ancestry & CLIENT_ERRORS:
            raise RequestRefused(str(error)) from error
        raise EngineFault(f"{type(error).__name__}: {error}") from error
