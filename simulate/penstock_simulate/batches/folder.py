"""Files of a provider, in a temporary folder that goes with the simulator.

Among them is the account: how often batches submitted and answered each request. It is kept on
disk, since there may be millions.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import sqlite3
import tempfile
import threading
import uuid
from collections.abc import AsyncIterable, Iterable, Sequence
from pathlib import Path
from typing import IO

PREFIX, LOCK = "penstock-simulate-", "lock"
# of all files together: what one machine's disk should give to a simulator
MAX_STORED_BYTES = 64 * 1024**3


class TooLarge(Exception):
    """A file is larger than may be, or there is no room for it."""


class Folder:
    """Writes and removes files under names of its own, in a folder that is made for the first.

    Close it at the end."""

    def __init__(self) -> None:
        self._place: Path | None = None
        self._lock: IO[bytes] | None = None  # held as long as the folder is in use
        self.stored = 0  # bytes of the files, but for indexes

    def new(self, ending: str = "") -> Path:
        """Return a path that no file has."""
        if self._place is None:
            self._place, self._lock = _made()
            _sweep()
        return self._place / (uuid.uuid4().hex + ending)

    def empty(self) -> Path:
        """Return a new file without bytes."""
        path = self.new()
        path.touch()
        return path

    async def write(self, chunks: AsyncIterable[bytes], most: int) -> Path:
        """Return a new file with these bytes.

        Raises TooLarge above ``most``; then nothing is left of it."""
        path = self.empty()
        try:
            await self.extend(path, chunks, most)
        except BaseException:
            self.remove(path)
            raise
        return path

    async def extend(self, path: Path, chunks: AsyncIterable[bytes], most: int) -> None:
        """Put these bytes behind those that are there.

        Raises TooLarge where it has more than ``most`` then."""
        with path.open("ab") as file:
            size = file.tell()
            async for chunk in chunks:
                size += len(chunk)
                if size > most or self.stored + len(chunk) > MAX_STORED_BYTES:
                    raise TooLarge
                file.write(chunk)
                self.stored += len(chunk)

    def keep(self, path: Path) -> None:
        """Count a file that was written here."""
        self.stored += path.stat().st_size

    def link(self, path: Path) -> Path:
        """Give a file another name, which outlives the first; it does not count again."""
        other = self.new(path.suffix)
        os.link(path, other)
        return other

    def remove(self, path: Path) -> None:
        """Remove a file if it is there; a download that goes on keeps its open file."""
        if path.exists():
            self.stored = max(0, self.stored - path.stat().st_size)
            path.unlink()

    def close(self) -> None:
        if self._place is not None and self._lock is not None:
            shutil.rmtree(self._place, ignore_errors=True)
            self._lock.close()
            self._place = None


def _made() -> tuple[Path, IO[bytes]]:
    """Return a new folder and its lock, which is there only once it is held."""
    place = Path(tempfile.mkdtemp(prefix=PREFIX))
    lock = (place / "lock.new").open("wb")
    fcntl.flock(lock, fcntl.LOCK_EX)
    (place / "lock.new").rename(place / LOCK)
    return place, lock


def _sweep() -> None:
    """Remove the folders of simulators that were killed: those whose lock is free."""
    for left in Path(tempfile.gettempdir()).glob(PREFIX + "*/" + LOCK):
        with contextlib.suppress(OSError), left.open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(left.parent, ignore_errors=True)


_TABLE = """
CREATE TABLE requests (
    name TEXT PRIMARY KEY, submitted INTEGER NOT NULL DEFAULT 0, answered INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID
"""
_SUBMITTED = """
INSERT INTO requests (name, submitted) VALUES (?, 1)
ON CONFLICT (name) DO UPDATE SET submitted = submitted + 1 RETURNING submitted
"""
_ANSWERED = "UPDATE requests SET answered = answered + 1 WHERE name = ?"
_SUMMARY = """
SELECT count(*), coalesce(sum(submitted), 0), coalesce(sum(answered), 0),
       coalesce(sum(submitted > 1), 0), coalesce(sum(answered > 1), 0)
FROM requests
"""
_LISTED = (
    "SELECT name, submitted, answered FROM requests WHERE submitted >= ? ORDER BY name LIMIT ?"
)
MAX_LISTED = 100_000  # requests of one answer: more of them are asked for with a higher least


class RequestAccount:
    """Called from the threads that read inputs and write outputs, one at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # The empty name is a database of this connection alone, which SQLite puts on disk once it
        # is large.
        self._sql = sqlite3.connect("", check_same_thread=False, isolation_level=None)
        # it goes with the simulator: nothing needs to survive
        self._sql.execute("PRAGMA journal_mode = OFF")
        self._sql.execute("PRAGMA synchronous = OFF")
        self._sql.execute(_TABLE)

    def submitted(self, names: Iterable[str]) -> list[int]:
        """Count a submission of each; how many it makes for each, in their order."""
        with self._lock, self._transaction():
            return [self._sql.execute(_SUBMITTED, (name,)).fetchone()[0] for name in names]

    def answered(self, names: Sequence[str]) -> None:
        """Count a good answer to each."""
        with self._lock, self._transaction():
            self._sql.executemany(_ANSWERED, ((name,) for name in names))

    def summary(self) -> dict[str, int]:
        with self._lock:
            found = self._sql.execute(_SUMMARY).fetchone()
        names = (
            "documents",
            "submitted",
            "answered",
            "submitted_more_than_once",
            "answered_more_than_once",
        )
        return dict(zip(names, found, strict=True))

    def listed(self, least: int) -> dict[str, dict[str, int]]:
        """Return submissions and good answers of each request submitted ``least`` times or more."""
        with self._lock:
            rows = self._sql.execute(_LISTED, (least, MAX_LISTED)).fetchall()
        return {
            name: {"submitted": submitted, "ok": answered} for name, submitted, answered in rows
        }

    def reset(self) -> None:
        with self._lock:
            self._sql.execute("DELETE FROM requests")

    def close(self) -> None:
        with self._lock:
            self._sql.close()

    def _transaction(self) -> _Transaction:
        return _Transaction(self._sql)


class _Transaction:
    """BEGIN and COMMIT around a group: one by one they would cost a write each."""

    def __init__(self, sql: sqlite3.Connection) -> None:
        self._sql = sql

    def __enter__(self) -> None:
        self._sql.execute("BEGIN")

    def __exit__(self, kind: object, *_: object) -> None:
        self._sql.execute("COMMIT")
