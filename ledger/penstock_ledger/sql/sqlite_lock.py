"""The write lock of an SQLite file: taken when a transaction begins, and logged when it does not come.

Each holder keeps it for milliseconds, so a wait of seconds has a cause that a person may want to know: a backup, a shell
that left a transaction open, a process that was stopped in the middle of one.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from typing import Any, Final

from sqlalchemy import Connection

log = logging.getLogger(__name__)

LOCK_WAIT_S: Final = 30.0  # one writer at a time, each holds the lock for milliseconds; half a minute is a hang
LOOK_S: Final = 5.0  # SQLite's own wait; after each we look how long it has been
SAID_EACH_S: Final = 10.0  # by all threads of this process together


class WriteLock:
    """Of one file. Shared by the threads of a process."""

    def __init__(self, path: str, *, wait_s: float = LOCK_WAIT_S, look_s: float = LOOK_S) -> None:
        self.look_ms = round(look_s * 1000)  # what PRAGMA busy_timeout is to be
        self._path = path
        self._wait_s = wait_s
        self._look_s = look_s
        self._guard = threading.Lock()
        self._said_at = float("-inf")

    def begin(self, connection: Connection) -> None:
        """BEGIN IMMEDIATE. Raises SQLAlchemy's OperationalError when the lock does not come within ``wait_s``."""
        raw: Any = connection.connection.driver_connection
        began = time.monotonic()
        while True:
            try:
                raw.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError as error:
                waited_s = time.monotonic() - began
                if not is_busy(error):
                    break
                self._say(waited_s)
                if waited_s + self._look_s >= self._wait_s:
                    break
            else:
                return
        connection.exec_driver_sql("BEGIN IMMEDIATE")  # once more, so that a failure is SQLAlchemy's

    def _say(self, waited_s: float) -> None:
        with self._guard:
            now = time.monotonic()
            if now - self._said_at < SAID_EACH_S:
                return
            self._said_at = now
        log.warning(
            "waiting for the write lock of %s for %.0f s already: another process writes to the file, or was stopped in the "
            "middle of it (`fuser %s` names those that have it open); work goes on as soon as the lock is free",
            self._path, waited_s, self._path,
        )  # fmt: skip


def is_busy(error: BaseException | None) -> bool:
    """Whether SQLite said that another connection has the file."""
    code = getattr(error, "sqlite_errorcode", None)
    return code is not None and code & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
