"""Both kinds of engine call vLLM in these ways.

These are prompts, options and errors, in vLLM's terms and in Penstock's. vLLM's own engine
arguments are passed through. Which there are is asked of the vLLM that is installed, never guessed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import difflib
import functools
from collections.abc import Callable, Mapping
from typing import Any, Final

from penstock_producer.reporting.text import one_line
from penstock_workers.errors import BadEngineSettings, EngineNotStarted
from penstock_workers.failpoints import PlayedDeviceError
from penstock_workers.lanes.gpu.engine.adapters import Adapters
from penstock_workers.lanes.gpu.engine.engines import (
    EngineBusy,
    EngineCall,
    EngineDied,
    EngineFault,
    RequestRefused,
    upstream,
    version,
)
from penstock_workers.lanes.gpu.settings import GpuSettings

# the engine outlives our own drain by this, so that a signal to the whole group ends nothing early
SHUTDOWN_MARGIN_S = 15

SWITCHES: Final = {
    "true": True,
    "yes": True,
    "on": True,
    "1": True,
    "false": False,
    "no": False,
    "off": False,
    "0": False,
}
SAID_CHARS: Final = 400  # of an error of vLLM's: one line that a person reads
# Tokens between two looks at an unfinished answer: the first shows that its computing has begun,
# and no other is wanted.
FIRST_TOKEN_ONLY: Final = 2**30


def engine_arguments(settings: GpuSettings, adapters: Adapters, *, drain_seconds: float) -> Any:
    """Make an ``AsyncEngineArgs`` of the installed vLLM.

    Raises BadEngineSettings, naming the argument and the nearest one."""
    make = upstream("vllm", "AsyncEngineArgs")
    known = {field.name for field in dataclasses.fields(make)}
    for name in settings.engine:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = (
                f"did you mean {close[0]!r}?"
                if close
                else "see `vllm serve --help=all` for what there is"
            )
            raise BadEngineSettings(
                f"gpu.engine.{name}: this vLLM ({version()}) has no such argument; {hint}"
            )
    defaults = {
        name: value
        for name, value in _defaults(settings, adapters, drain_seconds).items()
        if name in known
    }
    with _refused(settings):
        return make(**(defaults | _thinking(settings, _typed(settings.engine, make))))


def _thinking(settings: GpuSettings, given: dict[str, Any]) -> dict[str, Any]:
    """Add the parser of thinking, so that schemas bind what comes after it."""
    if settings.reasoning_parser is None:
        return given
    named, outputs = (
        {"reasoning_parser": settings.reasoning_parser},
        given.get("structured_outputs_config"),
    )
    if isinstance(outputs, Mapping):  # vLLM takes the name beside an object of its own only
        return given | {"structured_outputs_config": {**named, **outputs}}
    return named | given


def _typed(given: Mapping[str, Any], make: Any) -> dict[str, Any]:
    """Read texts as vLLM's own command line does: `8k`, `auto`, `false`, a JSON object.

    Raises BadEngineSettings."""
    if not any(isinstance(value, str) for value in given.values()):
        return dict(given)
    parser = make.add_cli_args(upstream("vllm.utils.argparse_utils", "FlexibleArgumentParser")())
    # argparse has no public list of them
    actions = {action.dest: action for action in parser._actions}
    return {
        name: _read(name, value, actions[name])
        if isinstance(value, str) and name in actions
        else value
        for name, value in given.items()
    }


def _read(name: str, text: str, action: argparse.Action) -> Any:
    if isinstance(action, argparse.BooleanOptionalAction):
        if text.lower() in SWITCHES:
            return SWITCHES[text.lower()]
        raise BadEngineSettings(f"gpu.engine.{name} = {text!r}: give true or false")
    read = action.type if callable(action.type) else str
    try:
        value = read(text)
    except (argparse.ArgumentTypeError, TypeError, ValueError) as error:
        raise BadEngineSettings(
            f"gpu.engine.{name} = {text!r}: {error}; give it as `vllm serve --{name}` takes it"
        ) from error
    if action.choices is not None and value not in action.choices:
        raise BadEngineSettings(
            f"gpu.engine.{name} = {text!r}: give one of "
            f"{', '.join(str(choice) for choice in action.choices)}"
        )
    return value


def _defaults(settings: GpuSettings, adapters: Adapters, drain_seconds: float) -> dict[str, Any]:
    """Return the arguments that hold unless the settings say otherwise.

    Sizes are only there where they are given: else vLLM chooses them, as its batch class does."""
    sizes = {
        "max_num_seqs": settings.max_num_seqs,
        "max_num_batched_tokens": settings.max_num_batched_tokens,
    }
    chosen = {
        "model": settings.model,
        "scheduling_policy": "priority",
        "shutdown_timeout": round(drain_seconds + SHUTDOWN_MARGIN_S),
        "disable_log_stats": False,
        "stream_interval": FIRST_TOKEN_ONLY,
    }
    return (
        chosen
        | {name: size for name, size in sizes.items() if size is not None}
        | adapters.arguments()
    )


# Faults of the request; before 0.3x these had no common ancestor but ValueError, and some not even
# that.
CLIENT_ERRORS = frozenset(
    {"VLLMClientError", "VLLMNotFoundError", "VLLMUnprocessableEntityError", "ValueError"}
)


def prompt(call: EngineCall, model_config: Any) -> Any:
    """Return the prompt in the form of vLLM's own renderer, where this vLLM has one.

    Else vLLM would render it again, in another thread."""
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


def keep_variables() -> None:
    """Have vLLM read its environment variables once, now that its engine is up.

    As its own engine does in the engine's process; else it reads some anew for each token."""
    with contextlib.suppress(BadEngineSettings):  # an older one cannot
        upstream("vllm.envs", "enable_envs_cache")()


