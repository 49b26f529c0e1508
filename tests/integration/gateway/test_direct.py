"""Calls that wait, through a real door, a real fleet and a simulated provider, by OpenAI's own
client."""

from __future__ import annotations

import asyncio
import gc
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest
from doors import asked, door
from fleet import Fleet, until
from metrics_page import read, value
from servers import RedisServer, free_port

from penstock_gateway.direct.open_jobs import close_old
from penstock_gateway.settings import DirectFields, GatewayFields, GatewaySettings
from penstock_ledger import DoorCallStore, JobStore, RedisLedger, Spool, open_database
from penstock_ledger.model import Job, JobState

MODEL = "sim"
SAY: Any = [{"role": "user", "content": "Say something."}]
SERVE = (
    "from penstock_gateway import GatewaySettings, serve_door; serve_door(GatewaySettings.load())"
)


class Served:
    """A fleet of one worker and one control process, with a door in front of it."""

    def __init__(self, fleet: Fleet, url: str, settings: GatewaySettings) -> None:
        self.fleet = fleet
        self.url = url
        self.settings = settings

    def sdk(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0)

    def post(
        self, path: str, body: object, url: str | None = None, **headers: str
    ) -> tuple[int, dict[str, str], Any]:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"content-type": "application/json"} | {
            name.replace("_", "-"): value for name, value in headers.items()
        }
        request = urllib.request.Request((url or self.url) + path, data, headers)
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return (
                    answer.status,
                    {name.lower(): value for name, value in answer.headers.items()},
                    json.load(answer),
                )
        except urllib.error.HTTPError as error:
            return (
                error.code,
                {name.lower(): value for name, value in error.headers.items()},
                json.load(error),
            )

    def chat(self, content: str, **headers: str) -> tuple[int, dict[str, str], Any]:
        body = {"model": MODEL, "messages": [{"role": "user", "content": content}]}
        return self.post("/v1/chat/completions", body, **headers)

    def calls(self) -> int:
        return self.fleet.provider_calls()

    def job(self, headers: dict[str, str]) -> Job:
        return self.fleet.producer.status(headers["x-penstock-job"]).job


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with Fleet(tmp_path_factory.mktemp("direct"), appendonly=False) as fleet:
        fleet.provider.start("--latency-ms", "20", "--latency-sigma", "0")
        fleet.control()
        fleet.ready(fleet.worker(16))
        settings = settings_for(fleet)
        with fleet.explained(), door(settings) as url:
            yield Served(fleet, url, settings)


def settings_for(fleet: Fleet, **direct: Any) -> GatewaySettings:
    fields = GatewayFields(
        port=free_port(), files=str(fleet.folder / "files"), direct=DirectFields(**direct)
    )
    return GatewaySettings(
        database_url=fleet.database_url, redis_url=fleet.store.url, gateway=fields
    )


def test_openais_client_is_answered(served: Served) -> None:
    """Chat, completions and embeddings by the unmodified client, sync and async; each call is a
    result of an open job."""
    client = served.sdk()
    raw = client.chat.completions.with_raw_response.create(
        model=MODEL, messages=SAY, temperature=0, user="me"
    )
    answer = raw.parse()
    assert answer.choices[0].message.content
    assert answer.usage is not None
    assert answer.usage.total_tokens > 0
    job = served.job(dict(raw.headers))
    assert (
        job.spec["priority"],
        job.total,
        job.job_key.startswith("direct/-/chat.completions/default/api/"),
    ) == (
        "urgent",
        None,
        True,
    )
    document = raw.headers["x-penstock-document"]
    assert [
        r.key.doc_id for r in served.fleet.producer.results(job.job_id) if r.key.doc_id == document
    ] == [document]
    assert (
        client.completions.create(model=MODEL, prompt="Once", max_tokens=5).choices[0].text
        is not None
    )
    assert len(client.embeddings.create(model=MODEL, input=["a", "b"]).data) == 2

    async def some() -> list[Any]:
        async with openai.AsyncOpenAI(
            base_url=f"{served.url}/v1", api_key="none", max_retries=0
        ) as client:
            return await asyncio.gather(
                *(
                    client.chat.completions.create(model=MODEL, messages=SAY, seed=n)
                    for n in range(20)
                )
            )

    assert all(one.choices[0].message.content for one in asyncio.run(some()))


