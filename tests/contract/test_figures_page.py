"""docs/figures.md says what was measured: its ratios are those that are held, its other figures stand where they are
argued, and each can be measured again."""

from __future__ import annotations

import re
from importlib.util import find_spec
from typing import NamedTuple

import pytest
from figures_page import PAGE, ROOT, text

from benchmarks.__main__ import MODULES

ROW = re.compile(r"^\| (?!-)(.+) \|$", re.MULTILINE)
LINK = re.compile(r"\[([^\]]+)\]\(([\w./-]+)(?:#([\w-]+))?\)")
NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")
WHEN = re.compile(
    r"20\d\d-\d\d-\d\d, (?:2 cores(?:, (?:nearly )?alone|, shared)?|simulated providers)"
)


class Row(NamedTuple):
    what: str
    held: str
    measured: str
    when: str
    again: str


def rows() -> list[Row]:
    """Of the tables without those of ratios, which are written by a program."""
    before, _, rest = PAGE.read_text("utf-8").partition("<!-- ratios")
    tables = before + rest.partition("<!-- end of ratios -->")[2]
    found = [Row(*line.split(" | ")) for line in ROW.findall(tables)]
    return [row for row in found if row.what != "what"]


def section(path: str, slug: str) -> str:
    """The text of a page from the heading with this slug to the next one."""
    parts = re.split(r"^(#+ .*)$", (PAGE.parent / path).read_text("utf-8"), flags=re.MULTILINE)
    texts = {
        re.sub(r"[^\w -]", "", heading.lstrip("# ")).lower().replace(" ", "-"): body
        for heading, body in zip(parts[1::2], parts[2::2], strict=True)
    }
    return texts[slug] if slug else "".join(parts)


def can_be_run(command: str) -> bool:
    words = command.split()
    if words[0] == "make":
        return f"\n{words[1]}: " in (ROOT / "Makefile").read_text("utf-8")
    if words[:3] == ["python", "-m", "benchmarks"]:
        return words[3] in MODULES
    if words[:2] == ["python", "-m"]:
        return find_spec(words[2]) is not None
    return words[0] == "pytest" and (ROOT / words[-1]).is_file()


def test_the_table_of_ratios_is_that_of_the_targets() -> None:
    """A target, what was measured or the limit has changed: `make pages` writes the table."""
    assert text() == PAGE.read_text("utf-8"), "docs/figures.md: run `make pages`"


@pytest.mark.parametrize("row", rows(), ids=lambda row: row.what[:50])
def test_a_figure_has_its_date_its_place_and_its_command(row: Row) -> None:
    """A reader sees when and where it was measured, finds it in the record with the same number, and
    can do it again."""
    assert WHEN.fullmatch(row.when), row.when
    again = re.fullmatch(r"`([^`]+)`", row.again)
    assert again is not None
    assert can_be_run(again[1]), again[1]
    links = LINK.findall(row.measured)
    assert links
    argued = "".join(section(path, slug) for _, path, slug in links)
    said = " ".join(label for label, _, _ in links)
    numbers = set(NUMBER.findall(argued))
    assert sorted(set(NUMBER.findall(said)) - numbers) == []


def test_the_page_has_what_people_ask_for() -> None:
    """Faults, money, and size and speed: an emptied table fails here."""
    assert len(rows()) > 12