def is_pooling(params: Any) -> bool:
    return type(params).__name__ == "PoolingParams"


def options(
    settings: GpuSettings, arguments: Any, note: Callable[[Any, Any, int], None]
) -> dict[str, Any]:
    """Return what both kinds of engine are made from.

    These are vLLM's config of the arguments, and a logger that reports each step. It is offline
    use, so that defaults are those of vLLM's own batch class. The model's files decide whether it
    pools, so that is known with the config only: a pooled answer has no tokens, and vLLM's engine
    ends where it is to show only the first. Raises BadEngineSettings.
    """
    context = upstream("vllm.usage.usage_lib", "UsageContext").LLM_CLASS
    with _refused(settings):
        config = arguments.create_engine_config(context)
    if config.model_config.runner_type == "pooling":
        config.scheduler_config.stream_interval = 1
    return {
        "vllm_config": config,
        "usage_context": context,
        "stat_loggers": [_tap(note)],
        "disable_log_stats": arguments.disable_log_stats,
    }


def _tap(note: Callable[[Any, Any, int], None]) -> Any:
    """Make a class of stat loggers, whose ``record`` vLLM calls once per step of each engine.

    It stands in the place of vLLM's own Prometheus logger, which is read nowhere in a worker, and
    which takes a twelfth of the worker's time."""
    base = upstream("vllm.v1.metrics.loggers", "PrometheusStatLogger")

    def record(
        _: object, scheduler_stats: Any, iteration_stats: Any, *__: Any, **more: Any
    ) -> None:
        note(scheduler_stats, iteration_stats, more.get("engine_idx") or 0)

    public = (name for name in dir(base) if not name.startswith("_"))
    others = {name: _nothing for name in public if callable(getattr(base, name))}
    return type("Tap", (base,), {**others, "__init__": _nothing, "record": record})


def _nothing(*_: object, **__: object) -> None:
    """Do nothing: the worker has metrics of its own."""


@contextlib.contextmanager
def explained(settings: GpuSettings) -> Any:
    """Raise what ends the start of an engine as EngineNotStarted."""
    try:
        yield
    except BadEngineSettings:
        raise
    except Exception as error:
        raise EngineNotStarted(
            f"the engine for gpu.model = {settings.model!r} does not start: "
            f"{type(error).__name__}: {_said(error)}; its own log above this line says why (too "
            "little memory is the usual reason)"
        ) from error


@contextlib.contextmanager
def _refused(settings: GpuSettings) -> Any:
    """Raise what vLLM has against the model or the arguments as BadEngineSettings."""
    try:
        yield
    except BadEngineSettings:
        raise
    except Exception as error:
        given = ", ".join(f"{name} = {value!r}" for name, value in settings.engine.items())
        raise BadEngineSettings(
            f"vLLM refuses gpu.model = {settings.model!r}"
            f"{f' with gpu.engine {given}' if given else ''}: {_said(error)}; correct it"
        ) from error


def _said(error: Exception) -> str:
    """Return the words of an error on one line; of pydantic's, the first thing that it found."""
    found: Callable[[], Any] | None = getattr(error, "errors", None)
    said = str(error) if found is None else found()[0]["msg"]
    return one_line(said, SAID_CHARS).rstrip(".")


@contextlib.contextmanager
def failpoint_as_fault() -> Any:
    """Report an error of the device that a failpoint plays as the engine would."""
    try:
        yield
    except PlayedDeviceError as error:
        raise EngineFault(str(error)) from error


@contextlib.contextmanager
def translated() -> Any:
    """Raise vLLM's exceptions as this module's.

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
