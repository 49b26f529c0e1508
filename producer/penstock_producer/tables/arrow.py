"""Rows as Arrow record batches, and as Parquet.

pyarrow is imported on first use: it is an extra (`penstock[parquet]`).
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from importlib import util
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final

from penstock_producer.errors import SinkError
from penstock_producer.tables.columns import Column, Row

if TYPE_CHECKING:
    import pyarrow

__all__ = ["batches", "parquet_pieces", "reader_of"]

BATCH_ROWS: Final = 20_000
# of values, in Python; as much again in Arrow while the batch is made
BATCH_BYTES: Final = 32 * 1024 * 1024
ROW_BYTES: Final = 200  # beside its texts and vectors
_FLOAT32_BYTES: Final = 4
_VALUE_BYTES: Final = 8  # of a list or an object, beside its text


def need_pyarrow(what_for: str) -> None:
    """Raise SinkError, which says what to install, where pyarrow is missing."""
    if util.find_spec("pyarrow") is None:
        raise SinkError(
            f"{what_for} needs pyarrow, which is not installed: pip install 'penstock[parquet]'"
        )


def schema_of(columns: Sequence[Column]) -> pyarrow.Schema:
    import pyarrow as pa

    kinds = {
        "text": pa.string(),
        "integer": pa.int64(),
        "number": pa.float64(),
        "boolean": pa.bool_(),
        "decimal": pa.decimal128(38, 9),
        "date": pa.date32(),
        "timestamp": pa.timestamp("us"),
        "instant": pa.timestamp("us", "UTC"),
        "vector": pa.list_(pa.float32()),
        "vectors": pa.list_(pa.list_(pa.float32())),
    }
    return pa.schema(
        [pa.field(name, kinds[kind] if type_ is None else type_) for name, kind, type_ in columns]
    )


def batches(rows: Iterable[Row], columns: Sequence[Column]) -> Iterator[pyarrow.RecordBatch]:
    """Yield batches of at most ``BATCH_ROWS`` rows and about ``BATCH_BYTES``.

    One row may be larger by itself.
    """
    held: list[Row] = []
    size = 0
    for row in rows:
        row_size = ROW_BYTES + sum(map(_bytes_of, row))
        if held and (len(held) == BATCH_ROWS or size + row_size > BATCH_BYTES):
            yield _batch(held, columns)
            held, size = [], 0
        held.append(row)
        size += row_size
    if held:
        yield _batch(held, columns)


def reader_of(rows: Iterable[Row], columns: Sequence[Column]) -> pyarrow.RecordBatchReader:
    """Return a stream of batches, which is read once. Raises SinkError where pyarrow is missing."""
    need_pyarrow("an Arrow table")
    import pyarrow as pa

    return pa.RecordBatchReader.from_batches(schema_of(columns), batches(rows, columns))


def _bytes_of(value: Any) -> int:
    if isinstance(value, str | bytes):
        return len(value)
    if isinstance(value, list | dict):
        parts = value.values() if isinstance(value, dict) else value
        return sum(_VALUE_BYTES + _bytes_of(part) for part in parts)
    return 0


def _batch(rows: list[Row], columns: Sequence[Column]) -> pyarrow.RecordBatch:
    import pyarrow as pa

    schema = schema_of(columns)
    arrays = []
    for column, field, values in zip(columns, schema, zip(*rows, strict=True), strict=True):
        match column.kind:
            case "vector":
                arrays.append(_vectors(values))
            case "vectors":
                arrays.append(_lists_of_vectors(values))
            case _:
                arrays.append(pa.array(values, field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _vectors(values: Sequence[bytes | None]) -> pyarrow.ListArray:
    """Return the vectors as an array, without a Python number in between."""
    import pyarrow as pa

    data = b"".join(value or b"" for value in values)
    numbers = pa.Array.from_buffers(
        pa.float32(), len(data) // _FLOAT32_BYTES, [None, pa.py_buffer(data)]
    )
    return _nested(
        [None if value is None else len(value) // _FLOAT32_BYTES for value in values], numbers
    )


def _lists_of_vectors(values: Sequence[list[bytes] | None]) -> pyarrow.ListArray:
    inner = _vectors([vector for value in values for vector in value or ()])
    return _nested([None if value is None else len(value) for value in values], inner)


def _nested(lengths: Sequence[int | None], inner: pyarrow.Array) -> pyarrow.ListArray:
    import pyarrow as pa

    offsets = pa.array(accumulate((length or 0 for length in lengths), initial=0), pa.int32())
    missing = pa.array([length is None for length in lengths], pa.bool_())
    return pa.ListArray.from_arrays(offsets, inner, mask=missing)


COMPRESSION = "zstd"


def parquet_pieces(rows: Iterable[Row], columns: Sequence[Column]) -> Iterator[bytes]:
    """Yield the bytes of the file, in their order.

    What is not read to its end has no footer, and is no Parquet file. Raises SinkError with the
    first piece where pyarrow is missing.
    """
    need_pyarrow("Parquet")
    from pyarrow import parquet

    file = _File()
    with parquet.ParquetWriter(file, schema_of(columns), compression=COMPRESSION) as table:
        for batch in batches(rows, columns):
            table.write_batch(batch, row_group_size=batch.num_rows)
            yield file.taken()
    yield file.taken()


class _File(io.RawIOBase):
    """The bytes that pyarrow writes, until they are taken."""

    def __init__(self) -> None:
        super().__init__()
        self._pieces = bytearray()
        self._at = 0

    def taken(self) -> bytes:
        found = bytes(self._pieces)
        self._pieces.clear()
        return found

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def write(self, data: Any) -> int:
        number = len(self._pieces)
        self._pieces += data
        number = len(self._pieces) - number
        self._at += number
        return number
