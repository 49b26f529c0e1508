"""The gpu lane over vLLM's real engine, hosted in this process: what each kind of request
becomes."""

from __future__ import annotations

import asyncio
import json
import math
import shutil
from collections.abc import AsyncIterator
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import pytest_asyncio

from penstock_workers.item.answer import Answer, NoAnswer, Tried
from penstock_workers.item.failures import Failure, Reply, name_failure
from penstock_workers.item.lane import Request
from penstock_workers.lanes.gpu import engine_host
from penstock_workers.lanes.gpu.gpu_lane import GpuLane
from penstock_workers.lanes.gpu.settings import GpuSettings
from penstock_workers.settings import WorkerSettings

CONTEXT = 1024
ARGUMENTS = {
    "max_model_len": CONTEXT,
    "enforce_eager": True,
    "dtype": "bfloat16",
    "seed": 0,
    "gpu_memory_utilization": 0.5,
}
NO_BLANKS = {"structured_outputs_config": {"backend": "xgrammar", "disable_any_whitespace": True}}
YES_OR_NO = {
    "type": "object",
    "properties": {"sure": {"type": "boolean"}, "topic": {"enum": ["net", "file"]}},
    "required": ["sure", "topic"],
    "additionalProperties": False,
}


def settings(model: Path, **gpu: Any) -> WorkerSettings:
    engine = ARGUMENTS | gpu.pop("engine", {})
    return WorkerSettings(
        lane="gpu",
        gpu=GpuSettings(
            model=str(model),
            in_process=True,
            max_num_seqs=64,
            max_num_batched_tokens=2048,
            engine=engine,
            **gpu,
        ),
    )


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def lane(tiny_llama: Path) -> AsyncIterator[GpuLane]:
    hosted = GpuLane(settings(tiny_llama, engine=NO_BLANKS), give_up=lambda _: None)
    await hosted.start()
    yield hosted
    await hosted.close()


pytestmark = pytest.mark.asyncio(loop_scope="module")


