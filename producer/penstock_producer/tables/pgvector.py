"""Embeddings in PostgreSQL: columns of the extension pgvector where the database has it, arrays of
floats where not.

pgvector's indexes need a column of one size, and how long vectors are is often known with the first
one only. So a table that is made here gets a column without a size, and a comment that says so; the
first rows give it theirs.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import Connection, text

from penstock_producer.tables.columns import Table

__all__ = ["UNSIZED", "embedding_type", "size_of", "waits_for_size"]

UNSIZED: Final = "penstock: the first vector gives this column its size"
DIMENSIONS_MAX: Final = 16_000  # of pgvector's types
_TYPE_THERE: Final = text("SELECT to_regtype(:name) IS NOT NULL")
_ATTRIBUTE: Final = text(
    "SELECT atttypmod, col_description(attrelid, attnum) FROM pg_attribute"
    " WHERE attrelid = to_regclass(:named) AND attname = :column AND NOT attisdropped"
)


def embedding_type(connection: Connection, table: Table) -> str | None:
    """For a column that is made now; None where there is no pgvector, or a vector would be too long
    for it.

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
    """Whether the column was made here and has had no vector yet.

    ``place`` is the table's quoted name."""
    row = connection.execute(_ATTRIBUTE, {"named": place, "column": column}).one_or_none()
    return row is not None and row[0] == -1 and row[1] == UNSIZED


def size_of(connection: Connection, place: str, column: str) -> int | None:
    """How many numbers a vector there has; None where the column does not say."""
    row = connection.execute(_ATTRIBUTE, {"named": place, "column": column}).one_or_none()
    return None if row is None or row[0] == -1 else int(row[0])
