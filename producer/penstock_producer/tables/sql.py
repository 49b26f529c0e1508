"""The two databases that rows are written into: how they are opened, and their statements.

Vectors go into columns of pgvector where it is there; many rows go into PostgreSQL by COPY.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date
from decimal import Decimal
from importlib import util
from typing import Any, Final, NamedTuple

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url, text
from sqlalchemy.exc import ArgumentError, OperationalError

from penstock_ledger.redaction import HIDDEN, is_secret_option, redact, remember_url
from penstock_producer.errors import SinkUnfit
from penstock_producer.source_formats import POSTGRESQL, SQLITE
from penstock_producer.tables.columns import Column, Kind, Table
from penstock_producer.tables.sheets import vector_text

__all__ = [
    "ID",
    "UNSIZED",
    "Statements",
    "Target",
    "embedding_type",
    "for_postgresql",
    "for_sqlite",
    "is_allowed",
    "opened",
    "quoted",
    "shown_url",
    "size_of",
    "upsert",
    "waits_for_size",
]

CONNECT_TIMEOUT_S: Final = 10
SILENCE_S: Final = 60  # of a server that answers nothing any more
# Of one statement: 500 rows take milliseconds, and one that waits for a lock for longer is tried
# again later.
_WAITS: Final = f"SET LOCAL statement_timeout = '{SILENCE_S}s'; SET LOCAL lock_timeout = '30s'"


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def for_sqlite(value: Any, _: str) -> Any:
    if isinstance(value, bytes):
        return vector_text(value)
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, Decimal):
        return str(value)
    return f"[{','.join(map(vector_text, value))}]" if isinstance(value, list) else value


def for_postgresql(value: Any, type_: str) -> str | None:
    """Return a value as text, which the statement casts to the column's own type.

    That is right for numeric, jsonb, uuid and pgvector's types, too.
    """
    if value is None:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, bytes | list):
        numbers = (
            vector_text(value)
            if isinstance(value, bytes)
            else f"[{','.join(map(vector_text, value))}]"
        )
        return numbers.replace("[", "{").replace("]", "}") if type_.endswith("[]") else numbers
    return value.isoformat() if isinstance(value, date) else str(value)


def opened(url: str) -> Engine:
    """Return an engine; nothing is connected yet.

    A server that hangs is given up after a minute.

    Raises SinkUnfit for what is no such URL.
    """
    remember_url(url)
    parsed = _parsed(url)
    is_sqlite = parsed.drivername.startswith("sqlite")
    waits = (
        {}
        if is_sqlite
        else {"connect_timeout": CONNECT_TIMEOUT_S, "tcp_user_timeout": SILENCE_S * 1_000}
    )
    waits = {name: value for name, value in waits.items() if name not in parsed.query}
    # Errors reach logs, and parameters are documents.
    options = {"preserve_rowcount": True}
    engine = create_engine(
        parsed, hide_parameters=True, execution_options=options, connect_args=waits
    )
    if is_sqlite:
        event.listen(engine, "connect", _let_begin)
    first = "BEGIN IMMEDIATE" if is_sqlite else _WAITS
    event.listen(engine, "begin", lambda connection: connection.exec_driver_sql(first))
    return engine


def shown_url(url: URL) -> str:
    """Return the URL without the password, wherever it stands."""
    query = {name: HIDDEN if is_secret_option(name) else value for name, value in url.query.items()}
    return redact(url.set(query=query).render_as_string(hide_password=True))


def _let_begin(connection: Any, _: object) -> None:
    # SQLAlchemy's recipe: pysqlite must not open transactions by itself
    connection.isolation_level = None


def _parsed(url: str) -> URL:
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):  # the second: of a port that is no number
        fix = "use sqlite:///file or postgresql://…"
        raise SinkUnfit(
            f"what was given (it is not shown) is not the URL of a database: {fix}"
        ) from None
    if parsed.drivername in SQLITE and parsed.database not in (None, "", ":memory:"):
        return parsed
    if parsed.drivername in POSTGRESQL:
        if util.find_spec("psycopg") is None:
            raise SinkUnfit(
                f"{parsed.drivername}:// needs psycopg: pip install 'penstock[postgres]'"
            )
        return parsed.set(drivername="postgresql+psycopg")
    raise SinkUnfit(
        f"results cannot be written into {redact(parsed.drivername)}://: use sqlite:///file or "
        "postgresql://…"
    )


ID: Final = "id"  # of results; the table's column may have another name
GIVEN: Final = "pg_temp.penstock_given"
_MARK: Final = "\0"  # of a value, until the names are in the statement: no name has it
_SQLITE_TYPES: Final[Mapping[Kind, str]] = {
    "text": "TEXT",
    "integer": "INTEGER",
    "number": "REAL",
    "boolean": "BOOLEAN",
    "decimal": "NUMERIC",
    "date": "DATE",
    "timestamp": "TIMESTAMP",
    "instant": "TIMESTAMP",
    "vector": "TEXT",
    "vectors": "TEXT",
}
_POSTGRESQL_TYPES: Final[Mapping[Kind, str]] = {
    "text": "text",
    "integer": "bigint",
    "number": "double precision",
    "boolean": "boolean",
    "decimal": "numeric",
    "date": "date",
    "timestamp": "timestamp",
    "instant": "timestamptz",
    "vector": "real[]",
    "vectors": "real[]",
}


class Target(NamedTuple):
    """A column that is written: where its value is in a row, and what the table has there."""

    at: int
    name: str
    type: str  # "" in SQLite, where a value brings its own


class Statements:
    """Each takes one value per target, in their order; the id's is the last."""

    def __init__(self, table: str, id_column: str, *, is_sqlite: bool) -> None:
        schema, _, name = table.rpartition(".")
        self.schema, self.name = schema or None, name
        self.place = ".".join(quoted(part) for part in (schema, name) if part)
        self._id = quoted(id_column)
        self._sqlite = is_sqlite

    def create(self, columns: Sequence[Column], embedding_type: str | None, id_at: int = 0) -> str:
        """Return the statement that makes the table, whose key is the column at ``id_at``.

        ``embedding_type`` is given where vectors have one of their own.
        """
        types = _SQLITE_TYPES if self._sqlite else _POSTGRESQL_TYPES
        parts = []
        for at, (name, kind, _) in enumerate(columns):
            type_ = (
                embedding_type if kind == "vector" and embedding_type is not None else types[kind]
            )
            parts.append(
                f"{self._id} {type_} PRIMARY KEY" if at == id_at else f"{quoted(name)} {type_}"
            )
        return self._for_driver(f"CREATE TABLE {self.place} ({', '.join(parts)})")

    def upsert(self, targets: Sequence[Target]) -> str:
        return self._for_driver(
            self._upsert(targets, f"VALUES ({', '.join(map(self._value, targets))})")
        )

    def trial_upsert(self, targets: Sequence[Target]) -> str:
        """Return a statement for no row, by which the database checks rights, types and the key."""
        return self._for_driver(
            self._upsert(targets, f"SELECT {', '.join(map(self._value, targets))} WHERE 1 = 0")
        )

    def given(self, targets: Sequence[Target]) -> str:
        """Return the statement for PostgreSQL's table of texts with the rows of one transaction.

        It goes with the transaction, as a pooler wants it.
        """
        columns = ", ".join(f"c{at} text" for at in range(len(targets)))
        return f"CREATE TEMPORARY TABLE {GIVEN} ({columns}, line integer) ON COMMIT DROP"

    def copy(self, targets: Sequence[Target]) -> str:
        return (
            f"COPY {GIVEN} ({', '.join(f'c{at}' for at in range(len(targets)))}, line) FROM STDIN"
        )

    def upsert_given(self, targets: Sequence[Target]) -> str:
        """Return the statement for the rows given; of rows with one id the last counts."""
        values = [f"CAST(c{at} AS {target.type})" for at, target in enumerate(targets)]
        found = (
            f"SELECT DISTINCT ON ({values[-1]}) {', '.join(values)} FROM {GIVEN} ORDER BY "  # noqa: S608  # types of the database's own
            f"{values[-1]}, line DESC"
        )
        return self._for_driver(self._upsert(targets, found))

    def update(self, targets: Sequence[Target]) -> str:
        *others, named = targets
        changes = ", ".join(f"{quoted(target.name)} = {self._value(target)}" for target in others)
        statement = f"UPDATE {self.place} SET {changes} WHERE {self._id} = {self._value(named)}"  # noqa: S608  # names are quoted
        return self._for_driver(statement)

    def size(self, target: Target, dimensions: int) -> Sequence[str]:
        """Give a column that was made without a size the size of its vectors.

        It can have an index then.
        """
        column = quoted(target.name)
        return (
            self._for_driver(
                f"ALTER TABLE {self.place} ALTER COLUMN {column} TYPE {target.type}({dimensions})"
            ),
            self._for_driver(f"COMMENT ON COLUMN {self.place}.{column} IS NULL"),
        )

    def comment(self, column: str, words: str) -> str:
        return self._for_driver(f"COMMENT ON COLUMN {self.place}.{quoted(column)} IS '{words}'")

    def _upsert(self, targets: Sequence[Target], source: str) -> str:
        names = [quoted(target.name) for target in targets]
        changes = ", ".join(f"{name} = excluded.{name}" for name in names if name != self._id)
        return (
            f"INSERT INTO {self.place} ({', '.join(names)}) {source}"  # quoted names of columns
            f" ON CONFLICT ({self._id}) DO UPDATE SET {changes}"
        )

    def _value(self, target: Target) -> str:
        mark = "?" if self._sqlite else _MARK
        return f"CAST({mark} AS {target.type})" if target.type else mark

    def _for_driver(self, statement: str) -> str:
        return statement if self._sqlite else statement.replace("%", "%%").replace(_MARK, "%s")


