"""All text keeps to plain words: pages, the chart, log lines, errors, help; and comments,
docstrings and what tests say."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# Words that readers stumbled over. A sentence that needs one of them is better said another way.
WORDS = re.compile(
    r"\b(nobody|somebody|whoever|everybody|anybody|heed(?:s|ed|ing)?|mend(?:s|ed|ing)?|trying "
    r"on|of ours"
    r"|(?:comes?|came) to "
    r"something|told|verdicts?|homecoming|sightings|lookouts?|shelves|absorb(?:s|ed)?"
    r"|judg(?:es?|ed|ing)|steer(?:s|ed|ing)?|of no use|errors? of penstock|(?:is|are) no "
    r"(?:json\w*|url|regular))\b",
    re.IGNORECASE,
)
# Code in a page (`names`, fenced blocks of output) is a quotation of the program; its strings are
# held below.
FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
QUOTED = re.compile(r"`[^`\n]*`")
# Words of other software that a page has to repeat: (file, the words around it).
ALLOWED: frozenset[tuple[str, str]] = frozenset()

PAGES = (
    "README.md",
    "SECURITY.md",
    "docs/**/*.md",
    "examples/*.md",
    "benchmarks/*.md",
    "helm/penstock/**/*.md",
)
TEXTS = (
    "Makefile",
    "pyproject.toml",
    ".env.example",
    "docker-compose*.yml",
    "docker/*",
    "examples/*.py",
    "helm/penstock/**/*.yaml",
    "helm/penstock/**/*.tpl",
    "helm/penstock/**/*.txt",
    "helm/penstock/**/*.json",
    "tools/monitoring/*.py",
    "workers/penstock_workers/metrics/catalogue.py",
)
CODE = ("penstock", "producer", "workers", "ratelimit", "ledger", "cli", "simulate")
READ = (
    *CODE,
    "gateway",
    "tests",
    "benchmarks",
    "tools",
    "examples",
    "docker",
)  # folders whose comments and docstrings are held


def _files(patterns: tuple[str, ...]) -> list[Path]:
    return sorted({file for pattern in patterns for file in ROOT.glob(pattern) if file.is_file()})


def _found(text: str, name: str, first_line: int = 1) -> Iterator[str]:
    for word in WORDS.finditer(text):
        around = " ".join(text[max(word.start() - 40, 0) : word.end() + 40].split())
        if not any(name == file and words in around for file, words in ALLOWED):
            yield (
                f"{name}:{first_line + text.count(chr(10), 0, word.start())}: {word.group()!r} in: "
                f"{around}"
            )


def _blanked(text: str, pattern: re.Pattern[str]) -> str:
    """The text without what matches, with its lines where they were."""
    return pattern.sub(lambda match: re.sub(r"[^\n]", " ", match.group()), text)


def _holds_commands(file: Path) -> bool:
    """Whether docstrings of public functions in this file are the help of commands."""
    return file.parent.name == "commands" or file.name in ("command.py", "main.py")


def _shown_strings(tree: ast.Module, *, help_of_commands: bool) -> Iterator[ast.Constant]:
    """Every text that may reach a log, an error or a terminal: all literals but docstrings, and the
    help of commands."""
    quiet = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=str()) if id(node) not in quiet:
                yield node
            case ast.FunctionDef(body=[ast.Expr(value=ast.Constant(value=str()) as text), *_]) if (
                help_of_commands
            ):
                yield text
            case _:
                pass


def _prose(text: str) -> Iterator[tuple[int, str]]:
    """Comments, docstrings and the messages of assertions, each with its first line."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Expr(value=ast.Constant(value=str(words))):
                yield node.lineno, words
            case ast.Assert(msg=ast.expr() as message):
                strings = (one for one in ast.walk(message) if isinstance(one, ast.Constant))
                yield from (
                    (one.lineno, one.value) for one in strings if isinstance(one.value, str)
                )
            case _:
                pass


