"""The ids of a source on disk, to find duplicates in any number of rows with the memory of a few
thousand.

A private SQLite file that the system removes with the connection: rows are appended unsorted and
sorted once at the end, which is several times faster than asking an index about each row.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from types import TracebackType
from typing import NamedTuple, Self

_ROWS_PER_INSERT = 5_000
_CACHE_KIB = 16_000  # the most memory SQLite may use; what is more goes to its temporary files


class Duplicate(NamedTuple):
    line: int
    first_line: int
    doc_id: str


class SeenIds:
    """``add`` every accepted id, then ask for ``duplicates()``."""

    def __init__(self) -> None:
        self._db = sqlite3.connect("", isolation_level=None)
        for pragma in (
            "journal_mode=OFF",
            "synchronous=OFF",
            "temp_store=FILE",
            f"cache_size=-{_CACHE_KIB}",
        ):
            self._db.execute(f"PRAGMA {pragma}")
        self._db.execute("CREATE TABLE ids (doc TEXT NOT NULL, line INTEGER NOT NULL)")
        self._waiting: list[tuple[str, int]] = []
        self._sorted = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._db.close()

    def add(self, doc_id: str, line: int) -> None:
        self._waiting.append((doc_id, line))
        if len(self._waiting) >= _ROWS_PER_INSERT:
            self._flush()

    def duplicates(self) -> Iterator[Duplicate]:
        """Every row after the first of its id, in the order of lines."""
        self._sort()
        rows = self._db.execute(
            "SELECT ids.line, met.first, ids.doc FROM ids JOIN (SELECT doc, min(line) AS first "
            "FROM ids GROUP BY doc HAVING count(*) > 1) AS met ON ids.doc = met.doc WHERE ids.line "
            "> met.first ORDER BY ids.line"
        )
        for row in rows:
            yield Duplicate(*row)

    def __contains__(self, doc_id: str) -> bool:
        self._sort()
        return (
            self._db.execute("SELECT 1 FROM ids WHERE doc = ? LIMIT 1", (doc_id,)).fetchone()
            is not None
        )

    def _sort(self) -> None:
        if not self._sorted:
            self._flush()
            self._db.execute("CREATE INDEX by_doc ON ids (doc, line)")
            self._sorted = True

    def _flush(self) -> None:
        self._db.execute("BEGIN")
        self._db.executemany("INSERT INTO ids VALUES (?, ?)", self._waiting)
        self._db.execute("COMMIT")
        self._waiting.clear()
