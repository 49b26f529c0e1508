"""Servers' gauges, read over HTTP from pages as they write them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from math import inf

import pytest
from aiohttp import web

from penstock_producer.job.endpoints import CHAT
from penstock_ratelimit import ServerGauges
from penstock_simulate.answers.servers import SERVERS as SIMULATED
from penstock_simulate.config import SimulatorConfig
from penstock_simulate.web import running
from penstock_workers.item.answer import Answer
from penstock_workers.item.lane import Request
from penstock_workers.lanes.api import polls
from penstock_workers.lanes.api.api_lane import ApiLane
from penstock_workers.lanes.api.gauges import SERVERS, read_gauges
from penstock_workers.lanes.api.polls import GaugeWatch
from penstock_workers.settings import ProviderSettings

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


SGLANG = """\
# HELP sglang:time_to_first_token_seconds Histogram of time to first token in seconds.
# TYPE sglang:time_to_first_token_seconds histogram
sglang:time_to_first_token_seconds_sum{model_name="meta-llama/Llama-3.1-8B"} 2.3518979474117756e+06
sglang:time_to_first_token_seconds_bucket{le="0.06",model_name="meta-llama/Llama-3.1-8B"} 1.0
sglang:time_to_first_token_seconds_bucket{le="+Inf",model_name="meta-llama/Llama-3.1-8B"} 11008.0
sglang:time_to_first_token_seconds_count{model_name="meta-llama/Llama-3.1-8B"} 11008.0
# HELP sglang:num_running_reqs The number of running requests
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{model_name="meta-llama/Llama-3.1-8B"} 162.0
# HELP sglang:gen_throughput The generate throughput (token/s)
# TYPE sglang:gen_throughput gauge
sglang:gen_throughput{model_name="meta-llama/Llama-3.1-8B"} 86.50814177726902
# HELP sglang:num_queue_reqs The number of requests in the waiting queue
# TYPE sglang:num_queue_reqs gauge
sglang:num_queue_reqs{model_name="meta-llama/Llama-3.1-8B"} 2826.0
"""
TGI = """\
# TYPE tgi_batch_current_size gauge
tgi_batch_current_size 5
# TYPE tgi_request_queue_duration histogram
tgi_request_queue_duration_sum 0.05
tgi_request_queue_duration_count 10
# TYPE tgi_queue_size gauge
tgi_queue_size 3
"""
ITERATIONS = """\
[
  {"iter": 153, "numActiveRequests": 99, "numQueuedRequests": 50},
  {"gpuMemUsage": 76665782272, "iter": 154, "iterLatencyMS": 7.00688362121582,
   "kvCacheStats": {"maxNumBlocks": 101256, "tokensPerBlock": 32, "usedNumBlocks": 3},
   "numActiveRequests": 2, "numQueuedRequests": 1}
]
"""
TENSORRT_LLM = """\
# HELP trtllm_num_requests_running Number of requests currently running
# TYPE trtllm_num_requests_running gauge
trtllm_num_requests_running{engine_type="undefined",model_name="m"} 3.0
# TYPE trtllm_num_requests_waiting gauge
trtllm_num_requests_waiting{engine_type="undefined",model_name="m"} 7.0
"""
TRITON = """\
# TYPE nv_inference_pending_request_count gauge
nv_inference_pending_request_count{model="ensemble",version="1"} 1
nv_inference_pending_request_count{model="tensorrt_llm",version="1"} 2
# HELP nv_cpu_utilization CPU utilization rate [0.0 - 1.0]
# TYPE nv_cpu_utilization gauge
nv_cpu_utilization 0.003125
"""
TRITON_WITH_TENSORRT_LLM = """\
# HELP nv_trt_llm_request_metrics TRT LLM request metrics
# TYPE nv_trt_llm_request_metrics gauge
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="waiting",version="1"} 4
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="context",version="1"} 1
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="scheduled",version="1"} 6
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="max",version="1"} 512
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="active",version="1"} 10
"""
PAGES = {
    "vLLM": (PAGE, ServerGauges(20.0, 3.0)),
    "SGLang": (SGLANG, ServerGauges(162.0, 2826.0, ((0.06, 1.0), (inf, 11008.0)))),
    "TGI": (TGI, ServerGauges(5.0, 3.0)),
    "TensorRT-LLM": (TENSORRT_LLM, ServerGauges(3.0, 7.0)),
    "TensorRT-LLM's iterations": (ITERATIONS, ServerGauges(2.0, 1.0)),
    "Triton with TensorRT-LLM": (TRITON_WITH_TENSORRT_LLM + TRITON, ServerGauges(6.0, 4.0)),
    "Triton": (TRITON, ServerGauges(0.0, 3.0)),
}


@pytest.mark.parametrize("server", SERVERS)
def test_each_server_has_names_of_its_own(server: str) -> None:
    """Pages as the servers' own documentation and tests show them."""
    text, gauges = PAGES[server]
    assert read_gauges(text) == gauges


