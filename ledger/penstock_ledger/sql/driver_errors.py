"""What an error of a database driver means: try again, the server is away, or a table is
missing."""

from __future__ import annotations

import sqlite3
from typing import Final

from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError

from penstock_ledger.sql.sqlite_lock import is_busy

LOCK_NOT_AVAILABLE: Final = "55P03"
_RETRYABLE_SQLSTATES: Final = frozenset(
    {"40001", "40P01", LOCK_NOT_AVAILABLE}
)  # the first two: serialization, deadlock
_UNDEFINED_TABLE: Final = "42P01"
# Connection lost, server shutting down or starting up, too many connections; psycopg has none where
# it never got in.
_AWAY_SQLSTATES: Final = ("08", "57P", "53300")


def worth_repeating(error: DBAPIError) -> bool:
    """Whether the transaction may work when it is begun again: it lost a deadlock, or the wait for
    a lock."""
    return sqlstate(error) in _RETRYABLE_SQLSTATES or is_busy(error.orig)


def is_away(error: DBAPIError) -> bool:
    """Whether the database was not reached, or lost, as opposed to a statement that it refused."""
    code = getattr(error.orig, "sqlite_errorcode", None)
    if code is not None:
        return bool(code & 0xFF == sqlite3.SQLITE_CANTOPEN)
    if not isinstance(error, (OperationalError, InterfaceError)) or isinstance(
        error.orig, sqlite3.Error
    ):
        return False
    state = sqlstate(error)
    return error.connection_invalidated or state is None or state.startswith(_AWAY_SQLSTATES)


def is_missing_table(error: DBAPIError) -> bool:
    return sqlstate(error) == _UNDEFINED_TABLE or "no such table" in str(error.orig)


def sqlstate(error: DBAPIError) -> str | None:
    """PostgreSQL's five characters; None where the server was not asked, and of SQLite."""
    return getattr(error.orig, "sqlstate", None)
