"""A SQLite file as an engine of SQLAlchemy: durable commits in a write-ahead log.

Writers take their lock as they begin.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from sqlalchemy import URL, ColumnElement, Connection, Engine, create_engine, event
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.visitors import InternalTraversal

from penstock_ledger.errors import DatabaseUnusable

log = logging.getLogger(__name__)

T = TypeVar("T")

# one writer at a time, each holds the lock for milliseconds; half a minute is a hang
LOCK_WAIT_S: Final = 30.0
LOOK_S: Final = 5.0  # SQLite's own wait; after each we look how long it has been
# SQLite looks again after 1, 2 and 5 ms, and then after ever longer, up to 100: a holder is gone
# after some milliseconds, and who has just slept finds the next one. So waits are short at first,
# and begin anew.
SHORT_LOOK_S: Final = 0.008
SHORT_FOR_S: Final = 0.5
SAID_EACH_S: Final = 10.0  # by all threads of this process together
_LOOKS: Final = "penstock_looks"  # how long SQLite waits on a connection; the key of its ``info``


def unindexed(column: ColumnElement[T]) -> ColumnElement[T]:
    """Return a column by which SQLite shall not search; it is written with a plus before it.

    Its files have no statistics, so that it may choose the index over a whole job where another one
    names some rows. Elsewhere it is the column: PostgreSQL knows better."""
    return _Unindexed(column)


class _Unindexed(ColumnElement[Any]):
    inherit_cache = True
    _traverse_internals = [("column", InternalTraversal.dp_clauseelement)]  # noqa: RUF012  # as SQLAlchemy declares it

    def __init__(self, column: ColumnElement[Any]) -> None:
        self.column, self.type = column, column.type


@compiles(_Unindexed)
def _plain(element: _Unindexed, compiler: SQLCompiler, **options: Any) -> str:
    return compiler.process(element.column, **options)


@compiles(_Unindexed, "sqlite")
def _with_a_plus(element: _Unindexed, compiler: SQLCompiler, **options: Any) -> str:
    return f"+{compiler.process(element.column, **options)}"


class WriteLock:
    """Of one file. Shared by the threads of a process."""

    def __init__(self, path: str, *, wait_s: float = LOCK_WAIT_S, look_s: float = LOOK_S) -> None:
        self._path = path
        self._wait_s = wait_s
        self._look_s = look_s
        self._guard = threading.Lock()
        self._said_at = float("-inf")

    def begin(self, connection: Connection) -> None:
        """BEGIN IMMEDIATE.

        Raises SQLAlchemy's OperationalError when the lock does not come within ``wait_s``."""
        if self._begins(connection, SHORT_LOOK_S, min(SHORT_FOR_S, self._wait_s)):
            return
        if self._begins(connection, self._look_s, self._wait_s):
            return
        # once more, so that a failure is SQLAlchemy's
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    def look_for(self, connection: Connection, look_s: float) -> Any:
        """Have SQLite wait for so long, and return the driver's connection.

        That is said only where it changes: each statement lets go of the interpreter once more."""
        raw: Any = connection.connection.driver_connection
        if connection.info.get(_LOOKS) != look_s:
            raw.execute(f"PRAGMA busy_timeout = {round(look_s * 1000)}")
            connection.info[_LOOKS] = look_s
        return raw

    def _begins(self, connection: Connection, look_s: float, wait_s: float) -> bool:
        """Return whether the lock came within ``wait_s``, looking in waits of ``look_s``.

        It is False for other failures, too."""
        began = time.monotonic()
        raw = self.look_for(connection, look_s)
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
    """Return whether SQLite said that another connection has the file."""
    code = getattr(error, "sqlite_errorcode", None)
    return code is not None and code & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


# the option of connections whose transaction takes the write lock as it begins
WRITES: Final = "penstock_writes"
# Per connection. Workers insert into indexes whose pages, of a million rows, stay in memory; others
# read on, and what they have read needs no second place beside the kernel's.
WORKER_CACHE_KIB: Final = 32 * 1024
CACHE_KIB: Final = 4 * 1024
# 32 MiB of log: pages that many commits touch are written back once, not each time
CHECKPOINT_PAGES: Final = 8_000
WAL_ATTEMPTS: Final = 50  # switching to WAL needs the file alone and does not wait for it by itself
WAL_PAUSE_S: Final = 0.02


def checked_sqlite(url: URL) -> URL:
    """Return ``url``, where a file can be there. Raises DatabaseUnusable."""
    if not url.database or url.database == ":memory:":
        raise DatabaseUnusable(
            "sqlite without a file loses everything at the end of the process and cannot be "
            "shared: use sqlite:///file"
        )
    folder = Path(url.database).absolute().parent
    if not folder.is_dir():
        raise DatabaseUnusable(
            f"the folder {folder} of the database does not exist: create it first"
        )
    return url


