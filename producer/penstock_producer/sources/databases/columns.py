"""The columns of a table or a query, and how each is asked for: as a value that JSON has, and how
long it is.

PostgreSQL makes text of everything that has no form of its own in JSON: dates as ISO 8601, decimals
digit by digit, arrays and composite values as JSON. So no value that Python could not hold (the
year 10000, a date `infinity`) stops a page of rows. Values of SQLite and of other databases bring
their types with them, and become what PostgreSQL's would be.
"""

from __future__ import annotations

import datetime
import math
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from typing import Any, Final
from uuid import UUID

import orjson

from penstock_producer.errors import seen
from penstock_producer.sources.forms.strict_json import RowFault, check_text, parse_object

__all__ = ["Column", "Kind", "kind_in_postgresql", "plain"]


class Kind(StrEnum):
    """What to do with the values of a column."""

    ANY = "any"  # of SQLite, and of databases that are not PostgreSQL
    NUMBER = "number"  # and truth values: as they are
    TEXT = "text"
    PRINTED = "printed"  # the text that PostgreSQL prints: decimals, uuids
    TIME = "time"  # printed as JSON has times, ISO 8601
    JSON = "json"
    NESTED = "nested"  # arrays, ranges, composite values and all else: printed as JSON
    BYTES = "bytes"  # never read


_KINDS: Final[dict[str, Kind]] = {
    **dict.fromkeys(("bool", "int2", "int4", "int8", "oid", "float4", "float8"), Kind.NUMBER),
    **dict.fromkeys(("text", "varchar", "bpchar"), Kind.TEXT),
    **dict.fromkeys(("numeric", "uuid", "name", "char"), Kind.PRINTED),
    **dict.fromkeys(("date", "time", "timetz", "timestamp", "timestamptz"), Kind.TIME),
    **dict.fromkeys(("json", "jsonb"), Kind.JSON),
    "bytea": Kind.BYTES,
}


@dataclass(frozen=True, slots=True)
class Column:
    """One column of the source."""

    name: str
    kind: Kind
    type: str  # as the database calls it; "" in SQLite

    def value(self, quoted: str) -> str:
        """The expression for its value; ``quoted`` is its name in SQL."""
        match self.kind:
            case Kind.PRINTED | Kind.JSON:
                return f"CAST({quoted} AS text)"
            case Kind.TIME:
                return f"to_json({quoted}) #>> '{{}}'"
            case Kind.NESTED:
                return f"CAST(to_json({quoted}) AS text)"
            case Kind.BYTES:
                return f"octet_length({quoted})"
        return quoted

    def size(self, quoted: str) -> str:
        """The expression for the bytes of its value, where these are not few anyway; "" then."""
        match self.kind:
            case Kind.ANY:
                return f"coalesce(length(CAST({quoted} AS BLOB)), 0)"
            case Kind.TEXT:
                return f"coalesce(octet_length({quoted}), 0)"
            case Kind.PRINTED | Kind.JSON | Kind.NESTED:
                return f"coalesce(octet_length({self.value(quoted)}), 0)"
        return ""


def kind_in_postgresql(type_name: str) -> Kind:
    return _KINDS.get(type_name, Kind.NESTED)


def plain(value: Any, column: Column) -> Any:
    """A value as JSON has it. Raises RowFault."""
    match value:
        case None:
            return None
        case _ if column.kind is Kind.BYTES:
            raise _bytes(column, f"{value} bytes")
        case str():
            if column.kind in (Kind.JSON, Kind.NESTED):
                return _parsed(value, column)
            if value in ("NaN", "Infinity", "-Infinity") and column.type == "numeric":
                raise _not_finite(column, value)
            check_text(value, column.name)
            return value
        case float():
            if not math.isfinite(value):
                raise _not_finite(column, value)
            return value
        case int():
            return value
        case datetime.date() | datetime.time():
            return value.isoformat()
        case Decimal():
            if not value.is_finite():
                raise _not_finite(column, value)
            return str(value)
        case UUID() | datetime.timedelta():
            return str(value)
        case dict() | list() | tuple() | set():
            return _parsed(_json(value), column)
    raise _bytes(column, seen(value))


def _json(value: Any) -> str:
    """Of lists and structs; what JSON has no form for is its text there."""
    return orjson.dumps(value, default=_plainer, option=orjson.OPT_NON_STR_KEYS).decode()


def _plainer(value: Any) -> Any:
    return sorted(value, key=str) if isinstance(value, set) else str(value)


def _parsed(text: str, column: Column) -> Any:
    try:
        return parse_object(b'{"value":%s}' % text.encode(), ())["value"]
    except RowFault as fault:
        fault.field, fault.message = (
            column.name,
            f"The JSON of the column {column.name!r} is refused: {fault.message}",
        )
        raise


def _bytes(column: Column, value: str) -> RowFault:
    return RowFault(
        "invalid_type",
        f"The column {column.name!r} holds bytes, which a prompt cannot show.",
        fix="leave it out of the prompt, or make text of it by --query",
        field=column.name,
        value=value,
    )


def _not_finite(column: Column, value: Any) -> RowFault:
    return RowFault(
        "invalid_number",
        f"The column {column.name!r} holds a number that is not finite.",
        fix="write null where there is no number",
        field=column.name,
        value=seen(value),
    )
