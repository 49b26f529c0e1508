"""The write lock of an SQLite file: taken when a transaction begins, and logged when it does not
come.

Each holder keeps it for milliseconds, so a wait of seconds has a cause that a person may want to
know: a backup, a shell that left a transaction open, a process that was stopped in the middle of
one.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from typing import Any, Final

from sqlalchemy import Connection

log = logging.getLogger(__name__)

LOCK_WAIT_S: Final = (
    30.0  # one writer at a time, each holds the lock for milliseconds; half a minute is a hang
)
LOOK_S: Final = 5.0  # SQLite's own wait; after each we look how long it has been
# SQLite looks again after 1, 2 and 5 ms, and then after ever longer, up to 100: a holder is gone
# after some milliseconds, and who has just slept finds the next one. So waits are short at first,
# and begin anew.
SHORT_LOOK_S: Final = 0.008
SHORT_FOR_S: Final = 0.5
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
        """BEGIN IMMEDIATE.

        Raises SQLAlchemy's OperationalError when the lock does not come within ``wait_s``."""
        raw: Any = connection.connection.driver_connection
        if self._begins(raw, SHORT_LOOK_S, min(SHORT_FOR_S, self._wait_s)):
            return
        if self._begins(raw, self._look_s, self._wait_s):
            return
        connection.exec_driver_sql(
            "BEGIN IMMEDIATE"
        )  # once more, so that a failure is SQLAlchemy's

    def _begins(self, raw: Any, look_s: float, wait_s: float) -> bool:
        """Whether the lock came within ``wait_s``, looking in waits of ``look_s``; False for other
        failures, too."""
        began = time.monotonic()
        raw.execute(f"PRAGMA busy_timeout = {round(look_s * 1000)}")
        try:
            while True:
                try:
                    raw.execute("BEGIN IMMEDIATE")
                except sqlite3.OperationalError as error:
                    waited_s = time.monotonic() - began
                    if not is_busy(error):
                        return False
                    if look_s >= self._look_s:
                        self._say(waited_s)
                    if waited_s + look_s >= wait_s:
                        return False
                else:
                    return True
        finally:
            raw.execute(f"PRAGMA busy_timeout = {self.look_ms}")

    def _say(self, waited_s: float) -> None:
        with self._guard:
            now = time.monotonic()
            if now - self._said_at < SAID_EACH_S:
                return
            self._said_at = now
        log.warning(
            "waiting for the write lock of %s for %.0f s already: another process writes to the "
            "file, or was stopped in the middle of it (`fuser %s` names those that have it open); "
            "work goes on as soon as the lock is free",
            self._path,
            waited_s,
            self._path,
        )


def is_busy(error: BaseException | None) -> bool:
    """Whether SQLite said that another connection has the file."""
    code = getattr(error, "sqlite_errorcode", None)
    return code is not None and code & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