class Commits:
    """Tells of commits of other connections, those of other processes too. Of one thread.

    A look takes some microseconds and no lock (https://sqlite.org/pragma.html#pragma_data_version).
    The next commit need not be looked for: the system reports each write to the file's log. All
    that write to the file have its index mapped, so they are processes of the same system.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._connection: sqlite3.Connection | None = None
        self._reports: Any = None  # INotify

    def mark(self) -> int | None:
        """Return a number that each commit changes; None where the file cannot be read."""
        try:
            if self._connection is None:
                self._connection = sqlite3.connect(self._path, timeout=0.0, check_same_thread=False)
            return int(self._connection.execute("PRAGMA data_version").fetchone()[0])
        except sqlite3.Error:
            self.close()
            return None

    def descriptor(self) -> int | None:
        """Return what can be read once something was written, after ``hear``.

        The commit is seen a little later: when the disk has it. None where nothing is reported: the
        log is not there, or the system has no inotify left."""
        if self._reports is None:
            with contextlib.suppress(ImportError, OSError):
                from inotify_simple import INotify, flags

                with contextlib.ExitStack() as undo:
                    reports = undo.enter_context(INotify())
                    reports.add_watch(f"{self._path}-wal", flags.MODIFY)
                    undo.pop_all()
                self._reports = reports
        return None if self._reports is None else int(self._reports.fileno())

    def hear(self) -> None:
        """Take in what was reported until now.

        A log that is no more is not listened to any longer."""
        from inotify_simple import flags

        if any(event.mask & flags.IGNORED for event in self._reports.read(timeout=0)):
            self._reports.close()
            self._reports = None

    def close(self) -> None:
        for opened in (self._connection, self._reports):
            if opened is not None:
                opened.close()
        self._connection = self._reports = None


def open_sqlite(url: URL, pool_size: int, cache_kib: int) -> Engine:
    """Prepare an engine; nothing is connected yet."""
    engine = create_engine(
        url,
        pool_size=pool_size,
        max_overflow=0,
        connect_args={"check_same_thread": False},
        hide_parameters=True,  # errors reach logs, and parameters are documents
    )
    lock = WriteLock(str(url.database))

    def begin(connection: Connection) -> None:
        if connection.get_execution_options().get(WRITES, False):
            lock.begin(connection)
        else:
            lock.look_for(connection, LOOK_S)
            connection.exec_driver_sql("BEGIN")

    event.listen(engine, "do_connect", partial(_prepare_file, url))
    event.listen(engine, "connect", partial(_prepare_sqlite, cache_kib))
    event.listen(engine, "begin", begin)
    return engine


def _prepare_file(url: URL, *_: object) -> None:
    """Make the file, where there is none, for its owner only; refuse one that no process can write.

    Documents, answers and digests of keys are in it. SQLite gives the files beside it the same
    mode. One that is there keeps the mode that it has. On a read-only disk SQLite would open it to
    be read, where others have it open, and all of this process would read for ever, also once the
    disk takes writes again."""
    if "uri" in url.query:
        return
    path = str(url.database)
    # it is there; or it cannot be made, which SQLite says better
    with contextlib.suppress(OSError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    with contextlib.suppress(OSError):
        if os.statvfs(path).f_flag & os.ST_RDONLY:
            refused = sqlite3.OperationalError("it is on a read-only file system")
            refused.sqlite_errorcode = sqlite3.SQLITE_CANTOPEN
            raise refused


def _prepare_sqlite(cache_kib: int, connection: Any, _record: object) -> None:
    # SQLAlchemy's recipe: pysqlite must not open transactions by itself.
    connection.isolation_level = None
    cursor = connection.cursor()
    cursor.execute(f"PRAGMA busy_timeout = {round(LOOK_S * 1000)}")
    _switch_to_wal(cursor)
    cursor.execute("PRAGMA synchronous = FULL")
    cursor.execute(f"PRAGMA cache_size = -{cache_kib}")
    cursor.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
    cursor.close()


def _switch_to_wal(cursor: sqlite3.Cursor) -> None:
    for attempt in range(1, WAL_ATTEMPTS + 1):
        try:
            mode = cursor.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        except sqlite3.OperationalError as error:
            if attempt == WAL_ATTEMPTS or not is_busy(error):
                raise
            time.sleep(WAL_PAUSE_S)
            continue
        if mode != "wal":
            raise DatabaseUnusable(
                f"sqlite keeps journal_mode={mode}: its folder must be on a local disk"
            )
        return
