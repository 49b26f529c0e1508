"""State is data: no code reads a sentence of our own to decide something."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("producer", "workers", "gateway", "cli", "ledger", "ratelimit")
# where rows of an earlier release are read
OLD_ROWS = {"ledger/penstock_ledger/old_reasons.py"}
# where words of a database's driver are, which has no codes for them
FOREIGN = {"cli/penstock_cli/doctor/worker.py"}
SENTENCES = {"reason", "why"}
READS = {
    "startswith",
    "endswith",
    "partition",
    "rpartition",
    "split",
    "splitlines",
    "find",
    "index",
    "removeprefix",
    "removesuffix",
}
MATCHES = {"match", "search", "fullmatch", "findall", "finditer"}
SOURCES = sorted(path for name in PACKAGES for path in (ROOT / name).rglob("*.py"))


def read_sentences(source: str) -> Iterator[int]:
    """Yield the lines in which a sentence is taken apart.

    Dead letters and moves have codes as reasons, which may be compared as a whole."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Call(func=ast.Attribute(value=value, attr=attr)) if attr in READS:
                read = _is_sentence(value)
            case ast.Call(func=ast.Attribute(attr=attr), args=args) if attr in MATCHES:
                read = any(map(_is_sentence, args))
            case ast.Compare(ops=[ast.In() | ast.NotIn()], comparators=[within]):
                read = _is_sentence(within)
            case _:
                read = False
        if read and isinstance(node, ast.expr):
            yield node.lineno


def _is_sentence(node: ast.expr) -> bool:
    match node:
        case ast.BoolOp(values=values):
            return any(map(_is_sentence, values))
        case ast.Call(func=ast.Name(id="explain")):
            return True
        case ast.Call(func=ast.Name(id="str"), args=[one]):
            return _is_sentence(one)
        case ast.Call(func=ast.Attribute(value=value, attr="lower" | "strip" | "casefold")):
            return _is_sentence(value)
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name in SENTENCES
    return False


def test_nothing_reads_a_sentence_to_decide() -> None:
    """Why a job, batch or move is as it is: a code and parameters; the sentence is for people."""
    assert len(SOURCES) > 300
    found = {
        f"{path.relative_to(ROOT)}:{line}"
        for path in SOURCES
        if str(path.relative_to(ROOT)) not in OLD_ROWS | FOREIGN
        for line in read_sentences(path.read_text())
    }
    assert not found


@pytest.mark.parametrize(
    "source",
    [
        'job.reason.startswith("budget")',
        '(job.reason or "").startswith(HELD)',
        'x = "--base-url" in (job.reason or "")',
        '_BUDGET.match(job.reason or "")',
        're.search("a", explain(pause).lower())',
        'name = outcome.why.partition(":")[0]',
        'why.partition(": ")',
    ],
)
def test_the_rule_sees_what_it_forbids(source: str) -> None:
    """Else it would hold of any code."""
    assert list(read_sentences(source)) == [1]


@pytest.mark.parametrize(
    "source", ["letter.reason in (CANCELLED, DEADLINE)", "job.reason == paused_for", "print(why)"]
)
def test_codes_may_be_compared(source: str) -> None:
    """As a whole they are data."""
    assert not list(read_sentences(source))
