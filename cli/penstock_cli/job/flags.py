"""The flags of commands, made from tables: none is spelled here.

Those of a job come from the table of options in the producer, those of a provider and of a command
from a dataclass.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from penstock_cli.command_help import HelpAll
from penstock_cli.completion import values_of
from penstock_cli.job.given import GivenJob, given_job
from penstock_cli.job.options import Source, SpecFile
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


_GIVEN = "given"


def takes_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Return ``command`` with single flags in the place of each parameter that stands for several.

    Its parameter ``given`` stands for SOURCE and the options of a job. SOURCE may be left out,
    because a spec file has it or the documents are outcomes of another job. A parameter whose type
    is a dataclass stands for the dataclass's fields, `Annotated` with what each flag is.
    """
    parameters: list[inspect.Parameter] = []
    groups: dict[str, tuple[type[Any], list[str]]] = {}
    for own in inspect.signature(command, eval_str=True).parameters.values():
        kind = own.annotation
        if own.name == _GIVEN:
            parameters += [_CONTEXT, _SOURCE, _SPEC_FILE, *_job_parameters()]
        elif is_dataclass(kind) and isinstance(kind, type):
            flags = list(_flags_of(kind))
            groups[own.name] = kind, [flag.name for flag in flags]
            parameters += flags
        else:
            parameters.append(own)
    parameters.append(_made("help_all", False, HelpAll))

    def run(**typed: Any) -> None:
        del typed["help_all"]  # its callback has answered
        given = {_GIVEN: _given(typed)} if "context" in typed else {}
        made = {
            name: kind(**{field: typed.pop(field) for field in flags})
            for name, (kind, flags) in groups.items()
        }
        command(**typed, **made, **given)

    run.__name__, run.__doc__, run.__module__ = (
        command.__name__,
        command.__doc__,
        command.__module__,
    )
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]  # what Typer reads
        [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in parameters]
    )
    return run


def _given(typed: dict[str, Any]) -> GivenJob:
    """Take the source and the options of a job out of what was typed."""
    context = typed.pop("context")
    flags = {field: typed.pop(field) for field in OPTIONS}
    files = {
        field: path for field in _FROM_FILE if (path := typed.pop(f"{field}_file")) is not None
    }
    names = frozenset(name for name in OPTIONS if _is_typed(context, name))
    return given_job(typed.pop("source"), typed.pop("spec_file"), flags, names, files)


def _flags_of(group: type[Any]) -> Iterator[inspect.Parameter]:
    types = get_type_hints(group, include_extras=True)
    for field in fields(group):
        default = inspect.Parameter.empty if field.default is MISSING else field.default
        yield _made(field.name, default, types[field.name])


def _job_parameters() -> Iterator[inspect.Parameter]:
    for option in OPTIONS.values():
        yield _parameter(option)
        if option.from_file:
            flag = typer.Option(
                f"--{option.name}-file",
                metavar="FILE",
                help=f"A text file that holds it: --{option.name}.",
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
        autocompletion=values_of(option.field),
        show_default=option.form is not FlagForm.SWITCH,
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
