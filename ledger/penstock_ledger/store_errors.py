"""One place says which kind a failure of a store is for what was being written.

``REFUSED``: the same again gets the same answer, so the caller looks for the one row of its group
that is refused. ``AWAY``: the store cannot be reached, has no room, or is locked by another
process; waiting helps, restarting this process does not. ``FAULTY``: it answers, with something
that is none of these: waiting may help, and so may a restart (a password that was changed, a pool
of connections that never comes free).
"""

from __future__ import annotations

import sqlite3
from enum import Enum
from typing import Final

import redis.exceptions as redis_errors
from sqlalchemy.exc import (
    DataError,
    DBAPIError,
    IntegrityError,
    InterfaceError,
    OperationalError,
    StatementError,
)
from sqlalchemy.exc import ProgrammingError as BadStatement

from penstock_ledger.errors import DatabaseUnavailable, RedisForgot

WORDS_MAX: Final = 300  # characters of an error in a log line


class Trouble(Enum):
    """The three kinds that the top of this module explains."""

    REFUSED = "refused"
    AWAY = "away"
    FAULTY = "faulty"


# By the first characters of an SQLSTATE,
# https://www.postgresql.org/docs/current/errcodes-appendix.html
_STATES: Final = {
    "22": Trouble.REFUSED,  # a value that is out of range, or no valid text
    "23": Trouble.REFUSED,  # a constraint
    "54": Trouble.REFUSED,  # beyond a limit of the server: an id that fits no index
    "08": Trouble.AWAY,  # the connection
    "25006": Trouble.AWAY,  # read only: a standby, until it is promoted
    "40": Trouble.AWAY,  # a deadlock, a serialization failure
    "53": Trouble.AWAY,  # no disk, no memory, no connection left
    "55": Trouble.AWAY,  # a lock
    "57": Trouble.AWAY,  # shutting down, or starting, or a statement that took too long
    "58": Trouble.AWAY,  # the server's own input and output
}
_SQLITE: Final = {
    sqlite3.SQLITE_BUSY: Trouble.AWAY,
    sqlite3.SQLITE_LOCKED: Trouble.AWAY,
    sqlite3.SQLITE_FULL: Trouble.AWAY,
    sqlite3.SQLITE_IOERR: Trouble.AWAY,
    sqlite3.SQLITE_READONLY: Trouble.AWAY,
    sqlite3.SQLITE_CANTOPEN: Trouble.AWAY,
    sqlite3.SQLITE_NOMEM: Trouble.AWAY,
    sqlite3.SQLITE_TOOBIG: Trouble.REFUSED,
    sqlite3.SQLITE_CONSTRAINT: Trouble.REFUSED,
    sqlite3.SQLITE_MISMATCH: Trouble.REFUSED,
    sqlite3.SQLITE_RANGE: Trouble.REFUSED,
}
# Redis before version 7 puts the error of a command in a script into a longer text, so words are
# looked for anywhere in it.
_REDIS_AWAY: Final = (
    "READONLY",
    "OOM",
    "MISCONF",
    "LOADING",
    "MASTERDOWN",
    "NOREPLICAS",
    "CLUSTERDOWN",
    "TRYAGAIN",
    "BUSY",
)
_REDIS_REFUSED: Final = (
    "WRONGTYPE",
    "not an integer",
    "not a valid float",
    "out of range",
    "would overflow",
    "is not a float",
)
# no driver could turn it into bytes
_UNFIT_VALUES: Final = (UnicodeError, OverflowError, ValueError, TypeError)


def trouble_of(error: BaseException) -> Trouble:
    """Return what kind of failure ``error`` is."""
    if isinstance(error, DatabaseUnavailable) and isinstance(error.__cause__, DBAPIError):
        # the driver's own words tell a password that was changed from a server that is away
        error = error.__cause__
    if isinstance(error, DBAPIError):
        return _of_sql(error)
    if isinstance(error, redis_errors.RedisError):
        return _of_redis(error)
    if isinstance(error, StatementError):  # a value that SQLAlchemy itself could not bind
        return Trouble.REFUSED if isinstance(error.orig, _UNFIT_VALUES) else Trouble.FAULTY
    if isinstance(error, OSError | RedisForgot | DatabaseUnavailable):
        return Trouble.AWAY
    return Trouble.REFUSED if isinstance(error, _UNFIT_VALUES) else Trouble.FAULTY


def in_words(error: BaseException) -> str:
    """Return ``error`` for a log line: its class and first line, without values of a row."""
    cause = error.orig if isinstance(error, StatementError) and error.orig is not None else error
    first = str(cause).strip().partition("\n")[0]
    words = f"{type(cause).__name__}: {first}" if first else type(cause).__name__
    return words if len(words) <= WORDS_MAX else words[: WORDS_MAX - 1] + "…"


def _of_sql(error: DBAPIError) -> Trouble:
    if isinstance(error.orig, sqlite3.Error):
        return _of_sqlite(error.orig)
    state = getattr(error.orig, "sqlstate", None)
    if state is not None:
        return _STATES.get(state, _STATES.get(state[:2], Trouble.FAULTY))
    # the driver refused before it asked the server
    if isinstance(error, DataError | IntegrityError | BadStatement):
        return Trouble.REFUSED
    return Trouble.AWAY if isinstance(error, OperationalError | InterfaceError) else Trouble.FAULTY


def _of_sqlite(error: sqlite3.Error) -> Trouble:
    code = getattr(error, "sqlite_errorcode", None)
    if code is not None:
        return _SQLITE.get(code & 0xFF, Trouble.FAULTY)
    is_unbindable = isinstance(
        error, sqlite3.DataError | sqlite3.ProgrammingError | sqlite3.InterfaceError
    )
    return Trouble.REFUSED if is_unbindable and "closed" not in str(error) else Trouble.FAULTY


def _of_redis(error: redis_errors.RedisError) -> Trouble:
    if isinstance(error, redis_errors.AuthenticationError):
        return Trouble.FAULTY
    if isinstance(error, redis_errors.ConnectionError | redis_errors.TimeoutError):
        return Trouble.AWAY
    if isinstance(error, redis_errors.DataError):
        return Trouble.REFUSED
    words = f"{type(error).__name__} {error}"
    if isinstance(error, redis_errors.ReadOnlyError | redis_errors.OutOfMemoryError) or _has(
        words, _REDIS_AWAY
    ):
        return Trouble.AWAY
    return Trouble.REFUSED if _has(words, _REDIS_REFUSED) else Trouble.FAULTY


def _has(words: str, marks: tuple[str, ...]) -> bool:
    return any(mark in words for mark in marks)
