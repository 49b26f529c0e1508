"""Texts name options and commands as values: no sentence outside the command line has a flag in
it, and what they name exists."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any, Final

import pytest
from typer.main import get_command

from penstock_cli.main import command_line
from penstock_ledger.texts import (
    Action,
    Command,
    Replay,
    Run,
    SetOption,
    SetParam,
    SetSetting,
    Text,
)
from penstock_producer.job.options import OPTIONS
from penstock_producer.reporting.advice import FIXES, on_page, on_terminal, over_http

ROOT: Final = Path(__file__).parents[2]
CODE: Final = ("producer", "ledger", "gateway", "workers", "ratelimit")
# The renderer of the terminal, and a command of its own that is no `penstock …`.
WRITERS: Final = {
    "producer/penstock_producer/reporting/advice.py",
    "ledger/penstock_ledger/texts.py",
    "workers/penstock_workers/celery_app/probe.py",
    # what releases before have stored
    "ledger/penstock_ledger/old_reasons.py",
}
# Flags of other programs, and log lines, which operators read in a terminal.
FOREIGN: Final = {
    "--clear-content-encoding": "gcloud",
    "--content-encoding": "az",
    "--query-gpu": "nvidia-smi",
    "--format=csv,noheader": "nvidia-smi",
    "--gpus all": "docker",
    "--shm-size": "docker",
    "--help=all": "vllm",
    "--api-key": "vllm",
    "-P/--pool": "celery",
    "--auto-truncate": "text-embeddings-inference",
    "--max-client-batch-size": "text-embeddings-inference",
    "then: penstock limits --lift %s": "a log line",
    "`penstock results` writes it at any time": "a log line",
}
FLAG: Final = re.compile(r"(?<![\w-])--[a-z]")


@pytest.fixture(scope="module")
def penstock() -> Any:
    return get_command(command_line())


def texts_of(file: Path) -> Iterator[tuple[int, str]]:
    """Yield each string of a module that is no docstring, and the line it begins in."""
    tree = ast.parse(file.read_text())
    docstrings = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    parts = {
        id(part)
        for node in ast.walk(tree)
        if isinstance(node, ast.JoinedStr)
        for part in node.values
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            words = (part.value if isinstance(part, ast.Constant) else "{}" for part in node.values)
            yield node.lineno, "".join(map(str, words))
        elif isinstance(node, ast.Constant) and id(node) not in docstrings | parts:
            yield node.lineno, str(node.value)


def modules() -> list[Path]:
    return sorted(chain.from_iterable((ROOT / folder).rglob("*.py") for folder in CODE))


def test_no_sentence_outside_the_command_line_names_a_flag_or_a_command(penstock: Any) -> None:
    """A sentence holds the action instead, and each surface writes it."""
    command = re.compile(rf"\bpenstock (?:{'|'.join(penstock.commands)})\b(?! [1\d])")
    found, excused = [], set()
    for file in modules():
        place = str(file.relative_to(ROOT))
        if place in WRITERS:
            continue
        for line, text in texts_of(file):
            for words in FOREIGN:
                if words in text:
                    excused.add(words)
                    text = text.replace(words, "")
            if FLAG.search(text) or command.search(text):
                found.append(f"{place}:{line}: {text}")
    assert not found, "\n".join(["hold the action as a value: penstock_ledger.texts", *found])
    assert excused == set(FOREIGN), f"not needed any more: {set(FOREIGN) - excused}"


def named(kind: str) -> set[str]:
    """Return what the code gives as first argument of an action, where that is written out."""
    return {
        call.args[0].value
        for file in modules()
        for call in ast.walk(ast.parse(file.read_text()))
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Name)
        and call.func.id == kind
        and call.args
        and isinstance(call.args[0], ast.Constant)
        and isinstance(call.args[0].value, str)
    }


def flags_of(command: Any) -> set[str]:
    """Return every option of a command and those below it."""
    below = getattr(command, "commands", {}).values()
    own = {flag for parameter in command.params for flag in parameter.opts}
    return own.union(*map(flags_of, below))


def test_what_texts_name_exists(penstock: Any) -> None:
    """Each option has a flag, and each command is one."""
    typed, flags = named("SetOption"), flags_of(penstock)
    assert typed & set(OPTIONS), "nothing was found: the test would prove nothing"
    assert {name for name in typed if on_terminal(Text(SetOption(name))) not in flags} == set()
    for name in ("base_url", "usd_per_mtok_in", "usd_per_mtok_out"):
        assert on_terminal(Text(SetSetting(f"providers.NAME.{name}"))) in flags
    for command in Command:
        found: Any = penstock
        for word in command.split():
            if word.startswith("--"):
                assert word in flags_of(found)
            else:
                found = found.commands[word]


ACTIONS: Final[tuple[Action, ...]] = (
    *(SetOption(field) for field in OPTIONS),
    *(SetOption(field, "value") for field in OPTIONS),
    SetParam("max_tokens"),
    SetParam("max_tokens", 5),
    Replay(),
    Replay("model"),
    SetSetting("providers.NAME.base_url"),
    SetSetting("concurrency"),
    *(Run(command, ("x", SetOption("lane", "api"))) for command in Command),
)


@pytest.mark.parametrize("text", [*(Text(action) for action in ACTIONS), *FIXES.values()], ids=str)
def test_no_surface_but_the_terminal_shows_a_flag_or_a_command(text: str) -> None:
    """HTTP and pages have other words for each action, and none is empty."""
    assert on_terminal(text)
    for surface in (over_http, on_page):
        assert surface(text)
        assert "penstock " not in surface(text)
        assert FLAG.search(surface(text)) is None
