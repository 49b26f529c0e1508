"""The rows that a call was given: written down for the engine, and given back with answers.

A frame, table or list stays what it is: answers become further columns of it, so that nothing of
its rows, index or types can change. The engine reads a copy of the columns that its requests are
made of, as JSON Lines.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from itertools import accumulate
from pathlib import Path
from typing import Any, Final, Protocol

import orjson

from penstock.errors import BadCall

CHUNK_ROWS: Final = 10_000  # of a frame, as Python values at once
ID: Final = "@id"  # the id field of what is written: the number of a row, or its id as text
TEXT: Final = "text"  # the column of rows that are texts alone
SAY_EVERY: Final = 50_000  # rows

Record = Mapping[str, Any]


class Rows(Protocol):
    """Rows that can be read, and given back as a frame or table to put columns behind."""

    @property
    def columns(self) -> Sequence[str]: ...

    def records(self) -> Iterator[Record]:
        """Yield each row, with Python's own values."""
        ...

    def record(self, number: int) -> Record:
        """Return one row, the first is number 0."""
        ...

    def take(self, numbers: Sequence[int]) -> Rows:
        """Return some of the rows, in this order."""
        ...

    def to_pandas(self) -> Any: ...

    def to_polars(self) -> Any: ...

    def to_arrow(self) -> Any: ...


class Spooled:
    """Rows on disk, as the engine reads them."""

    def __init__(self, path: Path, digest: str, ids: Sequence[str]) -> None:
        self._path = path
        self.digest = digest
        self.ids = ids

    def moved(self, folder: Path) -> Path:
        """Put the file into the folder of its job, under the name of its content."""
        place = folder / f"rows-{self.digest[:16]}.jsonl"
        if place.exists():  # the same rows: the engine knows the file by its time
            self._path.unlink()
        else:
            self._path.replace(place)
        return place


class Once:
    """An iterator, which can be read once: it has to be spooled before it has columns."""

    columns: Sequence[str] = ()

    def __init__(self, rows: Iterable[Any]) -> None:
        self._rows = rows

    def records(self) -> Iterator[Record]:
        return map(_record, self._rows)


def rows_of(source: object) -> Rows | Once | None:
    """Return the rows of what a call was given; None for a place that the engine reads itself.

    Raises BadCall for what has no rows.
    """
    if isinstance(source, str | os.PathLike):
        return None
    package = type(source).__module__.partition(".")[0]
    if package == "pandas" and hasattr(source, "columns"):
        return PandasRows(source)
    if package == "polars":
        return PolarsRows(source)
    if package == "datasets" and isinstance(source, Mapping):
        raise BadCall(f"the rows are of {len(source)} datasets: give one of {', '.join(source)}")
    if package == "datasets" and isinstance(source, Sized):  # a stream of one is an iterator
        return DatasetRows(source)
    if hasattr(source, "__arrow_c_stream__"):
        return ArrowRows(source)
    if isinstance(source, Sequence) and not isinstance(source, bytes | bytearray):
        return ListRows(list(source))
    if isinstance(source, Iterable) and not isinstance(source, Mapping | bytes | bytearray):
        return Once(source)
    raise BadCall(
        f"the rows are of {type(source).__name__}; give a data frame, an Arrow table, a dataset, a "
        "list of dicts, an iterator of them, or a path or URL"
    )


class PandasRows:
    """A frame of pandas."""

    def __init__(self, frame: Any) -> None:
        self._frame = frame
        self.columns = [str(name) for name in frame.columns]
        if len(set(self.columns)) != len(self.columns):
            raise BadCall("two columns of the frame have the same name; rename one of them")

    def records(self) -> Iterator[Record]:
        for start in range(0, len(self._frame), CHUNK_ROWS):
            some = self._frame.iloc[start : start + CHUNK_ROWS]
            cells = [some.iloc[:, at].tolist() for at in range(len(self.columns))]
            for values in zip(*cells, strict=True) if cells else ():
                yield dict(zip(self.columns, values, strict=True))

    def record(self, number: int) -> Record:
        return dict(zip(self.columns, self._frame.iloc[number].tolist(), strict=True))

    def take(self, numbers: Sequence[int]) -> Rows:
        return PandasRows(self._frame.iloc[list(numbers)])

    def to_pandas(self) -> Any:
        return self._frame

    def to_polars(self) -> Any:
        import polars as pl

        return pl.from_pandas(self._frame)

    def to_arrow(self) -> Any:
        import pyarrow as pa

        return pa.Table.from_pandas(self._frame)


