"""A server beside a gpu worker whose engine dies while the server still answers, as vLLM's does for
some seconds: over HTTP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from penstock_workers.item.answer import Answer, NoAnswer, Tried
from penstock_workers.item.lane import Request
from penstock_workers.lanes.gpu.sidecar import SidecarLane
from penstock_workers.settings import WorkerSettings

MODELS = {"data": [{"id": "tiny", "max_model_len": 4096, "parent": None}]}
DEAD = (500, json.dumps({"error": {"message": "EngineCore encountered an issue.", "code": 500}}))


def said(text: str, reason: str) -> tuple[int, str]:
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": text},
        "finish_reason": reason,
    }
    return 200, json.dumps({"model": "tiny", "choices": [choice]}, separators=(",", ":"))


class Server:
    """Plays vLLM's, with the answer and the health that a test gives it.

    Answers wait until ``at_once`` of them are asked for."""

    def __init__(self) -> None:
        self.answer = said("good", "stop")
        self.healthy = True
        self.at_once = 1
        self.looks = 0  # at its health
        self._asked = 0
        self._all_here = asyncio.Event()

    async def chat(self, _: web.Request) -> web.Response:
        self._asked += 1
        if self._asked >= self.at_once:
            self._all_here.set()
        await self._all_here.wait()
        return web.Response(status=self.answer[0], text=self.answer[1])

    async def health(self, _: web.Request) -> web.Response:
        self.looks += 1
        return web.Response(status=200 if self.healthy else 503)

    async def models(self, _: web.Request) -> web.Response:
        return web.json_response(MODELS)

    @asynccontextmanager
    async def lane(self) -> AsyncIterator[SidecarLane]:
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self.chat)
        app.router.add_get("/health", self.health)
        app.router.add_get("/v1/models", self.models)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        gpu = {"upstream_url": f"http://127.0.0.1:{runner.addresses[0][1]}/v1"}
        lane = SidecarLane(
            WorkerSettings.load(lane="gpu", gpu=gpu), give_up=lambda why: pytest.fail(why)
        )
        try:
            await lane.start()
            yield lane
        finally:
            await lane.close()
            await runner.cleanup()


async def asked(lane: SidecarLane) -> Tried:
    prepared = await lane.prepare(
        Request("job:doc", "elsewhere", "/v1/chat/completions", b'{"messages":[]}', 10.0)
    )
    return await lane.infer(prepared)


@pytest.mark.parametrize("last_words", [DEAD, (502, "no upstream"), said("cut o", "abort")])
async def test_what_a_dying_server_says_of_an_item_costs_it_no_attempt(
    last_words: tuple[int, str],
) -> None:
    """A 5xx, or an answer cut off, from a server that is found without its engine right after is
    the engine's death."""
    server = Server()
    server.answer, server.healthy = last_words, True
    async with server.lane() as lane:
        server.healthy = False
        tried = await asked(lane)
        assert isinstance(tried, NoAnswer)
        assert tried.failure == "engine_died"
        assert lane.gauges()["deaths"] == 1


@pytest.mark.parametrize(
    "words", [DEAD, said("cut o", "abort"), said('quotes "finish_reason":"abort"', "stop")]
)
async def test_a_failure_of_a_server_that_goes_on_is_the_items_own(words: tuple[int, str]) -> None:
    """The answer is handed on as it came, for the table of failures to name."""
    server = Server()
    server.answer = words
    async with server.lane() as lane:
        tried = await asked(lane)
        assert isinstance(tried, Answer)
        assert (tried.status, tried.body.decode()) == words
        assert lane.gauges()["deaths"] == 0


async def test_all_items_of_a_death_share_one_look_and_no_item_enters_before_the_engine_is_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A server with a full engine is not asked by each item, and one that lists its model while its
    engine is dead is not up."""
    monkeypatch.setattr("penstock_workers.lanes.api.upstream.ASK_AGAIN_S", 0.01)
    server = Server()
    async with server.lane() as lane:
        server.answer, server.healthy, server.at_once = DEAD, False, 60
        before = server.looks
        tried = await asyncio.gather(*(asked(lane) for _ in range(60)))
        assert {one.failure for one in tried if isinstance(one, NoAnswer)} == {"engine_died"}
        assert not [one for one in tried if isinstance(one, Answer)]
        assert server.looks - before < 10
        waits = asyncio.create_task(lane.queue.enter(1))
        seen = server.looks
        while server.looks < seen + 3:  # noqa: ASYNC110 -- until it was asked in vain
            await asyncio.sleep(0.005)
        assert not waits.done()
        server.healthy = True
        await asyncio.wait_for(waits, 10)
        assert lane.gauges()["deaths"] == 1
