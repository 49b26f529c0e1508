"""Where both HTTP clients end what has no end: bytes, time, memory, and requests that are given
up."""

from __future__ import annotations

import asyncio
import gzip
import zlib
from collections.abc import AsyncIterator
from typing import Literal

import pytest
from http_servers import (
    KIB,
    LARGE,
    LIMIT_S,
    LIMITS,
    SHORT_S,
    Peer,
    Script,
    answer,
    canned,
    chunked,
    post,
    raw_server,
    turn_the_loop,
)

from penstock_workers.http import (
    AnswerTooLarge,
    ConnectionLost,
    HttpClient,
    HttpError,
    NotConnected,
    Target,
    TimedOut,
    make_client,
)


@pytest.fixture(params=["lean", "aiohttp"])
async def client(request: pytest.FixtureRequest) -> AsyncIterator[HttpClient]:
    made = make_client(request.param, LIMITS)
    yield made
    await made.close()


@pytest.fixture
async def lean() -> AsyncIterator[HttpClient]:
    made = make_client("lean", LIMITS)
    yield made
    await made.close()


# -- limits ----------------------------------------------------------------------------------------


def endless(head: bytes, piece: bytes) -> Script:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(head)
        while True:
            await peer.send(piece)

    return script


PIECE = b"x" * 16 * KIB
ENDLESS = {
    "a length that is too large": (endless(answer(length=10**12), PIECE), AnswerTooLarge),
    "no length": (endless(b"HTTP/1.1 200 OK\r\n\r\n", PIECE), AnswerTooLarge),
    "chunks": (endless(chunked(), b"4000\r\n" + PIECE + b"\r\n"), AnswerTooLarge),
    "headers": (endless(b"HTTP/1.1 200 OK\r\n", b"x-a: 1\r\n" * KIB), ConnectionLost),
    "one header": (endless(b"HTTP/1.1 200 OK\r\nx-a: ", PIECE), ConnectionLost),
    "one reason": (endless(b"HTTP/1.1 200 ", PIECE), HttpError),
    "trailers": (endless(chunked(b"2\r\nok\r\n0\r\n"), b"x-a: 1\r\n" * KIB), HttpError),
    "hints": (endless(b"", b"HTTP/1.1 103 Early Hints\r\n\r\n" * 64), HttpError),
}


@pytest.mark.parametrize(("script", "error"), ENDLESS.values(), ids=ENDLESS)
async def test_what_has_no_end_is_ended(
    lean: HttpClient, script: Script, error: type[HttpError]
) -> None:
    """By a limit on bytes, long before the request's time is up, and the server finds its
    connection closed."""
    async with raw_server(script) as server:
        with pytest.raises(error) as caught:
            await post(lean, server)
        assert not isinstance(caught.value, TimedOut)
        async with asyncio.timeout(LIMIT_S):
            await server.gone.wait()


@pytest.mark.parametrize(
    "kind", ["a length that is too large", "no length", "chunks", "headers", "one header"]
)
async def test_what_has_no_end_is_ended_by_aiohttp_too(client: HttpClient, kind: str) -> None:
    """Bodies and heads, for the client that can be chosen instead."""
    script, error = ENDLESS[kind]
    async with raw_server(script) as server:
        with pytest.raises(error):
            await post(client, server)


async def test_a_body_of_just_the_limit_is_an_answer(client: HttpClient) -> None:
    """With a length, in chunks and packed; one byte more is none."""
    most = b"x" * LIMITS.max_body_bytes
    for body, fits in ((most, True), (most + b"x", False)):
        packed = gzip.compress(body)
        forms = [
            answer(body),
            chunked(b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)),
            answer(packed, b"content-encoding: gzip"),
        ]
        for form in forms:
            async with raw_server(canned(form)) as server:
                if fits:
                    assert (await post(client, server)).body == body
                else:
                    with pytest.raises(AnswerTooLarge):
                        await post(client, server)


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
async def test_packed_bombs_are_not_unpacked(client: HttpClient, encoding: str) -> None:
    """10 MiB in 10 KiB: what counts is what it becomes."""
    bomb = (
        gzip.compress(bytes(10 * KIB * KIB))
        if encoding == "gzip"
        else zlib.compress(bytes(10 * KIB * KIB))
    )
    async with raw_server(
        canned(answer(bomb, b"content-encoding: " + encoding.encode()))
    ) as server:
        with pytest.raises(AnswerTooLarge):
            await post(client, server)


