"""HTTP that is slow, broken off or wrong: written byte by byte, past any library that would put it
right."""

from __future__ import annotations

from penstock_simulate.hostile.kinds import JSON, Asked, Kind
from penstock_simulate.reply import Manner, Reply

HUGE_HEADER_BYTES = 1_000_000


def _raw(fields: bytes, body: bytes) -> Reply:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n" + fields + b"\r\n"
    return Reply(200, head + body, {}, manner=Manner.RAW)


def _length(asked: Asked, offset: int) -> Reply:
    body = asked.answer.body
    return _raw(b"Content-Length: %d\r\n" % (len(body) + offset), body)


def _twice(asked: Asked) -> Reply:
    body = asked.answer.body
    return _raw(b"Content-Length: %d\r\nContent-Length: 5\r\n" % len(body), body)


def _huge(asked: Asked) -> Reply:
    body = asked.answer.body
    return _raw(
        b"X-Huge: %s\r\nContent-Length: %d\r\n" % (b"x" * HUGE_HEADER_BYTES, len(body)), body
    )


KINDS = (
    Kind("hang", "no answer for --hang-s", lambda _: Reply(200, b"", {}, manner=Manner.HUNG)),
    Kind(
        "drip",
        "a good answer, a byte at a time",
        lambda asked: asked.answer._replace(manner=Manner.DRIPPED),
    ),
    Kind(
        "close",
        "the connection ends before the first byte",
        lambda _: Reply(200, b"", JSON, manner=Manner.DROPPED),
    ),
    Kind(
        "close-after-headers",
        "the connection ends after the headers",
        lambda _: _raw(b"Content-Length: 99\r\n", b""),
    ),
    Kind(
        "length-long",
        "a Content-Length that is 100 bytes too long",
        lambda asked: _length(asked, 100),
    ),
    Kind(
        "length-short",
        "a Content-Length that is 20 bytes too short",
        lambda asked: _length(asked, -20),
    ),
    Kind("length-twice", "two Content-Lengths that differ", _twice),
    Kind("huge-header", "a header of 1 MB", _huge),
    Kind(
        "no-http",
        "bytes that are not HTTP",
        lambda _: Reply(200, b"\x16\x03\x01 what?\r\n\r\n", {}, manner=Manner.RAW),
    ),
)
