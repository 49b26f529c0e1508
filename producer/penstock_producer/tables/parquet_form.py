"""Parquet, a row group for each batch: never more than one of them is in memory."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from typing import Any

from penstock_producer.storage import Writer
from penstock_producer.tables.arrow import batches, need_pyarrow, schema_of
from penstock_producer.tables.columns import Column, Row

__all__ = ["write_parquet"]

COMPRESSION = "zstd"


def write_parquet(writer: Writer, rows: Iterable[Row], columns: Sequence[Column]) -> None:
    """Write all rows; the file is whole when this returns. Raises SinkError where pyarrow is missing."""
    need_pyarrow("Parquet")
    from pyarrow import parquet

    with parquet.ParquetWriter(_File(writer), schema_of(columns), compression=COMPRESSION) as file:
        for batch in batches(rows, columns):
            file.write_batch(batch, row_group_size=batch.num_rows)


class _File(io.RawIOBase):
    """A writer as pyarrow wants to see it."""

    def __init__(self, writer: Writer) -> None:
        super().__init__()
        self._writer = writer
        self._at = 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def write(self, data: Any) -> int:
        piece = bytes(data)
        self._writer.write(piece)
        self._at += len(piece)
        return len(piece)
