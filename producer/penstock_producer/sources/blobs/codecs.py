"""gzip and zstd as streams of one shape: the one that Python's own compression modules share."""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple, Protocol

from penstock_producer.errors import SourceUnavailable

_GZIP_WITH_HEADER: Final = 16 + zlib.MAX_WBITS
_ZSTD_WINDOW_LOG: Final = 27  # 128 MiB, as the zstd command allows without --long


class Damaged(Exception):
    """The bytes are not what the codec writes."""


class Stream(Protocol):
    """One member or frame that is being unpacked."""

    @property
    def eof(self) -> bool: ...
    @property
    def needs_input(self) -> bool:
        """False while more can come without further input."""
        ...

    @property
    def unused_data(self) -> bytes:
        """What follows the end."""
        ...

    def decompress(self, data: bytes, max_length: int) -> bytes:
        """Raises Damaged."""
        ...


class Codec(NamedTuple):
    name: str  # also of its command
    ending: str
    magic: bytes
    open: Callable[[], Stream]


class GzipStream:
    """zlib's decompressor, which hands back the input that it had no room for."""

    def __init__(self) -> None:
        self._inflate = zlib.decompressobj(_GZIP_WITH_HEADER)

    @property
    def eof(self) -> bool:
        return self._inflate.eof

    @property
    def needs_input(self) -> bool:
        return not self._inflate.unconsumed_tail

    @property
    def unused_data(self) -> bytes:
        return self._inflate.unused_data

    def decompress(self, data: bytes, max_length: int) -> bytes:
        try:
            return self._inflate.decompress(self._inflate.unconsumed_tail + data, max_length)
        except zlib.error as error:
            raise Damaged(str(error)) from None


class ZstdStream:
    """zstd's decompressor with a bounded window."""

    def __init__(self) -> None:
        if sys.version_info >= (3, 14):
            from compression import zstd
        else:
            try:
                from backports import zstd
            except ImportError as error:
                raise SourceUnavailable(
                    "reading .zst needs backports.zstd on this machine; `pip install "
                    "penstock[zstd]`"
                ) from error
        self._error = zstd.ZstdError
        self._frame = zstd.ZstdDecompressor(
            options={zstd.DecompressionParameter.window_log_max: _ZSTD_WINDOW_LOG}
        )

    @property
    def eof(self) -> bool:
        return self._frame.eof

    @property
    def needs_input(self) -> bool:
        return self._frame.needs_input

    @property
    def unused_data(self) -> bytes:
        return self._frame.unused_data

    def decompress(self, data: bytes, max_length: int) -> bytes:
        try:
            return self._frame.decompress(data, max_length)
        except self._error as error:
            raise Damaged(str(error)) from None


CODECS: Final[Mapping[str, Codec]] = {
    codec.name: codec
    for codec in (
        Codec("gzip", ".gz", b"\x1f\x8b", GzipStream),
        Codec("zstd", ".zst", b"\x28\xb5\x2f\xfd", ZstdStream),
    )
}
