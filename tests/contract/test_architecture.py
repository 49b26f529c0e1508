"""The pages that lead a newcomer through the code name what is there: files, rooms, and functions
beside their file."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = sorted([ROOT / "penstock", *ROOT.glob("*/penstock_*")])
OTHERS = ("tests", "tools", "benchmarks", "examples", "docker", "helm")
MOST_FILES = 20
CHECKED = (
    *(package if package.parent == ROOT else package.parent for package in PACKAGES),
    *(ROOT / name for name in OTHERS),
)
# The page of decisions tells what was, files that are gone included.
PAGES = [
    ROOT / "README.md",
    *(page for page in sorted(ROOT.glob("docs/*.md")) if page.name != "decisions.md"),
]
# A reader's own files, and places that the page asks a reader to make.
NOT_OURS = {"workers/penstock_workers/lanes/NAME/"}
FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
QUOTED = re.compile(r"`([^`\n]+)`")
PLACE = re.compile(r"[\w./-]+(?:\.py|\.lua)")


def quoted(page: Path) -> list[str]:
    """What a page has in backticks outside of its blocks."""
    return QUOTED.findall(FENCED.sub("", page.read_text()))


def paths() -> set[str]:
    """Every file and folder of the packages, the tests and the tools; folders end with a slash."""
    found = set[str]()
    for folder in CHECKED:
        for path in (folder, *folder.rglob("*")):
            if "__pycache__" not in path.parts:
                found.add(f"/{path.relative_to(ROOT)}{'/' if path.is_dir() else ''}")
    return found


def rooms(package: Path) -> list[str]:
    """The folders of a package that hold code, as a page names them."""
    return sorted(f"{file.parent.relative_to(package)}/" for file in package.rglob("*/__init__.py"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_that_a_page_names_exist(page: Path) -> None:
    """A reader finds each script and module that a page sends them to, by its whole path or by the
    end of it."""
    known = paths()
    named = {name for name in quoted(page) if PLACE.fullmatch(name)} - NOT_OURS
    assert not sorted(
        name for name in named if not any(path.endswith(f"/{name}") for path in known)
    )


def test_the_map_names_every_room() -> None:
    """docs/architecture.md has each room of each package, and none that is gone."""
    assert len(PACKAGES) == 8, "packages were not found: the test would prove nothing"
    named = {name for name in quoted(ROOT / "docs/architecture.md") if name.endswith("/")}
    there = {room for package in PACKAGES for room in rooms(package)}
    assert not sorted(
        room for room in there if not any(f"/{room}".endswith(f"/{name}") for name in named)
    )
    known = paths()
    assert not sorted(
        name for name in named if not any(path.endswith(f"/{name}") for path in known)
    )


@pytest.mark.parametrize(
    "package", [*PACKAGES, ROOT / "benchmarks"], ids=lambda package: package.name
)
def test_no_folder_is_a_corridor(package: Path) -> None:
    """A folder holds so few modules that each is found by its name; with more it is given rooms."""
    folders = [
        package,
        # migrations are a history: it grows, and is read from its end
        *(path for path in package.rglob("*") if path.is_dir() and path.name != "versions"),
    ]
    counts = {str(folder.relative_to(ROOT)): len(list(folder.glob("*.py"))) for folder in folders}
    assert sum(counts.values()) > 0
    assert {name: count for name, count in counts.items() if count > MOST_FILES} == {}


def test_what_the_recipe_of_a_lane_names_in_code_exists() -> None:
    """Who adds a lane by docs/change.md finds the fields, classes and methods that the page names."""
    adding = (ROOT / "docs/change.md").read_text().split("## A lane\n")[1].split("\n## ")[0]
    nodes = [
        node
        for path in (
            "workers/penstock_workers/item/lane.py",
            "workers/penstock_workers/lanes/row.py",
            "producer/penstock_producer/job/lanes.py",
        )
        for node in ast.walk(ast.parse((ROOT / path).read_text()))
    ]
    targets = [
        target
        for node in nodes
        if isinstance(node, ast.Assign | ast.AnnAssign)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
    ]
    there = {target.id for target in targets if isinstance(target, ast.Name)} | {
        node.name
        for node in nodes
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
    }
    named = {name for name in QUOTED.findall(adding) if name.isidentifier()}
    assert named
    assert not sorted(named - there)
