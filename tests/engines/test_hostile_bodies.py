"""Hostile request bodies, drawn over every field that the lanes read: no engine dies of one, and
none is answered falsely."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from engines.gpu_worker import WORK_S, engine_of, gpu_worker
from engines.hostile import Body, chats, completions, drawn, embeddings, every_constraint, scorings
from fleet import Fleet, Process

from penstock_ledger.model import Job, JobState
from penstock_producer.job.spec import JobSpec
from penstock_producer.sources.forms.row_forms import BatchLines
from penstock_producer.sources.forms.strict_json import RowFault, parse_object
from penstock_workers.item.failures import Failure, Reply, name_failure
from penstock_workers.item.lane import Lane, Request
from penstock_workers.lanes.embed.embed_lane import EmbedLane
from penstock_workers.lanes.embed.settings import EmbedSettings
from penstock_workers.lanes.gpu.gpu_lane import GpuLane
from penstock_workers.lanes.gpu.settings import GpuSettings
from penstock_workers.settings import WorkerSettings

BODY_S = 60.0  # for one body, with all others beside it on two cores
REFUSALS = {"bad_request", "context_overflow", "not_found"}  # said at once, never tried again
# The model has random weights: an answer may be all special tokens, and then it has no text.
NO_ANSWER = {"empty_answer"}
# Prompts computed in pieces, together with a seed, end this CPU build of vLLM: that item has a test
# of its own.
WHOLE_PROMPTS = {"enable_chunked_prefill": False}


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    with Fleet(tmp_path) as running:
        yield running


def accepted(endpoint: str, bodies: list[Body]) -> dict[str, Body]:
    """Those that a producer takes, by document; what it refuses reaches no lane."""
    lines = BatchLines(JobSpec.from_json({"lane": "gpu", "endpoint": endpoint}))
    taken: dict[str, Body] = {}
    for body in bodies:
        with contextlib.suppress(RowFault):
            lines.request(parse_object(json.dumps(body).encode(), ()))
            taken[f"doc-{len(taken)}"] = body
    return taken


def submit(fleet: Fleet, endpoint: str, bodies: dict[str, Body], model: Path) -> Job:
    source = fleet.folder / f"hostile{endpoint.replace('/', '-')}.jsonl"
    lines = (
        {"custom_id": name, "method": "POST", "url": endpoint, "body": body}
        for name, body in bodies.items()
    )
    source.write_text("".join(json.dumps(line) + "\n" for line in lines))
    spec = {"lane": "gpu", "endpoint": endpoint, "model": str(model), "stop_at_dead": "off"}
    return fleet.producer.submit(source, spec)


def choices_of(answer: Body, asked: Body) -> list[str]:
    """The texts of an answer, after a look at whether it is one."""
    chosen = answer["choices"]
    assert [choice["index"] for choice in chosen] == list(range(asked.get("n") or 1))
    assert {choice["finish_reason"] for choice in chosen} <= {"stop", "length"}
    texts = [
        choice["text"] if "text" in choice else choice["message"]["content"] for choice in chosen
    ]
    assert any(texts) or asked.get("ignore_eos"), "a success without an answer"
    most = asked.get("max_completion_tokens") or asked.get("max_tokens")
    assert most is None or answer["usage"]["completion_tokens"] <= most * len(chosen)
    if _wants_json(asked):
        for choice, text in zip(chosen, texts, strict=True):
            assert choice["finish_reason"] == "length" or json.loads(text) is not ..., text
    return texts


def _wants_json(asked: Body) -> bool:
    """An answer that has ended must be JSON, unless the request itself cut it at one of its
    stops."""
    if (
        asked.get("stop")
        or asked.get("stop_token_ids")
        or asked.get("skip_special_tokens") is False
    ):
        return False
    if asked.get("structured_outputs"):
        return bool(asked["structured_outputs"].get("json"))
    return (asked.get("response_format") or {}).get("type") in ("json_object", "json_schema")


def test_no_hostile_body_ends_an_engine_or_is_a_false_success(
    fleet: Fleet, tiny_llama: Path
) -> None:
    """500 documents through a whole fleet: each has one outcome, soon, and the engine at the end is
    the first one."""
    bodies = {
        "/v1/chat/completions": accepted(
            "/v1/chat/completions", [*every_constraint(), *drawn(chats(), 290)]
        ),
        "/v1/completions": accepted("/v1/completions", drawn(completions(), 180)),
        "/v1/embeddings": accepted("/v1/embeddings", drawn(embeddings(), 40)),
    }
    assert sum(map(len, bodies.values())) >= 500
    fleet.control()
    worker = gpu_worker(fleet, tiny_llama, in_process=False, engine=WHOLE_PROMPTS)
    engine = engine_of(worker)
    jobs = {
        endpoint: submit(fleet, endpoint, asked, tiny_llama) for endpoint, asked in bodies.items()
    }
    for job in jobs.values():
        fleet.wait_for(job, JobState.COMPLETED, WORK_S)
    answered = sum(checked(fleet, job, bodies[endpoint]) for endpoint, job in jobs.items())
    assert answered > 100, "else the bodies say little of the engine"
    assert engine_of(worker) == engine
    untouched(worker)
    good = {
        "doc-0": {
            "messages": [{"role": "user", "content": "Name a topic."}],
            "max_tokens": 4,
            "ignore_eos": True,
        }
    }
    last = submit(fleet, "/v1/chat/completions", good, tiny_llama)
    fleet.wait_for(last, JobState.COMPLETED, WORK_S)
    assert fleet.account(last, 1).results == {"doc-0"}


def checked(fleet: Fleet, job: Job, asked: dict[str, Body]) -> int:
    """How many documents of the job have an answer."""
    account = fleet.account(job, asked.keys())
    strange = {
        name: (why, asked[name])
        for name, why in account.dead.items()
        if why not in REFUSALS | NO_ANSWER
        and not (why == "engine_failed" and contradicts_itself(asked[name]))
    }
    assert not strange
    for result in fleet.producer.results(job.job_id):
        assert choices_of(json.loads(result.body), asked[result.key.doc_id])
        assert result.latency_ms < BODY_S * 1_000
        assert result.attempts <= 2, (
            "an answer without text is tried once more, and nothing else is"
        )
    return len(account.results)


def contradicts_itself(asked: Body) -> bool:
    """Its schema wants what it forbids, so that no token may come: the engine gives up such a
    request, and answers others."""
    constrained = asked.get("response_format") or asked.get("structured_outputs")
    return bool(constrained) and bool(asked.get("bad_words") or asked.get("min_tokens"))


def untouched(worker: Process) -> None:
    log = worker.log.read_text()
    for words in ("the engine died", "unexpected error", "it hangs", "Traceback"):
        assert words not in log, log[max(0, log.find(words) - 500) :][:3_000]


# -- beyond what a producer takes: a hook of the job may make any bytes of a body ------------------

GOOD = b'{"messages":[{"role":"user","content":"a"}],"max_tokens":2,"ignore_eos":true'
NESTED = b'{"a":' * 400 + b"1" + b"}" * 400
RAW = [
    b"",
    b"null",
    b"[]",
    b"1e999",
    b"{",
    b'"text"',
    b"\xff\xfe",
    b"NaN",
    b'{"messages":',
    b"{}",
    b"\0",
    GOOD + b',"temperature":NaN}',
    GOOD + b',"temperature":1e999}',
    GOOD + b',"seed":' + b"9" * 400 + b"}",
    GOOD + b',"user":"\\ud800"}',
    GOOD + b',"stop":"\\u0000"}',
    GOOD + b',"stream":true}',
    GOOD + b',"model":""}',
    GOOD + b',"model":"gpt-4o"}',
    GOOD + b',"model":["m"]}',
    GOOD + b',"model":{"a":1}}',
    GOOD + b',"max_tokens":null}',
    GOOD + b',"metadata":' + NESTED + b"}",
    GOOD + b',"temperature":' + NESTED + b"}",
    GOOD + b',"no_such_field":' + NESTED + b"}",
    GOOD + b',"logit_bias":{"1":' + NESTED + b"}}",
    GOOD + b',"chat_template_kwargs":{"a":' + NESTED + b"}}",
    GOOD + b',"structured_outputs":{"json":' + NESTED + b"}}",
    GOOD + b',"response_format":{"type":' + NESTED + b"}}",
    GOOD + b',"response_format":{"type":"json_schema","json_schema":{"schema":' + NESTED + b"}}}",
    b'{"messages":[{"role":"user","content":' + NESTED + b"}]}",
    b'{"messages":' + b"[" * 500 + b"]" * 500 + b"}",
    b'{"prompt":' + b"[" * 500 + b"]" * 500 + b"}",
    b'{"input":' + b"[" * 500 + b"]" * 500 + b"}",
]
ENDPOINTS = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    "/v1/score",
    "/classify",
    "/v1/responses",
    "",
    "/",
)


def asks(bodies: list[Body], *endpoints: str) -> list[Request]:
    """One request for each body, and each raw one at each endpoint; texts that are too long fail or
    are cut in turn."""
    sent = [
        (json.dumps(body).encode(), endpoints[place % len(endpoints)])
        for place, body in enumerate(bodies)
    ]
    sent += [(raw, endpoint) for raw in RAW for endpoint in endpoints]
    overflows = ("fail", "trim", "shrink")
    return [
        Request(
            f"job:doc-{place}",
            "default",
            endpoint,
            raw,
            BODY_S,
            on_overflow=overflows[place % 3],  # type: ignore[arg-type]  # one of the three
        )
        for place, (raw, endpoint) in enumerate(sent)
    ]


async def outcomes(lane: Lane, requests: list[Request]) -> list[Failure | Reply]:
    """What each comes to, twenty at once; whatever a lane raises is raised here, and none takes
    longer than ``BODY_S``."""
    places = asyncio.Semaphore(20)

    async def one(request: Request) -> Failure | Reply:
        async with places:
            began = time.monotonic()
            try:
                prepared = await lane.prepare(request)
                came = prepared.refused or await lane.infer(prepared)
                return name_failure(came, 0.0)
            except Exception as error:
                raise AssertionError(
                    f"{request.endpoint} {request.body[:300]!r}: {error!r}"
                ) from error
            finally:
                assert time.monotonic() - began < BODY_S, request.body[:300]

    return list(await asyncio.gather(*map(one, requests)))


def counted(found: list[Failure | Reply], requests: list[Request]) -> Counter[str]:
    wrong = [
        (one.name, one.detail, asked.endpoint, asked.body[:300])
        for one, asked in zip(found, requests, strict=True)
        if isinstance(one, Failure) and one.name not in REFUSALS | NO_ANSWER
    ]
    assert not wrong
    return Counter(one.name if isinstance(one, Failure) else "answered" for one in found)


@pytest.fixture
def arguments(tiny_llama: Path) -> dict[str, Any]:
    engine = {
        "enforce_eager": True,
        "dtype": "bfloat16",
        "gpu_memory_utilization": 0.5,
        "max_model_len": 512,
    }
    return {
        "in_process": True,
        "max_num_seqs": 16,
        "max_num_batched_tokens": 2048,
        "engine": engine | WHOLE_PROMPTS,
    }


async def test_a_hosted_engine_outlives_any_bytes(
    tiny_llama: Path, arguments: dict[str, Any]
) -> None:
    """What no producer would take, at every endpoint: refused, and the same engine answers the next
    request."""
    lane = GpuLane(
        WorkerSettings(lane="gpu", gpu=GpuSettings(model=str(tiny_llama), **arguments)),
        give_up=pytest.fail,
    )
    await lane.start()
    try:
        engine = lane._host.engine
        requests = asks([], *ENDPOINTS)
        found = counted(await outcomes(lane, requests), requests)
        assert found["bad_request"] > 200
        assert lane._host.engine is engine
        last = asks(
            [{"messages": [{"role": "user", "content": "a"}], "max_tokens": 2, "ignore_eos": True}],
            ENDPOINTS[0],
        )
        assert counted(await outcomes(lane, last[:1]), last[:1]) == {"answered": 1}
    finally:
        await lane.close()


async def test_a_pooling_engine_outlives_hostile_bodies(
    tiny_bert: Path, arguments: dict[str, Any]
) -> None:
    """Token ids, sizes and forms of every kind: a vector, or a refusal, and the same engine at the
    end."""
    engine = arguments["engine"] | {"runner": "pooling", "dtype": "float32"}
    gpu = GpuSettings(model=str(tiny_bert), **(arguments | {"engine": engine}))
    lane = GpuLane(WorkerSettings(lane="gpu", gpu=gpu), give_up=pytest.fail)
    await lane.start()
    try:
        first = lane._host.engine
        requests = asks(drawn(embeddings(), 150), "/v1/embeddings")
        found = await outcomes(lane, requests)
        assert counted(found, requests)["answered"] > 30
        for reply in found:
            if isinstance(reply, Reply):
                assert json.loads(reply.body)["data"][0]["embedding"]
        assert lane._host.engine is first
    finally:
        await lane.close()


async def test_an_encoder_outlives_hostile_bodies(tiny_ranker: Path) -> None:
    """Scores, ranks and classes: an answer for each text that was given, or a refusal."""
    lane = EmbedLane(EmbedSettings(model=str(tiny_ranker), device="cpu"), give_up=pytest.fail)
    await lane.start()
    try:
        requests = asks(
            drawn(scorings(), 200), "/v1/score", "/v1/rerank", "/classify", "/v1/embeddings"
        )
        found = await outcomes(lane, requests)
        assert counted(found, requests)["answered"] > 30
        for reply in found:
            if isinstance(reply, Reply):
                answer = json.loads(reply.body)
                assert answer.get("data") or answer.get("results")
    finally:
        await lane.close()
