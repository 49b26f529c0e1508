"""The compose files as tests read them: variables filled in, anchors merged, each service with what
it would run."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from images.image_programs import ENTRYPOINT

ROOT = Path(__file__).parents[2]
FILES = (ROOT / "docker-compose.yml", ROOT / "docker-compose.gpu.yml")
EXAMPLE = ROOT / ".env.example"

_VARIABLE = re.compile(r"\$\{(\w+)(?:(:[-?])([^}]*))?\}")
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}


class VariableMissing(Exception):
    """A variable that the file insists on is not set; the message is the file's own."""


@dataclass(frozen=True)
class Service:
    """One service of a file."""

    name: str
    file: str
    fields: Mapping[str, Any]

    @property
    def profiles(self) -> set[str]:
        return set(self.fields.get("profiles", ()))

    @property
    def environment(self) -> dict[str, str]:
        return {name: str(value) for name, value in self.fields.get("environment", {}).items()}

    @property
    def is_ours(self) -> bool:
        return str(self.fields["image"]).startswith("penstock")

    @property
    def argv(self) -> list[str]:
        """Entry point and command, as the container's first process gets them."""
        entrypoint = self.fields.get("entrypoint") or (ENTRYPOINT if self.is_ours else ())
        return [*entrypoint, *self.fields.get("command", ())]

    def seconds(self, field: str) -> float:
        text = str(self.fields.get(field, "10s"))  # Docker's own default for stop_grace_period
        return float(text[:-1]) * _SECONDS[text[-1]]

    def bind_sources(self) -> Iterator[Path]:
        """Folders and files of the repository that the service mounts."""
        for volume in self.fields.get("volumes", ()):
            source = volume.split(":")[0]
            if source.startswith("./"):
                yield ROOT / source


def example_environment() -> dict[str, str]:
    """What the example sets, with passwords of the reader's own in the place of its
    placeholders."""
    text = EXAMPLE.read_text().replace("CHANGE_ME", "0123456789abcdef0123456789abcdef")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return dict(line.split("=", 1) for line in lines)


def raw(file: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(file.read_text())
    return loaded


def services(file: Path, environment: Mapping[str, str] | None = None) -> dict[str, Service]:
    """All services of one file. Raises VariableMissing."""
    given = example_environment() if environment is None else environment
    found = filled(raw(file)["services"], given)
    return {name: Service(name, file.name, fields) for name, fields in found.items()}


def filled(value: Any, environment: Mapping[str, str]) -> Any:
    """With ``${NAME}``, ``${NAME:-default}``, ``${NAME:?message}`` and ``$$`` replaced, as compose
    does."""
    if isinstance(value, dict):
        return {name: filled(inner, environment) for name, inner in value.items()}
    if isinstance(value, list):
        return [filled(inner, environment) for inner in value]
    if not isinstance(value, str):
        return value
    return _VARIABLE.sub(lambda match: _value(match, environment), value).replace("$$", "$")


def _value(match: re.Match[str], environment: Mapping[str, str]) -> str:
    name, how, text = match.groups()
    found = environment.get(name, "")
    if found or not how:
        return found
    if how == ":?":
        raise VariableMissing(f"{name}: {text}")
    return str(text)
