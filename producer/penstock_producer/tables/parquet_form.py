"""Parquet, a row group for each batch: never more than one of them is in memory."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from penstock_producer.tables.arrow import batches, need_pyarrow, schema_of
from penstock_producer.tables.columns import Column, Row

__all__ = ["parquet_pieces"]

COMPRESSION = "zstd"


def parquet_pieces(rows: Iterable[Row], columns: Sequence[Column]) -> Iterator[bytes]:
    """The bytes of the file, in their order: what is not read to its end has no footer, and is no
    Parquet file. Raises SinkError with the first piece where pyarrow is missing."""
    need_pyarrow("Parquet")
    from pyarrow import parquet

    file = _File()
    with parquet.ParquetWriter(file, schema_of(columns), compression=COMPRESSION) as table:
        for batch in batches(rows, columns):
            table.write_batch(batch, row_group_size=batch.num_rows)
            yield file.taken()
    yield file.taken()


class _File(io.RawIOBase):
    """What pyarrow writes, until it is taken."""

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
