"""The lines of one output, streamed from the provider and cut out of its bytes.

It goes on after a lost connection, and always comes to an end. No line is held that is longer than
the limit.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import re
import time
from collections.abc import AsyncGenerator, Iterator, Mapping
from typing import Final, NamedTuple

import aiohttp

from penstock_workers.lanes.batch.apis.http import BatchHttp
from penstock_workers.lanes.batch.apis.provider import TryLater, UnreadableLine

# that are kept of each end of a line which is passed over: they name what it answers
ENDS_BYTES: Final = 4_096


class TooLong(NamedTuple):
    """A line that was passed over."""

    size: int  # bytes that it has at least
    head: bytes = b""
    tail: bytes = b""


class EndlessLine(Exception):
    """Lines that are passed over have more bytes together than are read for them."""


class LineCutter:
    """Cuts bytes into lines: `offset` is the end of the last whole one.

    `is_same` says whether a beginning is the same."""

    def __init__(self, line_bytes: int, skipped_bytes: int) -> None:
        self._line_bytes, self._skippable = line_bytes, skipped_bytes
        self.restarts = -1
        self.restart()

    def restart(self) -> None:
        """Begin the stream again at its first byte."""
        self.restarts += 1
        self.offset, self.lines = 0, 0
        self._digest = hashlib.sha256()  # of all before `offset`
        self.forget()

    def forget(self) -> None:
        """Forget what came behind the last whole line: it will come again."""
        self._parts: list[bytes] = []
        self._size = 0
        self._head, self._tail = b"", b""  # of a line that is too long
        self._line_digest = self._digest.copy()

    def is_same(self, beginning: bytes) -> bool:
        """Return whether a digest (SHA-256) is that of what was cut so far."""
        return self._digest.digest() == beginning

    def feed(self, part: bytes) -> Iterator[bytes | TooLong]:
        """Yield whole lines, with their line feeds.

        Raises EndlessLine."""
        start = 0
        while (end := part.find(b"\n", start)) >= 0:
            yield self._line(part[start : end + 1])
            start = end + 1
        if start < len(part):
            self._take(part[start:])

    def end(self) -> Iterator[bytes | TooLong]:
        """Yield what is left at the end of the stream: a line without a line feed."""
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


LINE_BYTES: Final = 32 * 1024 * 1024  # of one answer, as in the api lane
SKIPPED_BYTES: Final = 1024**3  # of longer lines, which are read to their end, in one output
MOST_BREAKS: Final = 5  # in a row that brought no line
MOST_RESTARTS: Final = 3  # for lines in another order: each brings answers again that came before
MOST_CONNECTIONS: Final = 1_000  # for one output, however much each of them brings
# a server that drips its answer byte by byte would hold its reader for months
SLOWEST_BYTES_PER_S: Final = 1_000.0
PAUSE_CAP_S: Final = 30.0
_CONTENT_RANGE: Final = re.compile(r"bytes (?:(\d{1,18})-\d{1,18}|\*)/(\d{1,18}|\*)")


class Output(NamedTuple):
    """The place of the lines, and what may be expected of them."""

    name: str  # its file or address, for people
    path: str
    most_lines: int
    query: Mapping[str, str] = {}
    ranges: bool = True  # its bytes never change, so that it may go on in their middle
    id_field: str = "custom_id"  # of its lines


class Line(NamedTuple):
    number: int  # from 1
    text: bytes


async def output_lines(
    http: BatchHttp, output: Output
) -> AsyncGenerator[Line | UnreadableLine, None]:
    """Yield every line that is not blank.

    Raises BatchGone and TryLater."""
    cutter = LineCutter(LINE_BYTES, SKIPPED_BYTES)
    breaks = connections = 0
    while True:
        before = cutter.offset
        connections += 1
        try:
            async with contextlib.aclosing(_parts(http, output, cutter)) as parts:
                async for part in parts:
                    for line in cutter.feed(part):
                        if cutter.lines > output.most_lines:
                            why = (
                                f"more lines than the {output.most_lines} that a batch can have; "
                                "the rest is not read"
                            )
                            yield UnreadableLine(output.name, cutter.lines, why)
                            return
                        if not _is_blank(line):
                            yield _shown(output, cutter, line)
            for line in cutter.end():
                if not _is_blank(line):
                    yield _shown(output, cutter, line)
            return
        except EndlessLine as error:
            yield UnreadableLine(
                output.name, cutter.lines + 1, f"{error}; what comes behind it is not read"
            )
            return
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            breaks = 1 if cutter.offset > before else breaks + 1
            if (
                breaks > MOST_BREAKS
                or connections >= MOST_CONNECTIONS
                or cutter.restarts > MOST_RESTARTS
            ):
                lost = http.lost(error, once=False)
                raise TryLater(None, f"{lost}, at byte {cutter.offset} of {output.name}").named(
                    lost.name
                ) from None
            cutter.forget()
            await asyncio.sleep(min(PAUSE_CAP_S, http.times.pause_s * 2 ** (breaks - 1)))


def _is_blank(line: bytes | TooLong) -> bool:
    return isinstance(line, bytes) and line.isspace()


def _shown(output: Output, cutter: LineCutter, line: bytes | TooLong) -> Line | UnreadableLine:
    if isinstance(line, TooLong):
        why = f"it has {line.size} bytes, and at most {LINE_BYTES} are read"
        return UnreadableLine(output.name, cutter.lines, why, _id_of(line, output.id_field))
    return Line(cutter.lines, line)


_SCALAR: Final = r"""(?:"(?:[^"\\]|\\.)*"|null|true|false|-?[0-9.]+)"""


