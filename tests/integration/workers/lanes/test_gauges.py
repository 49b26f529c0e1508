"""vLLM's gauges, read over HTTP from a page as vLLM writes it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from math import inf

import pytest
from aiohttp import web

from penstock_ratelimit import ServerGauges
from penstock_workers.lanes.api import polls
from penstock_workers.lanes.api.polls import GaugeWatch, read_gauges

PAGE = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 12.0
vllm:num_requests_running{engine="1",model_name="m"} 8.0
# HELP vllm:num_requests_waiting Number of requests waiting to be processed.
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="m"} 3.0
vllm:num_requests_waiting{engine="1",model_name="m"} 0.0
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{engine="0"} 99.0
"""
HISTOGRAMS = """\
# TYPE vllm:time_to_first_token_seconds histogram
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.5",model_name="m"} 7.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="+Inf",model_name="m"} 9.0
vllm:time_to_first_token_seconds_count{engine="0",model_name="m"} 9.0
vllm:time_to_first_token_seconds_sum{engine="0",model_name="m"} 5.0
vllm:time_to_first_token_seconds_created{engine="0",model_name="m"} 1.7e9
vllm:time_to_first_token_seconds_bucket{engine="1",le="0.5",model_name="m"} 1.0
vllm:time_to_first_token_seconds_bucket{engine="1",le="+Inf",model_name="m"} 1.0
# TYPE vllm:request_queue_time_seconds histogram
vllm:request_queue_time_seconds_bucket{engine="0",le="+Inf",model_name="m"} 8.0
vllm:request_queue_time_seconds_count{engine="0",model_name="m"} 8.0
vllm:request_queue_time_seconds_sum{engine="0",model_name="m"} 2.5
"""


@asynccontextmanager
async def serving(text: str | None, status: int = 200) -> AsyncIterator[str]:
    async def metrics(_: web.Request) -> web.Response:
        if text is None:
            await asyncio.Event().wait()
        return web.Response(text=text, status=status)

    app = web.Application()
    app.router.add_get("/metrics", metrics)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/metrics"
    finally:
        await runner.cleanup()


def test_gauges_are_summed_over_engines() -> None:
    """With data parallelism each engine has its own; the server is all of them."""
    assert read_gauges(PAGE) == ServerGauges(20.0, 3.0)
    assert read_gauges(PAGE + HISTOGRAMS) == ServerGauges(
        20.0, 3.0, ((0.5, 8.0), (inf, 10.0)), 2.5, 8.0
    )


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "has no vllm:num_requests_running"),
        ("# TYPE up gauge\nup 1\n", "has no vllm:num_requests_running"),
        (PAGE.split("# HELP vllm:num_requests_waiting")[0], "has no vllm:num_requests_running"),
        ("<html>vllm:num_requests_running is away</html>", "."),
        (PAGE.replace(" 3.0", " NaN"), "no numbers of requests"),
        (PAGE.replace(" 3.0", " -7"), "no numbers of requests"),
        (PAGE.replace(" 3.0", " +Inf"), "no numbers of requests"),
        (PAGE.replace(" 3.0", " three"), "."),
        (PAGE + "vllm:num_requests_waiting 1\n" * 9_000, "more than 8,192 lines"),
    ],
)
def test_a_page_that_makes_no_sense_tells_nothing(text: str, why: str) -> None:
    """Half of the answer is no answer, and neither is a page of another server, of a proxy, or
    without an end."""
    with pytest.raises(ValueError, match=why):
        read_gauges(text)


def test_a_server_that_tells_is_listened_to() -> None:
    """The watch passes on what the page says."""

    async def main() -> tuple[str, ServerGauges]:
        heard: asyncio.Future[tuple[str, ServerGauges]] = asyncio.get_running_loop().create_future()

        def tell(name: str, gauges: ServerGauges) -> None:
            if not heard.done():
                heard.set_result((name, gauges))

        async with serving(PAGE) as url:
            watch = GaugeWatch({"mine": url}, tell)
            watch.start()
            try:
                return await asyncio.wait_for(heard, 10)
            finally:
                await watch.close()

    assert asyncio.run(main()) == ("mine", ServerGauges(20.0, 3.0))


@pytest.mark.parametrize(
    ("text", "status", "why"),
    [
        ("not found", 404, "it answers 404"),
        ("{}", 200, "has no vllm:num_requests_running"),
        (PAGE, 500, "it answers 500"),
        (None, 200, "not whole in time"),
    ],
)
def test_a_server_without_gauges_is_left_alone(
    text: str | None,
    status: int,
    why: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No figure is reported but why there is none, the watch goes on, and the log says when it asks
    again; a server that says nothing is given up in time."""
    monkeypatch.setattr(polls, "GAUGES_TIMEOUT_S", 0.2)

    async def main() -> str:
        told: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        async with serving(text, status) as url:
            watch = GaugeWatch(
                {"mine": url},
                lambda *_: pytest.fail("no figure was reported"),
                unread=lambda _, said: told.set_result(said),
            )
            with caplog.at_level("INFO"):
                watch.start()
                said = await asyncio.wait_for(told, 10)
            await watch.close()
        return said

    assert why in asyncio.run(main())
    assert "asking again in 60 s" in caplog.text


def test_a_server_is_asked_by_those_who_are_to_look() -> None:
    """A process that does not look leaves the page alone."""

    async def main() -> None:
        looked = asyncio.Event()

        def looks(name: str) -> bool:
            looked.set()
            return False

        async with serving(PAGE) as url:
            watch = GaugeWatch({"mine": url}, lambda *_: pytest.fail("it looked"), looks=looks)
            watch.start()
            await asyncio.wait_for(looked.wait(), 10)
            await watch.close()

    asyncio.run(main())
