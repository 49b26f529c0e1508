"""A database that documents are read from has an address and a package that opens it.

A source is named by a URL without a password, or by a variable that holds a whole URL
(`env:WAREHOUSE_URL`). Only that name is stored with the job and shown: every process that reads the
table looks the password up where it runs.

DuckDB, MySQL and MariaDB are held to what they were asked for: reading only, one snapshot per
transaction, a time limit. Of others only what their SQLAlchemy dialect does by itself.
"""

from __future__ import annotations

import contextlib
import threading
from dataclasses import dataclass
from importlib import util
from pathlib import Path
from typing import Any, Final

from sqlalchemy import URL, Connection, Engine, NullPool, create_engine, event
from sqlalchemy.exc import ArgumentError, NoSuchModuleError

from penstock_ledger.redaction import is_secret_option, redact, remember, remember_url
from penstock_producer.errors import SourceError, SourceUnavailable, seen
from penstock_producer.settings import variable
from penstock_producer.source_formats import (
    BY_VARIABLE,
    DUCKDB,
    MOTHERDUCK,
    POSTGRESQL,
    SQLITE,
    is_database,
    variable_in,
)

__all__ = ["KIND", "MYSQL", "Address", "address_of", "open_other", "whole"]


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


KIND: Final = "table"  # of a pin


@dataclass(frozen=True, slots=True)
class Address:
    """One database."""

    name: str  # as it is stored and shown: a URL without a password, or `env:NAME`
    url: URL  # as it is connected to

    @property
    def backend(self) -> str:
        """Return the kind of database: `sqlite`, `postgresql`, `duckdb`, `mysql`, …."""
        return self.url.get_backend_name()

    @property
    def file(self) -> str | None:
        """Of a database that is one file here."""
        path = self.url.database or ""
        is_file = self.backend == "sqlite" or (
            self.backend == DUCKDB and not path.startswith(MOTHERDUCK)
        )
        return path if is_file else None


def whole(where: str) -> str:
    """Return the name of a database that means the same in every working folder.

    Raises SourceError, as ``address_of``.
    """
    return where if where.startswith(BY_VARIABLE) else address_of(where).name


def address_of(where: str) -> Address:
    """Return the address that a name stands for.

    Raises SourceError for a name that cannot be used, and SourceUnavailable for a variable that is
    not set here.
    """
    if not where.startswith(BY_VARIABLE):
        return _addressed(None, where)
    name = variable_in(where)
    if name is None:
        raise SourceError(
            "invalid_url", f"{seen(where)} names no variable; write env:NAME, as env:WAREHOUSE_URL"
        )
    value = variable(name)
    if not value:
        raise SourceUnavailable(
            f"{where}: the variable {name} is not set in this process; set it to the URL of the "
            "database, here and for control processes and workers"
        )
    return _addressed(where, value)


def _addressed(name: str | None, given: str) -> Address:
    """Return the address in ``given``; ``name`` is the variable that it was read from.

    Nothing of ``given`` is shown before it is taken apart.
    """
    from sqlalchemy import make_url
    from sqlalchemy.exc import ArgumentError

    remember_url(given)
    try:
        url = make_url(given)
    # a port that is no number, as where a password has an @ in it
    except (ArgumentError, ValueError):
        place = "the source" if name is None else name
        raise SourceError(
            "invalid_url",
            f"{place} is not the URL of a database: write sqlite:///file.db or "
            "postgresql://user@host/database, and %-encode what is special in user and password",
        ) from None
    options = [option for option in url.query if is_secret_option(option)]
    secrets = [url.password, *(url.query[option] for option in options)]
    remember(*(secret for secret in secrets if isinstance(secret, str)))
    shown = name or url.difference_update_query(options)._replace(password=None).render_as_string()
    if name is None and any(secrets):
        raise SourceError(
            "password_in_url",
            f"{shown}: a password in the source would be stored with the job, and others see it in "
            f"the list of processes; export WAREHOUSE_URL={url.drivername}://… and name the source "
            "env:WAREHOUSE_URL"
            + (
                ", or put the password into PGPASSWORD or ~/.pgpass"
                if url.drivername in POSTGRESQL
                else ""
            ),
        )
    return _chosen(name, url, shown)


def _chosen(name: str | None, url: URL, shown: str) -> Address:
    """Return the address as the kind of database wants it."""

    backend = url.drivername.partition("+")[0]
    if url.drivername in SQLITE or (
        backend == DUCKDB and not (url.database or "").startswith(MOTHERDUCK)
    ):
        return _file(name, url, shown)
    if url.drivername in POSTGRESQL:
        if util.find_spec("psycopg") is None:
            raise SourceUnavailable(f"{shown} needs psycopg here: pip install 'penstock[postgres]'")
        return Address(name or shown, url.set(drivername="postgresql+psycopg"))
    if backend in ("sqlite", "postgresql", "postgres"):
        raise SourceError(
            "unsupported_source",
            f"{shown}: its driver is chosen here; write "
            f"{'sqlite' if backend == 'sqlite' else 'postgresql'}://",
        )
    return Address(name or shown, check_driver(url, shown))


def _file(name: str | None, url: URL, shown: str) -> Address:
    if not url.database or url.database == ":memory:" or url.host or url.query:
        kind = "DuckDB" if url.drivername == DUCKDB else "SQLite"
        scheme = kind.lower()
        raise SourceError(
            "invalid_url",
            f"{shown} names no file of {kind}; write {scheme}:///file.db, or "
            f"{scheme}:////folder/file.db",
        )

    path = str(Path(url.database).absolute())
    if not path.isprintable():
        raise SourceError("invalid_path", f"{seen(path)} cannot be a path; check its characters")
    found = url.set(database=path)
    used = check_driver(found, shown) if url.drivername not in SQLITE else found
    return Address(name or found.render_as_string(), used)
