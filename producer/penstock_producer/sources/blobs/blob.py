"""A source of files reads bytes that stay the same, by offset; and their lines.

Only b"\\n" ends a line: U+2028, U+2029 and NEL inside strings do not. A preceding b"\\r" and a
leading BOM are dropped. Memory is bounded by the longest line allowed.
"""

from __future__ import annotations

import io
import time
from collections.abc import Iterable, Iterator
from typing import Any, Protocol

from penstock_producer.errors import SourceError

BOM = b"\xef\xbb\xbf"

# (number, 1-based; offset of the first byte after a BOM; data without the line end, None when the
# line is longer than allowed; length without b"\n"; offset of the next line; whether the file ends
# here without a newline). A plain tuple: a named one costs as much to make as everything else that
# is done to a short line.
Line = tuple[int, int, bytes | None, int, int, bool]


def split_lines(
    chunks: Iterable[bytes], *, offset: int, number: int, max_line_bytes: int
) -> Iterator[Line]:
    """Yield the lines of a stream that starts at byte ``offset``.

    The first of them is line ``number``. Blank lines are yielded with empty data so that the caller
    can keep count.
    """
    carry = bytearray()
    start = offset  # of the line that is being gathered
    position = offset  # of the next chunk
    skipping = False  # the line being gathered is already too long: its bytes are dropped
    for chunk in chunks:
        begin = 0
        while (newline := chunk.find(b"\n", begin)) >= 0:
            end = position + newline
            piece = chunk[begin:newline]
            data = b"".join((carry, piece)) if carry else piece
            yield _line(
                number, start, None if skipping else data, end, end + 1, max_line_bytes, last=False
            )
            carry.clear()
            begin, start, skipping, number = newline + 1, end + 1, False, number + 1
        if begin < len(chunk) and not skipping:
            carry += chunk[begin:]
            skipping = len(carry) > max_line_bytes + len(BOM) + 1
            if skipping:
                carry.clear()
        position += len(chunk)
    if carry or skipping:
        yield _line(
            number,
            start,
            None if skipping else bytes(carry),
            position,
            position,
            max_line_bytes,
            last=True,
        )


def _line(
    number: int,
    offset: int,
    data: bytes | None,
    end: int,
    next_offset: int,
    max_line_bytes: int,
    *,
    last: bool,
) -> Line:
    if data is not None:
        if number == 1 and offset == 0 and data.startswith(BOM):
            data, offset = data[len(BOM) :], len(BOM)
        if data.endswith(b"\r"):
            data = data[:-1]
        if len(data) > max_line_bytes:
            data = None
    return number, offset, data, end - offset, next_offset, last


# One read. Large enough that the cost per read does not count, small enough to hold a few in
# memory.
CHUNK_BYTES = 1024 * 1024


class Blob(Protocol):
    uri: str

    def pin(self) -> dict[str, Any]:
        """Return what identifies the bytes. Cheap after a whole pass over ``chunks``."""
        ...

    def pinning(self) -> Iterator[bytes]:
        """Yield what ``pin`` still has to read, so that a caller can stop in between."""
        ...

    def chunks(self, offset: int) -> Iterator[bytes]:
        """Yield the bytes from ``offset`` on. Raises SourceChanged, SourceUnavailable."""
        ...

    def read(self, offset: int, length: int) -> bytes:
        """Return exactly ``length`` bytes. Raises SourceChanged, SourceUnavailable."""
        ...


class Deadline:
    """``timeout_s`` seconds from now. Looking costs nothing beside a read."""

    def __init__(self, uri: str, timeout_s: float) -> None:
        self._uri = uri
        self._timeout_s = timeout_s
        self._ends_at = time.monotonic() + timeout_s

    def check(self) -> None:
        """Raise SourceError once the time has passed."""
        if time.monotonic() > self._ends_at:
            raise SourceError(
                "source_too_slow",
                f"{self._uri} was not read and checked within {self._timeout_s:g} s; split it, or "
                "raise doors.submit_timeout_s (PENSTOCK_DOORS__SUBMIT_TIMEOUT_S)",
            )


class TimedBlob:
    """A blob that has to be read within ``timeout_s`` seconds from now.

    The time is looked at once per chunk or read.
    """

    def __init__(self, blob: Blob, timeout_s: float) -> None:
        self.uri = blob.uri
        self._blob = blob
        self._deadline = Deadline(blob.uri, timeout_s)

    def pin(self) -> dict[str, Any]:
        for _ in self.pinning():
            pass
        return self._blob.pin()

    def pinning(self) -> Iterator[bytes]:
        for chunk in self._blob.pinning():
            self._deadline.check()
            yield chunk

    def chunks(self, offset: int) -> Iterator[bytes]:
        for chunk in self._blob.chunks(offset):
            self._deadline.check()
            yield chunk

    def read(self, offset: int, length: int) -> bytes:
        self._deadline.check()
        return self._blob.read(offset, length)


class BlobFile(io.RawIOBase):
    """Reads through the blob, so that its pin holds for every byte. ``most``: bytes of one read."""

    def __init__(self, blob: Blob, size: int, most: int | None = None) -> None:
        super().__init__()
        self._blob = blob
        self._size = size
        self._most = most
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = max(0, base + offset)
        return self._at

    def tell(self) -> int:
        return self._at

    def read(self, size: int | None = -1, /) -> bytes:
        """Read bytes.

        Raises SourceError for more than may be read at once, before any memory is taken.
        """
        left = max(0, self._size - self._at)
        length = left if size is None or size < 0 else min(size, left)
        if self._most is not None and length > self._most:
            raise SourceError(
                "record_batch_too_large",
                f"{self._blob.uri} has a piece of {length} bytes that is decoded whole, and at "
                f"most {self._most} are; write smaller record batches (pyarrow: "
                "max_chunksize=10_000), or Parquet",
            )
        data = self._blob.read(self._at, length) if length else b""
        self._at += len(data)
        return data
