"""What both HTTP clients make of servers that break, lie, dawdle or attack: an error in time, and never another's answer."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import sys
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Literal

import pytest
from http_servers import Peer, RawServer, Script, canned, raw_server

from penstock_workers.http import (
    AnswerTooLarge,
    ConnectionLost,
    HttpAnswer,
    HttpClient,
    HttpError,
    Limits,
    NotConnected,
    Target,
    TimedOut,
    make_client,
)
from penstock_workers.http.lean import LeanClient

Request = pytest.FixtureRequest
LIMIT_S = 20.0  # of one request: far more than any of them takes
SHORT_S = 0.15  # of one that is to run out
KIB = 1024
LIMITS = Limits(max_body_bytes=256 * KIB, free_body_bytes=16 * KIB, idle_per_server=3)
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


# What aiohttp 3.14.5 does otherwise, and cannot be told to do: one reason to have a client of our own.
AIOHTTPS_OWN = {
    "gzip cut short": "it takes a packed body that is cut short for a whole one",
    "behind the answer": "it keeps a connection with bytes behind an answer, and the next request fails by them",
    "later": "it keeps a connection with an answer that no request asked for, and gives that to the next one",
}
AIOHTTPS_OWN_KINDS = {
    ("behind the answer", "half an answer"), ("behind the answer", "garbage"), ("behind the answer", "one byte"),
    ("later", "an answer"), ("later", "half an answer"), ("later", "one byte"),
}  # fmt: skip


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


async def post(
    client: HttpClient, server: RawServer, body: bytes = b"{}", timeout_s: float = LIMIT_S, **more: Any
) -> HttpAnswer:
    return await client.post(Target.of(server.url), body, headers={}, timeout_s=timeout_s, **more)


def expect_of_aiohttp(client: HttpClient, request: Request, what: str) -> None:
    """The test must fail with aiohttp's client: when it does not any more, the library has changed."""
    if not isinstance(client, LeanClient):
        request.applymarker(pytest.mark.xfail(reason=AIOHTTPS_OWN[what], strict=True))


