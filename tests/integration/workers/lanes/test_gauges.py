"""vLLM's gauges, read over HTTP from a page as vLLM writes it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

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


@asynccontextmanager
async def serving(text: str, status: int = 200) -> AsyncIterator[str]:
    async def metrics(_: web.Request) -> web.Response:
        return web.Response(text=text, status=status)

    app = web.Application()
    app.router.add_get("/metrics", metrics)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/metrics"
    finally:
        await runner.cleanup()


def test_gauges_are_summed_over_engines() -> None:
    """With data parallelism each engine has its own; the server is all of them."""
    assert read_gauges(PAGE) == (20.0, 3.0)


@pytest.mark.parametrize(
    "text", ["", "# TYPE up gauge\nup 1\n", PAGE.split("# HELP vllm:num_requests_waiting")[0]]
)
def test_a_page_without_both_gauges_tells_nothing(text: str) -> None:
    """Half of the answer is no answer."""
    assert read_gauges(text) is None


def test_a_server_that_tells_is_listened_to() -> None:
    """The watch passes on what the page says."""

    async def main() -> tuple[str, float, float]:
        heard: asyncio.Future[tuple[str, float, float]] = asyncio.get_running_loop().create_future()

        def tell(name: str, running: float, waiting: float) -> None:
            if not heard.done():
                heard.set_result((name, running, waiting))

        async with serving(PAGE) as url:
            watch = GaugeWatch({"mine": url}, tell)
            watch.start()
            try:
                return await asyncio.wait_for(heard, 10)
            finally:
                await watch.close()

    assert asyncio.run(main()) == ("mine", 20.0, 3.0)


@pytest.mark.parametrize(("text", "status"), [("not found", 404), ("{}", 200), (PAGE, 500)])
def test_a_server_without_gauges_is_left_alone(
    text: str, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    """No figure is reported, the watch goes on, and the log says when it asks again."""

    async def main() -> None:
        async with serving(text, status) as url:
            watch = GaugeWatch({"mine": url}, lambda *_: pytest.fail("no figure was reported"))
            with caplog.at_level("INFO"):
                watch.start()
                async with asyncio.timeout(10):
                    while ("asking again") not in caplog.text:  # noqa: ASYNC110 - a log line has no event
                        await asyncio.sleep(0)
            await watch.close()

    asyncio.run(main())
