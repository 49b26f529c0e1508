"""docs/commands.md, from the command line itself and from the settings of each role.

To write it anew: python tests/harness/commands_page.py"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

import typer.main
from pydantic import BaseModel, SecretStr
from pydantic_core import PydanticUndefined

from penstock_cli.flower import FlowerSettings
from penstock_cli.main import COMMANDS, command_line
from penstock_gateway.settings import GatewaySettings
from penstock_producer.job.options import OPTIONS
from penstock_producer.settings import ProducerSettings
from penstock_workers.settings import ProviderSettings, WorkerSettings

PAGE = Path(__file__).parents[2] / "docs" / "commands.md"
HEAD = """# Commands and settings

Every command with its options, and every setting. `penstock COMMAND --help` has the usual options of a command and an example, `--help-all` has all of them, in boxes by what
they are for. The options of a job, which `run`, `submit`, `preview`, `plan` and `schedule add` share, stand once, on [their own page](job-options.md).

"""
TAIL = """
This page is written from the command line and the classes of settings (`tests/harness/commands_page.py`), and a test holds them together.
"""
SETTINGS_HEAD = """## Settings

In `penstock.toml`, or as `PENSTOCK_NAME` in the environment (`__` in the place of a dot: `PENSTOCK_PROVIDERS__OPENAI__RPM=600`); flags win over variables, and variables over
the file. What a setting does stands where its subject does: [stores](stores.md), [providers](providers.md), [lanes](lanes.md), [HTTP](gateway.md), [production](production.md).
"""
# Each with what it adds to the first.
ROLES: Mapping[str, tuple[str, type[BaseModel]]] = {
    "Every process": ("", ProducerSettings),
    "Workers and control": ("", WorkerSettings),
    "A provider": ("providers.NAME.", ProviderSettings),
    "The HTTP doors": ("", GatewaySettings),
    "Flower": ("flower.", FlowerSettings),
}

FIELD: Final = re.compile(r"    ([a-z]\w*): [^#]*?(?:  # (.*))?$")
KINDS: Final[Mapping[type, str]] = {
    str: "text",
    int: "integer",
    float: "number",
    bool: "`true`, `false`",
    Path: "path",
    SecretStr: "text, a secret",
}


def page() -> str:
    """Return the page as it has to be."""
    group: Any = typer.main.get_command(command_line())
    panels: dict[str, list[str]] = {}
    for name, command in COMMANDS.items():
        panels.setdefault(command.panel, []).append("".join(_sections(name, group.commands[name])))
    shown = "".join(f"## {panel}\n\n{''.join(parts)}" for panel, parts in panels.items())
    return HEAD + shown + SETTINGS_HEAD + "".join(_settings()) + TAIL


def _sections(name: str, command: Any) -> Iterator[str]:
    """Yield the section of a command, or those of a group's commands."""
    below = getattr(command, "commands", None)
    if below:
        for one, inner in below.items():
            yield from _sections(f"{name} {one}", inner)
        return
    summary = " ".join(command.help.partition("\n\n")[0].split())
    arguments = [one.metavar or one.name.upper() for one in command.params if _is_argument(one)]
    own = [one for one in command.params if not _is_argument(one) and not _is_shared(one)]
    yield f"### {' '.join(['penstock', name, *arguments])}\n\n{summary}\n\n"
    rows = [_row(one) for one in own if not one.hidden and one.name != "help_all"]
    if rows:
        yield "| option | default | meaning |\n|---|---|---|\n" + "".join(rows) + "\n"
    if len(own) < len(command.params) - len(arguments):
        yield "And the [options of a job](job-options.md).\n\n"


def _is_argument(parameter: Any) -> bool:
    return bool(parameter.param_type_name == "argument")


def _is_shared(parameter: Any) -> bool:
    """Whether it is one of the options of a job, as docs/job-options.md has it."""
    option = OPTIONS.get(parameter.name.removesuffix("_file"))
    return option is not None and (parameter.help or "").startswith(
        (option.help, "A text file that holds it")
    )


def _row(option: Any) -> str:
    names = " ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts))
    taken = f" {option.metavar}" if option.metavar else ""
    default = option.default
    shown = "" if default in (None, False, ()) or callable(default) else f"`{_plain(default)}`"
    return _line(names + taken, shown, option.help or "")


def _settings() -> Iterator[str]:
    seen = set[str]()
    for role, (prefix, settings) in ROLES.items():
        yield f"\n### {role}\n\n| setting | type | default | meaning |\n|---|---|---|---|\n"
        for name, row in _fields(settings, prefix):
            if name not in seen:
                yield row
            seen.add(name)


def _fields(settings: type[BaseModel], prefix: str) -> Iterator[tuple[str, str]]:
    """Yield a row for each setting, those of a table below its own name."""
    said = meanings(settings)
    for name, field in settings.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from _fields(kind, f"{prefix}{name}.")
            continue
        default = field.get_default() if field.default_factory is None else None
        empty = default is PydanticUndefined or default in (None, {}, (), "")
        shown = "" if empty else f"`{_plain(default)}`"
        cells = (f"`{prefix}{name}`", _kind(kind), shown, said.get(name, ""))
        yield prefix + name, _line(*cells)


def meanings(settings: type[BaseModel]) -> Mapping[str, str]:
    """Return what the class and those above it say of each field."""
    return {name: text for one in settings.__mro__[::-1] for name, text in _comments(one)}


def _comments(settings: type) -> Iterator[tuple[str, str]]:
    """Yield what the class says of its fields, in the comments above them and behind them."""
    if not settings.__module__.startswith("penstock"):
        return
    above: list[str] = []
    for line in inspect.getsource(settings).splitlines():
        field = FIELD.match(line)
        if field is None:
            comment = line.strip()
            above = [*above, comment.strip("# ")] if comment.startswith("#") else []
        else:
            yield field[1], " ".join([*above, field[2] or ""]).strip()
            above = []


def _kind(kind: Any) -> str:
    """Return the type of a setting as a person writes it."""
    origin, inner = get_origin(kind), [one for one in get_args(kind) if one is not NoneType]
    if origin in (Union, UnionType):
        return " or ".join(_kind(one) for one in inner)
    if origin is Annotated:
        return _kind(inner[0])
    if origin is Literal:
        return ", ".join(f"`{one}`" for one in inner)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return "table"
    if origin is tuple:
        return "list"
    return KINDS[kind]


def _plain(value: Any) -> str:
    return ", ".join(value) if isinstance(value, tuple) else str(getattr(value, "value", value))


def _line(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |\n"


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
