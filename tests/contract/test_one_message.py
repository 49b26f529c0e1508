"""docs/one-message.md is what the code does: its files, its functions, and nothing that an item
enters is left out."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from contract import one_item
from servers import RedisServer

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/one-message.md").read_text()
WAY, ASIDE = (
    PAGE.split("## What Redis holds")[0],
    PAGE.split("## Entered, and not needed to follow")[1],
)
FILES_MAX, SCRIPTS_MAX, LINES_MAX = 10, 5, 2_150  # lines of 100 columns
RUN_S = 180.0


def cells(table: str) -> list[list[list[str]]]:
    """Of each row of a table, what each cell has in backticks."""
    rows = [
        line.strip("|").split("|") for line in table.splitlines() if re.match(r"\| [^-#]", line)
    ]
    return [[re.findall(r"`([^`]+)`", cell) for cell in row] for row in rows]


STEPS = [(files, functions) for _, _, files, functions in cells(WAY)]
LISTED = list(dict.fromkeys(file for files, _ in STEPS for file in files))
NOT_NEEDED = [place for _, _, places, _ in cells(ASIDE)[1:] for place in places]
((FILES_SAID, FUNCTIONS_SAID),) = re.findall(r"(\d+) files and (\d+) functions", WAY)
MORE = 1.1  # what a run may enter beyond what the page says


def named_in(file: Path) -> set[str]:
    """Functions, methods, classes and constants of a module, as `name` and `Class.name`."""
    found = set[str]()

    def look(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                found.add(prefix + node.name)
                if isinstance(node, ast.ClassDef):
                    look(node.body, f"{prefix}{node.name}.")
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                found.update(
                    prefix + target.id for target in targets if isinstance(target, ast.Name)
                )

    look(ast.parse(file.read_text()).body, "")
    return found


def test_the_way_is_short() -> None:
    """One message is followed in at most ten Python files and five scripts of 2,100 lines, blank
    ones and comments included."""
    assert len(STEPS) > 5, "the table was not found: the test would prove nothing"
    scripts = [file for file in LISTED if file.endswith(".lua")]
    assert len(LISTED) - len(scripts) <= FILES_MAX
    assert len(scripts) <= SCRIPTS_MAX
    lines = {file: len((ROOT / file).read_text().splitlines()) for file in LISTED}
    assert sum(lines.values()) <= LINES_MAX, lines


@pytest.mark.parametrize(("files", "functions"), STEPS, ids=lambda value: value[0])
def test_what_a_step_names_exists(files: list[str], functions: list[str]) -> None:
    """A reader who opens a step's file finds the functions that the page sends there."""
    assert functions, files
    names = set[str]().union(*(named_in(ROOT / file) for file in files if file.endswith(".py")))
    assert set(functions) <= names


def test_one_real_item_enters_what_the_page_lists(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    """Traced from the feeder's step to its acknowledgement, an item enters the listed functions, no
    file without a role on the page, and no more in whole than the page says."""
    program = [sys.executable, one_item.__file__, redis_server.url, str(tmp_path)]
    done = subprocess.run(program, capture_output=True, text=True, timeout=RUN_S)
    assert done.returncode == 0, done.stderr
    entered = json.loads((tmp_path / one_item.ENTERED).read_text())
    idle = set(entered["idle"])
    on_the_way = {
        code.partition(":")[2]
        for phase in ("feed", "item")
        for code in entered[phase]
        if code not in idle
    }
    files = {
        code.partition(":")[0]
        for phase in ("feed", "item")
        for code in entered[phase]
        if code not in idle
    }
    assert len(files) > 30, "nothing was traced"
    whole = {code for phase in ("feed", "item") for code in entered[phase]} - idle
    assert len(files) <= int(FILES_SAID) * MORE, "the page says fewer files"
    assert len(whole) <= int(FUNCTIONS_SAID) * MORE, "the page says fewer functions"

    ever = {code.partition(":")[0] for phase in entered.values() for code in phase}
    aside = {name for name in NOT_NEEDED if any(file.startswith(name) for file in ever)}
    assert not sorted(set(NOT_NEEDED) - aside), "listed as entered, and was not"
    unlisted = {
        file for file in files - set(LISTED) if not any(file.startswith(name) for name in aside)
    }
    assert not sorted(unlisted), "entered, and on neither list"

    codes = idle.union(entered["feed"], entered["item"])
    reached = {code.partition(":")[2].partition(".<locals>")[0] for code in codes}
    functions = {
        name for _, names in STEPS for name in names if not name.split(".")[-1][0].isupper()
    }
    assert not sorted(functions - reached), "on the way, and not entered"

    called = {
        name.partition(".")[2]
        for name in on_the_way
        if re.fullmatch(r"(Lease|Item|Fleet)Scripts\.[a-z_]+", name)
    }
    assert called | {"claim"} == {Path(file).stem for file in LISTED if file.endswith(".lua")}
