"""docs/licences.md: the licences of what `pip install 'penstock[all]'` brings, from the metadata
of the installed packages.

To write it anew: python tests/harness/licences_page.py"""

from __future__ import annotations

import re
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PAGE: Final = Path(__file__).parents[2] / "docs" / "licences.md"
# Names of licences in metadata that is older than SPDX expressions.
SPDX: Final = {
    "3-Clause BSD License": "BSD-3-Clause",
    "Apache": "Apache-2.0",
    "Apache 2.0": "Apache-2.0",
    "Apache Software License": "Apache-2.0",
    "BSD License": "BSD",
    "ISC License (ISCL)": "ISC",
    "MIT License": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "Python Software Foundation License": "PSF-2.0",
}
# By the text of their licence, which their metadata does not name.
READ: Final = {"axe-playwright-python": "MIT", "pgserver": "Apache-2.0", "promql-parser": "MIT"}
HEAD: Final = """\
# Licences of dependencies

Penstock is under Apache-2.0. What `pip install 'penstock[all]'` brings besides, by the packages' own metadata (SPDX names; *BSD* where they do not say which of them). A test holds every licence to a
list of allowed ones, those of the packages that only tests and tools need included; `make pages` writes this page. The extras `gpu` and `embed` bring torch, transformers and vLLM with their own packages, which it does not read.

psycopg is under the LGPL: it is imported as it is and can be replaced by another build. Packages under the MPL are used unchanged.

| licence | packages |
|---|---|
"""


def licence_of(name: str) -> str:
    """The licence of an installed package as an SPDX expression, as far as its metadata says."""
    if name in READ:
        return READ[name]
    found: Any = metadata.metadata(name)  # a message, whose types have no `get` before 3.12
    if expression := found.get("License-Expression"):
        return str(expression)
    named = [
        one.rpartition(" :: ")[2]
        for one in found.get_all("Classifier") or ()
        if one.startswith("License :: ") and not one.endswith(":: OSI Approved")
    ]
    named = named or (found.get("License") or "unknown").strip().split("\n")[:1]
    return " AND ".join(SPDX.get(one, one) for one in named)


def names_in(expression: str) -> set[str]:
    """The licences of an expression."""
    return set(re.split(r"\s+(?:AND|OR|WITH)\s+", re.sub(r"[()]", "", expression)))


def installed_with(requirement: str) -> set[str]:
    """Every package that a requirement brings into this environment, its own left out."""
    seen: set[tuple[str, frozenset[str]]] = set()
    waiting = [Requirement(requirement)]
    while waiting:
        one = waiting.pop()
        key = (canonicalize_name(one.name), frozenset(one.extras))
        if key in seen:
            continue
        seen.add(key)
        for text in metadata.requires(one.name) or ():
            needed = Requirement(text)
            if needed.marker is None or any(
                needed.marker.evaluate({"extra": extra}) for extra in ("", *one.extras)
            ):
                waiting.append(needed)
    return {name for name, _ in seen} - {canonicalize_name(Requirement(requirement).name)}


def text() -> str:
    by_licence: dict[str, list[str]] = {}
    for name in sorted(installed_with("penstock[all]")):
        by_licence.setdefault(licence_of(name), []).append(name)
    rows = [f"| {licence} | {', '.join(names)} |\n" for licence, names in by_licence.items()]
    return HEAD + "".join(sorted(rows))


if __name__ == "__main__":
    PAGE.write_text(text(), "utf-8")
