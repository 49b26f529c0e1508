"""How often batches submitted and answered each request, kept on disk: there may be millions."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterable, Sequence

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
