"""The files of the private Redis: the one that says where it listens, and its data.

Data that the server cannot read are set aside under another name, and a few such copies are kept.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import quote


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The private server's address: a unix socket, or a loopback port with a password."""

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


# of files that were set aside: enough to look into what happened, too few to fill a disk
KEPT_COPIES = 3
# of Redis 7 and newer, of 6.2, and of a snapshot
_DATA = ("appendonlydir", "appendonly.aof", "dump.rdb")
_PREFIX = "damaged-"


def set_aside(folder: Path, now: float | None = None) -> Path | None:
    """Move what the server would load into a folder of its own beside it.

    Returns that folder; None when there was nothing.

    Older ones beyond ``KEPT_COPIES`` are deleted. Raises OSError.
    """
    found = [folder / name for name in _DATA if (folder / name).exists()]
    if not found:
        return None
    stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(now))
    aside = next(path for path in _names(folder, stamp) if not path.exists())
    aside.mkdir(mode=0o700)
    for path in found:
        path.rename(aside / path.name)
    for old in _copies(folder)[:-KEPT_COPIES]:
        shutil.rmtree(old, ignore_errors=True)
    return aside


def put_back(folder: Path, aside: Path) -> None:
    """Undo ``set_aside``: the trouble of a server that does not start without them is another."""
    for name in _DATA:
        empty = folder / name
        if empty.is_dir():
            shutil.rmtree(empty, ignore_errors=True)
        else:
            empty.unlink(missing_ok=True)
        if (aside / name).exists():
            (aside / name).rename(empty)
    aside.rmdir()


def _names(folder: Path, stamp: str) -> Iterable[Path]:
    yield folder / f"{_PREFIX}{stamp}"
    for number in range(2, 1000):
        yield folder / f"{_PREFIX}{stamp}-{number}"


def _copies(folder: Path) -> list[Path]:
    """Return the copies, oldest first."""
    return sorted(folder.glob(f"{_PREFIX}*"), key=lambda path: path.stat().st_mtime_ns)
