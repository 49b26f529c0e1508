"""Every package that is pinned has a licence that is allowed where it is used."""

from __future__ import annotations

import re
from importlib import metadata

from contract.test_pins import pins
from licences_page import PAGE, installed_with, licence_of, names_in
from packaging.utils import canonicalize_name

# Of what users install: permissive ones, and those whose duties end at the package's own files.
ALLOWED = {
    "Apache-2.0",
    "BSD",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "ISC",
    "LGPL-3.0-only",
    "MIT",
    "MIT-0",
    "MPL-2.0",
    "PSF-2.0",
}
# Of programs that run beside the tests, and of nothing that is shipped.
ALLOWED_IN_TOOLS = ALLOWED | {"CNRI-Python", "GPL-3.0"}


def rows() -> dict[str, str]:
    """What the page says: licences by package."""
    table = re.findall(r"^\| ([^|]+) \| ([^|]+) \|$", PAGE.read_text("utf-8"), re.MULTILINE)
    return {name: licence for licence, names in table[1:] for name in names.split(", ")}


def refused(names: set[str], allowed: set[str]) -> dict[str, str]:
    return {name: licence_of(name) for name in names if names_in(licence_of(name)) - allowed}


def test_what_users_install_has_an_allowed_licence_and_is_on_the_page() -> None:
    """A new dependency, or one that changed its licence, fails here by its name. `make pages`
    writes the page; a package that another Python needs may stand there, too."""
    brought = installed_with("penstock[all]")
    assert len(brought) > 60
    assert refused(brought, ALLOWED) == {}
    shown = rows()
    assert {name: licence_of(name) for name in brought} == {
        name: shown.get(name) for name in brought
    }
    assert sorted(shown.keys() - pins().keys()) == []


def test_what_tests_and_tools_need_has_an_allowed_licence() -> None:
    """As far as it is installed here: the rest belongs to environments of their own."""
    here = {canonicalize_name(one.name) for one in metadata.distributions()}
    pinned = set(pins()) & here
    assert len(pinned) > 200
    assert refused(pinned, ALLOWED_IN_TOOLS) == {}


def test_an_expression_is_read_with_all_its_parts() -> None:
    """Of licences that hold together, and of those that one may choose from, each is looked at."""
    assert names_in("MPL-2.0 AND (Apache-2.0 OR MIT)") == {"MPL-2.0", "Apache-2.0", "MIT"}