class PolarsRows:
    """A frame of polars; a lazy one is collected."""

    def __init__(self, frame: Any) -> None:
        if hasattr(frame, "collect"):
            frame = frame.collect()
        if not hasattr(frame, "iter_slices"):
            raise BadCall("a series of polars has no columns; give series.to_frame()")
        self._frame = frame
        self.columns = list(frame.columns)

    def records(self) -> Iterator[Record]:
        for some in self._frame.iter_slices(CHUNK_ROWS):
            yield from some.to_dicts()

    def record(self, number: int) -> Record:
        found: Record = self._frame.row(number, named=True)
        return found

    def take(self, numbers: Sequence[int]) -> Rows:
        return PolarsRows(self._frame[list(numbers)])

    def to_pandas(self) -> Any:
        return self._frame.to_pandas()

    def to_polars(self) -> Any:
        return self._frame

    def to_arrow(self) -> Any:
        return self._frame.to_arrow()


class ArrowRows:
    """An Arrow table, or what gives itself as one: a relation of DuckDB, a reader of batches."""

    def __init__(self, table: Any) -> None:
        import pyarrow

        self._table = table if isinstance(table, pyarrow.Table) else pyarrow.table(table)
        self.columns = list(self._table.column_names)

    def records(self) -> Iterator[Record]:
        for batch in self._table.to_batches(max_chunksize=CHUNK_ROWS):
            yield from batch.to_pylist()

    def record(self, number: int) -> Record:
        found: Record = self._table.slice(number, 1).to_pylist()[0]
        return found

    def take(self, numbers: Sequence[int]) -> Rows:
        return ArrowRows(self._table.take(list(numbers)))

    def to_pandas(self) -> Any:
        return self._table.to_pandas()

    def to_polars(self) -> Any:
        import polars as pl

        return pl.from_arrow(self._table)

    def to_arrow(self) -> Any:
        return self._table


class ListRows:
    """A list of dicts, or of texts: those have one column, `text`."""

    def __init__(self, rows: Sequence[Any]) -> None:
        self._rows: Any = rows
        self.columns = list(dict.fromkeys(name for row in self.records() for name in row))

    def records(self) -> Iterator[Record]:
        return map(_record, self._rows)

    def record(self, number: int) -> Record:
        return _record(self._rows[number])

    def take(self, numbers: Sequence[int]) -> Rows:
        return ListRows([self.record(number) for number in numbers])

    def to_pandas(self) -> Any:
        import pandas as pd

        return pd.DataFrame.from_records(list(self.records()), columns=list(self.columns))

    def to_polars(self) -> Any:
        import polars as pl

        return pl.from_dicts(list(map(dict, self.records())), infer_schema_length=None)

    def to_arrow(self) -> Any:
        import pyarrow as pa

        return pa.Table.from_pylist(list(self.records()))


class DatasetRows(ListRows):
    """A dataset of Hugging Face: rows on disk, an Arrow table below them."""

    def __init__(self, dataset: Any) -> None:
        self._rows = dataset.with_format(None)  # which gives Python's own values
        self.columns = list(dataset.column_names)

    def take(self, numbers: Sequence[int]) -> Rows:
        return DatasetRows(self._rows.select(list(numbers)))

    def to_pandas(self) -> Any:
        return self._rows.to_pandas()

    def to_polars(self) -> Any:
        return self._rows.to_polars()

    def to_arrow(self) -> Any:
        return self._rows.with_format("arrow")[:]


