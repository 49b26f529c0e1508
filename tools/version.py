"""`make version TO=0.2.0`: write the version of Penstock wherever one stands."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
_VERSION: Final = re.compile(r"(\d+\.\d+\.\d+)(?:\.dev(\d+))?")

# Where it stands: files, and the text around it. Helm's own versions are semantic ones, in which
# 0.2.0.dev0 is 0.2.0-dev.0.
PLACES: Final[Sequence[tuple[str, str]]] = (
    ("pyproject.toml", '^version = "{}"$'),
    ("docker/Dockerfile", "^ARG VERSION={}$"),
    ("docker/Dockerfile.embed", "^ARG VERSION={}$"),
    ("docker/Dockerfile.gpu", "^ARG VERSION={}$"),
    ("docker-compose.yml", "{{PENSTOCK_VERSION:-{}}}"),
    ("docker-compose.gpu.yml", "{{PENSTOCK_VERSION:-{}}}"),
    ("docs/containers.md", "penstock:{}"),
    ("docs/kubernetes.md", "penstock:{}"),
    ("helm/penstock/Chart.yaml", '^appVersion: "{}"$'),
)
CHART: Final = ("helm/penstock/Chart.yaml", "^version: {}$")


def semantic(version: str) -> str:
    """Return a version as Helm has it. Raises ValueError for one of another form."""
    found = _VERSION.fullmatch(version)
    if found is None:
        raise ValueError(f"{version!r} is refused: write 0.2.0 or 0.2.0.dev0")
    release, dev = found.groups()
    return release if dev is None else f"{release}-dev.{dev}"


def found(file: str, around: str) -> list[str]:
    """Return the versions that stand in a file."""
    texts = re.finditer(_pattern(around), (ROOT / file).read_text(), re.MULTILINE)
    return [text[2] for text in texts]


def _pattern(around: str) -> str:
    before, after = around.format("\0").replace("{", r"\{").replace("}", r"\}").split("\0")
    return f'({before})([0-9][^\\s"}}]*)({after})'


def write(version: str) -> None:
    """Write ``version`` in every place. Raises ValueError for one of another form."""
    places = [(CHART, semantic(version)), *((place, version) for place in PLACES)]
    for (file, around), text in places:
        path = ROOT / file
        changed, number = re.subn(
            _pattern(around), rf"\g<1>{text}\g<3>", path.read_text(), flags=re.MULTILINE
        )
        if not number:
            raise ValueError(f"{file} has no version after {around!r}")
        path.write_text(changed)


if __name__ == "__main__":
    try:
        write(sys.argv[1])
    except ValueError as error:
        sys.exit(str(error))
