"""Docstrings are sentences: each test says what it promises, and the product says what is there."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parents[1]
# The docstring of a module, a class or a function that begins as a clause without its sentence.
CLAUSE = re.compile(r'(?:\A|:\n\s+)"""(?:What|How|Where|Who|Which|Whose|Whether|Why)\b')


def silent(path: Path, root: Path = TESTS) -> Iterator[str]:
    """Tests of a file that have no docstring, or one that is no sentence."""
    module = ast.parse(path.read_text("utf-8"))
    classes = [node for node in module.body if isinstance(node, ast.ClassDef)]
    for node in (*module.body, *(method for found in classes for method in found.body)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith(
            "test_"
        ):
            first_line, *_ = [*(ast.get_docstring(node) or "").splitlines(), ""]
            if len(first_line.split()) < 3:
                yield f"{path.relative_to(root)}:{node.lineno} {node.name}"


def test_every_test_says_what_it_promises() -> None:
    """A test without its sentence is named here with its file and line."""
    files = [path for path in TESTS.rglob("test_*.py") if "def test_" in path.read_text("utf-8")]
    assert len(files) > 200
    assert [line for path in files for line in silent(path)] == []


def test_a_test_without_its_sentence_is_found(tmp_path: Path) -> None:
    """Functions, methods and coroutines are looked at, and a docstring of one word is none."""
    file = tmp_path / "test_made_up.py"
    file.write_text(
        'def test_a():\n    """It holds that."""\n\n\nclass TestB:\n    def test_b(self): ...\n\n\n'
        'async def test_c():\n    """Works."""\n'
    )
    assert sorted(found.split()[-1] for found in silent(file, tmp_path)) == ["test_b", "test_c"]


def test_no_docstring_of_the_product_is_a_clause_alone() -> None:
    """A module says its subject in a sentence, a class is a noun, and a function does something;
    "How messages come and go." leaves a reader waiting for the rest."""
    packages = [path.parent for path in TESTS.parent.glob("*/penstock_*/__init__.py")]
    files = [path for package in packages for path in package.rglob("*.py")]
    assert len(files) > 600
    assert [str(path) for path in files if CLAUSE.search(path.read_text("utf-8"))] == []
