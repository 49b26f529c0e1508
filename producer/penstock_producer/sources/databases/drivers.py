"""Databases beside SQLite and PostgreSQL: which package each needs, and how it is opened.

DuckDB, MySQL and MariaDB are held to what they were asked for: reading only, one snapshot per
transaction, a time limit. Of others only what their SQLAlchemy dialect does by itself.
"""

from __future__ import annotations

import contextlib
import threading
from importlib import util
from typing import Any, Final

from sqlalchemy import URL, Connection, Engine, NullPool, create_engine, event
from sqlalchemy.exc import ArgumentError, NoSuchModuleError

from penstock_ledger.redaction import redact
from penstock_producer.errors import SourceError, SourceUnavailable
from penstock_producer.source_names import DUCKDB, is_database

__all__ = ["MYSQL", "check_driver", "open_other"]

MYSQL: Final = frozenset({"mysql", "mariadb"})
POOL_SIZE: Final = 2  # as of PostgreSQL: of one source in one process
POOL_WAIT_S: Final = 30.0
CONNECT_TIMEOUT_S: Final = 10
LOCK_S: Final = 10  # a table that is being changed
# beyond the limit of a statement: the server that should have ended it is gone
SILENCE_S: Final = 30
# By the scheme of the URL where that names a driver, else by its database.
_PACKAGES: Final = {
    "duckdb": "duckdb-engine",
    "mysql": "pymysql",
    "mariadb": "pymysql",
    "mysql+mysqldb": "mysqlclient",
    "mariadb+mysqldb": "mysqlclient",
    "mysql+mysqlconnector": "mysql-connector-python",
    "mssql": "pyodbc",
    "mssql+pymssql": "pymssql",
    "oracle": "oracledb",
    "snowflake": "snowflake-sqlalchemy",
    "bigquery": "sqlalchemy-bigquery",
    "redshift": "sqlalchemy-redshift",
    "clickhouse": "clickhouse-sqlalchemy",
    "trino": "trino[sqlalchemy]",
    "cockroachdb": "sqlalchemy-cockroachdb",
}
_WITH_READ_TIMEOUT: Final = frozenset({"pymysql", "mysqldb"})
_WATCH: Final = "watch"  # of the statement under way, in what SQLAlchemy keeps with a connection


def check_driver(url: URL, shown: str) -> URL:
    """Return the URL with the driver that is used.

    Connects to nothing. Raises SourceUnavailable where a package is not installed.
    """
    chosen = url
    # the driver that SQLAlchemy takes by itself
    if url.drivername in MYSQL and util.find_spec("MySQLdb") is None:
        chosen = url.set(drivername=f"{url.drivername}+pymysql")
    try:
        engine = create_engine(chosen, poolclass=NullPool)
    except (NoSuchModuleError, ImportError) as error:
        package = _PACKAGES.get(url.drivername) or _PACKAGES.get(url.get_backend_name())
        if package is None and not is_database(f"{url.drivername}://"):
            raise SourceError(
                "invalid_url",
                f"{shown} is not the URL of a database; write one as postgresql:// and sqlite:// "
                "have it",
            ) from error
        need = (
            f"pip install {package}"
            if package
            else f"install the SQLAlchemy dialect of {url.drivername}"
        )
        raise SourceUnavailable(
            f"{shown} needs a driver that is not installed here: {need}, here and for control "
            "processes and workers"
        ) from error
    # a dialect that wants other parts in its URL
    except (ArgumentError, TypeError, ValueError) as error:
        raise SourceError(
            "invalid_url", f"{shown} is not a URL that {url.drivername} takes: {redact(str(error))}"
        ) from error
    if engine.dialect.is_async:
        raise SourceError(
            "unsupported_source", f"{shown} names an asynchronous driver; name one that is not"
        )
    return chosen


def open_other(url: URL, timeout_s: float) -> Engine:
    """Return an engine; nothing is connected yet.

    ``timeout_s`` is that of one statement; 0 is without end.
    """
    if url.get_backend_name() == DUCKDB:
        return _duckdb(url, timeout_s)
    waits: dict[str, Any] = {}
    if url.get_driver_name() in _WITH_READ_TIMEOUT:
        waits = {"connect_timeout": CONNECT_TIMEOUT_S}
        if timeout_s:
            waits["read_timeout"] = int(timeout_s) + SILENCE_S
    engine = create_engine(
        url,
        pool_size=POOL_SIZE,
        max_overflow=0,
        pool_timeout=POOL_WAIT_S,
        pool_pre_ping=True,  # one that a restart has ended is replaced before it is used
        hide_parameters=True,  # errors reach logs, and parameters are keys of documents
        connect_args={name: value for name, value in waits.items() if name not in url.query},
    )
    if url.get_backend_name() in MYSQL:
        event.listen(engine, "connect", lambda connection, _: _bound_mysql(connection, timeout_s))
    return engine


def _bound_mysql(connection: Any, timeout_s: float) -> None:
    """Set the time limit of MySQL and MariaDB, whose words for it differ."""
    with contextlib.closing(connection.cursor()) as cursor:
        cursor.execute("SELECT VERSION()")
        is_mariadb = "mariadb" in str(cursor.fetchone()[0]).lower()
        limit = (
            f"max_statement_time = {timeout_s}"
            if is_mariadb
            else f"max_execution_time = {int(timeout_s * 1000)}"
        )
        cursor.execute(f"SET SESSION {limit}, lock_wait_timeout = {LOCK_S}, time_zone = '+00:00'")
        cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")


def _duckdb(url: URL, timeout_s: float) -> Engine:
    """Return an engine that opens the file for each transaction and closes it behind it.

    While the file is open no other process can write it.
    """
    engine = create_engine(
        url, poolclass=NullPool, hide_parameters=True, connect_args={"read_only": True}
    )

    def begin(connection: Connection, *_: object) -> None:
        _end(connection.info.pop(_WATCH, None))
        watch = threading.Timer(timeout_s, _interrupt, [connection.connection.driver_connection])
        watch.daemon = True
        connection.info[_WATCH] = watch
        watch.start()

    if timeout_s:
        event.listen(engine, "before_cursor_execute", begin)
        event.listen(engine, "checkin", lambda _, record: _end(record.info.pop(_WATCH, None)))
    return engine


def _end(watch: threading.Timer | None) -> None:
    if watch is not None:
        watch.cancel()


def _interrupt(connection: Any) -> None:
    """End the statement under way with an error; where there is none, do nothing."""
    import duckdb

    with contextlib.suppress(duckdb.Error):  # it was closed at this moment
        connection.interrupt()
