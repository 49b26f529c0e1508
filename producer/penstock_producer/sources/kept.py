"""The rows of a job's source once more, with all of their columns: what tables of results keep.

The source is pinned, so the rows are those that became documents, in the same order. Of files the
kinds of columns are found in a pass of its own, where the file does not say them.
"""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final, NamedTuple, Protocol

import orjson

from penstock_ledger import Database, OutcomeStore, SourceKeys, storable
from penstock_ledger.model import Job
from penstock_ledger.texts import SetOption, Text
from penstock_producer.errors import SourceError, seen
from penstock_producer.job.spec import JobSpec
from penstock_producer.rows import ROW_ID, Column, Kind, Kinds, Record
from penstock_producer.settings import ProducerSettings
from penstock_producer.sources.databases.address import KIND as TABLE
from penstock_producer.sources.databases.source import accepted
from penstock_producer.sources.of_feed import SPOOL
from penstock_producer.sources.open import open_source
from penstock_producer.sources.outcomes import KIND as OUTCOMES

__all__ = ["ALL", "NONE", "Kept", "KeptRow", "chosen_columns", "kept_rows"]

ALL: Final = "all"
NONE: Final = "none"
MAX_COLUMNS: Final = 20_000
"""Of a table of results. A Parquet file of more has a footer that readers take for damaged."""
_NAMES_SHOWN: Final = 20
_INT64: Final = 2**63
_WHOLE: Final = re.compile(r"-?(?:0|[1-9][0-9]{0,18})", re.ASCII)
_NUMBER: Final = re.compile(
    r"-?(?:0|[1-9][0-9]{0,17})(?:\.[0-9]{1,17})?(?:[eE][+-]?[0-9]{1,3})?", re.ASCII
)
_BOOLEAN: Final = {"true": True, "false": False}


class Rows(Protocol):
    """The part of a source that is needed here."""

    id_field: str
    kinds: Kinds

    def columns(self) -> Sequence[Column] | None: ...

    def records(self) -> Iterator[Record]: ...


class KeptRow(NamedTuple):
    """One row of the source."""

    number: int  # from 1 on
    doc_id: str
    is_refused: bool  # it never became a document, and has an id that is not its own
    values: list[Any]  # one for each column that is kept


class Kept:
    """The rows of a source with the columns that a table keeps. Read as often as needed."""

    def __init__(
        self,
        source: Rows,
        keep: str,
        refused: Mapping[int, str],
        *,
        in_arrow: bool,
        as_written: bool,
    ) -> None:
        """Choose the columns, which may take a pass over the source. Raises SourceError.

        ``refused`` are the ids of rows that never became documents, by their line. ``in_arrow``
        takes Arrow's values as they are. ``as_written`` leaves texts as they stand in the file.
        """
        self._source = source
        self._refused = refused
        self._in_arrow = in_arrow
        self.id_field = source.id_field
        self.columns = self._chosen(keep, as_written=as_written)
        if not in_arrow:
            self.columns = [Column(one.name, one.kind) for one in self.columns]
        self._types = {
            column.name: column.type for column in source.columns() or () if column.type is not None
        }

    def __iter__(self) -> Iterator[KeptRow]:
        takes = [(column, self._value(column)) for column in self.columns]
        for number, (line, record) in enumerate(self._source.records(), 1):
            refused = self._refused.get(line)
            doc_id = refused or self._id(number, record)
            if doc_id is not None:
                values = [take(record.get(column.name)) for column, take in takes]
                yield KeptRow(number, doc_id, refused is not None, values)

    def _id(self, number: int, record: Mapping[str, Any]) -> str | None:
        """Return the id of the row's document; None for a row that has become none."""
        if self.id_field == ROW_ID:
            return str(number)
        value = record.get(self.id_field)
        if isinstance(value, int) and type(value) is not bool:
            return str(value)
        return value if isinstance(value, str) else _text(value) if _is_id(value) else None

    def _chosen(self, keep: str, *, as_written: bool) -> list[Column]:
        if keep == NONE:
            return []
        given = self._source.columns()
        names = None if given is None else [column.name for column in given]
        wanted = chosen_columns(keep, names, self.id_field)
        if given is None:
            found = _by_value(self._source.records(), None, wanted)
            chosen_columns(keep, [column.name for column in found], self.id_field)
            return found
        columns = [column for column in given if wanted is None or column.name in wanted]
        if len(columns) > MAX_COLUMNS:
            raise _too_many(len(columns))
        match self._source.kinds:
            case "by_text" if not as_written:
                return _by_text(self._source.records(), columns)
            case "by_value":
                return _by_value(self._source.records(), columns, wanted)
            case _:
                return columns

    def _value(self, column: Column) -> Any:
        type_ = self._types.get(column.name)
        if self._in_arrow and column.type is not None:
            return _unchanged
        if type_ is not None and getattr(type_, "unit", "") == "ns":
            return _time_of(type_)
        if column.kind == "text" and self._source.kinds == "by_text":
            return _cell
        return _CONVERT[column.kind]


