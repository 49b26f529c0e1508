"""docs/install.md names every extra of pyproject.toml, with the other names that it has."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
EXTRAS: dict[str, list[str]] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))[
    "project"
]["optional-dependencies"]
ROW = re.compile(r"^\| `(\w+)` \| (.*?) ?\| [^|]+ \|$", re.MULTILINE)
TOLD = re.compile(r"(?:penstock|'\.)\[([a-z0-9,]+)\]")


def contained(extra: str) -> set[str]:
    """The extras of this project that one is made of."""
    needed = [Requirement(one) for one in EXTRAS[extra]]
    return {name for one in needed if one.name == "penstock" for name in one.extras}


def test_the_table_has_every_extra_and_its_other_names() -> None:
    """An extra that is added, renamed or taken away changes the page; another name is the same
    extra, and nothing is behind it but that."""
    page = (ROOT / "docs/install.md").read_text("utf-8")
    rows = {extra: re.findall(r"`(\w+)`", names) for extra, names in ROW.findall(page)}
    assert len(rows) > 15
    assert sorted([*rows, *(name for names in rows.values() for name in names)]) == sorted(EXTRAS)
    for extra, names in rows.items():
        for name in names:
            assert EXTRAS[name] == [f"penstock[{extra}]"]


def test_what_says_what_to_install_names_an_extra_that_is_there() -> None:
    """Messages and pages: pip would only warn of another one, and the next try would fail alike."""
    told = dict[str, str]()
    for folder in ("cli", "docs", "gateway", "ledger", "penstock", "producer", "workers"):
        for file in [*(ROOT / folder).rglob("*.py"), *(ROOT / folder).rglob("*.md")]:
            for names in TOLD.findall(file.read_text("utf-8")):
                told.update(dict.fromkeys(names.split(","), str(file.relative_to(ROOT))))
    assert len(told) > 8
    assert {name: place for name, place in told.items() if name not in EXTRAS} == {}


def test_all_is_all_but_what_hosts_models() -> None:
    """torch and vLLM are gigabytes; the rest comes with `all`."""
    own = {extra for extra, needed in EXTRAS.items() if not contained(extra) and needed}
    assert contained("all") == own - {"gpu", "embed"}
    assert contained("gpu") == contained("embed") == {"worker"}
