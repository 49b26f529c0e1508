"""Cuts a stream of bytes into lines, whatever comes: no line is held that is longer than the
limit."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Final, NamedTuple

ENDS_BYTES: Final = (
    4_096  # that are kept of each end of a line which is passed over: they name what it answers
)


class TooLong(NamedTuple):
    """A line that was passed over."""

    size: int  # bytes that it has at least
    head: bytes = b""
    tail: bytes = b""


class EndlessLine(Exception):
    """Lines that are passed over have more bytes together than are read for them."""


class LineCutter:
    """What it knows of a stream: `offset` is the end of the last whole line, and `is_same` whether
    a beginning is the same."""

    def __init__(self, line_bytes: int, skipped_bytes: int) -> None:
        self._line_bytes, self._skippable = line_bytes, skipped_bytes
        self.restarts = -1
        self.restart()

    def restart(self) -> None:
        """The stream begins again at its first byte."""
        self.restarts += 1
        self.offset, self.lines = 0, 0
        self._digest = hashlib.sha256()  # of all before `offset`
        self.forget()

    def forget(self) -> None:
        """What came behind the last whole line will come again."""
        self._parts: list[bytes] = []
        self._size = 0
        self._head, self._tail = b"", b""  # of a line that is too long
        self._line_digest = self._digest.copy()

    def is_same(self, beginning: bytes) -> bool:
        """Whether a digest (SHA-256) is that of what was cut so far."""
        return self._digest.digest() == beginning

    def feed(self, part: bytes) -> Iterator[bytes | TooLong]:
        """Whole lines, with their line feeds. Raises EndlessLine."""
        start = 0
        while (end := part.find(b"\n", start)) >= 0:
            yield self._line(part[start : end + 1])
            start = end + 1
        if start < len(part):
            self._take(part[start:])

    def end(self) -> Iterator[bytes | TooLong]:
        """The stream is over: what is left is a line without a line feed."""
        if self._size:
            yield self._line(b"")

    def _take(self, piece: bytes) -> None:
        self._line_digest.update(piece)
        self._size += len(piece)
        if self._size <= self._line_bytes:
            self._parts.append(piece)
            return
        for part in (*self._parts, piece):
            self._head += part[: ENDS_BYTES - len(self._head)]
        self._tail = (self._tail + b"".join(self._parts[-1:]) + piece)[-ENDS_BYTES:]
        self._skippable -= len(piece) + sum(map(len, self._parts))
        self._parts = []
        if self._skippable < 0:
            raise EndlessLine(f"a line of more than {self._size} bytes")

    def _line(self, last: bytes) -> bytes | TooLong:
        self._take(last)
        is_whole = self._size <= self._line_bytes
        whole = b"".join(self._parts) if is_whole else TooLong(self._size, self._head, self._tail)
        self.offset += self._size
        self.lines += 1
        self._digest = self._line_digest
        self.forget()
        return whole
