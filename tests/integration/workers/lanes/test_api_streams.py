"""Streamed answers from a real HTTP server, good and hostile, by both clients."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from msgspec.structs import replace

from penstock_ledger.model import ItemKey
from penstock_producer.dialects.pieces import decode_piece
from penstock_producer.job.endpoints import CHAT, GENERATE
from penstock_workers.item.answer import Answer, NoAnswer, Tried
from penstock_workers.item.failures import Failure, name_failure
from penstock_workers.item.lane import Prepared, Request
from penstock_workers.item.passing import Passing
from penstock_workers.lanes.api.api_lane import ApiLane
from penstock_workers.lanes.api.requests import as_sent, put_behind
from penstock_workers.lanes.api.streamed import Pace
from penstock_workers.settings import ProviderSettings

MIB = 1024 * 1024
CAP = 2 * MIB
WAIT_S = 20.0
SOON_S = 0.3
BODY = b'{"model":"m","messages":[{"role":"user","content":"Say something that is long enough."}]}'
TEXT = "Héllo, 🦫 & co"

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def chunk(content: str | None = None, **choice: Any) -> bytes:
    delta = {} if content is None else {"content": content}
    told = {"index": 0, "delta": delta, "finish_reason": None, **choice}
    event = {"id": "c", "object": "chat.completion.chunk", "model": "m", "choices": [told]}
    return b"data: %b\n\n" % json.dumps(event, ensure_ascii=False).encode()


END = chunk(finish_reason="stop") + b"data: [DONE]\n\n"
GOOD = b": hello\n\nevent: x\n" + b"".join(map(chunk, TEXT)) + END


class House:
    """One server whose answers the test decides, and a lane that asks it for streams."""

    def __init__(self) -> None:
        self.lane: ApiLane
        self.providers: dict[str, ProviderSettings] = {}
        self.answer: Handler
        self.asked: dict[str, Any] = {}
        self.pieces: list[bytes | None] = []
        self.sent = 0

    async def ask(self) -> Tried:
        passing = Passing(
            ItemKey("job", 1, "doc"), "here", lambda one: self.pieces.append(one.take())
        )
        request = Request("t", "default", CHAT, BODY, WAIT_S, passing=passing)
        return await self.lane.infer(Prepared(request))

    @property
    def passed(self) -> str:
        found = [decode_piece(raw) for raw in self.pieces if raw is not None]
        return "".join(delta.text for piece in found if piece for delta in piece.deltas)

    def sends(self, parts: Iterable[bytes], then: str = "end", **headers: str) -> None:
        """Answer with these parts, and then end, break or stand still."""

        async def answer(request: web.Request) -> web.StreamResponse:
            response = web.StreamResponse(headers={"Content-Type": "text/event-stream", **headers})
            await response.prepare(request)
            for part in parts:
                await response.write(part)
                self.sent += len(part)
            if then == "break" and request.transport is not None:
                request.transport.close()
            if then == "stall":
                await asyncio.sleep(WAIT_S)
            return response

        self.answer = answer


@pytest.fixture(params=["lean", "aiohttp"])
async def house(request: pytest.FixtureRequest) -> AsyncIterator[House]:
    made = House()

    async def handle(asked: web.Request) -> web.StreamResponse:
        made.asked = await asked.json()
        return await made.answer(asked)

    app = web.Application()
    app.router.add_post(CHAT, handle)
    async with TestServer(app) as server:
        made.providers["default"] = ProviderSettings(base_url=str(server.make_url("/v1")))
        made.lane = ApiLane(
            made.providers,
            CAP,
            2 * CAP,
            request.param,
            Pace(SOON_S, SOON_S),
        )
        await made.lane.start()
        yield made
        await made.lane.close()


def content(tried: Tried) -> str:
    assert isinstance(tried, Answer)
    return str(json.loads(tried.body)["choices"][0]["message"]["content"])


def failed(tried: Tried) -> NoAnswer:
    assert isinstance(tried, NoAnswer)
    return tried


async def test_a_stream_is_asked_for_and_becomes_a_whole_answer(house: House) -> None:
    """With its usage, in the provider's form, and each text was passed on."""
    house.sends([GOOD])
    assert content(await house.ask()) == house.passed == TEXT
    assert house.asked["stream"] is True
    assert house.asked["stream_options"] == {"include_usage": True}