# -- time ------------------------------------------------------------------------------------------


def drip(sent: bytes) -> Script:
    """A byte at a time, and each in time for any limit between two bytes."""

    async def script(peer: Peer) -> None:
        await peer.request()
        for byte in sent:
            await peer.send(bytes([byte]))
            await asyncio.sleep(0.005)
        await peer.reader.readexactly(1)

    return script


SLOW = {
    "no answer": drip(b""),
    "a head in drips": drip(answer(b"ok", *[b"x-%d: 1" % n for n in range(200)])),
    "a body in drips": drip(answer(b"x" * 10_000)),
    "chunks in drips": drip(chunked(b"1\r\nx\r\n" * 10_000)),
    "hints in drips": drip(b"HTTP/1.1 100 Continue\r\n\r\n" * 1000),
}


@pytest.mark.parametrize("script", SLOW.values(), ids=SLOW)
async def test_a_request_has_one_limit_to_its_last_byte(client: HttpClient, script: Script) -> None:
    """However often something comes: after the limit the connection is closed."""
    async with raw_server(script) as server:
        with pytest.raises(TimedOut):
            await post(client, server, timeout_s=SHORT_S)
        async with asyncio.timeout(LIMIT_S):
            await server.gone.wait()


async def test_an_upload_that_is_not_read_runs_out_of_time(client: HttpClient) -> None:
    """The limit holds while the request is being sent."""

    async def script(peer: Peer) -> None:
        await peer.head()
        await peer.server.release.wait()

    async with raw_server(script) as server:
        with pytest.raises(TimedOut):
            await post(client, server, b"x" * 32 * 1024 * KIB, timeout_s=SHORT_S)
        server.release.set()


@pytest.mark.parametrize("name", ["lean", "aiohttp"])
async def test_a_handshake_without_end_is_no_connection(name: Literal["lean", "aiohttp"]) -> None:
    """A port that accepts and says nothing: nothing was sent, and the limit on connecting is the
    one that counts."""
    client = make_client(name, LIMITS._replace(connect_timeout_s=SHORT_S))

    async def script(peer: Peer) -> None:
        await peer.reader.read()

    async with raw_server(script) as server:
        secure = Target.of(server.url.replace("http", "https"))
        with pytest.raises(NotConnected, match="no connection"):
            await client.post(secure, b"{}", headers={}, timeout_s=LIMIT_S)
        with pytest.raises(TimedOut):
            await client.post(secure, b"{}", headers={}, timeout_s=SHORT_S / 2)
    await client.close()


# -- giving up -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sent", [b"", answer(b"half", length=8)], ids=["before the answer", "within it"]
)
async def test_a_cancelled_request_closes_its_connection(client: HttpClient, sent: bytes) -> None:
    """The answer that is still to come belongs to no later request."""

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(sent)
        peer.server.release.set()
        await peer.reader.readexactly(1)

    async with raw_server(script) as server:
        asked = asyncio.create_task(post(client, server))
        await server.release.wait()
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        async with asyncio.timeout(LIMIT_S):
            await server.gone.wait()


async def test_closing_the_client_ends_its_requests(client: HttpClient) -> None:
    """They have no answer and are no secret; closing again does nothing."""

    async def script(peer: Peer) -> None:
        await peer.request()
        peer.server.release.set()
        await peer.reader.readexactly(1)

    async with raw_server(script) as server:
        asked = asyncio.create_task(post(client, server))
        await server.release.wait()
        await client.close()
        with pytest.raises(HttpError):
            await asked
        await client.close()


