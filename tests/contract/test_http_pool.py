"""Which connections the lean HTTP client keeps, for how long, and what they hold."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from http_servers import (
    LARGE,
    LIMIT_S,
    LIMITS,
    OK,
    Peer,
    RawServer,
    Script,
    answer,
    canned,
    post,
    raw_server,
)

from penstock_workers.http import HttpClient, TimedOut, make_client


@pytest.fixture
async def lean() -> AsyncIterator[HttpClient]:
    made = make_client("lean", LIMITS)
    yield made
    await made.close()


async def test_an_idle_connection_holds_no_answer(lean: HttpClient) -> None:
    """A large body is gone from memory when its request lets go of it, however many connections are
    kept."""
    async with raw_server(canned(answer(LARGE))) as server:
        came = await post(lean, server)
        body = came.body
        del came
        assert body == LARGE
        alone = bytes(bytearray(LARGE))  # an object that one name holds
        assert sys.getrefcount(body) == sys.getrefcount(alone)


async def test_a_cancelled_request_whose_answer_just_came_leaves_no_connection(
    lean: HttpClient,
) -> None:
    """Cancelled in the very turn of the loop that brought the answer: the connection is closed, and
    not forgotten open."""

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
        # the server writes, and the client's socket becomes readable in the next turn
        for _ in range(3):
            await asyncio.sleep(0)
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
        if asked.cancelled():
            async with asyncio.timeout(LIMIT_S):
                await server.gone.wait()
        else:
            assert (await post(lean, server)).body == b"ok"


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
    """Of five that become idle three are kept, as the limit says, and serve the next three
    requests."""
    script, ask = together(5)
    async with raw_server(script) as server:
        await ask(lean, server)
        async with asyncio.timeout(LIMIT_S):
            await server.release.wait()
        await ask(lean, server)
        assert (server.connections, len(server.heads)) == (7, 10)


async def test_a_servers_own_limit_on_idle_connections_counts(lean: HttpClient) -> None:
    """One that says it closes after a second is not raced: the next request has its own
    connection."""
    async with raw_server(canned(answer(b"ok", b"keep-alive: timeout=1, max=9"))) as server:
        for _ in range(2):
            await post(lean, server)
        assert server.connections == 2


async def test_each_request_of_a_connection_has_its_own_time_limit(lean: HttpClient) -> None:
    """A kept connection's timer may have been set for an earlier request: a later one ends neither
    sooner nor later for it."""

    async def script(peer: Peer) -> None:
        for wait_s in (0.0, 0.3, 0.0, LIMIT_S):
            await peer.request()
            await asyncio.sleep(wait_s)
            await peer.send(OK)

    async with raw_server(script) as server:
        for timeout_s in (0.2, LIMIT_S, LIMIT_S):  # the second outlives the first one's timer
            assert (await post(lean, server, timeout_s=timeout_s)).body == b"ok"
        began = time.monotonic()
        with pytest.raises(TimedOut):  # the third one's timer would ring later
            await post(lean, server, timeout_s=0.1)
        assert 0.09 < time.monotonic() - began < LIMIT_S / 2
        assert server.connections == 1


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
