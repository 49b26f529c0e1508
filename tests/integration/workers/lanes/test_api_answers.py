"""Large answers, from a real HTTP server: refused by their length, stopped at the cap, and bounded
all together."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from penstock_workers.item.answer import Answer, NoAnswer, Tried
from penstock_workers.item.lane import Prepared, Request
from penstock_workers.lanes.api.api_lane import SMALL_ANSWER_BYTES, ApiLane
from penstock_workers.settings import ProviderSettings

MIB = 1024 * 1024
CAP = 2 * MIB
WAIT_S = 20.0

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class House:
    """One server whose answers the test decides, and a lane that asks it."""

    def __init__(self) -> None:
        self.lane: ApiLane
        self.sent = 0  # bytes that the server could get rid of
        self.answer: Handler

    async def ask(self, timeout_s: float = WAIT_S) -> Tried:
        return await self.lane.infer(
            Prepared(Request("t", "default", "/v1/completions", b"{}", timeout_s))
        )

    async def stream(
        self, request: web.Request, chunks: int, *, declared: int | None = None
    ) -> web.StreamResponse:
        response = web.StreamResponse()
        response.content_length = declared
        await response.prepare(request)
        for _ in range(chunks):
            await response.write(b"x" * MIB)
            self.sent += MIB
        return response

    def large(self, size: int, *, declared: bool = True, **headers: str) -> Handler:
        async def answer(request: web.Request) -> web.StreamResponse:
            if declared:
                return web.Response(body=b"x" * size, headers=headers)
            return await self.stream(request, size // MIB)

        return answer


@pytest.fixture(params=["lean", "aiohttp"])
async def house(request: pytest.FixtureRequest) -> AsyncIterator[House]:
    made = House()

    async def handle(request: web.Request) -> web.StreamResponse:
        return await made.answer(request)

    app = web.Application()
    app.router.add_post("/v1/completions", handle)
    async with TestServer(app) as server:
        made.lane = ApiLane(
            {"default": ProviderSettings(base_url=str(server.make_url("/v1")))},
            CAP,
            2 * CAP,
            request.param,
        )
        await made.lane.start()
        yield made
        await made.lane.close()


async def test_an_answer_whose_length_is_too_large_is_not_read(house: House) -> None:
    """A declared length above `max_answer_bytes` is refused by its header; the body stays where it
    is (A17)."""

    async def answer(request: web.Request) -> web.StreamResponse:
        return await house.stream(request, 100, declared=100 * MIB)

    house.answer = answer
    tried = await house.ask()
    assert isinstance(tried, NoAnswer)
    assert tried.failure == "answer_too_large"
    assert f"max_answer_bytes allows {CAP}" in tried.detail
    assert house.sent <= 16 * MIB  # what fits into sockets on both sides


async def test_an_answer_without_a_length_is_read_up_to_the_cap(house: House) -> None:
    """A stream that does not end is stopped at `max_answer_bytes`, and its room is free again
    (A17)."""
    house.answer = house.large(100 * MIB, declared=False)
    tried = await house.ask()
    assert isinstance(tried, NoAnswer)
    assert tried.failure == "answer_too_large"
    assert house.sent <= 16 * MIB
    await quiet(house, 0)


async def test_a_compressed_answer_counts_as_what_it_becomes(house: House) -> None:
    """100 kB of gzip that become 100 MB are stopped at the cap, not unpacked (A17)."""
    packed = gzip.compress(b"x" * 100 * MIB)

    async def answer(_: web.Request) -> web.StreamResponse:
        return web.Response(body=packed, headers={"Content-Encoding": "gzip"})

    house.answer = answer
    tried = await house.ask()
    assert isinstance(tried, NoAnswer)
    assert tried.failure == "answer_too_large"


@pytest.mark.parametrize("declared", [True, False])
async def test_large_answers_wait_for_room_and_all_arrive(house: House, declared: bool) -> None:
    """Many large answers at once occupy no more than `answer_memory_bytes`; none fails, each comes
    when another is settled (A17)."""
    house.answer = house.large(MIB, declared=declared)
    asked = [asyncio.create_task(house.ask(timeout_s=WAIT_S)) for _ in range(12)]
    most, answers = 0, 0
    for waited in asyncio.as_completed(asked, timeout=WAIT_S):
        tried = await waited
        most = max(most, house.lane._memory.taken)
        assert isinstance(tried, Answer)
        assert len(tried.body) == MIB
        assert tried.room is not None
        tried.room.release()
        answers += 1
    assert (answers, most <= 2 * CAP) == (12, True)
    await quiet(house, 0)


async def test_waiting_for_room_is_not_the_requests_time(house: House) -> None:
    """A request whose answer waits for room longer than its own limit does not time out for it
    (A17)."""
    house.answer = house.large(MIB)
    held = await house.lane._memory.room(2 * CAP)
    asked = asyncio.create_task(house.ask(timeout_s=0.5))
    done, _ = await asyncio.wait([asked], timeout=1.0)
    assert not done
    held.release()
    assert isinstance(await asked, Answer)


async def test_a_server_that_drips_still_times_out(house: House) -> None:
    """The limit of a request holds for what the server takes, to the last byte."""

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"x")
        await asyncio.Event().wait()
        return response

    house.answer = answer
    tried = await house.ask(timeout_s=0.2)
    assert isinstance(tried, NoAnswer)
    assert (tried.failure, tried.detail) == ("timeout", "no complete answer within 0.2 s")


async def test_a_call_says_what_it_is_and_what_for(house: House) -> None:
    """The provider reads the item's tag, so that its logs and Penstock's can be matched, and who
    calls; nothing sends cookies."""
    seen: dict[str, str] = {}

    async def answer(request: web.Request) -> web.StreamResponse:
        seen.update({name.lower(): value for name, value in request.headers.items()})
        return web.Response(body=b"{}", headers={"Set-Cookie": "a=b"})

    house.answer = answer
    for _ in range(2):
        assert isinstance(await house.ask(), Answer)
    assert (seen["x-client-request-id"], seen["content-type"], seen["content-length"]) == (
        "t",
        "application/json",
        "2",
    )
    assert seen["user-agent"].startswith("penstock/")
    assert not {"cookie", "authorization", "transfer-encoding"} & set(seen)


@pytest.mark.parametrize("tag", ["job:a\r\nX-Evil: 1", "job:\0"])
async def test_a_tag_that_cannot_be_a_header_is_a_bad_request(house: House, tag: str) -> None:
    """Nothing is sent, and no header is smuggled in."""
    tried = await house.lane.infer(
        Prepared(Request(tag, "default", "/v1/completions", b"{}", WAIT_S))
    )
    assert isinstance(tried, NoAnswer)
    assert (tried.failure, tried.sent) == ("bad_request", False)


async def test_small_answers_are_not_counted(house: House) -> None:
    """An answer of ordinary size asks for no room, even when all of it is taken (A17)."""
    held = await house.lane._memory.room(2 * CAP)
    house.answer = house.large(SMALL_ANSWER_BYTES)
    tried = await house.ask()
    assert isinstance(tried, Answer)
    assert tried.room is None
    held.release()


async def test_what_is_given_up_leaves_no_room_taken(house: House) -> None:
    """Cancelled while it waits, cancelled when its room had just come, or forgotten: the room is
    there for the next (A17)."""
    memory = house.lane._memory
    held = await memory.room(2 * CAP)
    waiting = [asyncio.create_task(memory.room(CAP)) for _ in range(3)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    held.release()
    del held
    await asyncio.sleep(0)
    waiting[1].cancel()
    forgotten: Any = await waiting[2]
    await asyncio.gather(*waiting[:2], return_exceptions=True)
    await quiet(house, CAP)
    del forgotten
    waiting.clear()
    await quiet(house, 0)


async def quiet(house: House, taken: int) -> None:
    """Room is given back by way of the loop."""
    async with asyncio.timeout(WAIT_S):
        while house.lane._memory.taken != taken:  # noqa: ASYNC110 - only by way of the loop
            await asyncio.sleep(0.01)