def chat(number: int = 0, text: str = "Name a topic.", **fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": f"{number}: {text}"}]
    return {"messages": messages, "max_tokens": 8, "temperature": 0, "ignore_eos": True} | fields


def request(
    body: dict[str, Any], endpoint: str = "/v1/chat/completions", **options: Any
) -> Request:
    return Request("job:doc", "default", endpoint, json.dumps(body).encode(), 60.0, **options)


async def tried(lane: GpuLane, asked: Request) -> Tried:
    prepared = await lane.prepare(asked)
    if prepared.refused is not None:
        return prepared.refused
    place = await lane.queue.enter(prepared.tokens)
    try:
        return await lane.infer(prepared)
    finally:
        lane.queue.leave(place)


async def named(lane: GpuLane, asked: Request) -> Failure | Reply:
    return name_failure(await tried(lane, asked), 0.0)


async def body_of(lane: GpuLane, asked: Request) -> dict[str, Any]:
    answer = await tried(lane, asked)
    assert isinstance(answer, Answer), answer
    assert answer.status == 200, answer.body
    parsed: dict[str, Any] = json.loads(answer.body)
    return parsed


async def test_hundreds_at_once_each_get_their_own_answer(lane: GpuLane) -> None:
    """500 items, answers of the OpenAI shape, usage as the engine counted it; nothing is left in
    the engine."""
    bodies = await asyncio.gather(
        *(body_of(lane, request(chat(number, max_tokens=4))) for number in range(500))
    )
    assert {body["object"] for body in bodies} == {"chat.completion"}
    assert {body["choices"][0]["finish_reason"] for body in bodies} == {"length"}
    assert {body["usage"]["completion_tokens"] for body in bodies} == {4}
    assert all(body["usage"]["prompt_tokens"] > 5 for body in bodies)
    assert len({body["id"] for body in bodies}) == 500
    assert lane.queue.inside == 0


async def test_the_engine_keeps_no_metrics_beside_the_workers(lane: GpuLane) -> None:
    """vLLM's own, which cost time at each step, are not made, as they could be read nowhere in a
    worker; its steps are heard all the same."""
    await body_of(lane, request(chat(8)))
    series = {metric.name for metric in import_module("prometheus_client").REGISTRY.collect()}
    assert not {name for name in series if name.startswith("vllm")}
    assert {"running", "waiting", "kv_usage", "preempted"} <= lane.gauges().keys()


async def test_the_same_greedy_request_has_the_same_answer(lane: GpuLane) -> None:
    """Two equal requests without temperature, run side by side, have equal answers."""
    first, second = await asyncio.gather(*(body_of(lane, request(chat(7))) for _ in range(2)))
    assert first["choices"][0]["message"] == second["choices"][0]["message"]


@pytest.mark.parametrize("wanted", ["request", "job"])
async def test_structured_outputs_follow_the_schema(lane: GpuLane, wanted: str) -> None:
    """Asked in the request, or by the job's schema alone: what comes is JSON of that shape."""
    fields: dict[str, Any] = {"max_tokens": 64, "ignore_eos": False}
    if wanted == "request":
        fields["response_format"] = {
            "type": "json_schema",
            "json_schema": {"name": "x", "schema": YES_OR_NO},
        }
    asked = request(chat(1, **fields), schema=YES_OR_NO if wanted == "job" else None)
    content = json.loads((await body_of(lane, asked))["choices"][0]["message"]["content"])
    assert set(content) == {"sure", "topic"}
    assert content["topic"] in {"net", "file"}


@pytest.mark.parametrize(
    ("fields", "name", "words"),
    [
        ({"max_tokens": CONTEXT + 1}, "context_overflow", f"maximum context length is {CONTEXT}"),
        ({"temperature": -1}, "bad_request", "temperature"),
        ({"max_tokens": 0}, "bad_request", "max_tokens is 0"),
        ({"frequency": 1}, "bad_request", "'frequency'"),
        ({"messages": []}, "bad_request", "messages is empty"),
        ({"messages": [{"role": "user", "content": None}]}, "bad_request", "content is null"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "bad_request",
            "takes text only",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "no"}}}},
            "bad_request",
            "no",
        ),
        ({"response_format": {"type": "yaml"}}, "bad_request", "yaml"),
        ({"structured_outputs": {}}, "bad_request", "exactly one"),
        ({"model": "gpt-4o"}, "not_found", "hosts no model 'gpt-4o'"),
        ({"stream": True}, "bad_request", "stream"),
        (
            {"tools": [{"type": "function"}]},
            "bad_request",
            "set gpu.tool_parser, or use the sidecar",
        ),
    ],
)
async def test_a_bad_request_is_that_items_failure(
    lane: GpuLane, fields: dict[str, Any], name: str, words: str
) -> None:
    """Named as the table of failures names it, with the field; the requests beside it are
    answered."""
    bad, good = await asyncio.gather(
        named(lane, request(chat(2, **fields))), named(lane, request(chat(3)))
    )
    assert isinstance(bad, Failure)
    assert bad.name == name, bad
    assert words in bad.detail
    assert isinstance(good, Reply)


async def test_too_long_a_prompt_fails_shrinks_or_is_trimmed(lane: GpuLane) -> None:
    """As the job says: a failure, a shorter answer, a shorter document.

    A trimmed prompt keeps its frame."""
    long_text, half_text = "word " * 3 * CONTEXT, "word " * (CONTEXT - 60)
    failed = await named(lane, request(chat(4, long_text)))
    assert isinstance(failed, Failure)
    assert failed.name == "context_overflow"
    shrunk = await body_of(lane, request(chat(4, half_text, max_tokens=500), on_overflow="shrink"))
    assert shrunk["usage"]["total_tokens"] == CONTEXT
    not_shrunk = await named(lane, request(chat(4, long_text), on_overflow="shrink"))
    assert isinstance(not_shrunk, Failure)
    trimmed = await body_of(lane, request(chat(4, long_text), on_overflow="trim"))
    assert CONTEXT - 100 < trimmed["usage"]["prompt_tokens"] <= CONTEXT - 8
    assert trimmed["usage"]["completion_tokens"] == 8


