"""What others may import of the quota's package, and that its own modules form no circle."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import penstock_ratelimit
from penstock_ratelimit import for_penstock

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "ratelimit/penstock_ratelimit"
OTHERS = ("producer", "workers", "ledger", "gateway", "cli", "examples")
OPEN_TO_ALL = {"penstock_ratelimit", "penstock_ratelimit.testing"}
MOST_FILES = 15


def imports(file: Path) -> Iterator[tuple[str, str]]:
    """(module, name) of everything that a file imports from the quota, inside functions and for types as well."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "penstock_ratelimit":
            for alias in node.names:
                yield node.module or "", alias.name
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "penstock_ratelimit":
                    yield alias.name, ""


def test_nobody_reaches_behind_the_face() -> None:
    """Other packages import what the face and `for_penstock` declare, and no module by its place."""
    found = 0
    for folder in OTHERS:
        for file in sorted((ROOT / folder).rglob("*.py")):
            for module, name in imports(file):
                found += 1
                if module == "penstock_ratelimit.for_penstock":
                    assert folder != "examples", f"{file.relative_to(ROOT)}: examples show what is public"
                    assert name in for_penstock.__all__, f"{file.relative_to(ROOT)} imports {name}: declare it"
                else:
                    assert module in OPEN_TO_ALL, f"{file.relative_to(ROOT)} reaches into {module}"
                    assert module != "penstock_ratelimit" or name in penstock_ratelimit.__all__, (file, name)
    assert found > 20, "too few imports found: the test would prove nothing"


def test_what_is_declared_for_penstock_is_used() -> None:
    """A name that no other package imports any more leaves `for_penstock`."""
    used = {
        name
        for folder in OTHERS
        for file in (ROOT / folder).rglob("*.py")
        for module, name in imports(file)
        if module == "penstock_ratelimit.for_penstock"
    }
    assert used == set(for_penstock.__all__)


def module_of(file: Path) -> str:
    parts = file.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def test_modules_form_no_circle() -> None:
    """Type-only imports and those inside functions count: each module can be read before those that use it."""
    files = {module_of(file): file for file in PACKAGE.rglob("*.py")}
    assert len(files) > 30, "too few modules found: the test would prove nothing"
    needs = {
        name: {needed for module, what in imports(file) for needed in (f"{module}.{what}", module) if needed in files}
        for name, file in files.items()
    }
    while needs:
        ready = {name for name, needed in needs.items() if not needed & set(needs)}
        assert ready, f"a circle among {sorted(needs)}"
        needs = {name: needed for name, needed in needs.items() if name not in ready}


def test_no_folder_is_a_corridor() -> None:
    """A folder has so few files that each can be found by its name."""
    folders = [folder for folder in (PACKAGE, *PACKAGE.rglob("*")) if folder.is_dir()]
    counts = {folder.name: len(list(folder.glob("*.py"))) for folder in folders}
    assert sum(counts.values()) > 30
    assert {name: count for name, count in counts.items() if count > MOST_FILES} == {}
