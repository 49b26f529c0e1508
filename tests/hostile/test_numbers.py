"""Numbers that fit nowhere: in each option of a job, in each field that is a number, and inside of
what is passed on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from doors import Answer, asked, door, door_settings
from servers import RedisServer

from penstock_producer import JobSpec

HUGE = (10**30, 2**64, -(2**63) - 1, 10**400, 1e308)
JOB: dict[str, Any] = {"open": True, "model": "m", "prompt": "{text}"}
CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
NESTED = ("params", "response_schema", "truncate", "examples", "param_fields")


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory, _shared_redis: RedisServer) -> Iterator[str]:
    settings = door_settings(
        tmp_path_factory.mktemp("numbers"),
        _shared_redis.url,
        direct={"timeout_s": 0.01, "max_timeout_s": 0.02},
    )
    with door(settings) as url:
        yield url


@pytest.fixture(scope="module")
def job(url: str) -> str:
    return f"/v1/jobs/{told(url, 'POST', '/v1/jobs', JOB).content['id']}"


def told(url: str, method: str, path: str, body: Any) -> Answer:
    return asked(
        f"{url}{path}", json.dumps(body).encode(), method=method, content_type="application/json"
    )


@pytest.mark.parametrize("field", [*JobSpec.model_fields, "sample", "job"])
def test_an_option_of_a_job(url: str, field: str) -> None:
    """Taken or refused with the field's name, and never a fault of the server."""
    for number in HUGE:
        values = [
            {"seed": number, "x.a": {"b": [number]}},
            [{"input": {"text": number}, "output": "x"}],
        ]
        for value in (number, *(values if field in NESTED else ())):
            answer = told(url, "POST", "/v1/jobs", JOB | {field: value})
            assert answer.status in (201, 400, 403), (field, value, answer.body)


@pytest.mark.parametrize("field", ["max_bad_rows", "budget_usd", "deadline_s", "timeout_s"])
def test_an_option_without_measure_is_refused_by_name(url: str, field: str) -> None:
    """400 with its pointer: what no column, clock or script holds is never stored."""
    for number in (10**30, 2**64) if field == "max_bad_rows" else (10**30, 1e308):
        answer = told(url, "POST", "/v1/jobs", JOB | {field: number})
        assert (answer.status, answer.content["param"]) == (400, field)


@pytest.mark.parametrize("number", HUGE)
def test_numbers_in_other_requests(url: str, job: str, number: float) -> None:
    """Limits, documents, calls that wait, batches and keys: no answer of 500."""
    key = {"name": "a", "scopes": ["read"]}
    batch = {
        "input_file_id": "file-x",
        "endpoint": "/v1/chat/completions",
        "completion_window": "24h",
    }
    message = {"custom_id": "a", "params": {**CHAT, "max_tokens": number}}
    requests: list[tuple[str, str, dict[str, Any]]] = [
        ("PATCH", job, {"budget_usd": number}),
        ("PATCH", job, {"deadline_s": number}),
        (
            "POST",
            f"{job}/items",
            {"id": number, "document": {"text": number, "more": [{"a": number}]}},
        ),
        ("POST", "/v1/chat/completions", {**CHAT, "max_tokens": number}),
        ("POST", "/v1/chat/completions", {**CHAT, "seed": number, "logit_bias": {"a": number}}),
        ("POST", "/v1/batch/sync", {"model": "m", "prompts": ["a"], "n": number}),
        ("POST", "/v1/messages", {**CHAT, "max_tokens": number}),
        (
            "POST",
            "/v1/messages",
            {**CHAT, "thinking": {"type": "enabled", "budget_tokens": number}, "max_tokens": 5},
        ),
        ("POST", "/v1/responses", {"model": "m", "input": "x", "max_output_tokens": number}),
        ("POST", "/v1/responses", {"model": "m", "input": [{"role": number}]}),
        (
            "POST",
            "/v1/batches",
            {**batch, "output_expires_after": {"anchor": "created_at", "seconds": number}},
        ),
        ("POST", "/v1/batches", {**batch, "metadata": {"penstock.budget_usd": str(number)}}),
        ("POST", "/v1/messages/batches", {"requests": [message]}),
        *(
            ("POST", "/v1/keys", {**key, name: number})
            for name in ("expires_in_s", "requests_per_minute", "budget_usd")
        ),
    ]
    for method, path, body in requests:
        answer = told(url, method, path, body)
        assert answer.status < 500 or answer.status in (503, 504), (path, body, answer.body)