def test_the_pages_keep_to_plain_words() -> None:
    """No page for readers uses a word that earlier readers stumbled over."""
    found: list[str] = []
    for page in _files(PAGES):
        text = _blanked(_blanked(page.read_text(), FENCED), QUOTED)
        found += _found(text, str(page.relative_to(ROOT)))
    assert not found, "\n".join(found)


def test_comments_of_settings_and_the_charts_texts_keep_to_plain_words() -> None:
    """What an operator reads in the chart, the compose file, the Makefile and the examples uses the
    same words."""
    found = [
        line
        for file in _files(TEXTS)
        for line in _found(file.read_text(), str(file.relative_to(ROOT)))
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("package", CODE)
def test_logs_errors_and_help_keep_to_plain_words(package: str) -> None:
    """Log lines, raised errors and the help of commands use the words of the pages."""
    found: dict[str, None] = {}
    for file in sorted((ROOT / package).rglob("*.py")):
        name = str(file.relative_to(ROOT))
        for string in _shown_strings(
            ast.parse(file.read_text()), help_of_commands=_holds_commands(file)
        ):
            found.update(dict.fromkeys(_found(str(string.value), name, string.lineno)))
    assert not found, "\n".join(found)


@pytest.mark.parametrize("folder", READ)
def test_comments_and_docstrings_keep_to_plain_words(folder: str) -> None:
    """Who reads the code, its tests and its benchmarks reads the words of the pages, assertion
    messages included."""
    files = sorted((ROOT / folder).rglob("*.py"))
    assert files, f"no files found in {folder}: the test would prove nothing"
    found: dict[str, None] = {}
    for file in files:
        text_of_file = file.read_text()
        # most files have none of the words anywhere, and need not be taken apart
        for line, text in _prose(text_of_file) if WORDS.search(text_of_file) else ():
            found.update(dict.fromkeys(_found(text, str(file.relative_to(ROOT)), line)))
    assert not found, "\n".join(found)


def test_comments_of_scripts_keep_to_plain_words() -> None:
    """What stands beside the code that runs inside Redis is as plain."""
    scripts = [script for folder in CODE for script in sorted((ROOT / folder).rglob("*.lua"))]
    assert len(scripts) > 30
    found: list[str] = []
    for script in scripts:
        comments = re.sub(r"^(?:(?!--).)*", "", script.read_text(), flags=re.MULTILINE)
        found += _found(comments, str(script.relative_to(ROOT)))
    assert not found, "\n".join(found)


def test_the_words_are_recognised_in_comments_and_in_what_tests_say() -> None:
    """The search sees comments, docstrings and assertion messages, and leaves other strings and
    names alone."""
    text = (
        "def nobody():\n    'Somebody calls.'\n    told = 'whoever'  # and heed it\n"
        "    assert told, f'{told} is told'\n"
    )
    assert sorted(
        word.group().lower() for _, said in _prose(text) for word in WORDS.finditer(said)
    ) == [
        "heed",
        "somebody",
        "told",
    ]


def test_the_words_are_recognised_where_they_would_be_shown() -> None:
    """The search above sees log calls, raised errors, options and commands, and leaves comments and
    docstrings alone."""
    tree = ast.parse(
        "# heed\n"
        "log.warning('nobody %s', who)\n"
        "raise ValueError(f'{who} and whoever')\n"
        "x = typer.Option(help='for somebody')\n"
        "def run():\n    'Everybody runs.'\n"
    )

    def words(*, help_of_commands: bool) -> set[str]:
        shown = _shown_strings(tree, help_of_commands=help_of_commands)
        return {
            word.group().lower() for string in shown for word in WORDS.finditer(str(string.value))
        }

    assert words(help_of_commands=False) == {"nobody", "whoever", "somebody"}
    assert words(help_of_commands=True) == {"nobody", "whoever", "somebody", "everybody"}
