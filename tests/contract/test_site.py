"""The site of docs/ is built strictly; its nav has every page, its pages of uses their scripts, its
reference the limiter."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from dashboard_ledger import chromium
from playwright.sync_api import Browser, Route

import penstock_ratelimit
from tools.site.versions import KEPT, chosen

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


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


def test_the_search_of_a_folder_finds_a_page(site: Path, browser: Browser) -> None:
    """Who opens a file of the site in a browser, without a server, types and comes to the page that
    answers."""
    page = browser.new_page()
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto((site / "uses/tickets.html").as_uri())
    page.fill("input.md-search__input", "half price")
    found = page.locator(".md-search-result__item > a")
    found.filter(has_text="The batch lane: half the price for").first.click()
    page.wait_for_url("**/batch.html*")
    assert page.locator("h1").inner_text().startswith("The batch lane: half the price for")
    assert complaints == []
    page.close()


def test_a_shared_link_has_a_card(site: Path) -> None:
    """Each page says its title and what Penstock is; the picture is named where the site has an
    address, and is of the size that readers of cards ask for."""
    page = (site / "batch.html").read_text("utf-8")
    assert '<meta property="og:title" content="Provider batches at half price' in page
    assert '<meta property="og:description" content="A message-queue worker fleet' in page
    assert "og:image" not in page
    picture = (site / "images/card.png").read_bytes()
    assert picture[12:24] == b"IHDR" + (1200).to_bytes(4) + (630).to_bytes(4)


RELEASES = ("v0.1.0", "v0.1.1", "v0.2.0", "v0.3.0rc1")


@pytest.fixture(scope="module")
def versions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that `make docs-versions` fills, of a small repository with these tags."""
    repository = tmp_path_factory.mktemp("repository")
    (repository / "mkdocs.yml").write_text(
        "site_name: small\nsite_url: !ENV [SITE_URL, '']\nuse_directory_urls: false\n"
        f"theme: {{name: material, font: false, custom_dir: {ROOT / 'tools/site/theme'}}}\n"
        f"hooks: [{ROOT / 'tools/site/versions.py'}]\n"
    )
    (repository / "docs").mkdir()

    def git(*words: str) -> None:
        named = ("-c", "user.name=t", "-c", "user.email=t@localhost", "-c", "commit.gpgsign=false")
        subprocess.run(["git", *named, *words], cwd=repository, check=True, capture_output=True)

    git("init", "--quiet")
    for tag in (*RELEASES, None):
        (repository / "docs/index.md").write_text(f"# Pages of {tag}\n")
        git("add", "--all")
        git("commit", "--quiet", "--message", f"docs: {tag}")
        if tag:
            git("tag", tag)
    (words,) = re.findall(
        r"\$\(BIN\)/python -m tools\.site\.versions (.+)", (ROOT / "Makefile").read_text("utf-8")
    )
    paths = os.pathsep.join((str(ROOT), os.environ.get("PYTHONPATH", "")))
    built = subprocess.run(
        [sys.executable, "-m", "tools.site.versions", *words.split()],
        cwd=repository,
        env=os.environ | {"PYTHONPATH": paths, "SITE_URL": "https://docs.example.com/"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    return repository / str(words)


def test_the_pages_of_each_release_stay(versions: Path) -> None:
    """Of each minor release the newest patch, of this commit `dev`, and `latest` is the newest
    release: each has its own text, and its address in its card."""
    texts = {"0.1": "v0.1.1", "0.2": "v0.2.0", "latest": "v0.2.0", "dev": "None"}
    for folder, text in texts.items():
        page = (versions / folder / "index.html").read_text("utf-8")
        assert f"Pages of {text}" in page
        address = "0.2" if folder == "latest" else folder
        assert f'og:image" content="https://docs.example.com/{address}/images/card.png"' in page
    folders = sorted(path.name for path in versions.iterdir() if path.is_dir())
    assert folders == ["0.1", "0.2", "dev", "latest"]
    assert 'url=latest/"' in (versions / "index.html").read_text("utf-8").replace("index.html", "")


def test_readers_choose_among_versions(versions: Path, browser: Browser) -> None:
    """A page shows all of them, the newest release by its name; one of another says so, and leads
    to the latest."""

    def answer(route: Route) -> None:
        path = versions / urlsplit(route.request.url).path.lstrip("/")
        route.fulfill(path=path) if path.is_file() else route.fulfill(status=404)

    page = browser.new_page()
    page.route("http://docs.localhost/**", answer)
    page.goto("http://docs.localhost/0.1/index.html")
    listed = page.locator(".md-version__link")
    listed.first.wait_for(state="attached")
    assert listed.all_text_contents() == ["dev", "0.2latest", "0.1"]
    page.get_by_text("Read the latest one.").click()
    page.wait_for_url("**/latest/index.html")
    assert page.locator("h1").inner_text().startswith("Pages of v0.2.0")
    assert not page.get_by_text("Read the latest one.").is_visible()
    page.close()


def test_old_releases_leave_the_choice() -> None:
    """As many minor releases as are kept; before the first one `latest` is this commit."""
    many = [f"v{major}.{minor}.0" for major in (0, 1) for minor in range(12)]
    kept = chosen(many, "head")
    assert [built.version for built in kept[:-1]] == ["1.7", "1.8", "1.9", "1.10", "1.11"]
    assert len(kept) == KEPT + 1
    assert [built.version for built in kept if built.aliases] == ["1.11"]
    assert chosen(["demo", "v1"], "head") == [("dev", "head", ("latest",))]


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
