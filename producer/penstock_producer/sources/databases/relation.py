"""A job reads a table of a database, or a query in its place, by these statements.

A query is asked inside of another statement, so it can be one SELECT and nothing else. Names are
quoted, so capitals count.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol, cast

import orjson
from sqlalchemy import Connection, Executable, TextClause, inspect, text
from sqlalchemy.exc import SQLAlchemyError

from penstock_ledger.texts import SetOption, Text
from penstock_producer.errors import SourceError, seen
from penstock_producer.job.spec import JobSpec
from penstock_producer.sources.databases.address import Address
from penstock_producer.sources.databases.columns import Column, Key, Kind, kind_in_postgresql

__all__ = [
    "KEY_BYTES",
    "ROWS",
    "Ask",
    "Named",
    "Relation",
    "Row",
    "RowsByKey",
    "escaped",
    "has_index",
    "key_column",
    "named",
    "parts",
    "refuse_twice",
]

KEY_BYTES: Final = 2_048  # of a text that is asked for as a key; no id is so long
_KEY_TYPES: Final = frozenset(
    {
        "",
        "int2",
        "int4",
        "int8",
        "numeric",
        "text",
        "varchar",
        "bpchar",
        "uuid",
        "date",
        "timestamp",
        "timestamptz",
    }
)
_END: Final = re.compile(r"[\s;]+\Z")
# behind comments and brackets
_FIRST: Final = re.compile(r"(?:\s|\(|--[^\n]*(?:\n|\Z)|/\*.*?\*/)*+([A-Za-z]+)", re.DOTALL)
_READING: Final = frozenset({"SELECT", "WITH", "VALUES", "TABLE"})
_TYPES: Final = text("SELECT oid, typname FROM pg_type WHERE oid = ANY(CAST(:oids AS oid[]))")


class Row(NamedTuple):
    """One row as it was read."""

    size: int  # in bytes, as far as its values can be long
    values: Sequence[Any] | None  # None where the row is longer than was asked for


@dataclass(frozen=True, slots=True)
class Named:
    """The table or query to read, before the database was asked about it."""

    words: str  # for messages
    table: str | None
    query: str

    def sql(self) -> str:
        if self.table is None:
            return f"({self.query}\n) AS source"  # a newline: the query may end in a comment
        return ".".join(map(_quoted, parts(self.table)))


def named(address: Address, spec: JobSpec) -> Named:
    """Return what the spec says to read. Raises SourceError where it does not say it."""
    if spec.format is not None or spec.encoding is not None:
        raise SourceError(
            "unsupported_format",
            Text(
                f"{address.name} is a database, whose rows have no format; leave ",
                SetOption("format"),
                " and ",
                SetOption("encoding"),
                " out",
            ),
        )
    if spec.table is not None:
        return Named(f"table {spec.table} of {address.name}", spec.table, "")
    if spec.query is None:
        raise SourceError(
            "no_table",
            Text(
                f"{address.name} is a database; say what to read of it: ",
                SetOption("table", "NAME"),
                ", or ",
                SetOption("query", "SELECT id, text FROM …"),
            ),
        )
    query = _END.sub("", spec.query)
    if not query or "\0" in query:
        raise SourceError("invalid_query", f"the query {seen(spec.query)} is no SELECT; write one")
    first = _FIRST.match(query)
    if first is None or first[1].upper() not in _READING:
        begins = seen(query if first is None else first[1])
        why = f"begins with {begins}, and was not run, as sources are only read"
        raise SourceError(
            "invalid_query",
            f"the query on {address.name} {why}; write one SELECT, such as SELECT id, text FROM "  # noqa: S608  # words
            "tickets",
        )
    return Named(f"the query on {address.name}", None, query)


class Relation:
    """Columns and statements. Made by asking the database, in the transaction of ``connection``."""

    def __init__(self, what: Named, connection: Connection, key: str) -> None:
        """Look at the columns. Raises SourceError for a key that cannot be one.

        SQLAlchemy's errors are raised, too.
        """
        self._what = what
        self._sqlite = connection.dialect.name == "sqlite"
        self.columns = _columns(what, connection, self._sqlite)
        self.key = key_column(self.columns, key, what.words)

    def key_parts(self, connection: Connection, rows: int) -> Iterator[Sequence[Sequence[Any]]]:
        """Yield the keys of all rows in their order, ``rows`` at a time, each with its bytes."""
        return connection.execute(
            self.keys_statement(), execution_options={"yield_per": rows}
        ).partitions(rows)

    def keys_statement(self) -> TextClause:
        """Return the statement for the keys of all rows in their order, each with its bytes."""
        quoted, short = _quoted(self.key.name), self._key_sql()
        size = self.key.size(quoted) or "8"
        value = f"CASE WHEN {size} <= {KEY_BYTES} THEN {short} END"
        present = f"CASE WHEN {quoted} IS NULL THEN NULL ELSE {size} END"
        return text(escaped(f"SELECT {value}, {present} FROM {self._what.sql()} ORDER BY {quoted}"))  # noqa: S608  # quoted names

    def rows_statement(self, columns: Sequence[Column]) -> TextClause:
        """Return the statement for rows with some keys.

        It gives key, size, and the values of rows that are not longer than ``most``.
        """
        names = {column.name: _quoted(column.name) for column in columns}
        sizes = [size for column in columns if (size := column.size(names[column.name]))]
        values = [
            f"{column.value(names[column.name])} AS c{at}" for at, column in enumerate(columns)
        ]
        # some columns of a gigabyte are more than an int4 holds
        size = " + ".join(["CAST(0 AS bigint)", *sizes])
        inner = (
            f"SELECT {self._key_sql()} AS k, {size} AS s, {', '.join(values)} FROM "  # noqa: S608  # quoted names
            f"{self._what.sql()} WHERE "
        )
        capped = ", ".join(f"CASE WHEN s <= :most THEN c{at} END" for at in range(len(columns)))
        return text(
            f"SELECT k, s, {capped} FROM ({escaped(inner)}{escaped(_quoted(self.key.name))} "  # noqa: S608  # quoted names
            f"{self._is_asked_for()}) AS sized"
        )

    def parameters(self, keys: Sequence[Key], most: int) -> Mapping[str, Any]:
        return {"keys": orjson.dumps(keys).decode() if self._sqlite else list(keys), "most": most}

    def has_index(self, connection: Connection) -> bool:
        """Return whether rows are found quickly by their key.

        True where nothing says so, as of views and queries.
        """
        return has_index(self._what, connection, self.key.name)

    def _key_sql(self) -> str:
        return self.key.value(_quoted(self.key.name))

    def _is_asked_for(self) -> str:
        if self._sqlite:
            return "IN (SELECT value FROM json_each(:keys))"
        return f"= ANY(CAST(:keys AS {self.key.type}[]))"


def has_index(what: Named, connection: Connection, key: str) -> bool:
    """Return whether an index of a table begins with ``key``.

    True where nothing says so, as of views and queries.
    """
    if what.table is None:
        return True
    *schema, table = parts(what.table)
    where = (table, schema[0] if schema else None)
    try:
        found = inspect(connection)
        if table not in found.get_table_names(where[1]):
            return True
        led: list[Sequence[str | None]] = [found.get_pk_constraint(*where)["constrained_columns"]]
        led += [index["column_names"] for index in found.get_indexes(*where)]
        led += [unique["column_names"] for unique in found.get_unique_constraints(*where)]
    except (SQLAlchemyError, NotImplementedError):  # the second: of a dialect that does not look
        return True
    return any(columns[:1] == [key] for columns in led)


def _columns(what: Named, connection: Connection, is_sqlite: bool) -> dict[str, Column]:
    # With a parameter, so that psycopg does not take several statements at once: a query must not
    # end our transaction.
    found = connection.execute(
        text(escaped(f"SELECT * FROM {what.sql()} LIMIT ") + ":none"),  # noqa: S608  # quoted names
        {"none": 0},
    )
    described: Sequence[Any] = cast(Any, found.cursor).description
    found.close()
    names = [str(one[0]) for one in described]
    refuse_twice(names, what.words)
    if is_sqlite:
        return {name: Column(name, Kind.ANY, "") for name in names}
    oids = [int(one[1]) for one in described]
    types = {int(row[0]): str(row[1]) for row in connection.execute(_TYPES, {"oids": oids})}
    kinds = [types.get(oid, "unknown") for oid in oids]
    return {
        name: Column(name, kind_in_postgresql(kind), kind)
        for name, kind in zip(names, kinds, strict=True)
    }


def refuse_twice(names: Sequence[str], words: str) -> None:
    """Raise SourceError for two columns of one name."""
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise SourceError(
            "duplicate_column",
            f"{words} has two columns {seen(twice[0])}; name one of them otherwise (AS …)",
        )


def key_column(columns: Mapping[str, Column], name: str, words: str) -> Column:
    """Return the column that rows are found by. Raises SourceError for one that cannot be it."""
    key = columns.get(name)
    if key is None:
        raise SourceError(
            "missing_column",
            Text(
                f"{words} has no column {seen(name)} to find its rows by; name a column whose "
                "values are unique (",
                SetOption("id_field"),
                f"): {', '.join(map(seen, list(columns)[:20]))}",
            ),
        )
    if key.type not in _KEY_TYPES:
        raise SourceError(
            "invalid_key",
            Text(
                f"{words}: the column {seen(name)} is of type {key.type}, by which rows are not "
                "found; name another (",
                SetOption("id_field"),
                "), or write ",
                SetOption("query", f"SELECT CAST({name} AS text) AS id, …"),
            ),
        )
    return key


def parts(table: str) -> list[str]:
    """Return schema and name, or the name alone."""
    schema, _, name = table.rpartition(".")
    return [schema, name] if schema else [name]


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def escaped(sql: str) -> str:
    """Escape colons, so that SQLAlchemy takes none for a parameter."""
    return sql.replace(":", "\\:")


ROWS: Final = 2_000  # asked for at once
BYTES: Final = 16 * 1024 * 1024  # of their values
SHORT: Final = BYTES // ROWS  # of a row that comes with its page

Ask = Callable[[Executable, Mapping[str, Any]], Sequence[Any]]


class Keyed(Protocol):
    """A relation whose rows are asked for by their keys."""

    def rows_statement(self, columns: Sequence[Column]) -> Executable: ...

    def parameters(self, keys: Sequence[Key], most: int) -> Mapping[str, Any]: ...


class RowsByKey:
    """``columns`` are those that are read; a row of more than ``max_bytes`` has no values."""

    def __init__(self, relation: Keyed, columns: Sequence[Column], max_bytes: int) -> None:
        self.columns = columns
        self._relation = relation
        self._statement = relation.rows_statement(columns)
        self._max_bytes = max_bytes

    def one(self, ask: Ask, key: Key) -> Row | None:
        """Return the row with this key; None where there is none."""
        return self._asked(ask, [key], self._max_bytes).get(key)

    def some(self, ask: Ask, keys: Sequence[Key]) -> Iterator[Row | None]:
        """Yield a row for each key, in their order, of which ROWS may come at once.

        None is given for a key without a row, and for one that is no key.
        """
        wanted = [key for key in keys if key is not None]
        rows = self._asked(ask, wanted, min(SHORT, self._max_bytes)) if wanted else {}
        groups = self._groups(wanted, rows)
        held: Mapping[Key, Row] = {}
        for key in keys:
            row = rows.get(key)
            if row is not None and self._is_left_out(row):
                if key not in held:
                    held = self._asked(ask, next(groups), self._max_bytes)
                row = held.get(key)
            yield row

    def _groups(self, keys: Sequence[Key], rows: Mapping[Key, Row]) -> Iterator[list[Key]]:
        """Yield the keys of rows to be asked for again."""
        group: list[Key] = []
        size = 0
        for key in keys:
            row = rows.get(key)
            if row is None or not self._is_left_out(row):
                continue
            if group and size + row.size > BYTES:
                yield group
                group, size = [], 0
            group.append(key)
            size += row.size
        if group:
            yield group

    def _is_left_out(self, row: Row) -> bool:
        """Return whether its values did not come, and may."""
        return row.values is None and row.size <= self._max_bytes

    def _asked(self, ask: Ask, keys: Sequence[Key], most: int) -> dict[Key, Row]:
        found = ask(self._statement, self._relation.parameters(keys, most))
        return {key: Row(size, values if size <= most else None) for key, size, *values in found}
