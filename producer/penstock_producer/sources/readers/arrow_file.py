"""Arrow IPC: the file form, which Feather is too, and the stream form, which Hugging Face datasets
write.

A group is a record batch. It is decoded whole, so its size is bounded before it is read. The file
form lists its batches at its end; those of a stream are found by going from header to header,
without reading what lies between.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any, Final, Protocol

from penstock_producer.errors import SourceError
from penstock_producer.sources.blobs.blob import Blob
from penstock_producer.sources.blobs.blob_file import BlobFile

ROWS_PER_BATCH: Final = 1_000  # what is made into Python objects at a time
# Of one record batch: of the columns that are read in the file form, of all in a stream.
MAX_BATCH_BYTES: Final = 512 * 1024**2
MAX_BATCHES: Final = (
    1_000_000  # of a stream; each costs a look at its header when the file is opened
)
_MAGIC: Final = b"ARROW1"
_CONTINUED: Final = b"\xff" * 4  # before each header of a stream
_MAX_HEADER_BYTES: Final = 16 * 1024**2  # a schema of 100,000 columns
_DICTIONARY: Final = 2  # kinds of headers
_BATCH: Final = 3


class Groups(Protocol):
    """An opened file of groups of rows."""

    names: Sequence[str]  # of the columns

    def count(self) -> int: ...

    def depth(self, column: str) -> int:
        """How many lists and objects its values lie in."""
        ...

    def batches(self, group: int, columns: Sequence[str]) -> Iterator[Any]:
        """Record batches of one group, in order."""
        ...


def open_arrow(blob: Blob, size: int) -> Groups:
    """Raises pyarrow's own errors for what is no Arrow file, and SourceError for a batch that is
    too large."""
    from pyarrow import ArrowInvalid

    start = blob.read(0, min(size, len(_MAGIC)))
    if start == _MAGIC:
        return _ArrowFile(blob, size)
    if start.startswith(_CONTINUED):
        return _ArrowStream(blob, size)
    raise ArrowInvalid(
        "it begins neither as a file of Arrow IPC nor as a stream; Feather of version 1 is not read"
    )


class _ArrowFile:
    def __init__(self, blob: Blob, size: int) -> None:
        from pyarrow import ipc

        self._blob = blob
        self._size = size
        self._columns: tuple[str, ...] | None = None
        self._file = ipc.open_file(BlobFile(blob, size))
        self._schema = self._file.schema
        self.names: Sequence[str] = self._schema.names

    def count(self) -> int:
        return int(self._file.num_record_batches)

    def depth(self, column: str) -> int:
        return depth_of(self._schema.field(column).type)

    def batches(self, group: int, columns: Sequence[str]) -> Iterator[Any]:
        yield from _pieces(self._of(columns).get_batch(group), columns, group, self._blob.uri)

    def _of(self, columns: Sequence[str]) -> Any:
        """The file, opened for these columns: others are not read."""
        from pyarrow import ipc

        if self._columns != tuple(columns):
            chosen = ipc.IpcReadOptions(
                included_fields=[self.names.index(name) for name in columns]
            )
            bounded = BlobFile(self._blob, self._size, most=MAX_BATCH_BYTES)
            self._file, self._columns = ipc.open_file(bounded, options=chosen), tuple(columns)
        return self._file


class _ArrowStream:
    def __init__(self, blob: Blob, size: int) -> None:
        from pyarrow import ipc

        self._blob = blob
        self._size = size
        self._schema = ipc.open_stream(BlobFile(blob, size, most=_MAX_HEADER_BYTES)).schema
        self.names: Sequence[str] = self._schema.names
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

    def depth(self, column: str) -> int:
        return depth_of(self._schema.field(column).type)

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
        """A batch whose values are numbers of dictionaries, which came earlier in the stream."""
        from pyarrow import ipc

        stream = ipc.open_stream(BlobFile(self._blob, self._size))
        for _ in range(group):
            stream.read_next_batch()
        return stream.read_next_batch()


def depth_of(kind: Any) -> int:
    """Levels of a type; without recursion, which a hostile schema would use up."""
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
    """Raises pyarrow's error for values that lie outside of their buffers: nothing checks that
    before, and it ends processes."""
    from pyarrow import types

    if types.is_string(column.type) or types.is_large_string(
        column.type
    ):  # UTF-8 is each row's own question
        column = column.view("binary" if types.is_string(column.type) else "large_binary")
    column.validate(full=True)


def _headers(blob: Blob, size: int) -> Iterator[tuple[int, int, int]]:
    """Kind, offset, and bytes after the header, of each message of a stream.

    Raises pyarrow's error for a damaged one."""
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
    """Two fields of a flatbuffer `Message`, which pyarrow shows only together with what follows it.

    Raises struct.error."""
    (table,) = struct.unpack_from("<I", header, 0)
    (back,) = struct.unpack_from("<i", header, table)
    fields = table - back  # where the table says where its fields are
    if not 0 <= fields < len(header):
        raise struct.error
    (width,) = struct.unpack_from("<H", header, fields)
    at = (
        struct.unpack_from("<4H", header, fields + 4) if width >= 12 else (0, 0, 0, 0)
    )  # version, kind, header, length
    kind = struct.unpack_from("<B", header, table + at[1])[0] if at[1] else 0
    body = struct.unpack_from("<q", header, table + at[3])[0] if at[3] else 0
    return kind, body
