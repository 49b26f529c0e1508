"""Connections to the database of a source, and what it says when it refuses.

They read only, in one snapshot per transaction, each statement bounded. A refusal is said in the
words of sources: what to correct, and whether waiting helps.
"""

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
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.pool import ConnectionPoolEntry

from penstock_ledger import Waits
from penstock_ledger.redaction import redact
from penstock_ledger.sql.postgres import open_engine
from penstock_producer.errors import SourceError, SourceUnavailable
from penstock_producer.sources.blobs.detect import refuse_kind
from penstock_producer.sources.databases.address import Address, open_other

__all__ = ["ReadOnly", "Wording", "explained"]


SAID_CHARS: Final = 300  # of what the database says: it may quote a value
_TIMEOUT: Final = ("57014",)
_UNDEFINED: Final = ("42P01", "42703", "3F000", "42883")  # table, column, schema, function
_FORBIDDEN: Final = ("42501",)
_WRITES: Final = ("25006", "25P02")
_REFUSED: Final = ("42", "0A", "3D")  # the statement itself; the database that the URL names
_DATA: Final = ("22", "2F", "P0", "XX")  # a value or function that one row meets
_SQLITE: Final = (
    (_TIMEOUT, ("interrupted",)),
    (_UNDEFINED, ("no such table", "no such column", "no such function")),
    (_WRITES, ("readonly database", "not authorized")),
    (_FORBIDDEN, ("not a database", "malformed", "unsupported file format")),
    (("08",), ("locked", "unable to open", "disk i/o error", "busy")),
    (_DATA, ("malformed json", "overflow")),
)
_DUCKDB: Final = {  # by the names of its exceptions
    "InterruptException": _TIMEOUT,
    "CatalogException": _UNDEFINED,
    "BinderException": ("42703",),
    "ParserException": ("42",),
    "SyntaxException": ("42",),
    "PermissionException": _FORBIDDEN,
    "InvalidInputException": ("42",),
    "ConversionException": _DATA,
    "OutOfRangeException": _DATA,
}
_MYSQL: Final = (  # by the numbers of its errors
    (_TIMEOUT, (3024, 1969, 1317)),
    (_UNDEFINED, (1146, 1054, 1305, 1051)),
    (_WRITES, (1792, 1290)),
    (_FORBIDDEN, (1044, 1142, 1143, 1370)),
    (("42",), (1064, 1049, 1248, 1060, 1109, 1222)),
    (_DATA, (1690, 1365, 1292, 3141)),
)


class Wording:
    """Of one source: how it is named, and whether its job was accepted already."""

    def __init__(self, name: str, *, accepted: bool, timeout_s: float) -> None:
        self.name = name
        self.accepted = accepted
        self.timeout_s = timeout_s

    def of(self, error: SQLAlchemyError) -> SourceError:
        state, said = _state(error), _said(error)
        if state.startswith(_TIMEOUT):
            return SourceUnavailable(
                f"{self.name} did not answer within {self.timeout_s:g} s; make the query faster "
                "(an index on the id column), or raise the setting source_query_timeout_s "
                "(PENSTOCK_SOURCE_QUERY_TIMEOUT_S)",
                code="source_timeout",
            )
        if state.startswith(_WRITES):
            return SourceError(
                "query_writes",
                f"{self.name} is opened for reading only: {said}; give a plain SELECT",
            )
        if state.startswith(_UNDEFINED) and self.accepted:
            return SourceUnavailable(
                f"{self.name} is not what it was at submit: {said}; restore it, then resume the "
                "job",
                code="source_changed",
            )
        if state.startswith((*_FORBIDDEN, *_REFUSED)):
            return self._refused(
                "invalid_query", f"{self.name} cannot be read: {said}; correct it, or its rights"
            )
        if state.startswith(_DATA):
            return self._refused(
                "query_failed", f"{self.name} cannot be read: {said}; correct the query or the row"
            )
        return SourceUnavailable(
            f"{self.name} cannot be read now: {said}; check the database, its address and its "
            "rights"
        )

    def _refused(self, code: str, message: str) -> SourceError:
        """Return the error for what a person can put right; until then an accepted job waits."""
        return (
            SourceUnavailable(message, code=code) if self.accepted else SourceError(code, message)
        )


@contextlib.contextmanager
def explained(wording: Wording) -> Iterator[None]:
    """Raise SourceError and SourceUnavailable for what SQLAlchemy raises."""
    try:
        yield
    except SQLAlchemyError as error:
        raise wording.of(error) from error
    except sqlite3.Warning as error:  # several statements, which Python 3.11 does not call an error
        raise SourceError("invalid_query", f"{wording.name} cannot be read: {error}") from error
    except UnicodeDecodeError as error:  # PostgreSQL in SQL_ASCII
        raise SourceError(
            "invalid_encoding",
            f"{wording.name} holds text that is not UTF-8: {error.reason}; convert it in a query",
        ) from error


def _state(error: SQLAlchemyError) -> str:
    """Return the SQLSTATE, or one that says the same of SQLite's words.

    It is "" where the database was not reached.
    """
    orig = error.orig if isinstance(error, DBAPIError) else None
    if isinstance(orig, sqlite3.Error):
        words = str(orig).lower()
        return next(
            (states[0] for states, signs in _SQLITE if any(sign in words for sign in signs)), "42"
        )
    number = orig.args[0] if orig is not None and orig.args else None
    if type(number) is int:
        return next((states[0] for states, numbers in _MYSQL if number in numbers), "")
    known = _DUCKDB.get(type(orig).__name__)
    return known[0] if known is not None else str(getattr(orig, "sqlstate", None) or "")


def _said(error: SQLAlchemyError) -> str:
    orig = error.orig if isinstance(error, DBAPIError) else None
    return redact(str(orig or error).strip().partition("\n")[0][:SAID_CHARS], cut=True)


# of one source in one process: what is read by reference, in threads, waits its turn
POOL_SIZE: Final = 2
LOCK_S: Final = 10.0  # a table that is being changed
BUSY_S: Final = 30.0  # a file that another program writes
# steps of SQLite's machine between two looks at the clock: some milliseconds
OPS_BETWEEN_LOOKS: Final = 20_000
# of the statement under way, in what SQLAlchemy keeps with a connection
_DEADLINE: Final = "deadline"
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
        """Open a transaction: what is read in it is of one moment.

        Raises SourceError and SourceUnavailable.
        """
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
    """Decode bytes; those that are not UTF-8 become half surrogate pairs.

    The checks of texts name these and refuse them.
    """
    return raw.decode("utf-8", "surrogateescape")
