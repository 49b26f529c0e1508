"""One answer at a time, read by llhttp: its head, its body, and whether its connection is good.

A compressed body is unpacked as it comes and never further than is asked for. A body is counted,
and held back until the memory for it is reserved.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Protocol

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from penstock_workers.http.client import (
    AnswerTooLarge,
    ConnectionLost,
    HttpAnswer,
    HttpError,
    Limits,
    PartReader,
    is_event_stream,
)

_GZIP = 16 + zlib.MAX_WBITS
_RAW = -zlib.MAX_WBITS
# the low four bits of a zlib stream's first byte; a raw one, which some servers send, has others
_ZLIB_METHOD = 8


class Unpacker(Protocol):
    def feed(self, packed: bytes, most: int) -> bytes:
        """Return at most ``most`` bytes of body; the rest comes with later calls.

        Raises ConnectionLost for what is no such format."""
        ...

    def end(self) -> None:
        """Raise ConnectionLost unless the body ends here."""


def unpacker(encoding: str) -> Unpacker | None:
    """Return what unpacks an encoding; None for one that was not offered.

    Its body stays as it is, and the status still counts."""
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


UNPACKED_BYTES = 64 * 1024  # of a compressed stream, at a time


class Body:
    """Fed by the parser.

    ``wants`` is how many bytes must be reserved before it takes more; 0 where it takes all."""

    __slots__ = (
        "_free",
        "_held_back",
        "_limits",
        "_parts",
        "_size",
        "_stream",
        "_unpacker",
        "wants",
    )

    def __init__(
        self,
        limits: Limits,
        headers: Mapping[str, str],
        *,
        reserves: bool,
        stream: PartReader | None = None,
    ) -> None:
        """Raise AnswerTooLarge where the headers say so.

        What ``stream`` is fed is not kept here: of it counts what the reader holds."""
        self._limits = limits
        self._stream = stream
        self._parts: list[bytes] = []
        self._held_back: list[bytes] = []
        self._size = 0
        self._free = limits.free_body_bytes if reserves else limits.max_body_bytes
        self.wants = 0
        encoding = headers.get("content-encoding")
        self._unpacker: Unpacker | None = None if encoding is None else unpacker(encoding)
        length = headers.get("content-length")
        is_known = length is not None and self._unpacker is None and stream is None
        if is_known and length is not None and "transfer-encoding" not in headers:
            self._expect(int(length))

    def _expect(self, size: int) -> None:
        if size > self._limits.max_body_bytes:
            raise self._too_large()
        if size > self._free:
            self.wants = size

    def feed(self, part: bytes) -> None:
        """Take a part; raise AnswerTooLarge and ConnectionLost."""
        if self.wants:
            self._held_back.append(part)  # of the segment that was read already: reading pauses
        else:
            self._take(part)

    def _take(self, part: bytes) -> None:
        if self._stream is not None:
            self._size = self._passed_on(part, self._stream)
        else:
            if self._unpacker is not None:
                part = self._unpacker.feed(part, self._free - self._size + 1)
            self._size += len(part)
            self._parts.append(part)
        if self._size > self._free:
            if self._free == self._limits.max_body_bytes:
                raise self._too_large()
            self.wants = self._limits.max_body_bytes  # nothing says how large it becomes

    def _passed_on(self, part: bytes, stream: PartReader) -> int:
        if self._unpacker is None:
            return stream.feed(part)
        piece = self._unpacker.feed(part, UNPACKED_BYTES)
        while len(piece) == UNPACKED_BYTES:
            stream.feed(piece)
            piece = self._unpacker.feed(b"", UNPACKED_BYTES)
        return stream.feed(piece)

    def grant(self) -> None:
        """Go on after the memory was reserved. Raises AnswerTooLarge and ConnectionLost."""
        self.wants, self._free = 0, self._limits.max_body_bytes
        held_back, self._held_back = self._held_back, []
        for part in (b"", *held_back):  # the empty one is for what the unpacker still has
            self._take(part)

    def whole(self) -> bytes:
        """Return the body; raise ConnectionLost where a compressed one is cut short."""
        if self._unpacker is not None:
            self._unpacker.end()
        return self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)

    def _too_large(self) -> AnswerTooLarge:
        return AnswerTooLarge(f"the answer has more than {self._limits.max_body_bytes} bytes")


# Of one answer's head, counted as HTTP/2 does: names, values and 32 bytes for each header. Real
# ones have some 2 KiB.
MAX_HEAD_BYTES = 64 * 1024
HEADER_COST = 32
# Of bytes that bring no body: half a header, trailers, extensions of chunks.
MAX_IDLE_BYTES = MAX_HEAD_BYTES
KNOWN_NAMES = 1024  # of headers whose lower-case form is kept
SWITCHING = 101

_names: dict[bytes, str] = {}


class AnswerReader:
    """Belongs to one connection.

    ``begin`` comes before each answer, then ``feed`` until it is ``complete``."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._parser = HttpResponseParser(self)
        # As aiohttp's client takes them, too: what old servers write, and nothing that moves where
        # an answer ends.
        self._parser.set_dangerous_leniencies(
            lenient_optional_cr_before_lf=True, lenient_spaces_after_chunk_size=True
        )
        self.begin(reserves=False)

    def begin(self, *, reserves: bool, stream: PartReader | None = None) -> None:
        """Expect an answer.

        Without ``reserves`` its body may become as large as the limits allow at once. An event
        stream goes to ``stream``."""
        self._reserves = reserves
        self._stream = stream
        self._headers: dict[str, str] = {}
        self._head_left = MAX_HEAD_BYTES
        self._idle_bytes = 0
        self._status = 0
        self._body: Body | None = None
        self._error: HttpError | None = None
        self._needs_eof = False
        self.has_begun = False  # any byte of the answer is here
        self.streams = False  # it is an event stream, and is read as it comes
        self.complete = False
        self.keeps = False  # the connection is good for another request

    @property
    def has_head(self) -> bool:
        """Return whether the status and the headers are here."""
        return self._status != 0

    @property
    def wants(self) -> int:
        """Bytes to reserve before more is fed, see ``grant``; 0 where none are needed."""
        return 0 if self._body is None else self._body.wants

    def feed(self, data: bytes) -> None:
        """Take bytes of the connection; raise HttpError.

        What comes behind a complete answer spoils the connection, not the answer."""
        self.has_begun = True
        self._idle_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except HttpParserUpgrade:
            raise ConnectionLost(
                "the server switched to another protocol, which the request did not ask for"
            ) from None
        except HttpParserError as error:
            self.keeps = False
            if not self.complete:
                raise self._cause(str(error)) from None
        if self._idle_bytes > MAX_IDLE_BYTES and not self.complete:
            raise ConnectionLost(
                f"the answer has {MAX_IDLE_BYTES} bytes in a row that bring no body"
            )

    def _cause(self, text: str) -> HttpError:
        """Return the error that was found, and forget it.

        An exception that its own traceback reaches waits for the cycle collector."""
        found, self._error = self._error, None
        return found or ConnectionLost(f"what the server sent is not HTTP: {text}")

    def grant(self) -> None:
        """Go on after the memory was reserved. Raises HttpError."""
        assert self._body is not None, "called only after a reservation was asked for"
        self._body.grant()

    def end(self) -> None:
        """Learn that the server has closed the connection.

        Raises ConnectionLost unless that is how this answer ends."""
        if self.complete:
            return
        if not self._needs_eof:
            when = "in the middle of its answer" if self.has_begun else "before its answer began"
            raise ConnectionLost(f"the server closed the connection {when}")
        self.complete = True

    def close(self) -> None:
        """Take no more bytes: the connection has ended.

        The parser knows its reader and holds the last answer's head; together they would wait for
        the cycle collector."""
        del self._parser

    def answer(self) -> HttpAnswer:
        """Return the answer once, when it is complete and wants nothing.

        Raises ConnectionLost where a compressed body is cut short."""
        body, self._body = self._body, None  # an idle connection holds no memory
        return HttpAnswer(self._status, self._headers, b"" if body is None else body.whole())

    # -- called by the parser ----------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self.complete:
            raise ConnectionLost("the server sent more than one answer")

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head_left -= len(name) + len(value) + HEADER_COST
        if self._head_left < 0:
            raise self._head_is_too_large()
        if self._status:
            return  # a trailer
        key = _names.get(name) or _lower(name)
        if key not in self._headers:
            self._headers[key] = value.decode("utf-8", "surrogateescape")

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200:
            if status == SWITCHING:
                raise self._fail(
                    "the server switched to another protocol, which the request did not ask for"
                )
            return
        headers = self._headers
        coding = headers.get("transfer-encoding")
        if coding is not None and coding.strip().lower() != "chunked":
            raise self._fail(
                f"the answer has the transfer encoding {coding[:40]!r}, which was not offered"
            )
        self._needs_eof = (
            coding is None and "content-length" not in headers and status not in (204, 304)
        )
        self._status = status
        stream = self._stream if is_event_stream(status, headers) else None
        self.streams = stream is not None
        try:
            self._body = Body(self._limits, headers, reserves=self._reserves, stream=stream)
        except HttpError as error:
            self._error = error
            raise

    def on_body(self, part: bytes) -> None:
        assert self._body is not None, "the parser has seen the headers"
        self._idle_bytes = 0
        try:
            self._body.feed(part)
        except HttpError as error:
            self._error = error
            raise

    def on_message_complete(self) -> None:
        if self._status:
            self.complete = True
            self.keeps = self._parser.should_keep_alive()
        else:  # such as 100 Continue: the answer follows
            self._headers = {}
            self._head_left -= HEADER_COST
            if self._head_left < 0:
                raise self._head_is_too_large()

    def _head_is_too_large(self) -> HttpError:
        return self._fail(f"the answer's head has more than {MAX_HEAD_BYTES} bytes")

    def _fail(self, text: str) -> HttpError:
        self._error = ConnectionLost(text)
        return self._error


def _lower(name: bytes) -> str:
    lowered = name.decode("latin-1").lower()
    if len(_names) < KNOWN_NAMES:
        _names[name] = lowered
    return lowered