def kept_rows(
    database: Database,
    job: Job,
    keep: str,
    settings: ProducerSettings,
    *,
    in_arrow: bool = False,
    as_written: bool = False,
) -> Kept | None:
    """Return the rows of a job's source; None where it has none that can be read again.

    That are pushed documents, and a second pass over another job's outcomes. Raises SourceError.
    """
    kind = job.source.get("kind")
    if kind in (SPOOL, OUTCOMES):
        return None
    spec = JobSpec.accepted(job.spec)
    source: Rows
    if kind == TABLE:
        source = accepted(job, spec, SourceKeys(database), settings)
    else:
        source = open_source(job.source, spec, settings)
    refused = OutcomeStore(database).refused_ids(job.job_id)
    chosen = keep if spec.takes_records else NONE
    return Kept(source, chosen, refused, in_arrow=in_arrow, as_written=as_written)


def chosen_columns(keep: str, names: Sequence[str] | None, id_field: str) -> set[str] | None:
    """Return the names of the columns that are kept, the id's with them; None for all.

    Raises SourceError for one that is not among ``names``, which are None where they are unknown.
    """
    if keep == ALL:
        return None
    wanted = {name for name in map(str.strip, keep.split(",")) if name}
    missing = [] if names is None else sorted(wanted.difference(names))
    if names is not None and missing:
        shown = ", ".join(map(seen, names[:_NAMES_SHOWN]))
        more = ", …" if len(names) > _NAMES_SHOWN else ""
        raise SourceError(
            "missing_column",
            Text(
                f"the source has no column {seen(missing[0])} to keep (",
                SetOption("keep_columns"),
                f"); it has: {shown}{more}",
            ),
        )
    return wanted | {id_field}


def _too_many(number: int) -> SourceError:
    return SourceError(
        "too_many_columns",
        Text(
            f"the source has {number:,} columns, and a table keeps at most {MAX_COLUMNS:,}; name "
            "those to keep (",
            SetOption("keep_columns", "a,b"),
            "), or none",
        ),
    )


# -- kinds ----------------------------------------------------------------------------------------


def _by_text(records: Iterator[Record], columns: Sequence[Column]) -> list[Column]:
    """Find what the texts of each column are: all whole numbers, all numbers, all true or false.

    A number with zeros in front, as a postal code may have, is text.
    """
    could: dict[str, list[Kind]] = {
        column.name: ["integer", "number", "boolean"] for column in columns
    }
    filled: set[str] = set()
    for _, record in records:
        for name in list(could):
            text = record.get(name)
            if not text:
                continue
            filled.add(name)
            could[name] = [kind for kind in could[name] if _says(text, kind)]
            if not could[name]:
                del could[name]
    return [
        Column(name, could[name][0] if name in could and name in filled else "text")
        for name, *_ in columns
    ]


def _says(text: str, kind: Kind) -> bool:
    match kind:
        case "integer":
            return _WHOLE.fullmatch(text) is not None and -_INT64 <= int(text) < _INT64
        case "number":
            return _NUMBER.fullmatch(text) is not None
        case _:
            return text.lower() in _BOOLEAN


