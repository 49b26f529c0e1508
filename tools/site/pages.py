"""What the site shows besides docs/: the README as its first page, and every file of the repository
that a page links to.

MkDocs calls the two functions at the end (its "hooks"). Links in pages are written as a reader of
the repository needs them; here they are turned to where the same file is on the site.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

ROOT: Final = Path(__file__).parents[2]
DOCS: Final = "docs"
OTHERS: Final = "repository"  # where files outside of docs/ are on the site
HOME: Final = "README.md"
LINK: Final = re.compile(r"(\]\()(?!\w+:|/|#)([^)\s#]+)(#[^)\s]*)?(\))")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the README and what pages link to, and what those link to."""
    waiting = [HOME, *(f"{DOCS}/{file.src_uri}" for file in files.documentation_pages())]
    seen = set(waiting)
    while waiting:
        path = waiting.pop()
        if not path.startswith(f"{DOCS}/"):
            files.append(generated(path, config))
        if path.endswith(".md"):
            found = {target for target in linked(path) if (ROOT / target).is_file()} - seen
            seen |= found
            waiting += sorted(one for one in found if not one.startswith(f"{DOCS}/"))
    return files


def generated(path: str, config: MkDocsConfig) -> File:
    """A file of the repository as one of the site.

    Only the first page is in the nav, which the strict build has to know."""
    file = File.generated(config, uri_of(path), abs_src_path=str(ROOT / path))
    file.inclusion = InclusionLevel.INCLUDED if path == HOME else InclusionLevel.NOT_IN_NAV
    return file


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn each link to where its file is on the site; a link to no file stays, and the strict
    build refuses it."""
    path = path_of(page.file.src_uri)

    def turned(match: re.Match[str]) -> str:
        target = resolved(path, match[2])
        if not (ROOT / target).is_file():
            return match[0]
        link = posixpath.relpath(uri_of(target), posixpath.dirname(page.file.src_uri) or ".")
        return f"{match[1]}{link}{match[3] or ''}{match[4]}"

    return LINK.sub(turned, markdown)


def linked(path: str) -> Iterator[str]:
    """The files that a page links to, from the root of the repository."""
    for match in LINK.finditer((ROOT / path).read_text("utf-8")):
        yield resolved(path, match[2])


def resolved(path: str, link: str) -> str:
    """From the root of the repository; of a folder its README."""
    target = posixpath.normpath(posixpath.join(posixpath.dirname(path), link))
    return f"{target}/{HOME}" if (ROOT / target / HOME).is_file() else target


def uri_of(path: str) -> str:
    """Where a file of the repository is on the site."""
    if path == HOME:
        return "index.md"
    return path.removeprefix(f"{DOCS}/") if path.startswith(f"{DOCS}/") else f"{OTHERS}/{path}"


def path_of(uri: str) -> str:
    """The file of the repository that is there on the site."""
    if uri == "index.md":
        return HOME
    return uri.removeprefix(f"{OTHERS}/") if uri.startswith(f"{OTHERS}/") else f"{DOCS}/{uri}"
