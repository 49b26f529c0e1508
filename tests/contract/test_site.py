"""The site of docs/ is built strictly; its nav has every page, its pages of uses their scripts, its
reference the limiter."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import penstock_ratelimit

ROOT = Path(__file__).parents[2]
IN_NAV = re.compile(r"^ +- [^#\n]+: ([\w./-]+\.md)$", re.MULTILINE)
README_IS = "index.md"  # tools/site/pages.py makes it from README.md
FETCHED = re.compile(
    r"<(?:script|link|img|iframe|source)\b[^>]*?\b(?:src|href)=\"?(?:https?:)?//[^\s\">]+"
)
SNIPPET = re.compile(r'^--8<-- "([^"]+)"$', re.MULTILINE)
IN_REFERENCE = re.compile(r"^::: ([\w.]+)$", re.MULTILINE)


def build(folder: Path, site: Path) -> tuple[int, str]:
    """Exit status and output of what `make docs` runs, for the mkdocs.yml of this folder."""
    (words,) = re.findall(r"\$\(BIN\)/mkdocs (.+)", (ROOT / "Makefile").read_text("utf-8"))
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", *words.split(), "--site-dir", str(site)],
        cwd=folder,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    return built.returncode, built.stdout + built.stderr


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    status, shown = build(ROOT, folder)
    assert status == 0, shown
    return folder


def test_the_site_is_built_strictly_and_fetches_nothing(site: Path) -> None:
    """A broken link or anchor, a page outside the nav, a file that is not there to be shown: each
    ends the build. No page loads anything from elsewhere."""
    pages = list(site.rglob("*.html"))
    assert len(pages) > 50
    fetched = [
        f"{page.name}: {found}"
        for page in pages
        for found in FETCHED.findall(page.read_text("utf-8"))
    ]
    assert [one for one in fetched if 'rel="canonical"' not in one] == []


def test_the_search_needs_no_server(site: Path) -> None:
    """From a folder, where browsers let no script read files, the index is a script beside the
    pages, and so is what stands for a worker."""
    assert (site / "search/search_index.js").read_text("utf-8").startswith("var __index = {")
    for page in ("index.html", "uses/tickets.html"):
        found = re.findall(r'src="([^"]*iframe-worker.js)"', (site / page).read_text("utf-8"))
        assert [(site / page).parent.joinpath(one).resolve().is_file() for one in found] == [True]


def test_what_the_strict_build_refuses(tmp_path: Path) -> None:
    """With the rules of mkdocs.yml, a link to nothing, one to no heading and a page that the nav
    lacks are three errors."""
    rules = re.findall(
        r"^validation:\n(?:  .*\n)+", (ROOT / "mkdocs.yml").read_text("utf-8"), re.MULTILINE
    )
    (tmp_path / "mkdocs.yml").write_text(
        "site_name: small\nnav: [{Home: index.md}]\n" + "".join(rules)
    )
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/index.md").write_text("# Home\n\n[a](nowhere.md) [b](other.md#nothing)\n")
    (tmp_path / "docs/other.md").write_text("# Other\n")
    status, shown = build(tmp_path, tmp_path / "site")
    assert (status, shown.count("WARNING")) == (1, 3), shown
    assert "Aborted with 3 warnings" in shown


def test_every_page_is_in_the_nav_of_the_site_once() -> None:
    """A page of docs/ that mkdocs.yml lists twice, which the strict build lets pass, fails here."""
    _, nav = (ROOT / "mkdocs.yml").read_text("utf-8").split("\nnav:\n")
    pages = [path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")]
    assert len(pages) > 40
    assert sorted(IN_NAV.findall(nav)) == sorted([README_IS, *pages])


def test_the_page_of_all_pages_leads_to_each() -> None:
    """Who reads the repository without the site finds every page of docs/ from docs/pages.md."""
    docs = ROOT / "docs"
    linked = set(re.findall(r"\]\(([\w./-]+\.md)\)", (docs / "pages.md").read_text("utf-8")))
    pages = {path.relative_to(docs).as_posix() for path in docs.rglob("*.md")}
    assert sorted(pages - linked - {"pages.md"}) == []


def test_a_page_of_a_use_shows_its_script_whole(site: Path) -> None:
    """What the page of a use shows is the file that the tests run, from its first line to its
    last."""
    pages = sorted((ROOT / "docs/uses").glob("*.md"))
    assert len(pages) == 7
    for page in pages:
        (shown,) = SNIPPET.findall(page.read_text("utf-8"))
        assert shown == f"examples/{page.stem}.py"
        text = re.sub(r"<[^>]+>", "", (site / "uses" / f"{page.stem}.html").read_text("utf-8"))
        lines = [
            line.strip()
            for line in (ROOT / shown).read_text("utf-8").splitlines()
            if line.isascii()
        ]
        plain = [line for line in lines if line and not re.search(r"[<>&\"']", line)]
        assert len(plain) > 20
        assert [line for line in plain if line not in text] == []


def test_the_reference_has_every_public_name_of_the_limiter(site: Path) -> None:
    """Each name that `penstock_ratelimit` shows stands in docs/api.md, and on the site with its
    signature."""
    page = (ROOT / "docs/api.md").read_text("utf-8")
    listed = set(re.findall(r"`(\w+)`", page))
    for place in IN_REFERENCE.findall(page):
        listed.add(place.rpartition(".")[2])
        if place.endswith(".errors"):
            listed |= set(vars(import_module(place)))
    assert sorted(set(penstock_ratelimit.__all__) - listed) == []
    built = (site / "api.html").read_text("utf-8")
    assert [place for place in IN_REFERENCE.findall(page) if f'id="{place}"' not in built] == []