def _by_value(
    records: Iterator[Record], columns: Sequence[Column] | None, wanted: set[str] | None
) -> list[Column]:
    """Find the kind of each column by its values, and the columns themselves where none are given.

    A column with values of several kinds is text.
    """
    open_ = columns is None
    found: dict[str, Kind | None] = {} if columns is None else {one.name: None for one in columns}
    for _, record in records:
        for name, value in record.items():
            if name not in found:
                if not open_ or (wanted is not None and name not in wanted):
                    continue
                if len(found) == MAX_COLUMNS:
                    raise _too_many(MAX_COLUMNS + 1)
                found[name] = None
            if value is not None and found[name] != "text":
                found[name] = _joint(found[name], _kind_of(value))
    given = {} if columns is None else {one.name: one for one in columns if one.kind != "text"}
    return [given.get(name) or Column(name, kind or "text") for name, kind in found.items()]


def _kind_of(value: Any) -> Kind:
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        return "integer" if -_INT64 <= value < _INT64 else "text"
    if isinstance(value, datetime):
        return "timestamp"
    return "date" if isinstance(value, date) else "number" if isinstance(value, float) else "text"


def _joint(known: Kind | None, seen_now: Kind) -> Kind:
    if known is None or known == seen_now:
        return seen_now
    return "number" if {known, seen_now} == {"integer", "number"} else "text"


# -- values ---------------------------------------------------------------------------------------


def _is_id(value: Any) -> bool:
    """Return whether a value that JSON has as a text may be an id: a day, or a decimal."""
    return isinstance(value, date | time | Decimal)


def _unchanged(value: Any) -> Any:
    return value


def _cell(value: Any) -> str | None:
    """Return a text of CSV, which cannot tell an empty one from null: it is null."""
    return value or None


def _text(value: Any) -> str | None:
    match value:
        case None | str():
            return value
        case date() | time():
            return value.isoformat()
        case Decimal() | timedelta():
            return str(value)
        case bytes():
            return base64.b64encode(value).decode()
        case _:
            return storable(orjson.dumps(value, default=_text, option=_AS_JSON).decode())


_AS_JSON: Final = orjson.OPT_NON_STR_KEYS | orjson.OPT_PASSTHROUGH_DATETIME


def _whole(value: Any) -> int | None:
    return None if value in (None, "") else int(value)


def _float(value: Any) -> float | None:
    if value in (None, ""):
        return None
    number = float(value)
    return number if math.isfinite(number) else None


def _truth(value: Any) -> bool | None:
    return _BOOLEAN.get(value.lower()) if isinstance(value, str) else value


def _decimal(value: Any) -> Decimal | None:
    return None if value is None else Decimal(value)


def _date(value: Any) -> date | None:
    return date.fromisoformat(value[:10]) if isinstance(value, str) else value


def _moment(value: Any) -> datetime | None:
    return datetime.fromisoformat(value) if isinstance(value, str) else value


_CONVERT: Final[Mapping[Kind, Any]] = {
    "text": _text,
    "integer": _whole,
    "number": _float,
    "boolean": _truth,
    "decimal": _decimal,
    "date": _date,
    "timestamp": _moment,
    "instant": _moment,
}


def _time_of(type_: Any) -> Any:
    """Return what makes a text of a time in nanoseconds, which Python cannot hold."""
    from pyarrow import types

    zone = "+00:00" if types.is_timestamp(type_) and type_.tz is not None else ""

    def told(value: int | None) -> str | None:
        if value is None or types.is_duration(type_):
            return None if value is None else str(value)
        seconds, rest = divmod(value, 10**9)
        moment = datetime.fromtimestamp(0, UTC).replace(tzinfo=None) + timedelta(seconds=seconds)
        whole = (moment.time() if types.is_time(type_) else moment).isoformat()
        return f"{whole}.{rest:09d}{zone}" if rest else f"{whole}{zone}"

    return told
