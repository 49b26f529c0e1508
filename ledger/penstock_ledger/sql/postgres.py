"""Connect to PostgreSQL: bounded waits, named connections, nothing that needs a session.

Behind PgBouncer in transaction mode each transaction may have another server connection. So nothing
is prepared, no SET outlives its transaction, locks are the transaction's, and start-up parameters
are only those that PgBouncer knows.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from sqlalchemy import URL, Connection, Engine, create_engine, event, text
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.exc import SQLAlchemyError

__all__ = [
    "COUNT_CONNECTIONS",
    "MIGRATION_LOCK_S",
    "POOL_SIZE",
    "Connections",
    "ServerCommits",
    "Waits",
    "application_name",
    "holders",
    "open_engine",
    "wait_for_other_migrations",
]

APPLICATION: Final = "penstock"  # what our connections' names start with, in pg_stat_activity
# two threads that settle and begin, and two reads of large documents beside them
POOL_SIZE: Final = 4
POOL_WAIT_S: Final = 30.0  # for a connection of this process's pool to come free
CONNECT_TIMEOUT_S: Final = 10
# a process that was frozen in a transaction loses its locks after this
IDLE_IN_TRANSACTION_S: Final = 60.0
# A server that vanished without a word is noticed within half a minute, not after the two hours of
# most systems.
KEEPALIVES: Final = {
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 4,
    "tcp_user_timeout": 30_000,
}
# Serialises migrations of several processes; any number that no other program uses ("penstock" on a
# keypad).
MIGRATION_LOCK: Final = 73678625
# For a table that is in use: all other statements on it queue up behind the migration, so it steps
# back soon and tries again.
MIGRATION_LOCK_S: Final = 2.0
# that another process may take to migrate; an index over millions of rows takes minutes
OTHERS_S: Final = 600.0
_NAME_BYTES: Final = 63  # PostgreSQL cuts longer ones
# of an error's first line: it may quote a value ("invalid input syntax for …")
_ERROR_CHARS: Final = 500

COUNT_CONNECTIONS: Final = (
    "SELECT count(*), count(*) FILTER (WHERE application_name LIKE 'penstock-%'), "
    "current_setting('max_connections')::int - "
    "current_setting('superuser_reserved_connections')::int FROM pg_stat_activity WHERE "
    "backend_type = 'client backend'"
)

_SNAPSHOT: Final = "SELECT CAST(pg_current_snapshot() AS text)"

HOLDERS_SHOWN: Final = 3
_HOLDERS: Final = (
    "SELECT pid, application_name AS name, extract(epoch FROM clock_timestamp() - xact_start) AS "
    "age FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() AND "
    "pid IN (SELECT held.pid FROM pg_locks AS held JOIN pg_class ON pg_class.oid = held.relation "
    "WHERE held.granted AND relkind = 'r' AND relnamespace = current_schema()::regnamespace) ORDER "
    "BY xact_start LIMIT :most"
)


class Connections(NamedTuple):
    """Of a PostgreSQL server, to all its databases."""

    used: int
    by_penstock: int  # by their names; behind a pooler they are counted as it last named them
    limit: int


@dataclass(frozen=True, slots=True)
class Waits:
    """Return how long the server may spend on one statement, and in it on one lock, in seconds.

    0 is without end."""

    statement_s: float = 60.0
    # a lock that is not had by then fails the transaction, which is tried again
    lock_s: float = 10.0


class ServerCommits:
    """Tells of commits on a PostgreSQL server, to whichever database of it. Of one thread.

    A transaction that writes is named in each snapshot from its first row to its commit, so that a
    snapshot differs once one has begun or ended. A look is one round trip on a connection that is
    kept, without a transaction
    (https://www.postgresql.org/docs/current/functions-info.html, ``pg_current_snapshot``).
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._connection: Any = None  # psycopg's, and none of the pool any more

    def mark(self) -> str | None:
        """Return a text that each commit changes; None where the server does not answer."""
        try:
            if self._connection is None:
                pooled = self._engine.raw_connection()
                pooled.detach()
                self._connection = pooled.dbapi_connection
                self._connection.autocommit = True
            return str(self._connection.execute(_SNAPSHOT).fetchone()[0])
        except (SQLAlchemyError, self._engine.dialect.loaded_dbapi.Error):
            self.close()
            return None

    def descriptor(self) -> None:
        """Return None: the next commit has to be looked for."""

    def hear(self) -> None:
        """Do nothing, as nothing is reported."""

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def open_engine(url: URL, *, pool_size: int, waits: Waits, role: str) -> Engine:
    """Return an engine for a URL of psycopg; nothing is connected yet.

    What the URL's query says wins.
    """
    arguments: dict[str, Any] = {
        "application_name": application_name(role),
        "connect_timeout": CONNECT_TIMEOUT_S,
        "client_encoding": "utf8",  # else a database in SQL_ASCII answers with bytes
        **KEEPALIVES,
    }
    engine = create_engine(
        url,
        pool_size=pool_size,
        max_overflow=0,
        pool_timeout=POOL_WAIT_S,
        # those beyond what is needed stay idle, and a pooler or firewall may end them
        pool_use_lifo=True,
        pool_pre_ping=True,  # one that a restart has ended is replaced before it is used
        hide_parameters=True,  # errors reach logs, and parameters are documents
        connect_args={name: value for name, value in arguments.items() if name not in url.query}
        # psycopg prepares on one server connection what PgBouncer sends to another
        | {"prepare_threshold": None},
    )
    event.listen(engine, "begin", _bounded_by(waits))
    event.listen(engine, "handle_error", _leave_out_the_row)
    return engine


def _leave_out_the_row(context: ExceptionContext) -> None:
    """Take the row that PostgreSQL refused out of its error, since errors reach logs.

    It quotes it ("Failing row contains …") below its first line."""
    for error in (context.original_exception, context.sqlalchemy_exception):
        if error is not None and error.args and isinstance(error.args[0], str):
            error.args = (error.args[0].partition("\n")[0][:_ERROR_CHARS], *error.args[1:])


def application_name(role: str) -> str:
    """Return ``penstock-worker@host-pid``, which says who holds a lock."""
    return f"{APPLICATION}-{role}@{socket.gethostname()}-{os.getpid()}"[:_NAME_BYTES]


def wait_for_other_migrations(connection: Connection, lock_s: float) -> None:
    """Take the lock of migrations; it is the transaction's, as a pooler wants it.

    ``lock_s`` is the limit for tables then."""
    connection.exec_driver_sql(_limits(0, OTHERS_S))
    connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": MIGRATION_LOCK})
    connection.exec_driver_sql(_limits(0, lock_s))


def holders(connection: Connection) -> list[str]:
    """Return the oldest transactions that hold our tables, for people to read."""
    rows = connection.execute(text(_HOLDERS), {"most": HOLDERS_SHOWN})
    return [
        f"PID {row.pid}"
        + (f" ({row.name})" if row.name else "")
        + ("" if row.age is None else f" for {row.age:.0f} s")
        for row in rows
    ]


def _bounded_by(waits: Waits) -> Any:
    limits = _limits(waits.statement_s, waits.lock_s)

    def begin(connection: Connection) -> None:
        connection.exec_driver_sql(limits)

    return begin


def _limits(statement_s: float, lock_s: float) -> str:
    """Return the statement that sets limits, in one round trip.

    SET LOCAL ends with the transaction: a pooler gives the connection to another client then.
    """
    limits = {
        "statement_timeout": statement_s,
        "lock_timeout": lock_s,
        "idle_in_transaction_session_timeout": IDLE_IN_TRANSACTION_S,
    }
    return "; ".join(
        f"SET LOCAL {name} = {round(seconds * 1000)}" for name, seconds in limits.items()
    )
