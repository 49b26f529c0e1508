"""What both HTTP clients make of servers that break, lie or attack: an error, and never the answer
to another request."""

from __future__ import annotations

import asyncio
import gzip
import zlib
from collections.abc import AsyncIterator

import pytest
from http_servers import (
    KIB,
    LIMITS,
    OK,
    Peer,
    answer,
    canned,
    chunked,
    post,
    raw_server,
    turn_the_loop,
)

from penstock_workers.http import (
    ConnectionLost,
    HttpClient,
    NotConnected,
    make_client,
)
from penstock_workers.http.pool import LeanClient

Request = pytest.FixtureRequest

# What aiohttp 3.14.5 does otherwise, and has no option for: one reason for the lean client.
AIOHTTPS_OWN = {
    "gzip cut short": "it takes a packed body that is cut short for a whole one",
    "behind the answer": (
        "it keeps a connection with bytes behind an answer, and the next request fails by them"
    ),
    "later": (
        "it keeps a connection with an answer that no request asked for, and gives that to the "
        "next one"
    ),
}
AIOHTTPS_OWN_KINDS = {
    ("behind the answer", "half an answer"),
    ("behind the answer", "garbage"),
    ("behind the answer", "one byte"),
    ("later", "an answer"),
    ("later", "half an answer"),
    ("later", "one byte"),
}


@pytest.fixture(params=["lean", "aiohttp"])
async def client(request: pytest.FixtureRequest) -> AsyncIterator[HttpClient]:
    made = make_client(request.param, LIMITS)
    yield made
    await made.close()


def expect_of_aiohttp(client: HttpClient, request: Request, what: str) -> None:
    """The test must fail with aiohttp's client: when it does not any more, the library has
    changed."""
    if not isinstance(client, LeanClient):
        request.applymarker(pytest.mark.xfail(reason=AIOHTTPS_OWN[what], strict=True))


# -- answers that are none -------------------------------------------------------------------------

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
    "another protocol after all": (
        b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\nhello"
    ),
    "101 and nothing else": b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
    "thousands of headers": answer(b"ok", *[b"x-%d: 1" % n for n in range(5000)]),
    "a header without end": b"HTTP/1.1 200 OK\r\nx-a: " + b"a" * 400 * KIB,
}


@pytest.mark.parametrize("sent", BROKEN.values(), ids=BROKEN)
async def test_what_is_no_answer_is_a_lost_connection(
    client: HttpClient, sent: bytes, request: Request
) -> None:
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


# -- odd answers that are whole --------------------------------------------------------------------

WHOLE: dict[str, tuple[bytes, int, bytes]] = {
    "until the connection ends": (b"HTTP/1.0 200 OK\r\n\r\nto the end", 200, b"to the end"),
    "the same in 1.1": (b"HTTP/1.1 200 OK\r\n\r\nto the end", 200, b"to the end"),
    "no content": (b"HTTP/1.1 204 No Content\r\n\r\n", 204, b""),
    "not modified, with a length": (answer(status=b"304 Not Modified", length=10), 304, b""),
    "hints before it": (
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" + OK,
        200,
        b"ok",
    ),
    "no reason": (answer(b"ok", status=b"200"), 200, b"ok"),
    "a status of its own": (answer(b"ok", status=b"599 Whatever"), 599, b"ok"),
    "an offer to upgrade": (answer(b"ok", b"upgrade: h2c", b"connection: upgrade"), 200, b"ok"),
    "an unknown encoding": (
        answer(b"\x01\x02", b"content-encoding: x-own", status=b"429 Slow"),
        429,
        b"\x01\x02",
    ),
    "trailers": (chunked(b"2\r\nok\r\n0\r\nx-after: 1\r\n\r\n"), 200, b"ok"),
    "extensions of chunks": (chunked(b"2;a=b\r\nok\r\n0\r\n\r\n"), 200, b"ok"),
    "line ends without a carriage return": (answer(b"ok").replace(b"\r\n", b"\n"), 200, b"ok"),
    "spaces behind a chunk's size": (chunked(b"2  \r\nok\r\n0\r\n\r\n"), 200, b"ok"),
    "nothing packed": (answer(b"", b"content-encoding: gzip"), 200, b""),
    "gzip in two members": (
        answer(gzip.compress(b"a") + gzip.compress(b"b"), b"content-encoding: gzip"),
        200,
        b"ab",
    ),
    "deflate without its head": (
        answer(zlib.compress(b"ok")[2:-4], b"content-encoding: deflate"),
        200,
        b"ok",
    ),
}


@pytest.mark.parametrize(("sent", "status", "body"), WHOLE.values(), ids=WHOLE)
async def test_odd_answers_are_answers(
    client: HttpClient, sent: bytes, status: int, body: bytes
) -> None:
    """Old servers, hints, upgrades and encodings that were not asked for: status and body come
    through."""
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
    """A refusal that comes before the body was read is the answer; that connection takes no second
    request."""

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


# -- bytes that no request asked for ---------------------------------------------------------------

EVIL = {
    "an answer": answer(b"evil"),
    "half an answer": answer(b"evil")[:20],
    "garbage": b"evil",
    "one byte": b"H",
}


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
    """A kept connection that closes over a request may have been read: that is for the caller to
    count, and to repeat."""

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(OK)
        await peer.request()

    async with raw_server(script) as server:
        assert (await post(client, server)).body == b"ok"
        with pytest.raises(ConnectionLost):
            await post(client, server)
        assert (server.connections, len(server.heads)) == (1, 2)
