"""What a gpu worker makes of the server beside it before it takes anything: over HTTP, without a
fleet."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from penstock_producer.errors import SettingsError
from penstock_workers.errors import BadEngineSettings, EngineAway
from penstock_workers.item.lane import Request
from penstock_workers.lanes.gpu.sidecar import SidecarLane
from penstock_workers.settings import WorkerSettings


@asynccontextmanager
async def server(*answers: tuple[int, str]) -> AsyncIterator[str]:
    """Gives these answers to `GET /v1/models`, the last one again and again."""
    left = list(answers)

    async def models(_: web.Request) -> web.Response:
        status, text = left.pop(0) if len(left) > 1 else left[0]
        return web.Response(status=status, text=text)

    app = web.Application()
    app.router.add_get("/v1/models", models)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    finally:
        await runner.cleanup()


def lane(url: str, wait_s: float = 10.0) -> SidecarLane:
    gpu = {"upstream_url": url, "upstream_wait_s": wait_s}
    return SidecarLane(
        WorkerSettings.load(lane="gpu", gpu=gpu), give_up=lambda why: pytest.fail(why)
    )


def request(body: bytes) -> Request:
    return Request("job:doc", "elsewhere", "/v1/chat/completions", body, 10.0)


async def test_an_item_counts_as_many_sequences_as_it_asks_for_answers() -> None:
    """What the server would refuse is left to it, and counts as one."""
    async with server(LOADED) as url:
        one = lane(url)
        try:
            await one.start()
            counted = [
                (await one.prepare(request(b'{"model":"mine","n":%b}' % number))).sequences
                for number in (
                    b"8",
                    b"1",
                    b"0",
                    b"-3",
                    b"true",
                    b'"4"',
                    b"1e9",
                    b"99999999999",
                    b"null",
                )
            ]
            plain = await one.prepare(
                request(b'{"model":"mine","messages":[{"role":"n","content":"n"}]}')
            )
        finally:
            await one.close()
    assert counted == [8, 1, 1, 1, 1, 1, 1, 1, 1]
    assert plain.sequences == 1


LOADED = (200, json.dumps({"data": [{"id": 'llama "8b"'}]}))


async def test_bodies_get_the_servers_model_where_they_name_none() -> None:
    """One that names a model keeps it; all else in a body stays as it is, byte for byte."""
    async with server((503, "loading"), LOADED) as url:
        one = lane(url)
        try:
            await one.start()
            named = await one.prepare(request(b'{"model":"mine","n":1}'))
            unnamed = await one.prepare(request(b'{"messages":[]}'))
        finally:
            await one.close()
    assert named.request.body == b'{"model":"mine","n":1}'
    assert unnamed.request.body == b'{"model":"llama \\"8b\\"","messages":[]}'


@pytest.mark.parametrize(
    "answer", [(200, "[]"), (200, "<html>"), (401, '{"error": "no key"}'), (404, "nothing here")]
)
async def test_a_server_of_another_kind_is_refused_at_once(answer: tuple[int, str]) -> None:
    """Waiting would not make a vLLM of it: the message names the setting, the answer and the
    fix."""
    async with server(answer) as url:
        one = lane(url)
        with pytest.raises(
            BadEngineSettings, match=rf"answers {answer[0]} and lists no models; give the address"
        ):
            await one.start()
        await one.close()


async def test_nobody_there_is_waited_for_up_to_the_limit() -> None:
    """Refused connections are a server that starts; after the limit the error names address, limit
    and setting."""
    one = lane("http://127.0.0.1:9/v1", wait_s=0.5)
    with pytest.raises(EngineAway, match=r"127\.0\.0\.1:9.*upstream_wait_s = 0\.5 s"):
        await asyncio.wait_for(one.start(), 10)
    await one.close()


@pytest.mark.parametrize(
    ("gpu", "complaint"),
    [
        ({"upstream_url": "127.0.0.1:8000"}, "upstream_url: start it with http:// or https://"),
        ({"upstream_url": "http://127.0.0.1:x/v1"}, "upstream_url: .*port"),
        ({"upstream_url": "http://127.0.0.1:8000"}, "with its /v1"),
        (
            {"upstream_url": "http://127.0.0.1:8000/v1", "model": "/m", "lora": {"a": "/b"}},
            "leave out model, lora",
        ),
    ],
)
def test_settings_that_cannot_work_are_refused(gpu: dict[str, object], complaint: str) -> None:
    """An address that is none, and a model for two engines at once."""
    with pytest.raises(SettingsError, match=complaint):
        WorkerSettings.load(lane="gpu", gpu=gpu)
