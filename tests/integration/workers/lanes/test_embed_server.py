"""An embed worker over a server that embeds: one that keeps text-embeddings-inference's contract,
and one that is as vLLM's."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import orjson
import pytest
from aiohttp import web
from embed_servers import PlayedServer, Tei, Vllm

from penstock_ledger.vectors import unpack
from penstock_producer.errors import SettingsError
from penstock_workers.errors import BadEngineSettings, EngineAway
from penstock_workers.item.answer import Answer, NoAnswer
from penstock_workers.item.failures import Failure, name_failure
from penstock_workers.item.lane import Request
from penstock_workers.lanes.embed.row import WhileUp
from penstock_workers.lanes.embed.server_lane import EmbedServerLane
from penstock_workers.settings import WorkerSettings


def request(body: dict[str, Any], **more: Any) -> Request:
    return Request("job:doc", "elsewhere", "/v1/embeddings", orjson.dumps(body), 10.0, **more)


@asynccontextmanager
async def lane(url: str, wait_s: float = 10.0, **embed: Any) -> AsyncIterator[EmbedServerLane]:
    settings = WorkerSettings.load(
        lane="embed", embed={"upstream_url": url, "upstream_wait_s": wait_s, **embed}
    )
    made = EmbedServerLane(settings, give_up=pytest.fail)
    try:
        await made.start()
        yield made
    finally:
        await made.close()


async def tried(one: EmbedServerLane, asked: Request) -> Answer | NoAnswer:
    prepared = await one.prepare(asked)
    assert prepared.refused is None
    return await one.infer(prepared)


@pytest.mark.parametrize(("server", "model"), [(Tei(), "BAAI/bge-small"), (Vllm(), "tiny-bert")])
async def test_vectors_are_stored_as_the_lanes_own(server: PlayedServer, model: str) -> None:
    """They come as base64, in any order, are cut and made other numbers here, and the model's name
    is the server's."""
    async with server.served() as url, lane(url) as one:
        answer = await tried(
            one, request({"input": ["a b", "c"], "output_dtype": "int8", "dimensions": 2})
        )
    assert isinstance(answer, Answer)
    stored = unpack(answer.body)
    assert answer.packed
    assert (stored.dtype, stored.dimensions, stored.model, stored.prompt_tokens) == (
        "int8",
        2,
        model,
        2,
    )
    assert struct.unpack("<4b", stored.data) == (76, 102, 76, 102)
    assert server.asked == [
        ("/v1/embeddings", {"input": ["a b", "c"], "model": model, "encoding_format": "base64"})
    ]


DATA = "data:image/png;base64,iVBORw0KGgo="


def picture(url: Any) -> dict[str, Any]:
    part = {"type": "image_url", "image_url": {"url": url}}
    text = {"type": "text", "text": "Represent the given image."}
    return {"messages": [{"role": "user", "content": [part, text]}]}


async def test_an_image_is_one_input_of_vllms_server() -> None:
    """It goes there as a chat, and its vector is stored as that of a text."""
    server = Vllm()
    async with server.served() as url, lane(url) as one:
        answer = await tried(one, request({**picture(DATA), "dimensions": 2}))
    assert isinstance(answer, Answer)
    assert (unpack(answer.body).dimensions, answer.packed) == (2, True)
    ((_, asked),) = server.asked
    assert asked == {**picture(DATA), "model": "tiny-bert", "encoding_format": "base64"}


@pytest.mark.parametrize(
    ("server", "body", "told"),
    [
        (Vllm(), picture("https://intranet/secret.png"), "is not fetched here"),
        (Vllm(), picture("file:///etc/passwd"), "is not fetched here"),
        (Vllm(), picture(5), "is not fetched here"),
        (Vllm(), {"messages": []}, "not empty"),
        (Vllm(), {"messages": "x"}, "not empty"),
        (Vllm(), {"messages": [5]}, "not empty"),
        (Tei(), picture(DATA), "embeds texts only"),
    ],
)
async def test_images_that_cannot_be_embedded_are_refused(
    server: PlayedServer, body: dict[str, Any], told: str
) -> None:
    """Before the server is asked: it is not made to fetch what a document names."""
    async with server.served() as url, lane(url) as one:
        prepared = await one.prepare(request(body))
    assert prepared.refused is not None
    failure = name_failure(prepared.refused, 0.0)
    assert isinstance(failure, Failure)
    assert (failure.name, told in failure.detail) == ("bad_request", True)
    assert server.asked == []


