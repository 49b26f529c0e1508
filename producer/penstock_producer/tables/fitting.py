"""A table that is there takes a job's rows by their columns, or is refused.

Asked before the job starts."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection, Inspector, text
from sqlalchemy.exc import SAWarning
from sqlalchemy.types import Boolean, Date, DateTime, Float, Integer, Interval, Numeric, Time

from penstock_ledger.texts import SetOption, Text
from penstock_producer.errors import SinkUnfit
from penstock_producer.tables import sql
from penstock_producer.tables.columns import Column, Kind
from penstock_producer.tables.sql import Statements, Target

__all__ = ["Fit", "Rows", "fit_of"]

NAMES_SHOWN: Final = 12  # columns in an error
_PGVECTOR: Final = ("vector", "halfvec")
_NEVER_NULL: Final = {"status", "latency_ms", "attempts", "generation"}
_TIMES: Final = (Date, DateTime, Time, Interval)
# Types of SQL that cannot take a kind, as far as reflection tells them; the database has the last
# word before the job starts.
_UNFIT: Final[dict[Kind, tuple[type[Any], ...]]] = {
    "text": (Integer, Numeric, Float, Boolean, *_TIMES),
    "integer": (Boolean, *_TIMES),
    "number": (Integer, Boolean, *_TIMES),
    "boolean": (Numeric, Float, *_TIMES),
    "decimal": (Integer, Boolean, *_TIMES),
    "date": (Integer, Numeric, Float, Boolean),
    "timestamp": (Integer, Numeric, Float, Boolean),
    "instant": (Integer, Numeric, Float, Boolean),
    "vector": (Integer, Numeric, Float, Boolean, *_TIMES),
    "vectors": (Integer, Numeric, Float, Boolean, *_TIMES),
}
_TYPES_IN_POSTGRESQL: Final = text(
    "SELECT attname, format_type(atttypid, NULL) FROM pg_attribute"
    " WHERE attrelid = to_regclass(:named) AND attnum > 0 AND NOT attisdropped"
)


class Fit(NamedTuple):
    """The way in which rows go into the table."""

    targets: Sequence[Target]  # the id's is the last
    # rows can be changed, but none added: the table has values of its own that results have not
    updates_only: bool
    unsized: Target | None  # a column of pgvector that gets its size from the first vector


class Rows(NamedTuple):
    """The shape of rows that are to be written."""

    columns: Sequence[Column]
    id_at: int  # which of them names the document
    dimensions: int | None  # of vectors, where the job says


class _Table(NamedTuple):
    named: str
    id_column: str
    columns: Mapping[str, Any]  # as SQLAlchemy reflects them
    is_sqlite: bool

    def unfit(self, message: str) -> SinkUnfit:
        return SinkUnfit(Text(f"table {self.named} ", message))


def fit_of(
    connection: Connection,
    found: Inspector,
    statements: Statements,
    named: str,
    id_column: str,
    rows: Rows,
) -> Fit:
    """Return how rows fit the table.

    Raises SinkUnfit, which names the column and what to change.
    """
    is_sqlite = connection.dialect.name == "sqlite"
    with warnings.catch_warnings():
        # of types that SQLAlchemy does not know, such as pgvector's
        warnings.simplefilter("ignore", SAWarning)
        there = {
            column["name"]: column
            for column in found.get_columns(statements.name, statements.schema)
        }
    types = {} if is_sqlite else {row[0]: row[1] for row in _types(connection, statements)}
    existing = _Table(named, id_column, there, is_sqlite)
    names = _names(existing, rows)
    _refuse_types(existing, rows, names)
    if [id_column] not in _keys(found, statements):
        raise existing.unfit(
            f"has no primary key or unique constraint on {id_column!r} alone: add one"
        )
    targets = [Target(at, names[at], types.get(names[at], "")) for at in names if at != rows.id_at]
    targets.append(Target(rows.id_at, id_column, types.get(id_column, "")))
    unsized = None
    for target in targets:
        if target.type in _PGVECTOR and rows.columns[target.at].kind == "vector":
            _refuse_size(connection, existing, statements, rows, target)
            if sql.waits_for_size(connection, statements.place, target.name):
                unsized = target
    return Fit(targets, _has_own_values(existing, names), unsized)


def _names(existing: _Table, rows: Rows) -> dict[int, str]:
    """Place in a row -> the column of the table that takes it."""
    names = {
        at: column.name
        for at, column in enumerate(rows.columns)
        if at != rows.id_at
        and column.name in existing.columns
        and column.name != existing.id_column
    }
    if existing.id_column not in existing.columns:
        raise existing.unfit(
            Text(
                f"has no column {existing.id_column!r} for the document's id (its columns: "
                f"{_listed(existing.columns)}): name the one that has it by ",
                SetOption("into_id"),
                ", add it as primary key, or name another table",
            )
        )
    if not names:
        others = _listed(column.name for at, column in enumerate(rows.columns) if at != rows.id_at)
        raise existing.unfit(
            f"has no column for what results have: add one of {others}, or name another table"
        )
    return {rows.id_at: existing.id_column} | names


def _listed(names: Iterable[str]) -> str:
    first = list(itertools.islice(names, NAMES_SHOWN + 1))
    return ", ".join(first[:NAMES_SHOWN]) + (", …" if len(first) > NAMES_SHOWN else "")


def _has_own_values(existing: _Table, names: Mapping[int, str]) -> bool:
    """Return whether the table has a column of its own that must get a value.

    Results do not have it, it must not be null, and has no value by itself.
    """
    return any(
        name not in names.values()
        and not column["nullable"]
        and column.get("default") is None
        and not (column.get("identity") or column.get("computed"))
        and not (existing.is_sqlite and column.get("primary_key"))
        for name, column in existing.columns.items()
    )


def _refuse_types(existing: _Table, rows: Rows, names: Mapping[int, str]) -> None:
    for at, name in names.items():
        kind, there = rows.columns[at].kind, existing.columns[name]
        if at != rows.id_at and rows.columns[at].name not in _NEVER_NULL and not there["nullable"]:
            raise existing.unfit(
                f"has a column {name!r} that must not be null, and some results have none there: "
                "allow null, or name another table"
            )
        if at != rows.id_at and isinstance(there["type"], _UNFIT[kind]):
            raise existing.unfit(
                f"has a column {name!r} of type {there['type']}, and results have {kind} there: "
                "change the type, rename the column, or name another table"
            )


def _refuse_size(
    connection: Connection, existing: _Table, statements: Statements, rows: Rows, target: Target
) -> None:
    size = sql.size_of(connection, statements.place, target.name)
    if size is not None and rows.dimensions is not None and size != rows.dimensions:
        raise existing.unfit(
            f"has a column {target.name!r} for vectors of {size} numbers, and the job asks for "
            f"{rows.dimensions} (dimensions): change one of them"
        )


def _types(connection: Connection, statements: Statements) -> Sequence[Any]:
    return connection.execute(_TYPES_IN_POSTGRESQL, {"named": statements.place}).all()


def _keys(found: Inspector, statements: Statements) -> list[Sequence[str | None]]:
    where = (statements.name, statements.schema)
    keys: list[Sequence[str | None]] = [[*found.get_pk_constraint(*where)["constrained_columns"]]]
    keys += [[*one["column_names"]] for one in found.get_unique_constraints(*where)]
    # Of SQLite also those that it has made for UNIQUE beside a column.
    made: dict[str, Any] = {"include_auto_indexes": True} if found.dialect.name == "sqlite" else {}
    keys += [one["column_names"] for one in found.get_indexes(*where, **made) if one["unique"]]
    return keys