class SpooledRows(ListRows):
    """Rows that were read once, and are in the spool alone: with the values that JSON has."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with path.open("rb") as file:
            offsets = accumulate(map(len, file), initial=0)
            self._offsets = array("Q", offsets)
        self.columns = list(dict.fromkeys(name for row in self.records() for name in row))

    def records(self) -> Iterator[Record]:
        with self._path.open("rb") as file:
            yield from map(_read_back, file)

    def record(self, number: int) -> Record:
        with self._path.open("rb") as file:
            file.seek(self._offsets[number])
            return _read_back(file.readline())


def _read_back(line: bytes) -> Record:
    record: dict[str, Any] = orjson.loads(line)
    del record[ID]
    return record


def _record(row: Any) -> Record:
    if isinstance(row, str):
        return {TEXT: row}
    if isinstance(row, Mapping):
        return row
    raise BadCall(f"a row is {type(row).__name__}; rows are dicts, or texts")


def spool(
    rows: Rows | Once,
    folder: Path,
    *,
    columns: Sequence[str] | None,
    id_field: str | None,
    say: Callable[[str], None],
) -> Spooled:
    """Write the rows into ``folder``.

    ``columns`` are those that the engine needs, None for all. Raises BadCall for a value that JSON
    has no form for, and for an id that is missing or there twice.
    """
    digest = hashlib.sha256()
    ids: list[str] = []
    seen: set[str] = set()
    descriptor, name = tempfile.mkstemp(dir=folder, prefix="rows-", suffix=".part")
    try:
        with os.fdopen(descriptor, "wb") as file:
            for number, record in enumerate(rows.records(), 1):
                doc_id = str(number) if id_field is None else _id_of(record, id_field, number)
                if id_field is not None and doc_id in seen:
                    raise BadCall(
                        f"the id {doc_id!r} is in the column {id_field!r} twice, the second time "
                        f"in row {number}; leave id_field out, and rows go by their number"
                    )
                ids.append(doc_id)
                if id_field is not None:
                    seen.add(doc_id)
                kept = record if columns is None else _only(record, columns)
                try:
                    line = orjson.dumps({**kept, ID: doc_id}, _plain, _OPTIONS)
                except TypeError as error:
                    raise _unwritable(kept, number, error) from None
                digest.update(line)
                file.write(line)
                if number % SAY_EVERY == 0:
                    say(f"{number:,} rows read, and kept in {folder}")
        if not ids:
            raise BadCall("there are no rows")
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    return Spooled(Path(name), digest.hexdigest(), ids)


def _only(record: Record, columns: Sequence[str]) -> Record:
    return {name: record[name] for name in columns if name in record}


def _id_of(record: Record, id_field: str, number: int) -> str:
    value = record.get(id_field)
    plain = value if isinstance(value, str) or value is None else _plain(value, whole=True)
    if plain is None or plain != plain:  # noqa: PLR0124, RUF100 - NaN is no id
        raise BadCall(
            f"row {number} has nothing in the id column {id_field!r}; fill it, name another, or "
            "leave id_field out, and rows go by their number"
        )
    return str(plain)


_OPTIONS: Final = orjson.OPT_APPEND_NEWLINE | orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS


def _plain(value: Any, *, whole: bool = False) -> Any:
    """Return a value of another library as JSON has it: times as ISO 8601, numbers as numbers.

    Raises TypeError, as orjson wants it.
    """
    kind = type(value)
    if kind.__name__ in ("NaTType", "NAType"):
        return None
    if hasattr(value, "isoformat"):
        return value.isoformat()
    if hasattr(value, "tolist"):
        return value.tolist()
    if kind.__module__ in ("decimal", "uuid", "pathlib", "datetime", "ipaddress") or whole:
        return value if isinstance(value, int | float) else str(value)
    if isinstance(value, set | frozenset | tuple):
        return list(value)
    raise TypeError(kind.__name__)


def _unwritable(record: Record, number: int, error: Exception) -> BadCall:
    for name, value in record.items():
        try:
            orjson.dumps({str(name): value}, _plain, _OPTIONS)
        except TypeError:
            return BadCall(
                f"the column {name!r} has {type(value).__name__} in row {number}, which no request "
                "can carry as text; turn it into text first, or leave it out of the prompt"
            )
    return BadCall(f"row {number} cannot be written as JSON: {error}")


# -- files of rows ---------------------------------------------------------------------------------


def rows_of_file(path: Path) -> Rows | None:
    """Return the rows of a local file as pandas or polars would have them, with types.

    None for what the engine reads itself: another format, or a file that is packed. Raises BadCall
    for a file that cannot be read.
    """
    import_of = {
        ".csv": _of_csv,
        ".tsv": lambda path: _of_csv(path, "\t"),
        ".parquet": _of_parquet,
        ".pq": _of_parquet,
        ".jsonl": _of_json_lines,
        ".ndjson": _of_json_lines,
    }.get(path.suffix.lower())
    if import_of is None or not path.is_file():
        return None
    try:
        return import_of(path)
    except ImportError:
        raise BadCall(
            f"{path}: reading it needs pyarrow; pip install 'penstock[parquet]', or give it as a "
            "data frame"
        ) from None
    except (OSError, ValueError) as error:  # pyarrow's errors are ValueErrors
        raise BadCall(f"{path} cannot be read: {error}") from error


def _of_csv(path: Path, delimiter: str = ",") -> Rows:
    from pyarrow import csv

    parse = csv.ParseOptions(delimiter=delimiter, newlines_in_values=True)
    return ArrowRows(csv.read_csv(path, parse_options=parse))


def _of_parquet(path: Path) -> Rows:
    from pyarrow import parquet

    return ArrowRows(parquet.read_table(path))


def _of_json_lines(path: Path) -> Rows:
    with path.open("rb") as file:
        return ListRows([orjson.loads(line) for line in file if line.strip()])