def _id_of(line: TooLong, field: str) -> str | None:
    """Return the id in a line that is not read as a whole, where it must be the line's own.

    That is where only short fields stand between it and one end of the line."""
    named, other = rf'"{field}"\s*:\s*"([A-Za-z0-9_-]{{1,128}})"', rf'"\w+"\s*:\s*{_SCALAR}\s*'
    head = re.match(rf"\s*\{{\s*(?:{other},\s*)*{named}".encode(), line.head)
    found = head or re.search(rf"{named}\s*(?:,\s*{other})*\}}\s*$".encode(), line.tail)
    return None if found is None else found[1].decode()


async def _parts(
    http: BatchHttp, output: Output, cutter: LineCutter
) -> AsyncGenerator[bytes, None]:
    """Yield what comes behind the cutter's offset."""
    asked = cutter.offset if output.ranges else 0
    async with http.stream(output.path, output.query, asked) as response:
        size = _ends_at(response)
        if response.status == 416 and asked and size == asked:
            return  # all of it was read, and the connection broke behind the last line
        if response.status >= 500:
            raise ValueError(f"HTTP {response.status}")
        if response.status not in (200, 206):
            raise await http.refusal(response)
        begins = _begins_at(response)
        if begins == cutter.offset:
            skip = 0
        elif response.status == 200:
            skip = cutter.offset
        else:
            raise ValueError(
                f"bytes from {asked} on were asked for, and those from {begins} on came"
            )
        beginning = hashlib.sha256()
        async for part in _in_time(response):
            rest = part
            if skip:
                beginning.update(part[:skip])
                rest, skip = part[skip:], max(0, skip - len(part))
                if not skip and not cutter.is_same(beginning.digest()):
                    cutter.restart()
                    raise ValueError("the lines came in another order: all of them are read again")
            if rest:
                yield rest
        if skip:
            cutter.restart()
            raise ValueError("less came than before: all of it is read again")


def _begins_at(response: aiohttp.ClientResponse) -> int | None:
    """Return the place in the output of the first byte of this answer."""
    if response.status == 200:
        return 0
    found = _CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
    return None if found is None or found[1] is None else int(found[1])


def _ends_at(response: aiohttp.ClientResponse) -> int | None:
    """Return the size of the whole output, where the answer says it."""
    found = _CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
    return None if found is None or found[2] == "*" else int(found[2])


async def _in_time(response: aiohttp.ClientResponse) -> AsyncGenerator[bytes, None]:
    """Yield the parts of a response, as long as they do not drip.

    Only the waits for the server count, not what the reader does between."""
    waited_s, came = 0.0, 0
    while True:
        began = time.monotonic()
        part = await response.content.readany()
        waited_s += time.monotonic() - began
        came += len(part)
        if not part:
            return
        if waited_s > 60.0 + came / SLOWEST_BYTES_PER_S:
            raise ValueError(f"it came too slowly: {came} bytes in {waited_s:.0f} s")
        yield part
