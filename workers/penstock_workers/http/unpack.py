"""Compressed bodies, unpacked as they come and never further than is asked for."""

from __future__ import annotations

import zlib
from typing import Protocol

from penstock_workers.http.errors import ConnectionLost

_GZIP = 16 + zlib.MAX_WBITS
_RAW = -zlib.MAX_WBITS
# the low four bits of a zlib stream's first byte; a raw one, which some servers send, has others
_ZLIB_METHOD = 8


class Unpacker(Protocol):
    def feed(self, packed: bytes, most: int) -> bytes:
        """At most ``most`` bytes of body; the rest comes with later calls.

        Raises ConnectionLost for what is no such format."""
        ...

    def end(self) -> None:
        """Raises ConnectionLost unless the body ends here."""


def unpacker(encoding: str) -> Unpacker | None:
    """None for an encoding that was not offered: its body stays as it is, and the status still
    counts."""
    match encoding.strip().lower():
        case "gzip" | "x-gzip":
            return Gzip()
        case "deflate":
            return Deflate()
    return None


class Gzip:
    """One gzip member, or several in a row."""

    def __init__(self) -> None:
        self._inner = zlib.decompressobj(_GZIP)
        self._begun = False
        self._tail = b""  # what was given and is not unpacked yet

    def feed(self, packed: bytes, most: int) -> bytes:
        packed, self._tail = self._tail + packed, b""
        self._begun = self._begun or bool(packed)
        parts, size = [], 0
        while size < most and (packed or not self._inner.eof):
            if self._inner.eof:
                self._inner = zlib.decompressobj(_GZIP)
            part = _decompress(self._inner, packed, most - size, "gzip")
            parts.append(part)
            size += len(part)
            packed = self._inner.unused_data if self._inner.eof else self._inner.unconsumed_tail
            if not packed:
                break
        self._tail = packed
        return b"".join(parts)

    def end(self) -> None:
        if self._begun and not self._inner.eof:
            raise ConnectionLost("the answer's gzip body is cut short")


class Deflate:
    """A zlib stream, as the standard says, or a raw one, as some servers send."""

    def __init__(self) -> None:
        self._inner: zlib._Decompress | None = None

    def feed(self, packed: bytes, most: int) -> bytes:
        if self._inner is None:
            if not packed:
                return b""
            is_zlib = packed[0] & 0x0F == _ZLIB_METHOD
            self._inner = zlib.decompressobj(zlib.MAX_WBITS if is_zlib else _RAW)
        elif self._inner.eof and packed:
            raise ConnectionLost("the answer has bytes after the end of its deflate body")
        return _decompress(self._inner, self._inner.unconsumed_tail + packed, most, "deflate")

    def end(self) -> None:
        if self._inner is not None and not self._inner.eof:
            raise ConnectionLost("the answer's deflate body is cut short")


def _decompress(inner: zlib._Decompress, packed: bytes, most: int, name: str) -> bytes:
    try:
        return inner.decompress(packed, most)
    except zlib.error as error:
        raise ConnectionLost(
            f"the answer's body is not the {name} that its header names: {error}"
        ) from None
