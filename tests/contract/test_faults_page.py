"""docs/faults.md and docs/security.md name tests that exist, and docs/faults.md every row that
there is."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from penstock_cli.chaos.table import FAULTS

TESTS = Path(__file__).parents[1]
DOCS = TESTS.parent / "docs"
PAGE = (DOCS / "faults.md").read_text("utf-8")
ATTACKS = (DOCS / "security.md").read_text("utf-8")
NAMED = sorted(set(re.findall(r"`([\w/]+\.py)::(\w+)`", PAGE + ATTACKS)))


@cache
def names_in(path: str) -> frozenset[str]:
    tree = ast.parse((TESTS / path).read_text("utf-8"))
    return frozenset(
        node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )


@pytest.mark.parametrize("path", sorted({path for path, _ in NAMED}))
def test_every_named_test_exists(path: str) -> None:
    """A promise on the page is held by a test of that name in that file."""
    assert {name for named, name in NAMED if named == path} <= names_in(path)


def test_every_attack_has_its_test() -> None:
    """A row of the table of attacks without a test would be a claim."""
    rows = (
        ATTACKS.partition("\n## Attacks")[2]
        .partition("\n## ")[0]
        .split("|---|---|---|\n")[1]
        .strip()
        .splitlines()
    )
    assert len(rows) > 10
    assert [
        row for row in rows if row.count("|") != 4 or "::" not in row.rpartition(" | ")[2]
    ] == []


def test_the_rows_of_the_table_are_those_of_the_page() -> None:
    """Each fault that is done to fleets is on the page, and the page claims none that is not
    done."""
    claimed = {name.strip() for name in re.findall(r"row of faults: ([\w -]+)", PAGE)}
    assert claimed == {fault.name for fault in FAULTS}


@pytest.mark.parametrize(
    ("title", "first", "last"), [("Faults of", 1, 39), ("Files", 1, 25), ("Specs", 26, 31)]
)
def test_no_row_is_left_out(title: str, first: int, last: int) -> None:
    """Every row of the catalogue is there in its order, held, named as not held, or said not to
    apply."""
    section = PAGE.partition(f"\n## {title}")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (\d+)[a-z]? \| .+ \| .+ \| (.*) ?\|$", section, re.MULTILINE)
    numbers = [int(number) for number, _ in rows]
    assert sorted(set(numbers)) == list(range(first, last + 1))
    assert numbers == sorted(numbers)
    for line in re.findall(r"^\| \d.*$", section, re.MULTILINE):
        assert re.search(r"::|row of faults|Later|\*\*[Nn]ot held|Does not apply", line), line