@pytest.mark.parametrize(
    ("body", "fails", "name"),
    [
        ({"input": "w " * 9}, [], "context_overflow"),
        ({"input": ["w"] * 5}, [], "request_too_large"),
        ({"input": "w"}, [(422, "Tokenization error: bad char", "Tokenizer")], "unprocessable"),
        ({"input": "w"}, [(424, "Inference failed", "Backend")], "engine_failed"),
        ({"input": "w"}, [(429, "Model is overloaded", "Overloaded")], "engine_busy"),
        ({"input": "w"}, [(503, "unhealthy", "Unhealthy")], "overloaded"),
        ({"input": "w"}, [(500, "oops", "Backend")], "server_error"),
    ],
)
@pytest.mark.parametrize("invalid", [413, 422])
async def test_each_error_of_the_server_has_its_fate(
    body: dict[str, Any], fails: list[tuple[int, str, str]], name: str, invalid: int
) -> None:
    """413 or 422 is too long or too many, 424 a model that failed, 429 a full queue: the last costs
    no attempt."""
    server = Tei(invalid=invalid)
    server.fails = list(fails)
    async with server.served() as url, lane(url) as one:
        named = name_failure(await tried(one, request(body)), 0.0)
    assert isinstance(named, Failure)
    assert named.name == name, named


async def test_a_text_that_is_too_long_is_cut_where_the_job_says_so() -> None:
    """By vLLM's parameter, which it takes from the body."""
    server = Vllm()
    async with server.served() as url, lane(url) as one:
        answer = await tried(one, request({"input": "w " * 9}, on_overflow="trim"))
    assert isinstance(answer, Answer)
    assert server.asked[0][1]["truncate_prompt_tokens"] == -1


@pytest.mark.parametrize(
    "answer",
    [
        b"[]",
        b"{}",
        b"<html>",
        b'{"data": []}',
        b'{"data": [{"index": 0, "embedding": "AAA"}]}',
        b'{"data": [{"index": 0, "embedding": []}]}',
        b'{"data": [{"index": 0, "embedding": ["x"]}]}',
        b'{"data": [{"index": 0, "embedding": [1e400]}]}',
        b'{"data": [{"index": 0, "embedding": "AADAfw=="}]}',
        b'{"data": [{"index": 0, "embedding": [1]}, {"index": 1, "embedding": [1]}]}',
    ],
)
async def test_an_answer_without_usable_vectors_is_none(answer: bytes) -> None:
    """Too few, too many, empty, infinite or no numbers at all: tried again, never stored."""
    server = Tei()
    server.answer = answer
    async with server.served() as url, lane(url) as one:
        named = name_failure(await tried(one, request({"input": "w"})), 0.0)
    assert isinstance(named, Failure)
    assert named.name == "invalid_answer"


async def test_while_the_server_is_away_nothing_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is lost with it costs no attempt; others wait until its model is loaded again."""
    monkeypatch.setattr("penstock_workers.lanes.api.upstream.ASK_AGAIN_S", 0.05)
    server = Tei()
    async with server.served() as url, lane(url) as one:
        admission = WhileUp(one.is_up, one.up)
        prepared = await one.prepare(request({"input": "w"}))
        assert admission.at_once(None) is not None  # type: ignore[arg-type]  # it looks at no attempt
        await asyncio.wait_for(admission.turn(None, prepared), 1)  # type: ignore[arg-type]  # as above
        server.loaded = False
        async with asyncio.timeout(5):
            lost = await one._no_answer(NoAnswer("connection_lost", "reset", 1))
            assert lost.failure == "connect_failed"  # which costs no attempt
            assert admission.at_once(None) is None  # type: ignore[arg-type]  # as above
            waiting = asyncio.create_task(admission.turn(None, prepared))  # type: ignore[arg-type]  # as above
            await asyncio.sleep(0.2)
            assert not waiting.done()
            assert one.gauges()["bound"] == "starting"
            server.loaded = True
            await waiting
        assert isinstance(await one.infer(prepared), Answer)


@pytest.mark.parametrize("server", [Tei(), Vllm()])
async def test_a_server_with_another_model_gives_no_vectors_of_it(
    server: PlayedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lane says what the server has now; an item that came in before waits, and is not sent:
    its job has another model."""
    monkeypatch.setattr("penstock_workers.lanes.api.upstream.MODELS_EACH_S", 0.02)
    async with server.served() as url, lane(url, names=("mine",)) as one:
        early = await one.prepare(request({"input": "w"}))
        server.model = "other"
        async with asyncio.timeout(5):
            while one.served.names != ("mine", "other"):  # noqa: ASYNC110 - the lane asks its server, and tells no one
                await asyncio.sleep(0.01)
        late = await one.infer(early)
        answer = await tried(one, request({"input": "w"}))
    assert isinstance(late, NoAnswer)
    assert (late.failure, late.sent) == ("engine_busy", False)
    assert isinstance(answer, Answer)
    assert [asked["model"] for _, asked in server.asked] == ["other"]


@pytest.mark.parametrize("path", ["", "/v1"])
async def test_a_server_of_another_kind_is_refused_at_once(path: str) -> None:
    """Waiting would not make an encoder of it."""
    app = web.Application()
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}{path}"
    try:
        with pytest.raises(
            BadEngineSettings if path else SettingsError, match=r"embed.*upstream_url"
        ):
            async with lane(url):
                pass
    finally:
        await runner.cleanup()


async def test_a_server_that_never_loads_is_named() -> None:
    """With the settings that say where it is and how long to wait."""
    server = Tei()
    server.loaded = False
    async with server.served() as url:
        with pytest.raises(EngineAway, match=r"embed\.upstream_wait_s"):
            async with lane(url, wait_s=0.5):
                pass
