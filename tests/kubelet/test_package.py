"""The package as others find it: its face is enough, and it needs nothing of the project."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

import kubelet

FOLDER = Path(kubelet.__file__).parent
OWN_TESTS = ("conftest.py", "scripted.py")
SOURCES = sorted(
    path for path in FOLDER.glob("*.py") if path.name not in OWN_TESTS and "test_" not in path.name
)
TESTS = FOLDER.parent
MAY_IMPORT = {"kubelet", "aiohttp", "yaml", *sys.stdlib_module_names}


def imported(path: Path) -> set[str]:
    """Modules that a file imports, in full."""
    nodes = list(ast.walk(ast.parse(path.read_text("utf-8"))))
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    return names | {
        node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module
    }


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_it_stands_alone(path: Path) -> None:
    """No file of the kubelet imports the project, its other tests, or a library beside aiohttp and
    yaml."""
    assert {module.partition(".")[0] for module in imported(path)} <= MAY_IMPORT


def test_others_use_its_face() -> None:
    """Tests outside of the package import `kubelet`, and nothing from behind it."""
    outside = [path for path in TESTS.rglob("*.py") if FOLDER not in path.parents]
    users = {
        path.name: imported(path)
        for path in outside
        if "kubelet" in {m.partition(".")[0] for m in imported(path)}
    }
    assert "test_pods_run.py" in users
    assert {
        module for found in users.values() for module in found if module.startswith("kubelet.")
    } == set()
