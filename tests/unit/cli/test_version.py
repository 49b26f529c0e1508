"""The commit that `penstock --version` names, by what installers note (PEP 610)."""

from __future__ import annotations

import json
import subprocess
from importlib.metadata import PathDistribution
from pathlib import Path
from typing import Any

import pytest

from penstock_cli.version import commit_of

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def installed(folder: Path, noted: Any) -> PathDistribution:
    info = folder / "penstock-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: penstock\nVersion: 1.0\n")
    (info / "direct_url.json").write_text(noted if isinstance(noted, str) else json.dumps(noted))
    return PathDistribution(info)


@pytest.mark.parametrize(
    ("noted", "commit"),
    [
        ({"url": "https://h/p.git", "vcs_info": {"vcs": "git", "commit_id": COMMIT}}, COMMIT[:12]),
        ({"url": "https://h/p.whl", "archive_info": {}}, None),
        ({"url": "file:///none/here", "dir_info": {"editable": True}}, None),
        ({"url": "file:///none/here", "dir_info": {}}, None),
        ("no JSON", None),
    ],
)
def test_what_an_installer_noted_is_named(tmp_path: Path, noted: Any, commit: str | None) -> None:
    """Of a repository its commit; of a wheel, of a copy, and of notes that cannot be read none."""
    assert commit_of(installed(tmp_path, noted)) == commit


def test_a_checkout_is_named_as_it_lies(tmp_path: Path) -> None:
    """An editable installation names the commit of its folder now, and a plus where a file was
    changed."""
    checkout = tmp_path / "a checkout"
    checkout.mkdir()
    found = installed(tmp_path, {"url": checkout.as_uri(), "dir_info": {"editable": True}})
    git = ["git", "-c", "user.name=n", "-c", "user.email=e@example", "-C", str(checkout)]
    (checkout / "file").write_text("one")
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "first"]):
        subprocess.run([*git, *words], check=True)
    head = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True)
    assert commit_of(found) == head.stdout[:12]
    (checkout / "file").write_text("two")
    assert commit_of(found) == f"{head.stdout[:12]}+"
