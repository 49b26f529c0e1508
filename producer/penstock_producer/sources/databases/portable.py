"""A table or a query of any database that SQLAlchemy has a dialect for.

Its SQL is what all of them know. Keys are read in pages, each from behind the last key of the page
before, because few drivers answer a second statement while a result is open. Rows with equal keys
would be passed over there. So the database is asked for them first, by its own equality, which may
take 'a' and 'A' for one.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, cast

import sqlalchemy as sa
from sqlalchemy import ColumnElement, Connection, Select

from penstock_ledger.texts import SetOption, Text
from penstock_producer.errors import SourceError, seen
from penstock_producer.source_formats import DUCKDB
from penstock_producer.sources.databases.address import MYSQL
from penstock_producer.sources.databases.columns import Column, Key, Kind, equal_keys
from penstock_producer.sources.databases.relation import (
    KEY_BYTES,
    Named,
    Relation,
    escaped,
    has_index,
    key_column,
    parts,
    refuse_twice,
)

__all__ = ["PortableRelation", "relation_of"]


_NATIVE: Final = ("sqlite", "postgresql")


def relation_of(what: Named, connection: Connection, key: str) -> Relation | PortableRelation:
    """Return the table, view or query that is read.

    Raises SourceError for a key that cannot be one, and SQLAlchemy's errors.
    """
    kind = Relation if connection.dialect.name in _NATIVE else PortableRelation
    return kind(what, connection, key)


class PortableRelation:
    """Columns and statements, as of ``Relation``. Values bring their types with them."""

    def __init__(self, what: Named, connection: Connection, key: str) -> None:
        """Look at the columns. Raises SourceError for a key that cannot be one.

        SQLAlchemy's errors are raised, too.
        """
        self._what = what
        self._dialect = connection.dialect.name
        self.columns = self._columns(connection)
        self.key = key_column(self.columns, key, what.words)
        self._key: ColumnElement[Any] = sa.column(key)

    def key_parts(self, connection: Connection, rows: int) -> Iterator[Sequence[Sequence[Any]]]:
        """Yield the keys of all rows in their order, ``rows`` at a time, each with its bytes.

        Rows without a key come first.
        """
        self._refuse_equal(connection)
        missing = self._of_rows(sa.func.count()).where(self._key.is_(None))
        without = int(connection.execute(missing).scalar_one())
        for start in range(0, without, rows):
            yield [(None, None)] * min(rows, without - start)
        size = self._size(self._key)
        page = (
            self._of_rows(sa.case((size <= KEY_BYTES, self._key)), size)
            .order_by(self._key)
            .limit(rows)
        )
        first, following = (
            page.where(self._key.is_not(None)),
            page.where(self._key > sa.bindparam("last")),
        )
        last: Key = None
        while True:
            found = (
                connection.execute(first)
                if last is None
                else connection.execute(following, {"last": last})
            )
            some = found.all()
            if not some:
                return
            last = self._last_of(some, last)
            yield some

    def rows_statement(self, columns: Sequence[Column]) -> Select[Any]:
        """Return the statement for rows with some keys.

        It gives key, size, and the values of rows that are not longer than ``most``.
        """
        values: list[ColumnElement[Any]] = [sa.column(one.name) for one in columns]
        sizes = [sa.func.coalesce(self._size(value), 0) for value in values]
        size = functools.reduce(
            operator.add, sizes, cast(ColumnElement[Any], sa.literal_column("0"))
        )
        labelled = [value.label(f"c{at}") for at, value in enumerate(values)]
        asked_for = self._key.in_(sa.bindparam("keys", expanding=True))
        inner = (
            self._of_rows(self._key.label("k"), size.label("s"), *labelled)
            .where(asked_for)
            .subquery("sized")
        )
        found = inner.c
        capped = [
            sa.case((found.s <= sa.bindparam("most"), found[f"c{at}"]))
            for at in range(len(columns))
        ]
        return sa.select(found.k, found.s, *capped)

    def parameters(self, keys: Sequence[Key], most: int) -> Mapping[str, Any]:
        return {"keys": list(keys), "most": most}

    def has_index(self, connection: Connection) -> bool:
        """Return whether rows are found quickly by their key.

        DuckDB looks through a column quickly, and tells of no index.
        """
        return self._dialect == DUCKDB or has_index(self._what, connection, self.key.name)

    def _of_rows(self, *values: ColumnElement[Any]) -> Select[Any]:
        return sa.select(*values).select_from(self._source())

    def _source(self) -> sa.FromClause | sa.TextClause:
        if self._what.table is None:
            # a newline: the query may end in a comment
            return sa.text(f"({escaped(self._what.query)}\n) source")
        *schema, name = parts(self._what.table)
        return sa.table(name, schema=schema[0] if schema else None)

    def _columns(self, connection: Connection) -> dict[str, Column]:
        found = connection.execute(self._of_rows(sa.literal_column("*")).limit(0))
        names = [str(name) for name in found.keys()]  # noqa: SIM118  # a result, not a dict
        found.close()
        refuse_twice(names, self._what.words)
        return {name: Column(name, Kind.ANY, "") for name in names}

    def _size(self, value: ColumnElement[Any]) -> ColumnElement[Any]:
        """Return the size in bytes; in characters where no function for bytes is known."""
        if self._dialect in MYSQL:
            return sa.func.octet_length(value)
        if self._dialect == DUCKDB:
            return sa.func.strlen(sa.cast(value, sa.String))
        return sa.func.char_length(sa.cast(value, sa.String))

    def _refuse_equal(self, connection: Connection) -> None:
        groups = self._of_rows(self._key).where(self._key.is_not(None)).group_by(self._key)
        twice = connection.execute(groups.having(sa.func.count() > 1).limit(1)).first()
        if twice is not None:
            raise equal_keys(self._what.words, self.key.name, twice[0])

    def _last_of(self, some: Sequence[Sequence[Any]], before: Key) -> Key:
        """Return where the next page begins.

        Raises SourceError for keys that rows cannot be found by.
        """
        for value, size in some:
            if type(value) not in (int, str):
                found = (
                    f"has {size} bytes"
                    if value is None
                    else f"is {seen(value)}, a {type(value).__name__}"
                )
                raise SourceError(
                    "invalid_key",
                    Text(
                        f"{self._what.words}: the column {seen(self.key.name)} {found}, by which "
                        "rows are not found; name a column of whole numbers or short texts (",
                        SetOption("id_field"),
                        "), or make one by a query: ",
                        SetOption("query", f"SELECT CAST({self.key.name} AS CHAR(36)) AS id, …"),
                    ),
                )
        last = some[-1][0]
        if last == before:
            raise equal_keys(self._what.words, self.key.name, last)
        return cast(Key, last)
