"""`make audit`: what its exit status and its words say of a report of pip-audit."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tools import audit
from tools.audit import Audit

SKIPPED: dict[str, Any] = {
    "name": "b",
    "skip_reason": "Dependency not found and could not be audited: b (1)",
}
SAFE: dict[str, Any] = {"name": "c", "version": "2", "vulns": []}
OWN: dict[str, Any] = {"name": "penstock", "skip_reason": "Dependency not found"}
HOLED: dict[str, Any] = {
    "name": "a",
    "version": "1",
    "vulns": [{"id": "CVE-1", "fix_versions": ["1.1"]}, {"id": "CVE-2", "fix_versions": []}],
}


def test_a_vulnerability_fails_with_its_repair() -> None:
    """Each advisory is a line with the release to take (S14)."""
    found = Audit.of({"dependencies": [HOLED, SAFE, OWN]})
    assert found.exit_status == 1
    assert found.lines() == [
        "audit: 2 packages checked, 2 known vulnerabilities",
        "a 1: CVE-1, repaired in 1.1",
        "a 1: CVE-2, repaired in no release yet",
    ]


def test_no_answer_is_no_clean_bill() -> None:
    """Where the database answered for no package, nothing fails, and nothing is called safe
    (S14)."""
    found = Audit.of({"dependencies": [SKIPPED, OWN]})
    assert found.exit_status == 0
    assert found.lines() == [
        "audit: the advisory database could not be reached: no package was checked, so nothing is "
        "known"
    ]


def test_packages_without_an_answer_are_named() -> None:
    """A database that knows some packages only is no reason to be silent about the others (S14)."""
    found = Audit.of({"dependencies": [SAFE, SKIPPED, OWN]})
    assert (found.exit_status, found.lines()[-1]) == (
        0,
        "audit: the database did not answer for 1: b",
    )


def test_an_audit_without_a_report_fails_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """pip-audit that ends without a report is quoted, an old report is not read again, and the exit
    status is 0 (S14)."""
    pretended = tmp_path / "python"
    pretended.write_text(
        f"#!/bin/sh\ncase $1 in -c) echo {tmp_path};; *) echo 'cannot connect' >&2; exit 1;; esac\n"
    )
    pretended.chmod(0o755)
    (tmp_path / "audit.json").write_text('{"dependencies": []}')
    monkeypatch.setattr(sys, "executable", str(pretended))
    found = audit.ask_for_advisories(pretended, tmp_path / "audit.json")
    assert (found.exit_status, found.checked) == (0, 0)
    assert "cannot connect" in capsys.readouterr().err
