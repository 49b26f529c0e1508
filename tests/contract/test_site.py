"""Every page is on the site: what the strict build would refuse is noticed without MkDocs."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
IN_NAV = re.compile(r"^ +- [^#\n]+: ([\w./-]+\.md)$", re.MULTILINE)
README_IS = "index.md"  # tools/site/pages.py makes it from README.md


def test_every_page_is_in_the_nav_of_the_site_once() -> None:
    """A page of docs/ that mkdocs.yml does not list, lists twice, or lists though it is not there, fails here."""
    _, nav = (ROOT / "mkdocs.yml").read_text("utf-8").split("\nnav:\n")
    pages = [path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")]
    assert len(pages) > 40
    assert sorted(IN_NAV.findall(nav)) == sorted([README_IS, *pages])
