"""Parquet and Arrow files as groups of rows, by pyarrow, an extra: `pip install penstock[parquet]`.

A group is a row group (Parquet) or a record batch (Arrow). Only the columns that are asked for are
read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from penstock_producer.errors import SourceError, SourceUnavailable
from penstock_producer.job.formats import PARQUET
from penstock_producer.sources.blobs.blob import Blob
from penstock_producer.sources.blobs.blob_file import BlobFile
from penstock_producer.sources.readers.arrow_file import (
    ROWS_PER_BATCH,
    Groups,
    depth_of,
    open_arrow,
)

# Uncompressed bytes of one group's columns that are read. A group is decoded in pieces, but writers
# that make larger ones hold whole files in one group, which can be entered nowhere else.
MAX_GROUP_BYTES: Final = 4 * 1024**3
BATCH_BYTES: Final = (
    64 * 1024 * 1024
)  # of rows that are decoded at a time, where they are large: images, for example
_READ_BUFFER: Final = 1024 * 1024


def open_groups(blob: Blob, size: int, rows: str) -> Groups:
    """Raises SourceError for what is no such file, and where pyarrow is missing."""
    try:
        import pyarrow
    except ImportError as error:
        raise SourceUnavailable(
            f"reading {rows} needs pyarrow on this machine; `pip install penstock[parquet]`"
        ) from error
    try:
        return _ParquetGroups(blob, size) if rows == PARQUET else open_arrow(blob, size)
    except (
        pyarrow.ArrowException,
        OSError,
        UnicodeDecodeError,
    ) as error:  # the last of names of columns
        raise damaged(blob.uri, rows, error) from error


def damaged(uri: str, rows: str, error: Exception) -> SourceError:
    reason = str(error).partition("\n")[0]
    return SourceError(
        f"invalid_{rows}", f"{uri} cannot be read as {rows} ({reason}); write it again, unencrypted"
    )


class _ParquetGroups:
    def __init__(self, blob: Blob, size: int) -> None:
        from pyarrow import parquet

        self._uri = blob.uri
        self._file = parquet.ParquetFile(
            BlobFile(blob, size), buffer_size=_READ_BUFFER, pre_buffer=False
        )
        self._schema = self._file.schema_arrow
        self.names: Sequence[str] = self._schema.names

    def count(self) -> int:
        return int(self._file.num_row_groups)

    def depth(self, column: str) -> int:
        return depth_of(self._schema.field(column).type)

    def batches(self, group: int, columns: Sequence[str]) -> Iterator[Any]:
        """Rows of one row group, as pyarrow has them.

        Raises SourceError for a group of more than MAX_GROUP_BYTES."""
        found = self._file.metadata.row_group(group)
        size = found.total_byte_size
        if size > MAX_GROUP_BYTES:
            raise SourceError(
                "row_group_too_large",
                f"row group {group} of {self._uri} has {size} bytes, and at most {MAX_GROUP_BYTES} "
                "are read; write smaller row groups (pyarrow: row_group_size=100_000)",
            )
        read = _bytes_of(found, frozenset(columns))
        rows = max(1, min(ROWS_PER_BATCH, found.num_rows * BATCH_BYTES // max(1, read)))
        yield from self._file.iter_batches(
            batch_size=rows, row_groups=[group], columns=list(columns), use_threads=False
        )


def _bytes_of(group: Any, columns: frozenset[str]) -> int:
    """Uncompressed bytes of these columns in a row group; those of a struct are listed by their
    fields."""
    chunks = (group.column(number) for number in range(group.num_columns))
    return sum(
        int(chunk.total_uncompressed_size)
        for chunk in chunks
        if chunk.path_in_schema in columns or chunk.path_in_schema.partition(".")[0] in columns
    )
