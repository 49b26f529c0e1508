"""Answers for raw servers to give, and how tests of HTTP clients ask for them."""

from __future__ import annotations

from typing import Any

from http_servers import RawServer, canned, raw_server

from penstock_workers.http import (
    HttpAnswer,
    HttpClient,
    Limits,
    Target,
)

LIMIT_S = 20.0  # of one request: far more than any of them takes
SHORT_S = 0.15  # of one that is to run out
KIB = 1024
LIMITS = Limits(max_body_bytes=256 * KIB, free_body_bytes=16 * KIB, idle_per_server=3)
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
LARGE = b"large" * 20 * KIB


async def post(
    client: HttpClient,
    server: RawServer,
    body: bytes = b"{}",
    timeout_s: float = LIMIT_S,
    **more: Any,
) -> HttpAnswer:
    return await client.post(Target.of(server.url), body, headers={}, timeout_s=timeout_s, **more)


def answer(
    body: bytes = b"", *headers: bytes, status: bytes = b"200 OK", length: int | None = None
) -> bytes:
    lines = [
        b"HTTP/1.1 " + status,
        b"content-length: %d" % (len(body) if length is None else length),
        *headers,
    ]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def chunked(*pieces: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + b"".join(pieces)


async def turn_the_loop(client: HttpClient) -> None:
    """Ask another server twice: whatever has reached this machine meanwhile, the client has seen
    then."""
    async with raw_server(canned(OK)) as other:
        for _ in range(2):
            await post(client, other)