def test_the_parameters_that_are_sent_reach_the_provider(served: Served) -> None:
    """A call is one document of its job, with the body that the caller sent."""
    status, headers, answer = served.chat("exactly this")
    assert (status, answer["object"]) == (200, "chat.completion")
    until(lambda: served.calls() > 0, 30, "the provider has written the call down")
    job = served.job(headers)
    assert served.fleet.provider.calls(job)[headers["x-penstock-document"]] == 1


def test_several_prompts_are_answered_in_their_order(served: Served) -> None:
    """/v1/batch/sync: outputs in order, sums of usage, tokens per second; a number of prompts above
    the limit is refused."""
    prompts = [f"Prompt number {n}" for n in range(40)]
    status, headers, told = served.post(
        "/v1/batch/sync", {"model": MODEL, "prompts": prompts, "max_tokens": 16}
    )
    assert status == 200
    assert [one["index"] for one in told["outputs"]] == list(range(40))
    assert all(one["text"] and one["error"] is None for one in told["outputs"])
    assert told["usage"]["completion_tokens"] == sum(
        one["usage"]["completion_tokens"] for one in told["outputs"]
    )
    assert told["counts"] == {"total": 40, "succeeded": 40, "failed": 0}
    assert told["tokens_per_second"] > 0
    results = served.fleet.producer.results(headers["x-penstock-job"])
    by_document = {
        one.key.doc_id: one.json()["choices"][0]["message"]["content"] for one in results
    }
    name = headers["x-penstock-document"]
    assert [one["text"] for one in told["outputs"]] == [
        by_document[f"{name}-{at}"] for at in range(40)
    ]
    status, _, told = served.post("/v1/batch/sync", {"model": MODEL, "prompts": ["a"] * 257})
    assert (status, told["error"]["param"]) == (400, "prompts")


def test_a_key_is_paid_for_once(served: Served) -> None:
    """The same Idempotency-Key and body: the stored answer, without a call.

    Another body: 422. Two at once: one call."""
    first = served.chat("pay once", Idempotency_Key="key-1")
    before = served.calls()
    again = served.chat("pay once", Idempotency_Key="key-1")
    assert (first[0], again[0], first[2]) == (200, 200, again[2])
    assert ("idempotent-replayed" in first[1], again[1]["idempotent-replayed"]) == (False, "true")
    page = read(asked(f"{served.url}/metrics").body.decode())
    assert value(page, "penstock_door_calls_total", outcome="replayed") == 1
    assert value(page, "penstock_door_calls_total", outcome="answered") >= 1
    other = served.chat("something else", Idempotency_Key="key-1")
    assert (other[0], other[2]["error"]["code"]) == (422, "idempotency_key_reused")
    assert served.calls() == before
    with ThreadPoolExecutor(8) as threads:
        statuses = [
            one[0]
            for one in threads.map(
                lambda _: served.chat("at once", Idempotency_Key="key-2"), range(8)
            )
        ]
    assert set(statuses) <= {200, 409}
    assert 200 in statuses
    assert served.calls() == before + 1


def test_a_door_that_dies_in_between_costs_nothing(served: Served) -> None:
    """kill -9 of the door while the provider works: the call repeated at another door gets the
    answer that was paid for."""
    fleet, port = served.fleet, free_port()
    log = (fleet.logs / "door.log").open("wb")
    environment = fleet._environment(
        {"gateway__port": port, "gateway__files": fleet.folder / "files"}
    )
    process = subprocess.Popen(
        [sys.executable, "-c", SERVE], env=environment, stdout=log, stderr=log
    )
    try:
        url = f"http://127.0.0.1:{port}"
        until(lambda: _listens(url), 30, "the second door listens")
        fleet.provider.tell(latency_ms=700)
        before = served.calls()
        body = {"model": MODEL, "messages": SAY}
        with ThreadPoolExecutor(1) as thread:
            lost = thread.submit(
                served.post, "/v1/chat/completions", body, url, Idempotency_Key="key-kill"
            )
            until(lambda: served.calls() == before + 1, 30, "the call is at the provider")
            os.kill(process.pid, signal.SIGKILL)
            with pytest.raises((OSError, http.client.HTTPException), match=""):
                lost.result()
    finally:
        process.kill()
        process.wait()
        log.close()
        fleet.provider.tell(latency_ms=20)
    said = served.post("/v1/chat/completions", body, Idempotency_Key="key-kill")
    assert said[0] in (200, 409)
    until(
        lambda: served.post("/v1/chat/completions", body, Idempotency_Key="key-kill")[0] == 200,
        30,
        "the answer is there",
    )
    assert (
        served.post("/v1/chat/completions", body, Idempotency_Key="key-kill")[1][
            "idempotent-replayed"
        ]
        == "true"
    )
    assert served.calls() == before + 1