def test_documents_are_put_behind_the_requests_of_others() -> None:
    """vLLM's `priority`, but for what is urgent or names one itself; the rest of the body stays as
    it came."""
    asked = Request("t", "default", CHAT, b'{"model":"m","seed":1.50,"messages":[]}', WAIT_S)
    assert put_behind(asked, 10).body == b'{"priority":10,"model":"m","seed":1.50,"messages":[]}'
    assert put_behind(asked, None) is asked
    urgent = replace(asked, priority="urgent")
    assert put_behind(urgent, 10) is urgent
    own = replace(asked, body=b'{"priority":-1}')
    assert put_behind(own, 10).body == b'{"priority":-1}'
    for body in (b"", b"[1]", b"{", b"\xff"):
        odd = replace(asked, body=body)
        assert put_behind(odd, 10) is odd


def test_how_a_stream_is_asked_for_is_a_setting_of_its_provider() -> None:
    """`plain` asks without `stream_options`, which some servers refuse; the path says it to
    Gemini."""
    asked = Request("t", "default", CHAT, BODY, WAIT_S)
    plain = json.loads(as_sent(asked, "plain").body)
    assert plain == {**json.loads(BODY), "stream": True}
    assert as_sent(asked, "no") is asked
    gemini = Request("t", "default", GENERATE, b'{"model":"gemini-x","contents":[]}', WAIT_S)
    assert as_sent(gemini, "usage").endpoint.endswith("gemini-x:streamGenerateContent?alt=sse")
    assert as_sent(gemini, "no").endpoint.endswith("gemini-x:generateContent")


async def test_a_provider_that_cannot_stream_is_not_asked_to(house: House) -> None:
    """Its answer comes in one piece."""
    house.providers["default"] = house.providers["default"].model_copy(update={"streams": "no"})
    house.sends([GOOD])
    assert isinstance(await house.ask(), Answer)
    assert "stream" not in house.asked


async def test_a_stream_may_be_torn_anywhere(house: House) -> None:
    """A byte at a time, so in the middle of characters, and with the line ends of Windows."""
    torn = GOOD.replace(b"\n", b"\r\n")
    house.sends(torn[at : at + 1] for at in range(len(torn)))
    assert content(await house.ask()) == house.passed == TEXT


async def test_a_packed_stream_is_unpacked_as_it_comes(house: House) -> None:
    """Some proxies pack all they pass."""
    packed = gzip.compress(GOOD)
    house.sends([packed[:20], packed[20:]], **{"Content-Encoding": "gzip"})
    assert content(await house.ask()) == house.passed == TEXT


