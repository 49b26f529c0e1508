"""PostgreSQL array literals of whole columns: psycopg adapts lists element by element in Python,
ten times as slowly."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final


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
    """``values`` of one column as the text of an array; None is NULL."""
    element = ARRAY_TYPES[column_type][1]
    return "{" + ",".join(["NULL" if value is None else element(value) for value in values]) + "}"


def array_literals(column_types: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> tuple[str, ...]:
    """All columns of ``rows``, which must not be empty."""
    columns = zip(*rows, strict=True)
    return tuple(
        array_literal(kind, column) for kind, column in zip(column_types, columns, strict=True)
    )