_MAY: Final = text("SELECT has_database_privilege(current_database(), 'TEMPORARY')")


def is_allowed(connection: Connection) -> bool:
    return bool(connection.execute(_MAY).scalar())


def upsert(
    connection: Connection,
    statements: Statements,
    targets: Sequence[Target],
    values: Sequence[Sequence[Any]],
) -> None:
    """Write rows; ``values`` are texts, or None. Raises SQLAlchemy's errors."""
    import psycopg

    connection.exec_driver_sql(statements.given(targets))
    statement = statements.copy(targets)
    driver: Any = connection.connection.driver_connection
    try:
        with driver.cursor() as cursor, cursor.copy(statement) as copy:
            for line, row in enumerate(values):
                copy.write_row((*row, line))
    except psycopg.Error as error:
        raise OperationalError(statement, None, error, hide_parameters=True) from error
    connection.exec_driver_sql(statements.upsert_given(targets))


UNSIZED: Final = "penstock: the first vector gives this column its size"
DIMENSIONS_MAX: Final = 16_000  # of pgvector's types
_TYPE_THERE: Final = text("SELECT to_regtype(:name) IS NOT NULL")
_ATTRIBUTE: Final = text(
    "SELECT atttypmod, col_description(attrelid, attnum) FROM pg_attribute"
    " WHERE attrelid = to_regclass(:named) AND attname = :column AND NOT attisdropped"
)


def embedding_type(connection: Connection, table: Table) -> str | None:
    """Return the type for a column of embeddings that is made now.

    None where there is no pgvector, or a vector would be too long for it.

    16-bit floats become `halfvec`, which pgvector has since 0.7.
    """
    wanted = ("halfvec", "vector") if table.has_half_vectors else ("vector",)
    found = next(
        (name for name in wanted if connection.execute(_TYPE_THERE, {"name": name}).scalar()), None
    )
    if found is None or table.dimensions is None:
        return found
    return f"{found}({table.dimensions})" if table.dimensions <= DIMENSIONS_MAX else None


def waits_for_size(connection: Connection, place: str, column: str) -> bool:
    """Return whether the column was made here and has had no vector yet.

    ``place`` is the table's quoted name."""
    row = connection.execute(_ATTRIBUTE, {"named": place, "column": column}).one_or_none()
    return row is not None and row[0] == -1 and row[1] == UNSIZED


def size_of(connection: Connection, place: str, column: str) -> int | None:
    """Return how many numbers a vector there has; None where the column does not say."""
    row = connection.execute(_ATTRIBUTE, {"named": place, "column": column}).one_or_none()
    return None if row is None or row[0] == -1 else int(row[0])
