"""Print what the project needs, extras by name: `requirements.py worker s3`.

With ``--beside FILE`` (``pip list --format=freeze`` of another environment), print constraints
instead: the versions that are there stay, and the pins hold for all that is not there.
"""

from __future__ import annotations

import argparse
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path


def requirements(project: Path, extras: Iterable[str]) -> list[str]:
    """Return the base install and these extras. Raises KeyError for an unknown extra."""
    table = tomllib.loads(project.read_text(encoding="utf-8"))["project"]
    found, left, seen = set(table["dependencies"]), list(extras), set[str]()
    while left:
        extra = left.pop()
        if extra in seen:
            continue
        seen.add(extra)
        for entry in table["optional-dependencies"][extra]:
            others = re.fullmatch(
                rf"{table['name']}\[(.+)\]", entry
            )  # an extra that is made of others
            if others is None:
                found.add(entry)
            else:
                left += [name.strip() for name in others[1].split(",")]
    return sorted(found)


def constraints_beside(theirs: str, ours: str) -> Iterator[str]:
    """All pins of ``theirs``, and those of ``ours`` for packages that ``theirs`` lacks."""
    pinned = {_name(line): line for line in theirs.splitlines() if "==" in line}
    yield from pinned.values()
    for line in ours.splitlines():
        if "==" in line and not line.startswith("#") and _name(line) not in pinned:
            yield line


def _name(pin: str) -> str:
    return re.sub(r"[-_.]+", "-", pin.partition("==")[0].partition("[")[0].strip()).lower()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("extras", nargs="*")
    parser.add_argument("--project", type=Path, default=Path("pyproject.toml"))
    parser.add_argument("--constraints", type=Path, default=Path("constraints.txt"))
    parser.add_argument("--beside", type=Path)
    asked = parser.parse_args()
    if asked.beside is None:
        lines: Iterable[str] = requirements(asked.project, asked.extras)
    else:
        lines = constraints_beside(asked.beside.read_text(), asked.constraints.read_text())
    sys.stdout.writelines(f"{line}\n" for line in lines)


if __name__ == "__main__":
    main()
