"""Which releases of Redis, Valkey and PostgreSQL have the security fixes that are known, line by
line.

Known until 2026-11-22, from the projects' release notes and the announcements of their container
images: Redis of 2026-08-18 and 2026-09-17, Valkey of 2026-08-31 (all lines) and 2026-11-18 (7.2 and
9.1), PostgreSQL of 2026-08-13. A line that is newer than these tables is believed; one that its
project has given up, or never knew, is not.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

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
        """Whether no hole is known. ``private``: for a server that only its own user reaches."""
        lines = (PRIVATE if private else _LINES)[self.product]
        line, patch = self._line()
        return patch >= lines[line] if line in lines else line > max(lines)

    def wanted(self) -> str:
        """The release to upgrade to: of the same line where that still gets fixes."""
        lines = _LINES[self.product]
        line = self._line()[0]
        chosen = line if line in lines else max(lines)
        return ".".join(map(str, (*chosen, lines[chosen])))

    def _line(self) -> tuple[Version, int]:
        length = 1 if self.product == "PostgreSQL" else 2
        padded = (*self.version, 0, 0, 0)
        return padded[:length], padded[length]


def of_redis(info: Mapping[str, Any]) -> Software:
    """From an INFO.

    Valkey also gives a ``redis_version``, that of the Redis it is compatible with."""
    if "valkey_version" in info:
        return Software("Valkey", numbers(str(info["valkey_version"])))
    return Software("Redis", numbers(str(info.get("redis_version", "0"))))


def of_program(said: str) -> Software | None:
    """From what a server program says to `--version`: `Redis server v=7.2.16 …`, `Valkey server
    v=9.1.2 …`."""
    match = re.search(r"(Redis|Valkey) server v=([0-9.]+)", said)
    return Software(match[1], numbers(match[2])) if match else None


def of_postgresql(number: int) -> Software:
    """From `server_version_num`: 170011 is 17.11."""
    return Software("PostgreSQL", (number // 10_000, number % 10_000))


def numbers(text: str) -> Version:
    """`7.0.15-1~deb12u7` is (7, 0, 15)."""
    match = re.match(r"\d+(?:\.\d+)*", text)
    return tuple(int(part) for part in match[0].split(".")) if match else (0,)
