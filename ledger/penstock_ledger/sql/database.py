"""One database handle for SQLite and PostgreSQL.

It has transactions, their retries, and the check of the schema.

Writes on SQLite take the write lock when they begin: a transaction that reads first and upgrades
later fails with BUSY whatever the timeout is. Commits are durable (synchronous=FULL): an outcome
that was reported is on disk.
"""

from __future__ import annotations

import contextlib
import os
import random
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib import util
from typing import Any, Final, TypeVar, TypeVarTuple

from sqlalchemy import (
    URL,
    ColumnElement,
    Connection,
    Double,
    Engine,
    Row,
    Table,
    cast,
    inspect,
    literal_column,
    make_url,
    select,
    text,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import ArgumentError, DBAPIError, InterfaceError, OperationalError
from sqlalchemy.sql.selectable import TypedReturnsRows

from penstock_ledger.errors import (
    DatabaseUnavailable,
    DatabaseUnusable,
    SchemaMissing,
    SchemaTooNew,
    TablesInUse,
)
from penstock_ledger.sql.postgres import (
    COUNT_CONNECTIONS,
    MIGRATION_LOCK_S,
    POOL_SIZE,
    Connections,
    ServerCommits,
    Waits,
    holders,
    open_engine,
    wait_for_other_migrations,
)
from penstock_ledger.sql.sqlite_file import (
    CACHE_KIB,
    WORKER_CACHE_KIB,
    WRITES,
    Commits,
    checked_sqlite,
    is_busy,
    open_sqlite,
)
from penstock_ledger.sql.tables import HEAD, metadata

LOCK_NOT_AVAILABLE: Final = "55P03"
# the first two: serialization, deadlock
_RETRYABLE_SQLSTATES: Final = frozenset({"40001", "40P01", LOCK_NOT_AVAILABLE})
_UNDEFINED_TABLE: Final = "42P01"
# Connection lost, server shutting down or starting up, too many connections; psycopg has none where
# it never got in.
_AWAY_SQLSTATES: Final = ("08", "57P", "53300")


def worth_repeating(error: DBAPIError) -> bool:
    """Return whether the transaction may work when it is begun again.

    It lost a deadlock, or the wait for a lock."""
    return sqlstate(error) in _RETRYABLE_SQLSTATES or is_busy(error.orig)


def is_away(error: DBAPIError) -> bool:
    """Return whether the database was not reached, or lost.

    False for a statement that it refused.
    """
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
    """Return PostgreSQL's five characters; None where it was not asked, and for SQLite."""
    return getattr(error.orig, "sqlstate", None)


KNOWN_COST: Final = """CASE WHEN unpriced > 0 OR (unpriced IS NULL AND calls > 0 AND cost_microusd = 0)
            THEN NULL ELSE cost_microusd END AS cost_microusd"""
"""Of an outcome: NULL where no price is known of one of its answers; a release before this did not
say so."""

VIEWS: Final = (
    f"""
CREATE VIEW results AS
SELECT job_id, generation, doc_id, status_code, request_id, model, finish_reason, prompt_tokens, completion_tokens,
       {KNOWN_COST}, latency_ms, attempts, calls, created_at, body
FROM outcomes WHERE kind = 'result' AND superseded_by IS NULL
""",  # noqa: S608  # one constant
    f"""
CREATE VIEW dead_letters AS
SELECT job_id, generation, doc_id, reason, attempts, calls, last_error, status_code, line, prompt_tokens,
       completion_tokens, {KNOWN_COST}, latency_ms, created_at, request, body AS response
FROM outcomes WHERE kind = 'dead' AND superseded_by IS NULL
""",  # noqa: S608
)
"""For readers of other tools."""

# As Alembic makes it, so that later migrations go on from here.
VERSION: Final = """
CREATE TABLE alembic_version (
    version_num VARCHAR(32) NOT NULL, CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
)
"""


def create(connection: Connection) -> bool:
    """Make tables and views in the transaction of ``connection``.

    It is False when the file is not empty, or no longer."""
    if inspect(connection).get_table_names():
        return False
    metadata.create_all(connection, checkfirst=False)
    for statement in (*VIEWS, VERSION):
        connection.execute(text(statement))
    connection.execute(
        text("INSERT INTO alembic_version (version_num) VALUES (:head)"), {"head": HEAD}
    )
    return True


T = TypeVar("T")
Ts = TypeVarTuple("Ts")

# of one transaction that lost a deadlock, the wait for the lock, or the answer to its commit
WRITE_ATTEMPTS: Final = 5
# doubles with each attempt, with full jitter: deadlock partners must not meet again
RETRY_BASE_S: Final = 0.02
# doubles likewise, without jitter: 3 s in all, in which a server has restarted
LOST_BASE_S: Final = 0.1
_POSTGRES_PORT: Final = 5432


def open_database(
    url: str, *, pool_size: int = POOL_SIZE, waits: Waits | None = None, role: str = "client"
) -> Database:
    """Prepare a handle; nothing is connected or created yet.

    ``url`` is ``sqlite:///path/to/file`` or ``postgresql://…`` (``postgresql+psycopg://…``).
    ``pool_size`` bounds the connections that this handle opens; ``waits`` are for PostgreSQL;
    ``role`` names the connections there, and a worker's have a larger cache in SQLite.
    Raises DatabaseUnusable.
    """
    parsed = _parsed(url)
    if parsed.get_backend_name() == "sqlite":
        cache_kib = WORKER_CACHE_KIB if role == "worker" else CACHE_KIB
        engine = open_sqlite(parsed, pool_size, cache_kib)
    else:
        engine = open_engine(parsed, pool_size=pool_size, waits=waits or Waits(), role=role)
    return Database(engine)


class Database:
    """Connections and transactions.

    Safe to share between threads; a fork's child opens connections of its own."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.where = _place(engine.url)
        self.is_sqlite = engine.dialect.name == "sqlite"
        # preserve_rowcount: SQLAlchemy answers -1 for inserts on PostgreSQL otherwise, and we count
        # on the number.
        self._writer = engine.execution_options(preserve_rowcount=True, **{WRITES: True})
        self._schema_ok = False
        self._of_thread = threading.local()  # `connection`: of the thread's `one_read`
        _OPEN.add(self)

    def write(self, work: Callable[[Connection], T], *, named: bool = False) -> T:
        """Run ``work`` in one transaction and commit it.

        It runs again after a lost deadlock, so it must only use the connection. ``named``: what it
        writes has names that its caller has chosen, so that doing it again changes nothing, and it
        runs again where the connection is lost: a caller who asks again chooses other names, and
        has it twice if the answer to a commit was lost. Raises SchemaError, DatabaseUnavailable, and
        SQLAlchemy's errors for what the database refuses."""
        assert self._shared() is None, "a write inside one_read would wait for a second connection"
        self._check_schema()
        return self.write_unchecked(work, named=named)

    def read(self, work: Callable[[Connection], T]) -> T:
        """Run ``work`` in one read transaction. Raises SchemaError and DatabaseUnavailable."""
        shared = self._shared()
        if shared is not None:
            return work(shared)
        self._check_schema()
        with self._explained(), self.engine.connect() as connection:
            return work(connection)

    def rows(
        self, query: TypedReturnsRows[*Ts], values: Mapping[str, Any] | None = None
    ) -> Sequence[Row[*Ts]]:
        """Return the rows of one query. Raises as ``read`` does."""
        return self.read(lambda connection: connection.execute(query, values).all())

    @contextlib.contextmanager
    def one_read(self) -> Iterator[None]:
        """Make the reads of this thread in the block one transaction.

        That costs less than one each; on SQLite they see the same moment. Nothing may be written in
        it. Raises as ``read`` does."""
        if self._shared() is not None:
            yield
            return
        self._check_schema()
        with self._explained(), self.engine.connect() as connection:
            self._of_thread.connection = connection
            try:
                yield
            finally:
                self._of_thread.connection = None

    def _shared(self) -> Connection | None:
        return getattr(self._of_thread, "connection", None)

    def write_unchecked(self, work: Callable[[Connection], T], *, named: bool = False) -> T:
        """Do as ``write`` without the look at the schema: for the migration itself."""
        has_begun = False
        for attempt in range(1, WRITE_ATTEMPTS + 1):
            try:
                with self._explained(), self._writer.begin() as connection:
                    has_begun = True
                    return work(connection)
            except DBAPIError as error:
                if attempt == WRITE_ATTEMPTS or not worth_repeating(error):
                    raise
                pause_s = random.uniform(0, RETRY_BASE_S * 2**attempt)
            except DatabaseUnavailable:
                # a database that was never reached has committed nothing
                if attempt == WRITE_ATTEMPTS or not (named and has_begun):
                    raise
                pause_s = LOST_BASE_S * 2**attempt
            time.sleep(pause_s)
        raise AssertionError("unreachable: the last attempt returns or raises")

    def migrate(self, *, lock_s: float = MIGRATION_LOCK_S) -> None:
        """Create or upgrade the tables.

        Safe when several processes do it at once. ``lock_s`` is how long one of the tries waits for
        a table of PostgreSQL that is in use. Raises SchemaTooNew and TablesInUse."""
        if self.revision() != HEAD and not (self.is_sqlite and self.write_unchecked(create)):
            try:
                self.write_unchecked(partial(upgrade, lock_s=lock_s))
            except DBAPIError as error:
                if sqlstate(error) != LOCK_NOT_AVAILABLE:
                    raise
                with self._explained(), self.engine.connect() as connection:
                    raise TablesInUse(
                        self.where, WRITE_ATTEMPTS, lock_s, holders(connection)
                    ) from error
        self._schema_ok = True

    def revision(self) -> str | None:
        """Return the schema that the database has; None before the first migration.

        Raises SchemaTooNew and DatabaseUnavailable.
        """
        with self._explained(), self.engine.connect() as connection:
            try:
                found = connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
            except DBAPIError as error:
                if not is_missing_table(error):
                    raise
                return None
        if found is not None and found > HEAD:
            raise SchemaTooNew(found, HEAD)
        return None if found is None else str(found)

    def lock(self, connection: Connection, name: str) -> None:
        """Wait until no other transaction has locked ``name``; the lock goes when this one ends.

        A writer on SQLite has the whole file."""
        if not self.is_sqlite:
            connection.execute(
                text("SELECT pg_advisory_xact_lock(hashtextextended(:name, 0))"), {"name": name}
            )

    def insert(self, table: Table) -> sqlite.Insert | postgresql.Insert:
        """Return an INSERT that may say what becomes of rows that are there already.

        Both databases have it, SQL's standard has not."""
        return sqlite.insert(table) if self.is_sqlite else postgresql.insert(table)

    def clock(self) -> ColumnElement[float]:
        """Return the database server's clock as part of a statement, Unix seconds."""
        seconds = (
            "(julianday('now') - 2440587.5) * 86400.0"
            if self.is_sqlite
            else "extract(epoch FROM clock_timestamp())"
        )
        return cast(literal_column(seconds), Double)  # one of two constants

    def now(self, connection: Connection) -> float:
        """Return the database server's clock, Unix seconds.

        Leases are never measured by a client's clock."""
        return float(connection.execute(select(self.clock())).scalar_one())

    def connections(self) -> Connections | None:
        """Return how full the server is; None for SQLite, which has no limit."""
        if self.is_sqlite:
            return None
        with self._explained(), self.engine.connect() as connection:
            return Connections(*connection.execute(text(COUNT_CONNECTIONS)).one())

    def commits(self) -> Commits | ServerCommits:
        """Return what tells of commits, of other processes too."""
        if self.is_sqlite:
            return Commits(str(self.engine.url.database))
        return ServerCommits(self.engine)

    def close(self) -> None:
        self.engine.dispose()

    def after_fork(self) -> None:
        """Leave the parent's connections alone in a child, and start with none."""
        _LEFT_TO_PARENT.append(self.engine.pool)
        self.engine.dispose(close=False)

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except DBAPIError as error:
            if not is_away(error):
                raise
            raise DatabaseUnavailable(
                self.where, str(error.orig).strip().partition("\n")[0]
            ) from error

    def _check_schema(self) -> None:
        if self._schema_ok:
            return
        found = self.revision()
        if found != HEAD:
            raise SchemaMissing(found, HEAD)
        self._schema_ok = True


def upgrade(connection: Connection, lock_s: float = MIGRATION_LOCK_S) -> None:
    """Bring the schema to the newest revision inside the transaction of ``connection``.

    SQLite's write lock is held already; on PostgreSQL the others wait, and then find nothing to do.
    """
    from penstock_ledger import migrations  # alembic costs 100 ms and only this needs it

    if connection.dialect.name == "postgresql":
        wait_for_other_migrations(connection, lock_s)
    migrations.upgrade(connection, metadata)


# Every handle of this process, for the child of a fork: two processes on one socket would read each
# other's answers.
_OPEN: Final[weakref.WeakSet[Database]] = weakref.WeakSet()
# The parent's pools, kept so that nothing closes them here: one for each handle that came through a
# fork.
_LEFT_TO_PARENT: Final[list[object]] = []


def _forget_connections() -> None:
    for database in list(_OPEN):
        database.after_fork()


os.register_at_fork(after_in_child=_forget_connections)


def _place(url: URL) -> str:
    """Return the database as messages name it, never with the password.

    That is the file, or host and database.
    """
    if url.get_backend_name() == "sqlite":
        return str(url.database)
    host = url.host or url.query.get("host") or "localhost"
    return f"{host}:{url.port or _POSTGRES_PORT}/{url.database or ''}"


def _parsed(url: str) -> URL:
    try:
        parsed = make_url(url)
    except ArgumentError as error:
        raise DatabaseUnusable(
            f"database URL {url[:80]!r} is not a URL: use sqlite:///file or postgresql://…"
        ) from error
    if parsed.port is not None and not 0 < parsed.port < 65536:
        raise DatabaseUnusable(
            f"the database URL names port {parsed.port}; write one from 1 to 65535"
        )
    if parsed.drivername in ("sqlite", "sqlite+pysqlite"):
        return checked_sqlite(parsed)
    if parsed.drivername in ("postgresql", "postgres", "postgresql+psycopg"):
        if util.find_spec("psycopg") is None:
            raise DatabaseUnusable(
                f"{parsed.drivername}:// needs psycopg: pip install 'penstock[postgres]'"
            )
        return parsed.set(drivername="postgresql+psycopg")
    raise DatabaseUnusable(
        f"database URL starts with {parsed.drivername}://; use sqlite:///file or postgresql://…"
    )