@pytest.mark.parametrize("like", sorted(SIMULATED))
def test_the_pages_of_simulated_servers_are_read(like: str) -> None:
    """Ollama has none, and of Triton it is not known how many requests run."""
    page = SIMULATED[like].metrics(running=4, waiting=2)
    if page is None:
        assert like == "ollama"
        return
    assert read_gauges(page) == ServerGauges(0.0 if like == "triton" else 4.0, 2.0)


def test_parts_of_a_gauge_are_not_counted_twice() -> None:
    """SGLang writes its queue by priority beside the whole, and TensorRT-LLM each of its ranks."""
    part = 'sglang:num_queue_reqs{{model_name="m",priority="{}"}} {}\n'
    text = part.format("", 5) + part.format("1", 3) + "sglang:num_running_reqs 1\n"
    assert read_gauges(text) == ServerGauges(1.0, 5.0)
    row = '{{"attentionDpRank": {}, "numActiveRequests": {}, "numQueuedRequests": 0}}'
    ranks = ",".join([row.format(0, 9), row.format(0, 2), row.format(1, 3)])
    assert read_gauges(f"[{ranks}]") == ServerGauges(5.0, 0.0)
    assert read_gauges("[]") == ServerGauges(0.0, 0.0), "no iteration since the last look"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "has none of vllm:num_requests_waiting, sglang"),
        ("# TYPE up gauge\nup 1\n", "has none of vllm:num_requests_waiting"),
        (PAGE.split("# HELP vllm:num_requests_waiting")[0], "has none of vllm:num_req"),
        (
            PAGE.replace("num_requests_running", "num_requests_swapped"),
            "has vllm:num_requests_waiting, and no vllm:num_requests_running",
        ),
        ("tgi_queue_size 1e400\ntgi_batch_current_size 1\n", "tgi_queue_size and its like are no"),
        ("tgi_queue_size " + "9" * 400 + "\ntgi_batch_current_size 1\n", "no page of metrics"),
        ("[", "."),
        ("[" * 5_000, "."),
        ("[1]", "has none of"),
        ('[{"numQueuedRequests": "3", "numActiveRequests": true}]', "has none of"),
        ('[{"numQueuedRequests": -3, "numActiveRequests": 1}]', "no numbers of requests"),
        ('[{"numQueuedRequests": 3}]', "and no numActiveRequests"),
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
        ("{}", 200, "has none of vllm:num_requests_waiting"),
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


async def test_requests_with_a_priority_let_others_pass_at_a_server_that_sorts_by_it() -> None:
    """One place at a simulated vLLM, and 30 documents before it: a person's request that comes last
    waits for the one that runs, and all documents have their answers."""
    config = SimulatorConfig(
        like="vllm",
        max_concurrency=1,
        scheduling_policy="priority",
        latency_ms=30,
        latency_sigma=0,
    )
    async with running(config) as url:
        person = ProviderSettings(base_url=f"{url}/v1")
        lane = ApiLane({"default": person.model_copy(update={"request_priority": 10}), "p": person})
        await lane.start()
        try:
            answered = list[str]()

            async def ask(name: str, provider: str) -> None:
                body = b'{"model":"m","messages":[{"role":"user","content":"Hi"}]}'
                request = Request(f"job:{name}~g1", provider, CHAT, body, 20.0)
                found = await lane.infer(await lane.prepare(request))
                assert isinstance(found, Answer)
                answered.append(name if found.status == 200 else f"{name}: {found.status}")

            async with asyncio.TaskGroup() as tasks:
                for number in range(30):
                    tasks.create_task(ask(str(number), "default"))
                while len(answered) < 3:  # noqa: ASYNC110 - answers have no event
                    await asyncio.sleep(0.001)
                tasks.create_task(ask("person", "p"))
        finally:
            await lane.close()
    assert len(answered) == 31
    assert 3 <= answered.index("person") <= 6
