"""Answers that are huge, larger than they look, or not what their encoding says.

One block is sent over and over."""

from __future__ import annotations

import zlib
from functools import cache

from penstock_simulate.hostile.kinds import JSON, Asked, Kind
from penstock_simulate.reply import Manner, Reply

BLOCK = b" " * 65_536
LARGE_BYTES = 100 * 1024 * 1024
GZIP = {**JSON, "Content-Encoding": "gzip"}
DEFLATE = {**JSON, "Content-Encoding": "deflate"}
GZIP_WINDOW = 31  # zlib's number for a gzip header around the largest window


@cache
def bomb() -> bytes:
    """100 MB of blanks in 100 kB of gzip."""
    packer = zlib.compressobj(9, zlib.DEFLATED, GZIP_WINDOW)
    return (
        b"".join(packer.compress(BLOCK) for _ in range(LARGE_BYTES // len(BLOCK))) + packer.flush()
    )


def _gzip(body: bytes) -> bytes:
    packer = zlib.compressobj(6, zlib.DEFLATED, GZIP_WINDOW)
    return packer.compress(body) + packer.flush()


def _large(manner: Manner, _: Asked) -> Reply:
    return Reply(200, BLOCK, JSON, manner=manner, times=LARGE_BYTES // len(BLOCK))


def _truncated(asked: Asked) -> Reply:
    packed = _gzip(asked.answer.body)
    return Reply(200, packed[: len(packed) // 2], GZIP)


KINDS = (
    Kind(
        "large",
        "200 with 100 MB and a Content-Length",
        lambda asked: _large(Manner.MEASURED, asked),
    ),
    Kind("large-chunked", "200 with 100 MB in chunks", lambda asked: _large(Manner.CHUNKED, asked)),
    Kind("gzip-bomb", "200 with 100 MB in 100 kB of gzip", lambda _: Reply(200, bomb(), GZIP)),
    Kind(
        "gzip-twice",
        "200 with a gzip bomb packed once more",
        lambda _: Reply(200, _gzip(bomb()), GZIP),
    ),
    Kind("gzip-half", "200 with half a gzip stream", _truncated),
    Kind(
        "gzip-lie",
        "200 that says gzip and is plain",
        lambda asked: asked.answer._replace(headers=GZIP),
    ),
    Kind(
        "deflate-lie",
        "200 that says deflate and is gzip",
        lambda asked: Reply(200, _gzip(asked.answer.body), DEFLATE),
    ),
)