async def test_completions_take_text_and_token_ids(lane: GpuLane) -> None:
    """The completions endpoint takes a prompt as text or as token ids, and counts the ids."""
    fields = {"max_tokens": 4, "temperature": 0, "ignore_eos": True}
    text, ids = await asyncio.gather(
        body_of(lane, request({"prompt": "import os", **fields}, "/v1/completions")),
        body_of(lane, request({"prompt": [10, 11, 12], **fields}, "/v1/completions")),
    )
    assert text["object"] == "text_completion"
    assert isinstance(text["choices"][0]["text"], str)
    assert ids["usage"]["prompt_tokens"] == 3


async def test_several_choices_and_logprobs(lane: GpuLane) -> None:
    """`n` gives as many choices, counted together in the usage, and `top_logprobs` gives as many
    per token."""
    several = await body_of(lane, request(chat(5, n=3, temperature=1.0, max_tokens=2)))
    assert [choice["index"] for choice in several["choices"]] == [0, 1, 2]
    assert several["usage"]["completion_tokens"] == 6
    told = await body_of(lane, request(chat(5, logprobs=True, top_logprobs=3, max_tokens=2)))
    steps = told["choices"][0]["logprobs"]["content"]
    assert len(steps) == 2
    assert all(len(step["top_logprobs"]) >= 3 and step["logprob"] <= 0 for step in steps)


async def test_a_cancelled_item_leaves_the_engine_to_the_others(lane: GpuLane) -> None:
    """Cancelled items leave no place taken, and the engine answers the next request."""
    tasks = [
        asyncio.create_task(tried(lane, request(chat(number, max_tokens=900))))
        for number in range(30)
    ]
    while lane.gauges()["running"] == 0:  # noqa: ASYNC110 -- the engine says so at its next step, and sets no event
        await asyncio.sleep(0.01)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert (await body_of(lane, request(chat(6))))["choices"]
    assert lane.queue.inside == 0


@pytest.mark.parametrize("choices", [1, 3])
async def test_an_item_that_takes_too_long_is_a_timeout(lane: GpuLane, choices: int) -> None:
    """A request that outlasts its own time limit, counted from its first token, ends as the failure
    `timeout`."""
    body = json.dumps(chat(8, max_tokens=900, n=choices, temperature=1.0)).encode()
    answer = await tried(lane, Request("job:slow", "default", "/v1/chat/completions", body, 0.05))
    assert isinstance(answer, NoAnswer)
    assert answer.failure == "timeout"


async def test_a_shared_prefix_is_found_again_and_gauges_say_so(lane: GpuLane) -> None:
    """The second item with the same long beginning has most of its prompt in the cache."""
    system = {"role": "system", "content": "You sort tickets. " * 60}
    body = chat(9) | {"messages": [system, {"role": "user", "content": "one"}]}
    other = chat(9) | {"messages": [system, {"role": "user", "content": "two"}]}
    await body_of(lane, request(body))
    usage = (await body_of(lane, request(other)))["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] >= 128
    gauges = lane.gauges()
    assert 0 < float(gauges["prefix_hit_rate"]) <= 1
    assert gauges["bound"] == "queue"


async def test_a_generative_engine_refuses_embeddings(lane: GpuLane) -> None:
    """A request for embeddings fails with words that say that this model does not embed."""
    refused = await named(lane, request({"input": "a"}, "/v1/embeddings"))
    assert isinstance(refused, Failure)
    assert "does not embed" in refused.detail


@pytest.mark.parametrize(
    "fields",
    [
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "x", "schema": {"$ref": "#"}},
            }
        },
        {"structured_outputs": {"grammar": "root ::= root"}},
        {
            "structured_outputs": {
                "json": {"type": "object", "properties": {"a": {"$ref": "#/nowhere"}}}
            }
        },
        {"structured_outputs": {"regex": "("}},
        {"structured_outputs": {"regex": "((((a{0,40}){0,40}){0,40}){0,40})"}},
    ],
)
async def test_what_no_answer_can_follow_is_refused_before_the_engine_has_it(
    lane: GpuLane, fields: dict[str, Any]
) -> None:
    """A schema that is itself, a grammar without an end, a pattern whose every token takes longer:
    `bad_request` (H1)."""
    refused = await named(lane, request(chat(1, **fields)))
    assert isinstance(refused, Failure)
    assert refused.name == "bad_request"
    assert "cannot be used" in refused.detail
    assert isinstance(await named(lane, request(chat(2))), Reply)


