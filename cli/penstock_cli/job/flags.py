"""The flags of the job commands, made from the table of options in the producer: none is spelled
here."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from penstock_cli.job.given import given_job
from penstock_cli.job.options import JOB, PROVIDER, Source, SpecFile
from penstock_producer.job.options import OPTIONS, FlagForm, Option

_TYPES: Mapping[FlagForm, Any] = {
    FlagForm.WHOLE: int,
    FlagForm.NUMBER: float,
    FlagForm.PAIRS: list[str],
    FlagForm.LIST: list[str],
    FlagForm.FILE: Path,
    FlagForm.LINES: Path,
    FlagForm.SWITCH: bool,
}  # the others are text, read by jobspec.py
_FROM_FILE = tuple(option.field for option in OPTIONS.values() if option.from_file)


def takes_job_flags(command: Callable[..., None]) -> Callable[..., None]:
    """``command`` with SOURCE and the job flags in the place of its parameter ``given``.

    SOURCE may be left out, because a spec file has it or the documents are outcomes of another job.
    """

    def run(context: typer.Context, **typed: Any) -> None:
        flags = {field: typed.pop(field) for field in OPTIONS}
        files = {
            field: path for field in _FROM_FILE if (path := typed.pop(f"{field}_file")) is not None
        }
        names = frozenset(name for name in OPTIONS if _is_typed(context, name))
        given = given_job(typed.pop("source"), typed.pop("spec_file"), flags, names, files)
        command(**typed, given=given)

    own = list(inspect.signature(command, eval_str=True).parameters.values())
    place = [parameter.name for parameter in own].index("given")
    parameters = [
        _CONTEXT,
        *own[:place],
        _SOURCE,
        _SPEC_FILE,
        *_job_parameters(),
        *own[place + 1 :],
    ]
    run.__name__, run.__doc__, run.__module__ = (
        command.__name__,
        command.__doc__,
        command.__module__,
    )
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # what Typer reads
    return run


def _job_parameters() -> Iterator[inspect.Parameter]:
    for option in OPTIONS.values():
        yield _parameter(option)
        if option.from_file:
            flag = typer.Option(
                f"--{option.name}-file",
                metavar="FILE",
                help=f"A text file that holds it: --{option.name}.",
                rich_help_panel=JOB,
            )
            yield _made(f"{option.field}_file", None, Annotated[Path | None, flag])


def _is_typed(context: typer.Context, name: str) -> bool:
    origin = context.get_parameter_source(name)
    return origin is not None and origin.name != "DEFAULT"


def _parameter(option: Option) -> inspect.Parameter:
    kind, default = _TYPES.get(option.form, str), _shown_default(option)
    names = (
        (f"--{option.name}", f"--no-{option.name}")
        if option.form is FlagForm.SWITCH
        else (f"--{option.name}",)
    )
    flag = typer.Option(
        "/".join(names),
        help=option.help
        + (" Repeatable." if option.form in (FlagForm.PAIRS, FlagForm.LIST) else ""),
        metavar=option.metavar,
        show_default=option.form is not FlagForm.SWITCH,
        rich_help_panel=PROVIDER if option.field == "provider" else JOB,
    )
    annotation = Annotated[kind if default is not None else kind | None, flag]  # type: ignore[valid-type]  # made, not read
    return _made(option.field, default, annotation)


def _made(name: str, default: Any, annotation: Any) -> inspect.Parameter:
    return inspect.Parameter(
        name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=default, annotation=annotation
    )


_CONTEXT = _made("context", inspect.Parameter.empty, typer.Context)
_SOURCE = _made("source", None, Source)
_SPEC_FILE = _made("spec_file", None, SpecFile)


def _shown_default(option: Option) -> Any:
    return None if option.left_to_lane else option.typed or option.default
