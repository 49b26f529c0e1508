"""Parquet and Arrow files as groups of rows, by pyarrow, an extra: `penstock[parquet]`.

A group is a row group (Parquet) or a record batch (Arrow). A record batch is decoded whole, so its
size is bounded before it is read. The file form of Arrow, which Feather is too, lists its batches
at its end; those of the stream form, which Hugging Face datasets write, are found by going from
header to header, without reading what lies between. Only the columns that are asked for are read.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Protocol

from penstock_producer.errors import SourceError
from penstock_producer.source_formats import FORMATS, PARQUET
from penstock_producer.sources.blobs.blob import Blob, BlobFile

ROWS_PER_BATCH: Final = 1_000  # what is made into Python objects at a time
# Of one record batch: of the columns that are read in the file form, of all in a stream.
MAX_BATCH_BYTES: Final = 512 * 1024**2
# of a stream; each costs a look at its header when the file is opened
MAX_BATCHES: Final = 1_000_000
_MAGIC: Final = b"ARROW1"
_CONTINUED: Final = b"\xff" * 4  # before each header of a stream
_MAX_HEADER_BYTES: Final = 16 * 1024**2  # a schema of 100,000 columns
_DICTIONARY: Final = 2  # kinds of headers
_BATCH: Final = 3


class Groups(Protocol):
    """An opened file of groups of rows."""

    names: Sequence[str]  # of the columns
    types: Mapping[str, Any]  # of Arrow, by the name of the column

    def count(self) -> int: ...

    def depth(self, column: str) -> int:
        """Return how many lists and objects its values lie in."""
        ...

    def batches(self, group: int, columns: Sequence[str]) -> Iterator[Any]:
        """Record batches of one group, in order."""
        ...


def open_arrow(blob: Blob, size: int) -> Groups:
    """Open an Arrow file or stream.

    Raises pyarrow's own errors for what is no Arrow file, and SourceError for a batch that is too
    large.
    """
    from pyarrow import ArrowInvalid

    start = blob.read(0, min(size, len(_MAGIC)))
    if start == _MAGIC:
        return _ArrowFile(blob, size)
    if start.startswith(_CONTINUED):
        return _ArrowStream(blob, size)
    raise ArrowInvalid(
        "it begins neither as a file of Arrow IPC nor as a stream; Feather of version 1 is not read"
    )


class _OfSchema:
    """The columns of a file, by its schema in Arrow's words."""

    def __init__(self, schema: Any) -> None:
        self._schema = schema
        self.names: Sequence[str] = schema.names
        self.types: Mapping[str, Any] = {one.name: one.type for one in schema}

    def depth(self, column: str) -> int:
        return depth_of(self._schema.field(column).type)


class _ArrowFile(_OfSchema):
    def __init__(self, blob: Blob, size: int) -> None:
        from pyarrow import ipc

        self._blob = blob
        self._size = size
        self._columns: tuple[str, ...] | None = None
        self._file = ipc.open_file(BlobFile(blob, size))
        super().__init__(self._file.schema)

    def count(self) -> int:
        return int(self._file.num_record_batches)

    def batches(self, group: int, columns: Sequence[str]) -> Iterator[Any]:
        yield from _pieces(self._of(columns).get_batch(group), columns, group, self._blob.uri)

    def _of(self, columns: Sequence[str]) -> Any:
        """Return the file, opened for these columns: others are not read."""
        from pyarrow import ipc

        if self._columns != tuple(columns):
            chosen = ipc.IpcReadOptions(
                included_fields=[self.names.index(name) for name in columns]
            )
            bounded = BlobFile(self._blob, self._size, most=MAX_BATCH_BYTES)
            self._file, self._columns = ipc.open_file(bounded, options=chosen), tuple(columns)
        return self._file


class _ArrowStream(_OfSchema):
    def __init__(self, blob: Blob, size: int) -> None:
        from pyarrow import ipc

        self._blob = blob
        self._size = size
        super().__init__(ipc.open_stream(BlobFile(blob, size, most=_MAX_HEADER_BYTES)).schema)
        self._offsets: list[int] = []
        self._has_dictionaries = False
        for kind, offset, length in _headers(blob, size):
            if length > MAX_BATCH_BYTES:
                raise too_large(blob.uri, len(self._offsets), length)
            if len(self._offsets) >= MAX_BATCHES:
                raise SourceError(
                    "too_many_batches",
                    f"{blob.uri} has more than {MAX_BATCHES:,} record batches; write larger ones",
                )
            self._has_dictionaries |= kind == _DICTIONARY
            if kind == _BATCH:
                self._offsets.append(offset)

    def count(self) -> int:
        return len(self._offsets)

    def batches(self, group: int, columns: Sequence[str]) -> Iterator[Any]:
        batch = (
            self._from_start(group) if self._has_dictionaries else self._at(self._offsets[group])
        )
        yield from _pieces(batch, columns, group, self._blob.uri)

    def _at(self, offset: int) -> Any:
        from pyarrow import ipc

        file = BlobFile(self._blob, self._size)
        file.seek(offset)
        return ipc.read_record_batch(ipc.read_message(file), self._schema)

    def _from_start(self, group: int) -> Any:
        """Return a batch whose values are numbers in dictionaries.

        The dictionaries came earlier in the stream.
        """
        from pyarrow import ipc

        stream = ipc.open_stream(BlobFile(self._blob, self._size))
        for _ in range(group):
            stream.read_next_batch()
        return stream.read_next_batch()


