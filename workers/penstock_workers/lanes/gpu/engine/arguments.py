"""vLLM's own engine arguments, passed through.

Which there are is asked of the vLLM that is installed, never guessed."""

from __future__ import annotations

import argparse
import dataclasses
import difflib
from collections.abc import Mapping
from typing import Any, Final

from penstock_workers.errors import BadEngineSettings
from penstock_workers.lanes.gpu.engine.adapters import Adapters
from penstock_workers.lanes.gpu.engine.upstream import upstream, version
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
# Tokens between two looks at an unfinished answer: the first shows that its computing has begun,
# and no other is wanted.
FIRST_TOKEN_ONLY: Final = 2**30


def engine_arguments(settings: GpuSettings, adapters: Adapters, *, drain_seconds: float) -> Any:
    """An ``AsyncEngineArgs`` of the installed vLLM.

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
    try:
        return make(**(defaults | _thinking(settings, _typed(settings.engine, make))))
    except (TypeError, ValueError) as error:
        raise BadEngineSettings(f"gpu.engine: vLLM refuses these arguments: {error}") from error


def _thinking(settings: GpuSettings, given: dict[str, Any]) -> dict[str, Any]:
    """With the parser of thinking, so that schemas bind what comes after it."""
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
    """Texts as vLLM's own command line reads them: `8k`, `auto`, `false`, a JSON object.

    Raises BadEngineSettings."""
    if not any(isinstance(value, str) for value in given.values()):
        return dict(given)
    parser = make.add_cli_args(upstream("vllm.utils.argparse_utils", "FlexibleArgumentParser")())
    actions = {
        action.dest: action for action in parser._actions
    }  # argparse has no public list of them
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
    """What is set unless the settings do.

    Sizes only where they are given: else vLLM chooses them, as its batch class."""
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
