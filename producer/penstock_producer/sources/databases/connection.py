"""Connections to the database of a source: reading only, in one snapshot per transaction, each
statement bounded."""

from __future__ import annotations

import contextlib
import math
import os
import sqlite3
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from urllib.parse import quote

from sqlalchemy import Connection, Engine, NullPool, create_engine, event
from sqlalchemy.pool import ConnectionPoolEntry

from penstock_ledger import Waits
from penstock_ledger.sql.postgres import open_engine
from penstock_producer.errors import SourceError, SourceUnavailable
from penstock_producer.sources.blobs.convert import refuse_kind
from penstock_producer.sources.databases.address import Address
from penstock_producer.sources.databases.drivers import open_other
from penstock_producer.sources.databases.faults import Wording, explained

__all__ = ["ReadOnly"]

POOL_SIZE: Final = (
    2  # of one source in one process: what is read by reference, in threads, waits its turn
)
LOCK_S: Final = 10.0  # a table that is being changed
BUSY_S: Final = 30.0  # a file that another program writes
OPS_BETWEEN_LOOKS: Final = (
    20_000  # steps of SQLite's machine between two looks at the clock: some milliseconds
)
_DEADLINE: Final = (
    "deadline"  # of the statement under way, in what SQLAlchemy keeps with a connection
)
_SNAPSHOT: Final = (
    "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY; SET LOCAL TimeZone = 'UTC'; SET "
    "LOCAL DateStyle = 'ISO'"
)


class ReadOnly:
    """Opened at the first use. Thread-safe; a fork's child opens connections of its own."""

    def __init__(self, address: Address, wording: Wording) -> None:
        self.wording = wording
        self._address = address
        self._engine: Engine | None = None
        self._pid = 0

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Connection]:
        """What is read in it is of one moment. Raises SourceError and SourceUnavailable."""
        if self._address.file is not None:
            _check_file(self._address.file, is_sqlite=self._address.backend == "sqlite")
        with explained(self.wording), self._opened().connect() as connection:
            yield connection

    def _opened(self) -> Engine:
        if self._engine is None or self._pid != os.getpid():
            engine = self._made()
            weakref.finalize(self, engine.dispose)
            self._engine, self._pid = engine, os.getpid()
        return self._engine

    def _made(self) -> Engine:
        match self._address.backend:
            case "sqlite":
                return self._sqlite()
            case "postgresql":
                return self._postgresql()
        return open_other(self._address.url, self.wording.timeout_s)

    def _postgresql(self) -> Engine:
        waits = Waits(statement_s=self.wording.timeout_s, lock_s=LOCK_S)
        engine = open_engine(self._address.url, pool_size=POOL_SIZE, waits=waits, role="source")
        event.listen(
            engine, "begin", lambda connection: connection.exec_driver_sql(_SNAPSHOT), insert=True
        )
        return engine

    def _sqlite(self) -> Engine:
        path = str(self._address.url.database)
        engine = create_engine(
            "sqlite://",
            creator=lambda: _connected(path),
            poolclass=NullPool,
            hide_parameters=True,  # errors reach logs, and parameters are keys of documents
        )

        def bound(opened: sqlite3.Connection, record: ConnectionPoolEntry) -> None:
            deadline = record.info[_DEADLINE] = _Deadline(self.wording.timeout_s)
            opened.set_progress_handler(deadline.is_over, OPS_BETWEEN_LOOKS)

        event.listen(engine, "connect", bound)
        event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN"))
        event.listen(
            engine,
            "before_cursor_execute",
            lambda connection, *_: connection.info[_DEADLINE].begin(),
        )
        return engine


def _check_file(path: str, *, is_sqlite: bool) -> None:
    try:
        refuse_kind(path, os.stat(path).st_mode)
    except FileNotFoundError:
        raise SourceUnavailable(f"{path}: there is no such file; check the path") from None
    except OSError as error:
        raise SourceUnavailable(
            f"{path} cannot be opened ({error.strerror}); check the path and its rights"
        ) from error
    if not is_sqlite:
        return
    with contextlib.suppress(OSError), Path(path).open("rb") as file:
        start = file.read(16)
        if start and start != b"SQLite format 3\0":
            raise SourceError(
                "invalid_database",
                f"{path} is not a database of SQLite; name it without sqlite:/// as a file",
            )


def _connected(path: str) -> sqlite3.Connection:
    connection = sqlite3.connect(
        f"file:{quote(path)}?mode=ro",
        uri=True,
        timeout=BUSY_S,
        check_same_thread=False,
        isolation_level=None,
    )
    connection.text_factory = _text
    for pragma in ("query_only = ON", "trusted_schema = OFF", "cell_size_check = ON"):
        connection.execute(f"PRAGMA {pragma}")
    return connection


class _Deadline:
    """Of the statement that a connection executes."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._until = math.inf

    def begin(self) -> None:
        if self._timeout_s:
            self._until = time.monotonic() + self._timeout_s

    def is_over(self) -> bool:
        return time.monotonic() > self._until


def _text(raw: bytes) -> str:
    """Bytes that are not UTF-8 become half surrogate pairs, which the checks of texts name and
    refuse."""
    return raw.decode("utf-8", "surrogateescape")
