"""The columns of a table or a query, its keys, and how each value is asked for.

PostgreSQL makes text of everything that has no form of its own in JSON: dates as ISO 8601, decimals
digit by digit, arrays and composite values as JSON. So no value that Python could not hold (the
year 10000, a date `infinity`) stops a page of rows. Values of SQLite and of other databases bring
their types with them, and become what PostgreSQL's would be.
"""

from __future__ import annotations

import datetime
import hashlib
import math
import tempfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from typing import Any, Final
from uuid import UUID

import orjson

from penstock_ledger.texts import SetOption, Text
from penstock_producer.errors import SourceChanged, SourceError, seen
from penstock_producer.rows import id_fault
from penstock_producer.sources.forms.strict_json import RowFault, check_text, parse_object

__all__ = [
    "PAGE_ROWS",
    "Column",
    "Gathered",
    "Key",
    "KeyOrder",
    "Kind",
    "StoredKeys",
    "equal_keys",
    "key_of",
    "kind_in_postgresql",
    "plain",
]


class Kind(StrEnum):
    """The treatment of a column's values."""

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
        """Return the expression for its value; ``quoted`` is its name in SQL."""
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
        """Return the expression for the bytes of its value; "" where these are few anyway."""
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
    """Return a value as JSON has it. Raises RowFault."""
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
    """Return lists and structs as JSON; what JSON has no form for is its text there."""
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
        fix=Text("leave it out of the prompt, or make text of it by ", SetOption("query")),
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


Key = int | str | None
PAGE_ROWS: Final = 5_000  # of every page but the last; a row's number says which page it is in
# unpacked: 5,000 keys of 512 bytes, each written as JSON at its longest
MAX_PAGE_BYTES: Final = 16 * 1024 * 1024
_LENGTH_BYTES: Final = 4


def key_of(value: Any) -> Key:
    """Return what a row is found by; None for what is no document's id.

    A number that JSON cannot keep is none.
    """
    if type(value) is int:
        return value if -(2**63) <= value < 2**64 else None
    return value if isinstance(value, str) and id_fault(value) is None else None


def equal_keys(uri: str, id_field: str, key: object) -> SourceError:
    """Return the error for two rows that the database takes for one by this key."""
    return SourceError(
        "duplicate_key",
        Text(
            f"{uri} has two rows whose {id_field!r} is {seen(key)}; name a column whose values are "
            "unique (",
            SetOption("id_field"),
            "), or make one of several by a query: ",
            SetOption("query", "SELECT a || '-' || b AS id, … FROM …"),
        ),
    )


class KeyOrder:
    """Looks at the keys in the order of the database, where equal ones are neighbours."""

    def __init__(self, uri: str, id_field: str) -> None:
        self._uri = uri
        self._id_field = id_field
        self._last: Key = None

    def check(self, keys: Sequence[Key]) -> None:
        """Raise SourceError for two rows with one key, and for keys that are numbers and texts."""
        for key in keys:
            if key is None:
                continue
            if key == self._last:
                raise equal_keys(self._uri, self._id_field, key)
            if self._last is not None and type(key) is not type(self._last):
                raise SourceError(
                    "invalid_key",
                    Text(
                        f"{self._uri}: the column {self._id_field!r} holds numbers and texts, as "
                        f"{seen(self._last)} and {seen(key)}; make one kind of them: ",
                        SetOption("query", "SELECT CAST(id AS text) AS id, … FROM …"),
                    ),
                )
            self._last = key


class Gathered:
    """Pages in a file that the system removes: a hundred million keys take no memory.

    May be read more than once."""

    def __init__(self) -> None:
        self.rows = 0
        self._file = tempfile.TemporaryFile()  # noqa: SIM115  # it lives as long as this does
        self._waiting: list[Key] = []
        self._digest = hashlib.sha256()

    def add(self, keys: Sequence[Key]) -> None:
        self.rows += len(keys)
        self._waiting += keys
        while len(self._waiting) >= PAGE_ROWS:
            self._write(self._waiting[:PAGE_ROWS])
            del self._waiting[:PAGE_ROWS]

    def finish(self) -> None:
        if self._waiting:
            self._write(self._waiting)
            self._waiting = []

    def sha256(self) -> str:
        """Return the digest of all keys in their order."""
        return self._digest.hexdigest()

    def __iter__(self) -> Iterator[bytes]:
        place = 0
        while True:
            self._file.seek(place)
            length = int.from_bytes(self._file.read(_LENGTH_BYTES), "big")
            if not length:
                return
            page = self._file.read(length)
            place = self._file.tell()
            yield page

    def _write(self, keys: Sequence[Key]) -> None:
        plain = orjson.dumps(keys)
        self._digest.update(plain)
        page = zlib.compress(plain, 1)
        self._file.seek(0, 2)
        self._file.write(len(page).to_bytes(_LENGTH_BYTES, "big") + page)


class StoredKeys:
    """Those of a job. ``page`` gives a page as it was stored, or None where there is none."""

    def __init__(self, page: Callable[[int], bytes | None], rows: int) -> None:
        self._page = page
        self._rows = rows

    def pages(self, line: int) -> Iterator[tuple[int, list[Key]]]:
        """Yield the keys of the rows after ``line``, page by page, each with the rows before it.

        Raises SourceChanged.
        """
        while line < self._rows:
            number, within = divmod(line, PAGE_ROWS)
            stored = self._page(number)
            if stored is None:
                raise SourceChanged(
                    f"the ledger has lost which rows of the table this job has (page {number} of "
                    "source_keys); restore it"
                )
            keys: list[Key] = orjson.loads(zlib.decompressobj().decompress(stored, MAX_PAGE_BYTES))
            yield line, keys[within:]
            line += len(keys) - within
