"""The group commit's insert: the first writer wins, and it says which rows lost.

A statement has hundreds of rows.

The statements are compiled once and handed to the driver with flat tuples: SQLAlchemy's per-row
work would cost more than the database does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from itertools import chain
from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, literal_column, select

from penstock_ledger.model import ItemKey
from penstock_ledger.sql.tables import outcomes
from penstock_ledger.stored_values import Words
from penstock_ledger.stores.outcome_rows import COLUMNS, KEY_COLUMNS, OutcomeRow, key_of
from penstock_ledger.stores.tallies import add_rows


def _number(value: float) -> str:
    return repr(value)


def _text(value: str) -> str:
    if "\\" in value or '"' in value:
        value = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{value}"'


def _bytes(value: bytes) -> str:
    return f'"\\\\x{value.hex()}"'


# Name of the SQLAlchemy type -> (PostgreSQL type, one element as it stands in a literal)
ARRAY_TYPES: Final[dict[str, tuple[str, Callable[[Any], str]]]] = {
    "Text": ("text[]", _text),
    "Integer": ("integer[]", _number),
    "BigInteger": ("bigint[]", _number),
    "Double": ("double precision[]", _number),
    "LargeBinary": ("bytea[]", _bytes),
}


def array_literal(column_type: str, values: Iterable[Any]) -> str:
    """Return ``values`` of one column as the text of an array; None is NULL."""
    element = ARRAY_TYPES[column_type][1]
    return "{" + ",".join(["NULL" if value is None else element(value) for value in values]) + "}"


def array_literals(column_types: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> tuple[str, ...]:
    """Return all columns of ``rows``, which must not be empty, as texts of arrays."""
    columns = zip(*rows, strict=True)
    return tuple(
        array_literal(kind, column) for kind, column in zip(column_types, columns, strict=True)
    )


KEYS_MAX: Final = 500  # ids per look-up
ROWS_MAX: Final = 1_000  # rows per PostgreSQL statement
# of bodies per statement, which takes some copies of them, here and there
BYTES_MAX: Final = 16 * 1024 * 1024

_REQUEST: Final = COLUMNS.index("request")
_BODY: Final = COLUMNS.index("body")

# Rows per SQLite statement. Python's driver lets go of the interpreter for each statement that it
# runs, so one per row is fought over with every other thread. There is one text for each number of
# rows: the driver keeps the last 128 prepared.
SQLITE_ROWS: Final = 64


@cache
def _sqlite_insert(rows: int) -> str:
    """Return the INSERT, whose rows of purged jobs go nowhere.

    A worker that was frozen may come back with outcomes of such a job."""
    row = f"({', '.join('?' * len(COLUMNS))})"
    return (
        f"INSERT INTO outcomes ({', '.join(COLUMNS)})"  # noqa: S608  # made of column names
        f" SELECT * FROM (VALUES {', '.join([row] * rows)}) AS new"
        " WHERE EXISTS (SELECT 1 FROM jobs WHERE jobs.job_id = new.column1) ON CONFLICT DO NOTHING"
    )


def insert_outcomes(connection: Connection, rows: Sequence[OutcomeRow]) -> set[ItemKey]:
    """Insert rows that have different keys.

    Returns the keys that had an outcome already, or whose job is no more.

    ``rows`` should be sorted by key: two transactions that insert equal keys in unequal order
    deadlock on PostgreSQL.
    """
    if not rows:
        return set()
    insert = _insert_sqlite if connection.dialect.name == "sqlite" else _insert_postgresql
    losers = insert(connection, rows)
    add_rows(connection, (row for row in rows if key_of(row) not in losers) if losers else rows)
    return losers


def terminal_keys(
    connection: Connection, keys: Iterable[ItemKey], *conditions: ColumnElement[bool]
) -> set[ItemKey]:
    """Return those of ``keys`` that have an outcome which fulfils ``conditions``.

    Superseded outcomes count.
    """
    feeds: dict[tuple[str, int], list[str]] = {}
    for job_id, generation, doc_id in keys:
        feeds.setdefault((job_id, generation), []).append(doc_id)
    found: set[ItemKey] = set()
    for (job_id, generation), docs in feeds.items():
        query = select(outcomes.c.doc_id).where(
            outcomes.c.job_id == job_id, outcomes.c.generation == generation
        )
        for start in range(0, len(docs), KEYS_MAX):
            some = query.where(outcomes.c.doc_id.in_(docs[start : start + KEYS_MAX]), *conditions)
            found.update(
                ItemKey(job_id, generation, doc_id) for doc_id in connection.execute(some).scalars()
            )
    return found


def _insert_sqlite(connection: Connection, rows: Sequence[OutcomeRow]) -> set[ItemKey]:
    """Insert the rows and return those that lost.

    The transaction holds the write lock, so rows above the highest rowid so far are its own.

    A savepoint to undo and look first would cost a copy of every page that the rows touch.
    """
    highest = connection.exec_driver_sql(
        "SELECT coalesce(max(rowid), 0) FROM outcomes"
    ).scalar_one()
    won = 0
    for chunk in _statements(rows, SQLITE_ROWS):
        won += connection.exec_driver_sql(
            _sqlite_insert(len(chunk)), tuple(chain.from_iterable(chunk))
        ).rowcount
    if won == len(rows):
        return set()
    keys = {key_of(row) for row in rows}
    return keys - terminal_keys(connection, keys, literal_column("rowid") > highest)


def _insert_postgresql(connection: Connection, rows: Sequence[OutcomeRow]) -> set[ItemKey]:
    return {loser for chunk in _statements(rows) for loser in _insert_arrays(connection, chunk)}


def _insert_arrays(connection: Connection, rows: Sequence[OutcomeRow]) -> set[ItemKey]:
    won = connection.exec_driver_sql(_POSTGRESQL_INSERT, array_literals(_COLUMN_TYPES, rows))
    if won.rowcount == len(rows):
        return set()
    winners = {tuple(row) for row in won}
    return {key_of(row) for row in rows if row[:KEY_COLUMNS] not in winners}


def _statements(rows: Sequence[OutcomeRow], most: int = ROWS_MAX) -> Iterator[list[OutcomeRow]]:
    """Yield ``rows`` in stretches that fit one statement; one row may be larger by itself."""
    chunk: list[OutcomeRow] = []
    size = 0
    for row in rows:
        row_size = len(row[_REQUEST] or b"") + len(row[_BODY] or b"")
        if chunk and (len(chunk) == most or size + row_size > BYTES_MAX):
            yield chunk
            chunk, size = [], 0
        chunk.append(row)
        size += row_size
    if chunk:
        yield chunk


_COLUMN_TYPES: Final = tuple(
    type(kind.impl_instance if isinstance(kind, Words) else kind).__name__
    for kind in (column.type for column in outcomes.columns)
)
# One statement of constant text and one array per column, whatever the number of rows: nothing is
# parsed anew.
_POSTGRESQL_INSERT: Final = (
    (f"INSERT INTO outcomes ({', '.join(COLUMNS)}) SELECT new.* FROM unnest(")  # noqa: S608  # made of column names
    + ", ".join(f"%s::{ARRAY_TYPES[kind][0]}" for kind in _COLUMN_TYPES)
    + (
        f") AS new ({', '.join(COLUMNS)}) WHERE EXISTS (SELECT FROM jobs WHERE jobs.job_id = "
        "new.job_id)"
    )
    + " ON CONFLICT DO NOTHING RETURNING job_id, generation, doc_id"
)
