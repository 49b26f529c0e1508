"""The line of `penstock --version`: the release, the Python, and the commit where it is known."""

from __future__ import annotations

import json
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

GIT_TIMEOUT_S = 5.0  # of a look at a checkout on a slow disk
SHOWN = 12  # characters of a commit: enough to name one


def version_line() -> str:
    """Return one line; a question or a bug report begins with it."""
    found = metadata.distribution("penstock")
    commit = commit_of(found)
    at = f", commit {commit}" if commit else ""
    return f"penstock {found.version} (Python {platform.python_version()}{at})"


def commit_of(found: metadata.Distribution) -> str | None:
    """Return the commit that was installed, as installers note it (PEP 610).

    Of a checkout that is installed as it lies it is that of the checkout now, with a plus where
    files differ from it. None where nothing knows: a release from an index is its version.
    """
    try:
        noted: Any = json.loads(found.read_text("direct_url.json") or "{}")
    except ValueError:
        return None
    if "vcs_info" in noted:
        return str(noted["vcs_info"].get("commit_id", ""))[:SHOWN] or None
    if not noted.get("dir_info", {}).get("editable"):
        return None
    return _checked_out(Path(unquote(urlsplit(noted.get("url", "")).path)))


def _checked_out(folder: Path) -> str | None:
    if not (folder / ".git").exists():
        return None
    try:
        commit = _git(folder, "rev-parse", f"--short={SHOWN}", "HEAD")
        changed = _git(folder, "status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.SubprocessError):  # no git here, or a checkout of another user
        return None
    return commit + ("+" if changed else "")


def _git(folder: Path, *words: str) -> str:
    command = ["git", "--no-optional-locks", "-C", str(folder), *words]
    return subprocess.run(  # noqa: S603  the words are constants
        command,
        capture_output=True,
        text=True,
        timeout=GIT_TIMEOUT_S,
        check=True,
    ).stdout.strip()