async def test_a_stream_that_is_cut_has_cost_something(house: House) -> None:
    """Its connection breaks: what was asked and written so far is estimated."""
    house.sends([chunk("a text of twenty char")], "break")
    tried = failed(await house.ask())
    assert tried.failure == "connection_lost"
    failure = name_failure(tried, 0.0)
    assert isinstance(failure, Failure)
    assert (failure.prompt_tokens, failure.completion_tokens) == (len(BODY) // 4 + 1, 6)
    assert failure.model == "m"


async def test_a_stream_that_has_said_nothing_has_cost_nothing(house: House) -> None:
    """No more than a call whose connection is lost before its answer."""
    house.sends([chunk("")], "break")
    tried = failed(await house.ask())
    assert (tried.failure, tried.cut) == ("connection_lost", None)


@pytest.mark.parametrize(
    ("parts", "failure", "said"),
    [
        ([chunk("a")], "invalid_answer", "ended before its answer"),
        ([chunk("a"), b"data: <html>\n\n"], "invalid_answer", "not a JSON object: <html>"),
        ([chunk("a"), b'data: "\xf0\x9f"\n\n', END], "invalid_answer", "not a JSON object"),
        ([chunk("a"), b"data: [1]\n\n", END], "invalid_answer", "not a JSON object"),
        ([chunk("a"), b'data: {"x":1}\n\n', END], "invalid_answer", "has no choices"),
        ([chunk("a"), chunk("b", index="0"), END], "invalid_answer", "has no index"),
    ],
    ids=["no end", "html", "half a character", "a list", "another API", "no index"],
)
async def test_what_is_no_answer_is_an_invalid_one(
    house: House, parts: list[bytes], failure: str, said: str
) -> None:
    """It is named like a whole body that cannot be read, with what it cost."""
    house.sends(parts)
    tried = failed(await house.ask())
    assert (tried.failure, said in tried.detail) == (failure, True), tried.detail
    assert tried.cut is not None


async def test_a_stream_that_stands_still_runs_out_of_time(house: House) -> None:
    """Before its first token, and between two of them, long before the job's `timeout_s`."""
    house.sends([], "stall")
    tried = failed(await house.ask())
    assert tried.failure == "timeout"
    assert tried.detail == f"no token of the answer came for {SOON_S:g} s before the first"
    assert tried.cut is None
    house.sends([chunk("a")], "stall")
    tried = failed(await house.ask())
    assert tried.detail == f"no token of the answer came for {SOON_S:g} s after the last"
    assert tried.cut is not None


@pytest.mark.parametrize(
    ("part", "failure"),
    [
        (b"data: " + b"x" * MIB, "answer_too_large"),
        (b"x" * MIB, "answer_too_large"),
        (chunk("x" * 1000) * 1000, "answer_too_large"),
        (b"\n" * MIB, "invalid_answer"),
        (b": ping\n" * 200_000, "invalid_answer"),
        (chunk("") * 5_000, "invalid_answer"),
    ],
    ids=["a line", "no event", "more than is kept", "nothing", "pings", "no text"],
)
async def test_a_stream_without_end_is_ended(house: House, part: bytes, failure: str) -> None:
    """Whatever it holds, by what it takes here or by what it does not bring."""
    house.sends(part for _ in range(100))
    assert failed(await house.ask()).failure == failure
    assert house.sent < 24 * MIB, "what fits into sockets on both sides"


async def test_one_large_chunk_is_an_answer_and_not_passed_on(house: House) -> None:
    """Redis takes 64 KiB at a time: what is more comes with the stored answer."""
    house.sends([chunk("x" * MIB), END])
    assert content(await house.ask()) == "x" * MIB
    assert house.passed == ""


async def test_an_error_in_a_stream_has_its_own_name(house: House) -> None:
    """By its code, as in a body of 200 that holds it; with what was written before."""
    said = {"error": {"message": "Slow", "code": "rate_limit_exceeded"}}
    house.sends([chunk("a"), b"data: %b\n\n" % json.dumps(said).encode()])
    failure = name_failure(await house.ask(), 0.0)
    assert isinstance(failure, Failure)
    assert failure.name == "rate_limited"
    assert failure.completion_tokens == 1


async def test_an_answer_that_is_whole_counts_however_its_connection_ends(house: House) -> None:
    """Some servers close it without the end that HTTP wants."""
    house.sends([GOOD], "break")
    assert content(await house.ask()) == TEXT


async def test_a_server_that_does_not_stream_is_understood(house: House) -> None:
    """It answers in one piece, or refuses, as without a stream."""
    whole = {"choices": [{"message": {"content": TEXT}, "finish_reason": "stop"}]}

    async def answer(_: web.Request) -> web.StreamResponse:
        await asyncio.sleep(0)
        return web.json_response(whole)

    house.answer = answer
    assert content(await house.ask()) == TEXT
    assert house.passed == ""

    async def refuse(_: web.Request) -> web.StreamResponse:
        return web.json_response({"error": {"message": "no"}}, status=429)

    house.answer = refuse
    refused = await house.ask()
    assert isinstance(refused, Answer)
    assert refused.status == 429
