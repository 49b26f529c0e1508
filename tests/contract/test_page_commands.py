"""Commands of Penstock that pages, the compose file and the chart tell their readers to type: they
and their options exist."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from penstock_cli.main import command_line

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    path
    for pattern in (
        "*.md",
        "docs/**/*.md",
        "helm/penstock/**/*.md",
        "helm/penstock/*.yaml",
        "helm/penstock/**/*.t*t*",
        "*.yml",
        ".env.example",
    )
    for path in ROOT.glob(pattern)
    if path.name not in ("CHANGELOG.md", "decisions.md")  # which tell what was
)
# `penstock …` at the start of a command, behind a prompt, in quotes, after `exec … --`, or what is
# given to the service `cli`.
BEGINNING = re.compile(
    r"(?:(?:^|[`\"'(]|\$ | -- |&& |: |= )penstock|run --rm cli|exec [\w-]+ penstock) "
    r"([a-z][^`\n]*)",
    re.MULTILINE,
)
END = re.compile(r"[|;>&…)\"#]|, | \d>|  ")


@pytest.fixture(scope="module")
def penstock() -> Any:
    """The command as Typer builds it: it carries a click of its own, with types of its own."""
    return get_command(command_line())


def commands(text: str) -> Iterator[list[str]]:
    """Yield the words after `penstock` of each command; one that goes on in the next line is
    joined."""
    for found in BEGINNING.findall(re.sub(r"\\\n\s*(?:#\s*)?", " ", text)):
        try:
            words = shlex.split(found, comments=True)
        except ValueError:  # a quote that ends in another line of prose
            words = found.split()
        yield words


def faults(words: list[str], command: Any) -> Iterator[str]:
    """Yield the subcommands and options that there are not.

    What stands for itself, such as NAME, is not looked at."""
    left = list(words)
    while hasattr(command, "commands") and left and re.fullmatch(r"[a-z][a-z-]*", left[0]):
        name = left.pop(0)
        if command.get_command(None, name) is None:
            yield f"there is no command {name!r} in {command.name}"
            return
        command = command.get_command(None, name)
    known = {
        flag
        for parameter in command.params
        for flag in (*parameter.opts, *parameter.secondary_opts)
    } | {"--help"}
    for word in left:
        option = word.partition("=")[0]
        if re.fullmatch(r"--[a-z][a-z-]*", option) and option not in known:
            yield f"{command.name} has no option {option}"


def test_commands_of_the_pages_exist(penstock: Any) -> None:
    """Who types what a page says meets no `No such option` (K5)."""
    found = [(page, words) for page in PAGES for words in commands(page.read_text("utf-8"))]
    assert len(found) > 300
    assert any(
        words[:2] == ["keys", "create"] for page, words in found if page.name == "kubernetes.md"
    )
    wrong = [
        f"{page.relative_to(ROOT)}: {' '.join(words)}: {fault}"
        for page, words in found
        for fault in faults(words, penstock)
    ]
    assert not wrong, "\n".join(wrong)


def test_keys_of_the_pages_can_be_sent() -> None:
    """Who runs a snippet as it stands, against a server without keys, gets an answer: what stands
    for a key fits into a header."""
    keys = [
        (page.name, key)
        for page in PAGES
        for key in re.findall(r"(?:api_key=\"|Bearer )([^\"\s]+)\"", page.read_text("utf-8"))
    ]
    assert len(keys) > 5
    assert [one for one in keys if not one[1].isascii()] == []


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        (
            "$ kubectl exec deploy/control -- penstock keys create --name first --scopes admin",
            "has no option --name",
        ),
        ("`docker compose run --rm cli keys create --name me`", "has no option --name"),
        ("$ penstock keyz create x", "no command 'keyz'"),
    ],
)
def test_the_test_sees_what_does_not_exist(line: str, fault: str, penstock: Any) -> None:
    """A wrong option is seen behind kubectl and docker, too."""
    (words,) = commands(line)
    assert fault in "\n".join(faults(words, penstock))
