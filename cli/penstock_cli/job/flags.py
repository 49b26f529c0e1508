"""The flags of the job commands, made from the table of options in the producer: none is spelled here."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from penstock_cli.job.options import JOB, PROVIDER
from penstock_producer.job.options import OPTIONS, FlagForm, Option

JobFlags = Mapping[str, Any]
"""The job options as they were typed, by the spec's field. One that is left out is None, or not there."""

_TYPES: Mapping[FlagForm, Any] = {
    FlagForm.WHOLE: int,
    FlagForm.NUMBER: float,
    FlagForm.PAIRS: list[str],
    FlagForm.FILE: Path,
    FlagForm.SWITCH: bool,
}  # the others are text, read by jobspec.py


def takes_job_flags(command: Callable[..., None]) -> Callable[..., None]:
    """``command`` with the job flags after its own first parameters; it gets them as its keyword ``flags``."""

    def run(**given: Any) -> None:
        flags = {field: given.pop(field) for field in OPTIONS}
        command(**given, flags=flags)

    own = inspect.signature(command, eval_str=True).parameters
    kept = [parameter for name, parameter in own.items() if name != "flags"]
    first = [parameter for parameter in kept if parameter.default is inspect.Parameter.empty]
    parameters = [*first, *map(_parameter, OPTIONS.values()), *[one for one in kept if one not in first]]
    run.__name__, run.__doc__, run.__module__ = command.__name__, command.__doc__, command.__module__
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # what Typer reads
    return run


def _parameter(option: Option) -> inspect.Parameter:
    kind, default = _TYPES.get(option.form, str), _shown_default(option)
    names = (f"--{option.name}", f"--no-{option.name}") if option.form is FlagForm.SWITCH else (f"--{option.name}",)
    flag = typer.Option(
        "/".join(names),
        help=option.help + (" Repeatable." if option.form is FlagForm.PAIRS else ""),
        metavar=option.metavar,
        show_default=option.form is not FlagForm.SWITCH,
        rich_help_panel=PROVIDER if option.field == "provider" else JOB,
    )
    annotation = Annotated[kind if default is not None else kind | None, flag]  # type: ignore[valid-type]  # made, not read
    return inspect.Parameter(
        option.field, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=default, annotation=annotation
    )


def _shown_default(option: Option) -> Any:
    return None if option.left_to_lane else option.typed or option.default