async def test_what_the_engine_gave_up_is_no_answer(
    lane: GpuLane, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a schema that is itself gets past the trial, the engine ends with `error`: a retry, and
    never a result (H1)."""
    monkeypatch.setattr(lane._grammars, "_facts", None)
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"$ref": "#"}}}
    failed = await named(lane, request(chat(1, response_format=schema)))
    assert isinstance(failed, Failure)
    assert failed.name == "engine_failed"
    assert "finish_reason error" in failed.detail


async def test_an_effort_that_the_template_does_not_read_is_refused(lane: GpuLane) -> None:
    """`reasoning_effort` is not dropped in silence."""
    refused = await named(lane, request(chat(1, reasoning_effort="high")))
    assert isinstance(refused, Failure)
    assert "chat template does not read it" in refused.detail


async def test_a_misspelt_engine_argument_names_the_right_one(tiny_llama: Path) -> None:
    """An engine argument that vLLM does not know is refused with the name that it resembles."""
    from penstock_workers.errors import BadEngineSettings

    misspelt = GpuLane(settings(tiny_llama, engine={"tensor_paralel_size": 2}))
    with pytest.raises(BadEngineSettings, match="tensor_parallel_size"):
        await misspelt.start()


async def test_a_missing_model_is_told_with_its_path(tmp_path: Path) -> None:
    """A model folder that does not exist fails the start with its path."""
    from penstock_workers.errors import BadEngineSettings

    with pytest.raises(BadEngineSettings, match="no-such-model"):
        await GpuLane(settings(tmp_path / "no-such-model")).start()


async def test_a_start_without_the_memory_for_one_request_says_so(tiny_llama: Path) -> None:
    """In vLLM's own words, with what it needs; a worker ends with them, for its orchestrator."""
    from penstock_workers.errors import BadEngineSettings

    with pytest.raises(BadEngineSettings, match="KV cache"):
        await GpuLane(settings(tiny_llama, engine={"num_gpu_blocks_override": 2})).start()


async def test_a_pooling_engine_embeds(tiny_bert: Path) -> None:
    """An encoder in the engine: unit vectors, as floats or base64; too long is refused or cut, as
    the job says."""
    import base64
    import struct

    hosted = GpuLane(
        settings(tiny_bert, engine={"runner": "pooling", "max_model_len": 512, "dtype": "float32"})
    )
    await hosted.start()
    try:
        plain = await body_of(hosted, request({"input": "import os"}, "/v1/embeddings"))
        vector = plain["data"][0]["embedding"]
        assert math.isclose(sum(value * value for value in vector), 1.0, rel_tol=1e-3)
        packed = await body_of(
            hosted, request({"input": "import os", "encoding_format": "base64"}, "/v1/embeddings")
        )
        raw = base64.b64decode(packed["data"][0]["embedding"])
        assert struct.unpack(f"<{len(vector)}f", raw) == pytest.approx(vector, abs=1e-5)
        long_one = {"input": "word " * 2_000}
        failed = await named(hosted, request(long_one, "/v1/embeddings"))
        assert isinstance(failed, Failure)
        assert failed.name == "context_overflow"
        cut = await body_of(hosted, request(long_one, "/v1/embeddings", on_overflow="trim"))
        assert cut["usage"]["prompt_tokens"] == 512
    finally:
        await hosted.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def adapted(
    tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[GpuLane]:
    """With two adapters that are good, and two that are not."""
    from engines.tiny_model import make_adapter

    folder = tmp_path_factory.mktemp("adapters")
    folders = {name: str(folder / name) for name in ("wide", "legal", "broken", "missing")}
    make_adapter(folder / "wide", rank=64)
    make_adapter(folder / "legal")
    (make_adapter(folder / "broken") / "adapter_model.safetensors").write_bytes(b"no tensors")
    hosted = GpuLane(settings(tiny_llama, lora=folders), give_up=pytest.fail)
    await hosted.start()
    yield hosted
    await hosted.close()


async def test_a_bad_adapter_refuses_its_own_requests_only(adapted: GpuLane) -> None:
    """Rank 64 is served; a missing folder and weights that cannot be read are refused by name, and
    no engine dies (H2)."""
    engine = adapted._host.engine
    for name in ("broken", "missing"):
        refused = await named(adapted, request(chat(1, model=name)))
        assert isinstance(refused, Failure)
        assert refused.name == "bad_request"
        assert f"model is {name!r}, an adapter that cannot be used" in refused.detail
    assert (await body_of(adapted, request(chat(1, model="wide"))))["model"] == "wide"
    assert adapted._host.engine is engine


async def said(lane: GpuLane, number: int, model: str | None) -> str:
    named_model = {} if model is None else {"model": model}
    answer = await body_of(lane, request(chat(number, max_tokens=16, **named_model)))
    if model is not None:
        assert answer["model"] == model
    return str(answer["choices"][0]["message"]["content"])


async def test_an_adapter_is_chosen_by_the_requests_model(adapted: GpuLane) -> None:
    """The same greedy question, without an adapter and with each: three answers, each under the
    name that was asked for."""
    assert len({await said(adapted, 1, model) for model in (None, "legal", "wide")}) == 3


async def assert_mixed_as_alone(lane: GpuLane, without_adapters: GpuLane) -> None:
    asked = [(number, model) for number in range(4) for model in (None, "legal", "wide", None)]
    alone = {pair: await said(lane, *pair) for pair in sorted(set(asked), key=str)}
    assert await asyncio.gather(*(said(lane, *pair) for pair in asked)) == [
        alone[pair] for pair in asked
    ]
    base = [await said(without_adapters, number, None) for number in range(4)]
    assert [alone[number, None] for number in range(4)] == base


async def test_requests_side_by_side_are_answered_as_when_alone(
    adapted: GpuLane, lane: GpuLane
) -> None:
    """A batch that mixes the base model and two adapters has the answers that each request has by
    itself, and those of the base model are those of an engine without adapters: no request is
    computed with weights that another one asked for."""
    await assert_mixed_as_alone(adapted, lane)


async def test_fewer_places_than_adapters_keep_the_base_model_its_own(
    tiny_llama: Path, tmp_path: Path, lane: GpuLane
) -> None:
    """Likewise where an adapter has each place of the engine, the last one included, and adapters
    change places. (test_serve_gpu.py holds the same for an engine in a process of its own.)"""
    from engines.tiny_model import make_adapter

    folders = {name: str(tmp_path / name) for name in ("legal", "wide")}
    make_adapter(tmp_path / "legal")
    make_adapter(tmp_path / "wide", rank=64)
    crowded = GpuLane(
        settings(tiny_llama, lora=folders, engine={"max_loras": 1}), give_up=pytest.fail
    )
    await crowded.start()
    try:
        await assert_mixed_as_alone(crowded, lane)
    finally:
        await crowded.close()


async def test_each_finish_reason_of_this_vllm_has_its_outcome() -> None:
    """The engine's own list and the table are the same: a release with a new reason fails here,
    before it fails silently."""
    from penstock_workers.lanes.gpu.requests.replies import REASONS

    assert set(REASONS) == {str(reason) for reason in import_module("vllm.v1.engine").FinishReason}


async def test_arguments_are_read_as_vllms_command_line_reads_them(tiny_llama: Path) -> None:
    """`1k` and `false` as text are a thousand and no; what is neither is refused with the
    argument's name."""
    from penstock_workers.errors import BadEngineSettings
    from penstock_workers.lanes.gpu.engine.adapters import Adapters
    from penstock_workers.lanes.gpu.engine.vllm_calls import engine_arguments

    def read(**engine: Any) -> Any:
        given = GpuSettings(model=str(tiny_llama), engine=engine)
        return engine_arguments(given, Adapters({}, None), drain_seconds=1)

    read_all = read(
        max_model_len="8k",
        enable_lora="False",
        enable_prefix_caching="yes",
        gpu_memory_utilization="0.5",
    )
    assert (read_all.max_model_len, read_all.enable_lora, read_all.enable_prefix_caching) == (
        8_000,
        False,
        True,
    )
    assert read_all.gpu_memory_utilization == 0.5
    for wrong in ({"enable_lora": "maybe"}, {"max_model_len": "much"}, {"dtype": "float1"}):
        with pytest.raises(BadEngineSettings, match=f"gpu.engine.{next(iter(wrong))} = "):
            read(**wrong)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def two_places(tiny_llama: Path) -> AsyncIterator[GpuLane]:
    """An engine that runs two requests at once."""
    hosted = GpuLane(settings(tiny_llama, engine={"max_num_seqs": 2}))
    await hosted.start()
    yield hosted
    await hosted.close()


async def test_an_item_in_the_engines_line_does_not_time_out(two_places: GpuLane) -> None:
    """Many items for two places, each with less time than the line takes: all are answered, as only
    computing counts (H6)."""
    clock, body = asyncio.get_running_loop().time, json.dumps(chat(1, max_tokens=24)).encode()

    async def seconds(number: int, limit_s: float) -> float:
        asked = Request("job:doc", "default", "/v1/chat/completions", body, limit_s)
        prepared = [await two_places.prepare(asked) for _ in range(number)]
        began = clock()
        answers = await asyncio.gather(*(two_places.infer(one) for one in prepared))
        assert not [answer for answer in answers if not isinstance(answer, Answer)], limit_s
        return clock() - began

    usual = sorted([await seconds(2, 60.0) for _ in range(3)])[1]
    limit_s = max(3.0, 8 * usual)  # so long may a busy machine keep one from its tokens
    assert await seconds(2 * math.ceil(2 * limit_s / usual), limit_s) > limit_s, (
        "else the test shows nothing"
    )


async def test_urgent_items_overtake_in_the_engine(two_places: GpuLane) -> None:
    """With two places and thirty items in its line, one that is urgent ends before most of them."""
    order: list[str] = []

    async def one(name: str, priority: Any) -> None:
        prepared = await two_places.prepare(request(chat(1, max_tokens=8), priority=priority))
        assert isinstance(await two_places.infer(prepared), Answer)
        order.append(name)

    low = [asyncio.create_task(one(f"low-{number}", "low")) for number in range(30)]
    while not order:  # noqa: ASYNC110 -- until the line has begun to move
        await asyncio.sleep(0.01)
    await one("urgent", "urgent")
    await asyncio.gather(*low)
    assert order.index("urgent") < 15


async def test_a_worker_that_cannot_build_its_engine_anew_ends(
    tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine dies and its model is gone meanwhile: its item ends with that reason, and the
    worker asks to be replaced."""
    monkeypatch.setattr(engine_host, "REBUILD_PAUSES_S", (0.1,) * len(engine_host.REBUILD_PAUSES_S))
    model = tmp_path / "model"
    shutil.copytree(tiny_llama, model)
    gave_up: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    lane = GpuLane(settings(model), give_up=gave_up.set_result)
    await lane.start()
    try:
        shutil.rmtree(model)
        engine: Any = lane._host.engine
        with patch.object(
            engine._llm, "step", side_effect=RuntimeError("CUDA error: out of memory")
        ):
            died = await tried(lane, request(chat()))
        assert isinstance(died, NoAnswer)
        assert died.failure == "engine_died"
        assert "no engine could be built in 4 tries" in await asyncio.wait_for(gave_up, 120)
    finally:
        await lane.close()