def answer(body: bytes = b"", *headers: bytes, status: bytes = b"200 OK", length: int | None = None) -> bytes:
    lines = [b"HTTP/1.1 " + status, b"content-length: %d" % (len(body) if length is None else length), *headers]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def chunked(*pieces: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + b"".join(pieces)


async def turn_the_loop(client: HttpClient) -> None:
    """Ask another server twice: whatever has reached this machine meanwhile, the client has seen then."""
    async with raw_server(canned(OK)) as other:
        for _ in range(2):
            await post(client, other)


# -- answers that are none ---------------------------------------------------------------------------------------------

BROKEN = {
    "closed at once": b"",
    "garbage": b"\x00\x01\xff nothing of HTTP\r\n\r\n",
    "another protocol": b"SSH-2.0-OpenSSH_9.2\r\n",
    "no status": b"HTTP/1.1 abc OK\r\n\r\n",
    "a head cut short": b"HTTP/1.1 200 OK\r\ncontent-le",
    "nul in a header": answer(b"ok", b"x-a: 1\x002"),
    "a header without a colon": answer(b"ok", b"no colon here"),
    "a body cut short": answer(b"half", length=8),
    "a negative length": answer(b"ok", length=-2),
    "two lengths": answer(b"ok", b"content-length: 3"),
    "a length and chunks": answer(b"2\r\nok\r\n0\r\n\r\n", b"transfer-encoding: chunked"),
    "chunks cut short": chunked(b"5\r\nhel"),
    "chunks without an end": chunked(b"2\r\nok\r\n"),
    "a chunk size that is none": chunked(b"zz\r\nok\r\n0\r\n\r\n"),
    "a chunk size beyond all": chunked(b"fffffffffffffffff\r\nok\r\n0\r\n\r\n"),
    "a chunk longer than it says": chunked(b"1\r\nok\r\n0\r\n\r\n"),
    "gzip that is none": answer(b"plain words", b"content-encoding: gzip"),
    "gzip cut short": answer(gzip.compress(b"a" * 5000)[:-12], b"content-encoding: gzip"),
    "deflate that is none": answer(b"\xff\xff\xff\xff", b"content-encoding: deflate"),
    "another protocol after all": b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\nhello",
    "101 and nothing else": b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
    "thousands of headers": answer(b"ok", *[b"x-%d: 1" % n for n in range(5000)]),
    "a header without end": b"HTTP/1.1 200 OK\r\nx-a: " + b"a" * 400 * KIB,
}


@pytest.mark.parametrize("sent", BROKEN.values(), ids=BROKEN)
async def test_what_is_no_answer_is_a_lost_connection(client: HttpClient, sent: bytes, request: Request) -> None:
    """The request counts as sent, nothing of it is sent again, and the connection is gone."""
    if sent is BROKEN["gzip cut short"]:
        expect_of_aiohttp(client, request, "gzip cut short")
    async with raw_server(canned(sent, close=True)) as server:
        with pytest.raises(ConnectionLost):
            await post(client, server)
        assert len(server.heads) == 1


async def test_a_server_that_hangs_up_at_once(client: HttpClient) -> None:
    """Before it can have read anything: an error like any other, and each request tries once."""

    async def script(peer: Peer) -> None:
        peer.reset()

    async with raw_server(script) as server:
        for attempt in (1, 2):
            with pytest.raises((NotConnected, ConnectionLost)):
                await post(client, server)
            assert server.connections == attempt


async def test_a_reset_is_a_lost_connection(client: HttpClient) -> None:
    """Before the answer and within it."""

    async def script(peer: Peer) -> None:
        await peer.request()
        if len(peer.server.heads) == 2:
            await peer.send(answer(b"half", length=8))
        peer.reset()

    async with raw_server(script) as server:
        for _ in range(2):
            with pytest.raises(ConnectionLost):
                await post(client, server)
        assert len(server.heads) == 2


# -- odd answers that are whole ----------------------------------------------------------------------------------------

WHOLE: dict[str, tuple[bytes, int, bytes]] = {
    "until the connection ends": (b"HTTP/1.0 200 OK\r\n\r\nto the end", 200, b"to the end"),
    "the same in 1.1": (b"HTTP/1.1 200 OK\r\n\r\nto the end", 200, b"to the end"),
    "no content": (b"HTTP/1.1 204 No Content\r\n\r\n", 204, b""),
    "not modified, with a length": (answer(status=b"304 Not Modified", length=10), 304, b""),
    "hints before it": (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" + OK, 200, b"ok"),
    "no reason": (answer(b"ok", status=b"200"), 200, b"ok"),
    "a status of its own": (answer(b"ok", status=b"599 Whatever"), 599, b"ok"),
    "an offer to upgrade": (answer(b"ok", b"upgrade: h2c", b"connection: upgrade"), 200, b"ok"),
    "an unknown encoding": (answer(b"\x01\x02", b"content-encoding: x-own", status=b"429 Slow"), 429, b"\x01\x02"),
    "trailers": (chunked(b"2\r\nok\r\n0\r\nx-after: 1\r\n\r\n"), 200, b"ok"),
    "extensions of chunks": (chunked(b"2;a=b\r\nok\r\n0\r\n\r\n"), 200, b"ok"),
    "line ends without a carriage return": (answer(b"ok").replace(b"\r\n", b"\n"), 200, b"ok"),
    "spaces behind a chunk's size": (chunked(b"2  \r\nok\r\n0\r\n\r\n"), 200, b"ok"),
    "nothing packed": (answer(b"", b"content-encoding: gzip"), 200, b""),
    "gzip in two members": (answer(gzip.compress(b"a") + gzip.compress(b"b"), b"content-encoding: gzip"), 200, b"ab"),
    "deflate without its head": (answer(zlib.compress(b"ok")[2:-4], b"content-encoding: deflate"), 200, b"ok"),
}


@pytest.mark.parametrize(("sent", "status", "body"), WHOLE.values(), ids=WHOLE)
async def test_odd_answers_are_answers(client: HttpClient, sent: bytes, status: int, body: bytes) -> None:
    """Old servers, hints, upgrades that nobody took and encodings that nobody offered: status and body come through."""
    async with raw_server(canned(sent, close=True)) as server:
        came = await post(client, server)
        assert (came.status, came.body) == (status, body)


async def test_of_a_repeated_header_the_first_counts(client: HttpClient) -> None:
    """As it does in every library that has one value per name."""
    async with raw_server(canned(answer(b"ok", b"Retry-After: 1", b"retry-after: 2"))) as server:
        assert (await post(client, server)).headers.get("retry-after") == "1"


async def test_an_answer_in_single_bytes_is_whole(client: HttpClient) -> None:
    """Wherever the network cuts, the same is read."""
    packed = gzip.compress(b"a text")
    sent = chunked(b"%x\r\n%b\r\n0\r\n\r\n" % (len(packed), packed)).replace(
        b"\r\n\r\n", b"\r\ncontent-encoding: gzip\r\n\r\n", 1
    )

    async def script(peer: Peer) -> None:
        await peer.request()
        for byte in sent:
            await peer.send(bytes([byte]))
            await asyncio.sleep(0)

    async with raw_server(script) as server:
        assert (await post(client, server)).body == b"a text"


async def test_an_early_answer_ends_the_upload(client: HttpClient) -> None:
    """A refusal that comes before the body was read is the answer; that connection takes no second request."""

    async def script(peer: Peer) -> None:
        await peer.head()
        await peer.send(answer(b"too large", status=b"413 Too Large"))
        await peer.reader.read(1)
        await peer.server.release.wait()

    async with raw_server(script) as server:
        body = b"x" * 32 * 1024 * KIB
        for _ in range(2):
            came = await post(client, server, body)
            assert (came.status, came.body) == (413, b"too large")
        assert server.connections == 2
        server.release.set()


# -- bytes that no request asked for -----------------------------------------------------------------------------------

EVIL = {"an answer": answer(b"evil"), "half an answer": answer(b"evil")[:20], "garbage": b"evil", "one byte": b"H"}


@pytest.mark.parametrize("kind", EVIL)
@pytest.mark.parametrize("when", ["behind the answer", "later"])
async def test_a_connection_that_says_too_much_is_not_used_again(
    client: HttpClient, kind: str, when: str, request: Request
) -> None:
    """The next request would get what was meant for another: it has a new connection."""
    more, at_once = EVIL[kind], when == "behind the answer"
    if (when, kind) in AIOHTTPS_OWN_KINDS:
        expect_of_aiohttp(client, request, when)

    async def script(peer: Peer) -> None:
        first = peer.server.connections == 1
        await peer.request()
        if not first:
            await peer.send(answer(b"second"))
        elif at_once:
            await peer.send(answer(b"first") + more)
        else:
            await peer.send(answer(b"first"))
            await peer.server.release.wait()
            await peer.send(more)
        await peer.reader.read(1)

    async with raw_server(script) as server:
        assert (await post(client, server)).body == b"first"
        server.release.set()
        await turn_the_loop(client)
        assert (await post(client, server)).body == b"second"
        assert server.connections == 2


async def test_a_connection_that_closes_while_idle_is_not_used(client: HttpClient) -> None:
    """The next request finds out before it is sent."""
    async with raw_server(canned(OK, close=True)) as server:
        for _ in range(3):
            assert (await post(client, server)).body == b"ok"
            await turn_the_loop(client)
        assert (server.connections, len(server.heads)) == (3, 3)


async def test_a_request_is_never_sent_twice(client: HttpClient) -> None:
    """A kept connection that closes over a request may have been read: that is for the caller to count, and to repeat."""

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(OK)
        await peer.request()

    async with raw_server(script) as server:
        assert (await post(client, server)).body == b"ok"
        with pytest.raises(ConnectionLost):
            await post(client, server)
        assert (server.connections, len(server.heads)) == (1, 2)


# -- limits ------------------------------------------------------------------------------------------------------------


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
async def test_what_has_no_end_is_ended(lean: HttpClient, script: Script, error: type[HttpError]) -> None:
    """By a limit on bytes, long before the request's time is up, and the server finds its connection closed."""
    async with raw_server(script) as server:
        with pytest.raises(error) as caught:
            await post(lean, server)
        assert not isinstance(caught.value, TimedOut)
        async with asyncio.timeout(LIMIT_S):
            await server.gone.wait()


@pytest.mark.parametrize("kind", ["a length that is too large", "no length", "chunks", "headers", "one header"])
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
    bomb = {"gzip": gzip.compress, "deflate": zlib.compress}[encoding](bytes(10 * KIB * KIB))
    async with raw_server(canned(answer(bomb, b"content-encoding: " + encoding.encode()))) as server:
        with pytest.raises(AnswerTooLarge):
            await post(client, server)


# -- time --------------------------------------------------------------------------------------------------------------


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
    """A port that accepts and says nothing: nothing was sent, and the limit on connecting is the one that counts."""
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


# -- giving up ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sent", [b"", answer(b"half", length=8)], ids=["before the answer", "within it"])
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


# -- memory ------------------------------------------------------------------------------------------------------------


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


LARGE = b"large" * 20 * KIB
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
        asked = asyncio.create_task(post(client, server, timeout_s=2 * SHORT_S, reserve=memory.reserve))
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


async def test_an_idle_connection_holds_no_answer(lean: HttpClient) -> None:
    """A large body is gone from memory when its request lets go of it, however many connections are kept."""
    async with raw_server(canned(answer(LARGE))) as server:
        came = await post(lean, server)
        body = came.body
        del came
        assert body == LARGE
        assert sys.getrefcount(body) == 2  # this name, and the call's own


async def test_a_cancelled_request_whose_answer_just_came_leaves_no_connection(lean: HttpClient) -> None:
    """Cancelled in the very turn of the loop that brought the answer: the connection is closed, and not forgotten open."""

    async def script(peer: Peer) -> None:
        await peer.request()
        peer.server.release.set()
        await peer.server.answer_now.wait()
        await peer.send(OK)
        await peer.reader.readexactly(1)

    async with raw_server(script) as server:
        asked = asyncio.create_task(post(lean, server))
        await server.release.wait()
        server.answer_now.set()
        for _ in range(3):  # the server writes, and the client's socket becomes readable in the next turn
            await asyncio.sleep(0)
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
        if asked.cancelled():
            async with asyncio.timeout(LIMIT_S):
                await server.gone.wait()
        else:
            assert (await post(lean, server)).body == b"ok"


# -- the lean client's pool --------------------------------------------------------------------------------------------


def together(size: int) -> tuple[Script, Callable[[HttpClient, RawServer], Awaitable[None]]]:
    """A server that answers when so many requests are there, and the requests."""
    waiting: list[Peer] = []

    async def script(peer: Peer) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError):
            while True:
                await peer.request()
                waiting.append(peer)
                if len(waiting) == size:
                    for each in waiting:
                        await each.send(OK)
                    waiting.clear()
        peer.server.ended += 1
        if peer.server.ended == 2:
            peer.server.release.set()

    async def ask(client: HttpClient, server: RawServer) -> None:
        await asyncio.gather(*(post(client, server) for _ in range(size)))

    return script, ask


async def test_idle_connections_are_bounded(lean: HttpClient) -> None:
    """Of five that become idle three are kept, as the limit says, and serve the next three requests."""
    script, ask = together(5)
    async with raw_server(script) as server:
        await ask(lean, server)
        async with asyncio.timeout(LIMIT_S):
            await server.release.wait()
        await ask(lean, server)
        assert (server.connections, len(server.heads)) == (7, 10)


async def test_a_servers_own_limit_on_idle_connections_counts(lean: HttpClient) -> None:
    """One that says it closes after a second is not raced: the next request has its own connection."""
    async with raw_server(canned(answer(b"ok", b"keep-alive: timeout=1, max=9"))) as server:
        for _ in range(2):
            await post(lean, server)
        assert server.connections == 2


async def test_idle_connections_are_closed_in_time() -> None:
    """Without any further request."""
    client = make_client("lean", LIMITS._replace(keepalive_s=0.05))

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(OK)
        await peer.request()

    async with raw_server(script) as server:
        await post(client, server)
        async with asyncio.timeout(LIMIT_S):
            await server.gone.wait()
    await client.close()