def depth_of(kind: Any) -> int:
    """Return the levels of a type without recursion, which a hostile schema would use up."""
    depth, level = 0, [kind]
    while level:
        depth += 1
        level = [one.field(number).type for one in level for number in range(one.num_fields)]
    return depth


def too_large(uri: str, group: int, size: int) -> SourceError:
    return SourceError(
        "record_batch_too_large",
        f"record batch {group} of {uri} has {size} bytes, and at most {MAX_BATCH_BYTES} are read; "
        "write smaller ones (pyarrow: max_chunksize=10_000), or Parquet",
    )


def _pieces(batch: Any, columns: Sequence[str], group: int, uri: str) -> Iterator[Any]:
    chosen = batch.select(list(columns))
    for column in chosen.columns:
        _validate(column)
    if chosen.nbytes > MAX_BATCH_BYTES:  # compressed, it was smaller
        raise too_large(uri, group, chosen.nbytes)
    for start in range(0, chosen.num_rows, ROWS_PER_BATCH):
        yield chosen.slice(start, ROWS_PER_BATCH)


def _validate(column: Any) -> None:
    """Raise pyarrow's error for values that lie outside of their buffers.

    Nothing checks that before, and it ends processes.
    """
    from pyarrow import types

    # UTF-8 is each row's own question
    if types.is_string(column.type) or types.is_large_string(column.type):
        column = column.view("binary" if types.is_string(column.type) else "large_binary")
    column.validate(full=True)


def _headers(blob: Blob, size: int) -> Iterator[tuple[int, int, int]]:
    """Yield kind, offset, and bytes after the header, of each message of a stream.

    Raises pyarrow's error for a damaged one.
    """
    from pyarrow import ArrowInvalid

    offset = 0
    while offset + 8 <= size:
        mark, length = struct.unpack("<4si", blob.read(offset, 8))
        if mark == _CONTINUED and length == 0:
            return
        if mark != _CONTINUED or not 0 < length <= _MAX_HEADER_BYTES or offset + 8 + length > size:
            raise ArrowInvalid(f"there is no header of a message at byte {offset}")
        try:
            kind, body = _kind_and_body(blob.read(offset + 8, length))
        except struct.error:
            raise ArrowInvalid(f"the header at byte {offset} is damaged") from None
        if not 0 <= body <= size - offset - 8 - length:
            raise ArrowInvalid(f"the message at byte {offset} is truncated")
        yield kind, offset, body
        offset += 8 + length + body


def _kind_and_body(header: bytes) -> tuple[int, int]:
    """Return two fields of a flatbuffer `Message`.

    pyarrow shows them only together with what follows it. Raises struct.error.
    """
    (table,) = struct.unpack_from("<I", header, 0)
    (back,) = struct.unpack_from("<i", header, table)
    fields = table - back  # where the table says where its fields are
    if not 0 <= fields < len(header):
        raise struct.error
    (width,) = struct.unpack_from("<H", header, fields)
    # version, kind, header, length
    at = struct.unpack_from("<4H", header, fields + 4) if width >= 12 else (0, 0, 0, 0)
    kind = struct.unpack_from("<B", header, table + at[1])[0] if at[1] else 0
    body = struct.unpack_from("<q", header, table + at[3])[0] if at[3] else 0
    return kind, body


# Uncompressed bytes of one group's columns that are read. A group is decoded in pieces, but writers
# that make larger ones hold whole files in one group, which can be entered nowhere else.
MAX_GROUP_BYTES: Final = 4 * 1024**3
# of rows that are decoded at a time, where they are large: images, for example
BATCH_BYTES: Final = 64 * 1024 * 1024
_READ_BUFFER: Final = 1024 * 1024


def open_groups(blob: Blob, size: int, rows: str) -> Groups:
    """Open a file of this format.

    Raises SourceError for what is no such file, and where pyarrow is missing."""
    FORMATS[rows].require()
    import pyarrow

    try:
        return _ParquetGroups(blob, size) if rows == PARQUET else open_arrow(blob, size)
    # the last of names of columns
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise damaged(blob.uri, rows, error) from error


def damaged(uri: str, rows: str, error: Exception) -> SourceError:
    reason = str(error).partition("\n")[0]
    return SourceError(
        f"invalid_{rows}", f"{uri} cannot be read as {rows} ({reason}); write it again, unencrypted"
    )


class _ParquetGroups(_OfSchema):
    def __init__(self, blob: Blob, size: int) -> None:
        from pyarrow import parquet

        self._uri = blob.uri
        self._file = parquet.ParquetFile(
            BlobFile(blob, size), buffer_size=_READ_BUFFER, pre_buffer=False
        )
        super().__init__(self._file.schema_arrow)

    def count(self) -> int:
        return int(self._file.num_row_groups)

    def batches(self, group: int, columns: Sequence[str]) -> Iterator[Any]:
        """Yield the rows of one row group, as pyarrow has them.

        Raises SourceError for a group of more than MAX_GROUP_BYTES.
        """
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
    """Return the uncompressed bytes of these columns in a row group.

    Those of a struct are listed by their fields.
    """
    chunks = (group.column(number) for number in range(group.num_columns))
    return sum(
        int(chunk.total_uncompressed_size)
        for chunk in chunks
        if chunk.path_in_schema in columns or chunk.path_in_schema.partition(".")[0] in columns
    )