# -- memory ----------------------------------------------------------------------------------------


class Memory:
    """Gives what is asked for when the test says so."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.has_asked = asyncio.Event()
        self.given = asyncio.Event()

    async def reserve(self, size: int) -> None:
        self.asked.append(size)
        self.has_asked.set()
        await self.given.wait()


RESERVED = {
    "a length": (answer(LARGE), len(LARGE)),
    "chunks": (chunked(b"%x\r\n%b\r\n0\r\n\r\n" % (len(LARGE), LARGE)), LIMITS.max_body_bytes),
    "gzip": (answer(gzip.compress(LARGE), b"content-encoding: gzip"), LIMITS.max_body_bytes),
    "deflate": (answer(zlib.compress(LARGE), b"content-encoding: deflate"), LIMITS.max_body_bytes),
}


@pytest.mark.parametrize(("sent", "size"), RESERVED.values(), ids=RESERVED)
async def test_large_bodies_wait_for_memory(client: HttpClient, sent: bytes, size: int) -> None:
    """Once, for all that the body may become; then it comes whole, and the connection serves on."""
    memory = Memory()
    async with raw_server(canned(sent)) as server:
        asked = asyncio.create_task(post(client, server, reserve=memory.reserve))
        await memory.has_asked.wait()
        await turn_the_loop(client)
        assert not asked.done()
        memory.given.set()
        assert (await asked).body == LARGE
        assert memory.asked == [size]
        assert (await post(client, server, reserve=memory.reserve)).body == LARGE
        assert server.connections == 1


async def test_waiting_for_memory_is_not_the_requests_time(client: HttpClient) -> None:
    """Its limit stands still until the memory is there."""
    memory = Memory()
    async with raw_server(canned(answer(LARGE))) as server:
        asked = asyncio.create_task(
            post(client, server, timeout_s=2 * SHORT_S, reserve=memory.reserve)
        )
        await memory.has_asked.wait()
        done, _ = await asyncio.wait([asked], timeout=3 * SHORT_S)
        assert not done
        memory.given.set()
        assert (await asked).body == LARGE


async def test_small_bodies_do_not_ask(client: HttpClient) -> None:
    """Nearly every answer: nothing is reserved for it."""
    memory = Memory()
    async with raw_server(canned(answer(b"x" * LIMITS.free_body_bytes))) as server:
        await post(client, server, reserve=memory.reserve)
        assert memory.asked == []


async def test_nothing_is_read_while_memory_is_waited_for(client: HttpClient) -> None:
    """The server is held by its socket, not by what the client has read."""
    memory, sent = Memory(), 0

    async def script(peer: Peer) -> None:
        nonlocal sent
        await peer.request()
        await peer.send(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            await peer.send(b"x" * 64 * KIB)
            sent += 64 * KIB

    async with raw_server(script) as server:
        asked = asyncio.create_task(post(client, server, reserve=memory.reserve))
        await memory.has_asked.wait()
        before = -1
        while before != sent:
            before = sent
            await turn_the_loop(client)
        assert sent < 16 * KIB * KIB  # what fits into the sockets of both sides
        memory.given.set()
        with pytest.raises(AnswerTooLarge):
            await asked


async def test_a_cancelled_wait_for_memory_closes_the_connection(client: HttpClient) -> None:
    """Half of an answer lies in it."""
    memory = Memory()

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(answer(length=len(LARGE)))
        await peer.reader.readexactly(1)

    async with raw_server(script) as server:
        asked = asyncio.create_task(post(client, server, reserve=memory.reserve))
        await memory.has_asked.wait()
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        async with asyncio.timeout(LIMIT_S):
            await server.gone.wait()
