"""The quota's package from outside: what it declares for Penstock is used, its examples are public,
its folders are small."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import penstock_ratelimit
from penstock_ratelimit import for_penstock

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "ratelimit/penstock_ratelimit"
OTHERS = ("producer", "workers", "ledger", "gateway", "cli")
MOST_FILES = 15


def imports(file: Path) -> Iterator[tuple[str, str]]:
    """(module, name) of everything that a file imports from the quota, inside functions and for
    types as well."""
    for node in ast.walk(ast.parse(file.read_text())):
        if (
            isinstance(node, ast.ImportFrom)
            and (node.module or "").split(".")[0] == "penstock_ratelimit"
        ):
            for alias in node.names:
                yield node.module or "", alias.name
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "penstock_ratelimit":
                    yield alias.name, ""


def test_examples_use_public_names_only() -> None:
    """What an example imports is what any service may import."""
    used = {pair for file in (ROOT / "examples").rglob("*.py") for pair in imports(file)}
    assert used, "no imports found: the test would prove nothing"
    assert used <= {("penstock_ratelimit", name) for name in penstock_ratelimit.__all__}


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


def test_no_folder_is_a_corridor() -> None:
    """A folder has so few files that each can be found by its name."""
    folders = [folder for folder in (PACKAGE, *PACKAGE.rglob("*")) if folder.is_dir()]
    counts = {folder.name: len(list(folder.glob("*.py"))) for folder in folders}
    assert sum(counts.values()) > 20
    assert {name: count for name, count in counts.items() if count > MOST_FILES} == {}
