"""A compressed file as a blob of its plain bytes: offsets are those of the plain bytes.

The pin is the packed file's. A stream of gzip or zstd cannot be entered in the middle, so reading
from an offset starts at the member (gzip) or frame (zstd) before it. The survey notes where some of
them begin, and the pin carries these places to every later reader.
"""

from __future__ import annotations

import sys
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

from penstock_producer.errors import BadReference, SourceError, SourceUnavailable
from penstock_producer.pins import MEMBERS
from penstock_producer.sources.blobs.blob import CHUNK_BYTES, Blob

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
        """Return the bytes that follow the end."""
        ...

    def decompress(self, data: bytes, max_length: int) -> bytes:
        """Return up to ``max_length`` unpacked bytes. Raises Damaged."""
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


PACKED: Final = "packed"  # of a pin: the codec
MEMBERS_KEPT: Final = 128  # evenly spread; they are in the pin, and so in the row of the job
# plain bytes between two of them; doubled each time when there are too many
_FIRST_SPACING: Final = 1024 * 1024
# larger than its packed form; JSON Lines of one prompt reach 100, and a bomb 1,000 and more
MOST_TIMES: Final = 250
FREE_BYTES: Final = 64 * 1024 * 1024  # plain bytes that may come of any small file
# plain bytes that a fetch can go back: documents come nearly in order
KEPT_BEHIND: Final = 8 * 1024 * 1024


class Member(NamedTuple):
    """A place where the packed stream can be entered."""

    packed: int
    plain: int


class Unpacked:
    """The plain bytes of ``blob``.

    ``pinned`` is what ``pin()`` returned at submit, None before that. Thread-safe."""

    def __init__(self, blob: Blob, codec: str, pinned: Mapping[str, Any] | None = None) -> None:
        self.uri = blob.uri
        self._blob = blob
        self._codec = CODECS[codec]
        self._surveyed = pinned is not None
        self._members = (
            [Member(0, 0)] if pinned is None else [Member(*pair) for pair in pinned[MEMBERS]]
        )
        self._whole = self._surveyed  # whether the members are those of the whole file
        self._window = _Window()
        self._lock = threading.Lock()

    def pin(self) -> dict[str, Any]:
        for _ in self.pinning():
            pass
        return self._blob.pin() | {
            PACKED: self._codec.name,
            MEMBERS: [list(member) for member in self._members],
        }

    def pinning(self) -> Iterator[bytes]:
        return self._blob.pinning() if self._whole else self.chunks(0)

    def chunks(self, offset: int) -> Iterator[bytes]:
        member = self._before(offset)
        skip = offset - member.plain
        for piece in self._plain(member):
            if skip < len(piece):
                yield piece[skip:] if skip else piece
            skip = max(0, skip - len(piece))

    def read(self, offset: int, length: int) -> bytes:
        with self._lock:
            window, nearest = self._window, self._before(offset)
            if not window.reaches(offset) or nearest.plain > window.end:
                window.restart(self._plain(nearest), nearest.plain)
            data = window.read(offset, length)
        if len(data) != length:
            raise BadReference(
                f"{self.uri} has no document at {offset}:{length} of its unpacked bytes"
            )
        return data

    def _before(self, offset: int) -> Member:
        return max(member for member in self._members if member.plain <= offset)

    def _plain(self, start: Member) -> Iterator[bytes]:
        """Yield the plain bytes from a member on.

        A first whole pass finds the members and refuses bombs.
        """
        finder = None if self._whole or start.packed else _MemberFinder()
        packed, plain = start  # offsets of what has been taken and given
        stream = None
        for chunk in self._blob.chunks(start.packed):
            data = chunk
            packed += len(chunk)
            while data or (stream is not None and not stream.needs_input):
                if stream is None:
                    if plain and not data.strip(b"\0"):
                        break  # padding, as tapes and block devices leave it
                    if finder is not None:
                        finder.met(Member(packed - len(data), plain))
                    stream = self._codec.open()
                try:
                    piece = stream.decompress(data, CHUNK_BYTES)
                except Damaged as error:
                    raise self._damaged(f"around its byte {packed} ({error})") from None
                data = stream.unused_data if stream.eof else b""
                stream = None if stream.eof else stream
                plain += len(piece)
                if not self._surveyed and plain > FREE_BYTES and plain > MOST_TIMES * packed:
                    raise self._bomb(plain, packed)
                if piece:
                    yield piece
        if stream is not None:
            raise self._damaged("at its end: it is truncated")
        if finder is not None:
            self._members, self._whole = finder.members or [Member(0, 0)], True

    def _damaged(self, where: str) -> SourceError:
        name = self._codec.name
        return SourceError(
            f"invalid_{name}",
            f"{self.uri} is damaged {where}; check it with `{name} -t`, and write it again",
        )

    def _bomb(self, plain: int, packed: int) -> SourceError:
        return SourceError(
            "decompressed_too_large",
            f"the first {packed} bytes of {self.uri} unpack to {plain} and more, and at most "
            f"{MOST_TIMES} times their size is read; if that is right, submit it unpacked: "
            f"{self._codec.name} -dc",
        )


class _MemberFinder:
    """Keeps a bounded number of places, evenly spread over the plain bytes."""

    def __init__(self) -> None:
        self.members: list[Member] = []
        self._spacing = _FIRST_SPACING

    def met(self, member: Member) -> None:
        if self.members and member.plain - self.members[-1].plain < self._spacing:
            return
        self.members.append(member)
        while len(self.members) > MEMBERS_KEPT:
            self._spacing *= 2
            self.members = _spread(self.members, self._spacing)


def _spread(members: Sequence[Member], spacing: int) -> list[Member]:
    kept = [members[0]]
    for member in members[1:]:
        if member.plain - kept[-1].plain >= spacing:
            kept.append(member)
    return kept


class _Window:
    """The last bytes of a stream that is read forward."""

    def __init__(self) -> None:
        self._pieces: Iterator[bytes] | None = None
        self._data = bytearray()
        self._start = 0

    @property
    def end(self) -> int:
        return self._start + len(self._data)

    def reaches(self, offset: int) -> bool:
        return self._pieces is not None and offset >= self._start

    def restart(self, pieces: Iterator[bytes], start: int) -> None:
        self._pieces, self._start = pieces, start
        self._data.clear()

    def read(self, offset: int, length: int) -> bytes:
        """Return bytes of the stream, fewer at its end.

        Raises what the stream raises, and then starts anew at the next read.
        """
        assert self._pieces is not None, "it was started"
        pieces, self._pieces = self._pieces, None
        while self.end < offset + length:
            piece = next(pieces, b"")
            if not piece:
                break
            self._data += piece
            spare = min(len(self._data) - KEPT_BEHIND, offset - self._start)
            if spare > 0:
                del self._data[:spare]
                self._start += spare
        self._pieces = pieces
        begin = offset - self._start
        return bytes(self._data[begin : begin + length])
