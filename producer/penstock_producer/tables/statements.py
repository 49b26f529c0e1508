"""The SQL that writes rows into one table, in the dialects of SQLite and PostgreSQL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from penstock_producer.tables.columns import Column, Kind
from penstock_producer.tables.sql import quoted

__all__ = ["ID", "Statements", "Target"]

ID: Final = "id"  # of results; the table's column may have another name
GIVEN: Final = "pg_temp.penstock_given"
_MARK: Final = "\0"  # of a value, until the names are in the statement: no name has it
_SQLITE_TYPES: Final[Mapping[Kind, str]] = {
    "text": "TEXT",
    "integer": "INTEGER",
    "number": "REAL",
    "boolean": "BOOLEAN",
    "vector": "TEXT",
    "vectors": "TEXT",
}
_POSTGRESQL_TYPES: Final[Mapping[Kind, str]] = {
    "text": "text",
    "integer": "bigint",
    "number": "double precision",
    "boolean": "boolean",
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

    def create(self, columns: Sequence[Column], embedding_type: str | None) -> str:
        """``embedding_type`` where vectors have one of their own."""
        types = _SQLITE_TYPES if self._sqlite else _POSTGRESQL_TYPES
        parts = []
        for name, kind in columns:
            type_ = (
                embedding_type if kind == "vector" and embedding_type is not None else types[kind]
            )
            parts.append(
                f"{self._id} {type_} PRIMARY KEY" if name == ID else f"{quoted(name)} {type_}"
            )
        return self._for_driver(f"CREATE TABLE {self.place} ({', '.join(parts)})")

    def upsert(self, targets: Sequence[Target]) -> str:
        return self._for_driver(
            self._upsert(targets, f"VALUES ({', '.join(map(self._value, targets))})")
        )

    def trial_upsert(self, targets: Sequence[Target]) -> str:
        """No row, but the database looks at the rights, the types and the key as for any."""
        return self._for_driver(
            self._upsert(targets, f"SELECT {', '.join(map(self._value, targets))} WHERE 1 = 0")
        )

    def given(self, targets: Sequence[Target]) -> str:
        """A table of texts for the rows of one transaction, in PostgreSQL.

        It goes with the transaction, as a pooler wants it."""
        columns = ", ".join(f"c{at} text" for at in range(len(targets)))
        return f"CREATE TEMPORARY TABLE {GIVEN} ({columns}, line integer) ON COMMIT DROP"

    def copy(self, targets: Sequence[Target]) -> str:
        return (
            f"COPY {GIVEN} ({', '.join(f'c{at}' for at in range(len(targets)))}, line) FROM STDIN"
        )

    def upsert_given(self, targets: Sequence[Target]) -> str:
        """Of rows with one id the last counts."""
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
        """Give a column that was made without a size the size of its vectors, so that it can have
        an index."""
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
