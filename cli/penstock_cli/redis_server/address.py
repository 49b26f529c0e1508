"""Where the private Redis listens, and the file in its folder that remembers it."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import quote


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where the private server listens: a unix socket, or a loopback port with a password."""

    socket: str | None
    port: int
    password: str | None

    @property
    def redis_url(self) -> str:
        """As redis-py reads it."""
        if self.socket is not None:
            return f"unix://{quote(self.socket)}?db=0"
        return f"redis://:{self.password}@127.0.0.1:{self.port}/0"

    @property
    def kombu_url(self) -> str:
        """As kombu reads it."""
        if self.socket is not None:
            return f"redis+socket://{quote(self.socket)}?virtual_host=0"
        return f"redis://:{self.password}@127.0.0.1:{self.port}/0"


def pidfile(folder: Path) -> Path:
    return folder / "server.json"


def read_pidfile(folder: Path) -> tuple[Endpoint, int] | None:
    try:
        fields = json.loads(pidfile(folder).read_bytes())
        return Endpoint(fields["socket"], int(fields["port"]), fields["password"]), int(
            fields["pid"]
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None  # none yet, or cut short by a crash


def write_pidfile(folder: Path, endpoint: Endpoint, pid: int) -> None:
    _write_private(pidfile(folder), json.dumps(asdict(endpoint) | {"pid": pid}))


def _write_private(path: Path, text: str) -> None:
    """Replace a file in one step; only its owner can read it."""
    fresh = path.with_suffix(path.suffix + ".new")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
    fresh.replace(path)