def test_a_call_that_has_begun_outlives_its_caller(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    """After its time the caller gets 504; what is paid for is kept, and is the answer to the key
    from then on. The door logs no error of it."""
    served.fleet.provider.tell(latency_ms=900)
    try:
        status, headers, told = served.chat(
            "late", X_Penstock_Timeout="0.5", Idempotency_Key="key-late"
        )
        assert (status, told["error"]["code"], headers["x-should-retry"]) == (
            504,
            "request_timeout",
            "false",
        )
        assert served.chat("late", Idempotency_Key="key-late")[0] == 409
        until(
            lambda: served.chat("late", Idempotency_Key="key-late")[0] == 200,
            30,
            "the answer is there",
        )
    finally:
        served.fleet.provider.tell(latency_ms=20)
    gc.collect()  # which is when asyncio logs what was never asked for
    assert "never retrieved" not in caplog.text


def test_a_call_that_no_worker_began_is_not_paid_for(served: Served) -> None:
    """While the only worker stands still a call runs out of time, ends as the dead letter
    `timed_out`, and is never made."""
    worker = next(one for one in served.fleet.processes if one.name.startswith("api"))
    served.chat("warm up")
    before = served.calls()
    worker.send(signal.SIGSTOP)
    try:
        status, headers, told = served.chat(
            "never", X_Penstock_Timeout="0.6", Idempotency_Key="key-never"
        )
    finally:
        worker.send(signal.SIGCONT)
    assert (status, told["error"]["code"]) == (504, "request_timeout")
    letters = served.fleet.producer.dead_letters(headers["x-penstock-job"], reason="timed_out")
    assert headers["x-penstock-document"] in [one.key.doc_id for one in letters]
    assert served.chat("never", Idempotency_Key="key-never")[0] == 200, "its key stands for nothing"
    assert served.calls() == before + 1


def test_a_caller_that_hangs_up_is_noticed(served: Served) -> None:
    """A connection that ends while the call waits: what no worker has begun ends as
    `caller_gone`."""
    worker = next(one for one in served.fleet.processes if one.name.startswith("api"))
    _, headers, _ = served.chat("which job")
    job_id = headers["x-penstock-job"]
    worker.send(signal.SIGSTOP)
    try:
        port = served.settings.gateway.port
        body = json.dumps({"model": MODEL, "messages": SAY}).encode()
        with socket.create_connection(("127.0.0.1", port)) as connection:
            lines = (
                "POST /v1/chat/completions HTTP/1.1",
                "host: 127.0.0.1",
                "content-type: application/json",
                f"content-length: {len(body)}",
            )
            before = spooled(served, job_id)
            connection.sendall("\r\n".join((*lines, "", "")).encode() + body)
            until(lambda: spooled(served, job_id) > before, 30, "the call is a document of its job")
        gone = served.fleet.producer
        until(
            lambda: any(gone.dead_letters(job_id, reason="caller_gone")),
            30,
            "the dead letter of a caller that is gone",
        )
    finally:
        worker.send(signal.SIGCONT)


def spooled(served: Served, job_id: str) -> int:
    """Documents that were pushed into a job of calls."""
    database = open_database(served.fleet.database_url)
    try:
        return Spool(database).count(job_id)
    finally:
        database.close()


def test_too_many_calls_are_refused_at_once(served: Served) -> None:
    """Above the number that may wait a call is 429 with a time to come back; without a worker or a
    store it is 503."""
    served.fleet.provider.tell(latency_ms=600)
    try:
        with (
            door(settings_for(served.fleet, waiting=3, tenant_waiting=2)) as url,
            ThreadPoolExecutor(6) as threads,
        ):
            body = {"model": MODEL, "messages": SAY}
            got = list(
                threads.map(lambda _: served.post("/v1/chat/completions", body, url), range(6))
            )
    finally:
        served.fleet.provider.tell(latency_ms=20)
    refused = [one for one in got if one[0] == 429]
    assert {one[0] for one in got} == {200, 429}
    assert all(
        int(one[1]["retry-after"]) >= 1 and one[2]["error"]["code"] == "rate_limit_exceeded"
        for one in refused
    )
    with door(settings_for(served.fleet, lanes=("gpu",))) as url:
        status, headers, told = served.post("/v1/chat/completions", body, url)
        assert (status, told["error"]["code"], "retry-after" in headers) == (503, "no_worker", True)
    nowhere = settings_for(served.fleet).model_copy(update={"redis_url": "redis://127.0.0.1:1/0"})
    with door(nowhere) as url:
        status, headers, told = served.post("/v1/chat/completions", body, url)
        assert (status, told["error"]["code"], "retry-after" in headers) == (
            503,
            "service_unavailable",
            True,
        )


def test_where_all_workers_ask_by_batches_a_call_that_waits_is_refused_for_good(
    served: Served, redis_server: RedisServer
) -> None:
    """Trying again changes nothing: the SDK does not, and the words say where the request can
    go."""
    RedisLedger(redis_server.client(), "epoch-1").heartbeat("w1", {"lane": "batch"})
    with door(settings_for(served.fleet).model_copy(update={"redis_url": redis_server.url})) as url:
        status, headers, told = served.post(
            "/v1/chat/completions", {"model": MODEL, "messages": SAY}, url
        )
    assert (status, told["error"]["code"], headers["x-should-retry"]) == (503, "no_worker", "false")
    assert "all workers are of the lane batch" in told["error"]["message"]
    assert "POST /v1/batches" in told["error"]["message"]


def test_refusals_of_the_provider_come_back_as_they_were(served: Served) -> None:
    """A dead letter has the provider's status and words where it had some; a provider that fails is
    502."""
    served.fleet.provider.tell(poison_rate=1.0)
    try:
        with pytest.raises(openai.BadRequestError) as refused:
            served.sdk().chat.completions.create(model=MODEL, messages=SAY)
        assert refused.value.message
        outputs = served.post("/v1/batch/sync", {"model": MODEL, "prompts": ["a", "b"]})[2][
            "outputs"
        ]
        assert [one["error"]["status"] for one in outputs] == [400, 400]
    finally:
        served.fleet.provider.tell(poison_rate=0.0)
    served.fleet.provider.tell(error_rate=1.0)
    try:
        status, _, told = served.chat("fail", Idempotency_Key="key-fail")
        assert (status, told["error"]["type"]) == (502, "server_error")
    finally:
        served.fleet.provider.tell(error_rate=0.0)
    assert served.chat("fail", Idempotency_Key="key-fail")[0] == 200, (
        "a failure that may be over is not kept for its key"
    )


NESTED = {
    "role": "user",
    "content": [{"type": "text", "text": "x", "user_config": {"api_base": "http://evil"}}],
}
BAD: list[tuple[dict[str, Any] | bytes, str | None, str]] = [
    ({"messages": []}, "messages", "invalid_value"),
    ({"messages": [{"role": "wizard", "content": "x"}]}, "messages[0].role", "invalid_value"),
    ({"messages": [{"role": "user", "content": None}]}, "messages[0].content", "invalid_type"),
    ({"messages": "x"}, "messages", "invalid_value"),
    ({"max_tokens": -1}, "max_tokens", "invalid_value"),
    ({"max_tokens": 10**9}, "max_tokens", "invalid_value"),
    ({"max_tokens": "10"}, "max_tokens", "invalid_type"),
    ({"max_tokens": True}, "max_tokens", "invalid_type"),
    ({"max_completion_tokens": 10**9}, "max_completion_tokens", "invalid_value"),
    ({"n": 10**6}, "n", "invalid_value"),
    ({"n": 9}, "n", "invalid_value"),
    ({"temperature": 3}, "temperature", "invalid_value"),
    ({"tools": [{"type": "function"}] * 129}, "tools", "invalid_value"),
    ({"stream": 1}, "stream", "invalid_type"),
    ({"stream_options": {"include_usage": True}}, "stream_options", "invalid_value"),
    ({"no_such_field": 1}, "no_such_field", "unsupported_parameter"),
    ({"api_base": "http://evil"}, "api_base", "unsupported_parameter"),
    ({"base_url": "http://evil"}, "base_url", "unsupported_parameter"),
    ({"user_config": {}}, "user_config", "unsupported_parameter"),
    ({"extra_headers": {"a": "b"}}, "extra_headers", "unsupported_parameter"),
    ({"extra_body": {"api_key": "x"}}, "extra_body", "unsupported_parameter"),
    ({"api_key": "sk-x"}, "api_key", "unsupported_parameter"),
    ({"messages": [NESTED]}, "messages[0].content[0].user_config", "unsupported_parameter"),
    (
        {"tools": [{"type": "function", "base_url": "http://evil"}]},
        "tools[0].base_url",
        "unsupported_parameter",
    ),
    ({"metadata": {"a": 1}}, "metadata.a", "invalid_type"),
    ({"metadata": {str(n): "x" for n in range(17)}}, "metadata", "invalid_value"),
    ({"model": None}, "model", "missing_required_parameter"),
    ({"model": 7}, "model", "invalid_value"),
    (b'{"model": "sim", "temperature": NaN, "messages": []}', None, "invalid_json"),
    (b"[1]", None, "invalid_type"),
    (b"{", None, "invalid_json"),
]


@pytest.mark.parametrize(("given", "param", "code"), BAD, ids=lambda value: str(value)[:40])
def test_a_bad_body_is_refused_by_its_field(
    served: Served, given: dict[str, Any] | bytes, param: str, code: str
) -> None:
    """What is wrong, unknown, or could send the request elsewhere is 400 with the name of the
    field, before anything is paid."""
    body = given if isinstance(given, bytes) else {"model": MODEL, "messages": SAY, **given}
    status, _, told = served.post("/v1/chat/completions", body)
    assert (status, told["error"]["param"], told["error"]["code"]) == (400, param, code)
    assert told["error"]["message"]


def test_other_endpoints_take_their_own_fields_only(served: Served) -> None:
    """Embeddings and completions have lists of their own; metadata, user and schemas of tools
    pass."""
    assert served.post("/v1/embeddings", {"model": MODEL, "input": []})[0] == 400
    assert (
        served.post("/v1/embeddings", {"model": MODEL, "input": "x", "temperature": 1})[2]["error"][
            "param"
        ]
        == "temperature"
    )
    assert (
        served.post("/v1/completions", {"model": MODEL, "prompt": "x", "messages": SAY})[2][
            "error"
        ]["param"]
        == "messages"
    )
    assert served.post("/v1/chat/completions", b"a=b", content_type="text/plain")[0] == 415
    tool = {
        "type": "function",
        "function": {"name": "f", "parameters": {"properties": {"base_url": {"type": "string"}}}},
    }
    body = {
        "model": MODEL,
        "messages": SAY,
        "user": "u",
        "metadata": {"a": "b"},
        "tools": [tool],
        "stream": False,
    }
    assert served.post("/v1/chat/completions", body)[0] == 200
    for wrong in ("-1", "nan", "soon", "1e9"):
        assert (
            served.chat("x", X_Penstock_Timeout=wrong)[2]["error"]["param"] == "X-Penstock-Timeout"
        )


def test_jobs_of_hours_that_are_over_complete(served: Served) -> None:
    """A job of calls is closed after its hour, completes like any other, and the next call opens
    another one."""
    _, headers, _ = served.chat("before the end")
    before = served.job(headers)
    database = open_database(served.fleet.database_url)
    try:
        assert close_old(DoorCallStore(database), JobStore(database), grace_s=-7_200) >= 1
    finally:
        database.close()
    served.fleet.wait_for(before, JobState.COMPLETED, 15)
    status, headers, _ = served.chat("after it")
    assert status == 200
    assert served.job(headers).job_id != before.job_id
    assert "direct/-/chat.completions" in served.fleet.penstock("jobs")


def _listens(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/livez", timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
