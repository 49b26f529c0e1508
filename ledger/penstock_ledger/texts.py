"""Sentences that name what a reader can do: an option, a parameter, a setting, a command.

A terminal has flags and commands, HTTP has fields and requests, a page has forms. So the sentence
holds the action as a value, and each surface writes it in its own way:
`penstock_producer.reporting.advice`. As a plain string, which is what logs and Python get, it names
fields and settings by their names.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Self

__all__ = ["Action", "Command", "Replay", "Run", "SetOption", "SetParam", "SetSetting", "Text"]


class Command(StrEnum):
    """The commands of Penstock that texts name."""

    CONTROL = "control"
    DEAD_LETTERS = "dlq list"
    DOCTOR = "doctor"
    JOBS = "jobs"
    LIFT = "limits --lift"
    MAKE_KEY = "keys create"
    MIGRATE = "migrate"
    REPORT = "report"
    RESULTS = "results"
    RESUME = "resume"
    SCHEDULES = "schedule list"
    SERVE = "serve"
    STATUS = "status"
    UNSCHEDULE = "schedule remove"
    WORKER = "worker"


def _with(name: str, value: Any) -> str:
    return name if value is None else f"{name}={value}"


@dataclass(frozen=True, slots=True)
class SetOption:
    """Give the job a value, or another one, of one of its options."""

    field: str
    value: Any = None

    def __str__(self) -> str:
        return _with(self.field, self.value)


@dataclass(frozen=True, slots=True)
class SetParam:
    """Give its requests a parameter, or another value of it."""

    name: str
    value: Any = None

    def __str__(self) -> str:
        return _with(f"params.{self.name}", self.value)


@dataclass(frozen=True, slots=True)
class Replay:
    """Send dead letters again, where it has a ``name`` with another value of it."""

    name: str = ""

    def __str__(self) -> str:
        return f"a replay with another {self.name}" if self.name else "a replay"


@dataclass(frozen=True, slots=True)
class SetSetting:
    """Change a setting of the workers or of a provider."""

    name: str

    def __str__(self) -> str:
        return f"the setting {self.name}"


@dataclass(frozen=True, slots=True)
class Run:
    """Run a command of Penstock, or do what it does by another door.

    ``arguments`` are typed behind it, options among them by their flags.
    """

    command: Command
    arguments: tuple[str | SetOption, ...] = ()

    def __str__(self) -> str:
        names = (one for one in self.arguments if isinstance(one, str))
        return f"`{shlex.join(('penstock', *self.command.split(), *names))}`"


Action = SetOption | SetParam | Replay | SetSetting | Run


class Text(str):
    """A sentence, or a part of one, made of words and actions."""

    __slots__ = ("parts",)
    parts: tuple[str | Action, ...]

    def __new__(cls, *parts: str | Action) -> Self:
        """Put parts together; one that is a text itself gives its own parts."""
        flat: list[str | Action] = []
        for part in parts:
            flat += part.parts if isinstance(part, Text) else (part,)
        made = super().__new__(cls, "".join(map(str, flat)))
        made.parts = tuple(flat)
        return made

    def __add__(self, other: str) -> Self:
        return type(self)(self, other)

    def join(self, texts: Iterable[str], /) -> Self:
        parts = [part for text in texts for part in (self, text)]
        return type(self)(*parts[1:])

    def __radd__(self, other: str) -> Self:
        return type(self)(other, self)
