"""Outcomes as rows of a table in a database: written in the order of commits, each row by its id, from where it stopped.

Rows and the place that they lead to are one transaction, in a small table beside them. So a process that dies repeats
nothing and leaves nothing out, and of two that write the same job into the same table one stops.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection, Inspector, inspect, text
from sqlalchemy.exc import SAWarning, SQLAlchemyError
from sqlalchemy.types import Boolean, Date, DateTime, Float, Integer, Interval, Numeric, Time

from penstock_producer.errors import SinkError
from penstock_producer.tables.columns import Column, Kind, Row
from penstock_producer.tables.reading import Reading
from penstock_producer.tables.sql import for_postgresql, for_sqlite, opened, quoted

__all__ = ["TableSink"]

PROGRESS: Final = "penstock_progress"
ROWS: Final = 500  # in one transaction
BYTES: Final = 8 * 1024 * 1024  # of texts and vectors in one transaction
ID: Final = "id"
_NEVER_NULL: Final = {ID, "status", "cost_usd", "latency_ms", "attempts", "generation"}
MARK: Final = "\0"  # of a value, until the names are in the statement: no name has it
_TIMES: Final = (Date, DateTime, Time, Interval)
# Types of SQL that cannot take a kind, as far as reflection tells them; the database has the last word before the job starts.
_UNFIT: Final[dict[Kind, tuple[type[Any], ...]]] = {
    "text": (Integer, Numeric, Float, Boolean, *_TIMES),
    "integer": (Boolean, *_TIMES),
    "number": (Integer, Boolean, *_TIMES),
    "boolean": (Numeric, Float, *_TIMES),
    "vector": (Integer, Numeric, Float, Boolean, *_TIMES),
    "vectors": (Integer, Numeric, Float, Boolean, *_TIMES),
}
_SQLITE_TYPES: Final[dict[Kind, str]] = {
    "text": "TEXT", "integer": "INTEGER", "number": "REAL", "boolean": "BOOLEAN", "vector": "TEXT", "vectors": "TEXT",
}  # fmt: skip
_POSTGRESQL_TYPES: Final[dict[Kind, str]] = {
    "text": "text", "integer": "bigint", "number": "double precision", "boolean": "boolean",
    "vector": "real[]", "vectors": "real[]",
}  # fmt: skip
_TYPES_IN_POSTGRESQL: Final = text(
    "SELECT attname, format_type(atttypid, NULL) FROM pg_attribute"
    " WHERE attrelid = to_regclass(:named) AND attnum > 0 AND NOT attisdropped"
)


class _Target(NamedTuple):
    """A column that is written: where its value is in a row, and what the table has there."""

    at: int
    name: str
    type: str  # "" in SQLite, where a value brings its own


class TableSink:
    """One table of a database on SQLite or PostgreSQL."""

    def __init__(self, url: str, table: str, columns: Sequence[Column]) -> None:
        """Raises SinkError for a URL that is none of theirs. Nothing is connected yet."""
        self._engine = opened(url)
        self._schema, _, self._table = table.rpartition(".")
        self._named = table
        self._columns = columns
        self._targets: list[_Target] = []
        self._sqlite = self._engine.dialect.name == "sqlite"

    def close(self) -> None:
        self._engine.dispose()

    def prepare(self) -> list[str]:
        """Make the table where there is none, or see that rows will fit; returns the columns that are written.

        To be called before the job starts. Raises SinkError that names the column and what to change.
        """
        try:
            with self._engine.begin() as connection:
                found = inspect(connection)
                if not found.has_table(self._table, self._schema or None):
                    connection.exec_driver_sql(self._create_statement())
                    found = inspect(connection)
                self._targets = self._fitting(connection, found)
                connection.exec_driver_sql(
                    f"CREATE TABLE IF NOT EXISTS {PROGRESS} (job_id VARCHAR(64) NOT NULL, target VARCHAR(300) NOT NULL,"
                    " place TEXT NOT NULL, PRIMARY KEY (job_id, target))"
                )
                # No row, but the database looks at the rights, the types and the key as for any.
                connection.exec_driver_sql(self._upsert("SELECT", " WHERE 1 = 0"), self._nothing())
        except SQLAlchemyError as error:
            raise self._refused("cannot be used for results", error) from error
        return [target.name for target in self._targets]

    def place(self, job_id: str) -> str | None:
        """The cursor up to which the table has the outcomes of a job; None before the first. Raises SinkError."""
        try:
            with self._engine.connect() as connection:
                return self._place(connection, job_id)
        except SQLAlchemyError as error:
            raise self._refused("cannot be read", error) from error

    def write(self, job_id: str, reading: Reading) -> int:
        """Write the rows of ``reading``, which begins at ``place``; returns how many. Call ``prepare`` first.

        What was written stays when it fails. Raises SinkError.
        """
        begun = before = reading.cursor
        written = 0
        for rows, cursor in _portions(reading):
            try:
                with self._engine.begin() as connection:
                    if not self._move(connection, job_id, before, cursor):
                        raise SinkError(
                            f"table {self._named} gets the results of job {job_id} from another process at this moment: "
                            "let that one go on, or end it and repeat this"
                        )
                    connection.exec_driver_sql(self._upsert("VALUES"), [self._values(row) for row in rows])
            except SQLAlchemyError as error:
                raise self._refused(
                    f"does not take a row after {written}, from {begun or 'the start'} on", error
                ) from error
            before = cursor
            written += len(rows)
        return written

    # -- statements ----------------------------------------------------------------------------------------------------

    def _create_statement(self) -> str:
        types = _SQLITE_TYPES if self._sqlite else _POSTGRESQL_TYPES
        columns = [f"{quoted(name)} {types[kind]}{' PRIMARY KEY' * (name == ID)}" for name, kind in self._columns]
        return self._for_driver(f"CREATE TABLE {self._place_of_table()} ({', '.join(columns)})")

    def _upsert(self, source: str, condition: str = "") -> str:
        names = [quoted(target.name) for target in self._targets]
        mark = "?" if self._sqlite else MARK
        marks = [f"CAST({mark} AS {target.type})" if target.type else mark for target in self._targets]
        values = f"VALUES ({', '.join(marks)})" if source == "VALUES" else f"SELECT {', '.join(marks)}{condition}"
        changes = [f"{name} = excluded.{name}" for name in names if name != quoted(ID)]
        statement = (
            f"INSERT INTO {self._place_of_table()} ({', '.join(names)}) {values}"  # quoted names of columns
            f" ON CONFLICT ({quoted(ID)}) DO UPDATE SET {', '.join(changes)}"
        )
        return self._for_driver(statement)

    def _for_driver(self, statement: str) -> str:
        return statement if self._sqlite else statement.replace("%", "%%").replace(MARK, "%s")

    def _place(self, connection: Connection, job_id: str) -> str | None:
        query = text(f"SELECT place FROM {PROGRESS} WHERE job_id = :job AND target = :target")  # noqa: S608  # a constant
        found: str | None = connection.execute(query, {"job": job_id, "target": self._named}).scalar()
        return found

    def _move(self, connection: Connection, job_id: str, before: str | None, after: str) -> bool:
        """False when another process has moved it."""
        values = {"job": job_id, "target": self._named, "before": before, "after": after}
        if before is None:
            statement = f"INSERT INTO {PROGRESS} VALUES (:job, :target, :after) ON CONFLICT DO NOTHING"  # noqa: S608
        else:
            statement = (
                f"UPDATE {PROGRESS} SET place = :after"  # noqa: S608  # a constant
                " WHERE job_id = :job AND target = :target AND place = :before"
            )
        return connection.execute(text(statement), values).rowcount == 1

    def _nothing(self) -> tuple[None, ...]:
        return (None,) * len(self._targets)

    def _place_of_table(self) -> str:
        return ".".join(quoted(part) for part in (self._schema, self._table) if part)

    # -- columns and values --------------------------------------------------------------------------------------------

    def _fitting(self, connection: Connection, found: Inspector) -> list[_Target]:
        """Columns of results that the table has. Raises SinkError for a table whose columns cannot take them."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SAWarning)  # of types that SQLAlchemy does not know, such as pgvector's
            there = {column["name"]: column for column in found.get_columns(self._table, self._schema or None)}
        types = {} if self._sqlite else {row[0]: row[1] for row in self._types(connection)}
        ours = {column.name for column in self._columns}
        if ID not in there or not (ours & set(there)) - {ID}:
            raise self._unfit(
                f"has no column {ID!r} and one of {', '.join(sorted(ours - {ID}))}: add them, or name another"
            )
        for name, column in there.items():
            keyed = self._sqlite and column.get("primary_key")
            if name not in ours and not column["nullable"] and column.get("default") is None and not keyed:
                raise self._unfit(
                    f"has a column {name!r} that must not be null, which results do not have: give it a default, or name "
                    "another table"
                )
            if name in ours - _NEVER_NULL and not column["nullable"]:
                raise self._unfit(
                    f"has a column {name!r} that must not be null, and some results have none there: allow null, or name "
                    "another table"
                )
        for name, kind in self._columns:
            if name != ID and name in there and isinstance(there[name]["type"], _UNFIT[kind]):
                raise self._unfit(
                    f"has a column {name!r} of type {there[name]['type']}, and results have {kind} there: change the type, "
                    "rename the column, or name another table"
                )
        if not self._is_key(found):
            raise self._unfit(f"has no primary key or unique constraint on {ID!r} alone: add one")
        return [
            _Target(at, column.name, types.get(column.name, ""))
            for at, column in enumerate(self._columns)
            if column.name in there
        ]

    def _types(self, connection: Connection) -> Sequence[Any]:
        return connection.execute(_TYPES_IN_POSTGRESQL, {"named": self._place_of_table()}).all()

    def _is_key(self, found: Inspector) -> bool:
        where = (self._table, self._schema or None)
        keys: list[Sequence[str | None]] = [[*found.get_pk_constraint(*where)["constrained_columns"]]]
        keys += [[*one["column_names"]] for one in found.get_unique_constraints(*where)]
        keys += [one["column_names"] for one in found.get_indexes(*where) if one["unique"]]
        return [ID] in keys

    def _values(self, row: Row) -> tuple[Any, ...]:
        convert = for_sqlite if self._sqlite else for_postgresql
        return tuple(convert(row[target.at], target.type) for target in self._targets)

    # -- errors --------------------------------------------------------------------------------------------------------

    def _unfit(self, message: str) -> SinkError:
        return SinkError(f"table {self._named} {message}")

    def _refused(self, what: str, error: SQLAlchemyError) -> SinkError:
        """Without the statement and its values."""
        said = str(getattr(error, "orig", None) or error).strip().partition("\n")[0]
        return SinkError(
            f"table {self._named} of {self._engine.url.render_as_string(hide_password=True)} {what}: {said}"
        )


def _portions(reading: Reading) -> Iterator[tuple[list[Row], str]]:
    rows: list[Row] = []
    size = 0
    cursor = ""
    for row in reading:
        row_size = sum(len(value) for value in row if isinstance(value, str | bytes))
        if rows and (len(rows) == ROWS or size + row_size > BYTES):
            yield rows, cursor
            rows, size = [], 0
        rows.append(row)
        size += row_size
        cursor = reading.cursor or ""
    if rows:
        yield rows, cursor
