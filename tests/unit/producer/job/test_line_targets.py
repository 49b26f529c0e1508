"""What becomes of a line that names another endpoint than its job."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock_producer.job.request_body import url_refusal
from penstock_producer.job.spec import JobSpec
from penstock_producer.sources.forms.row_forms import form_of
from penstock_producer.sources.forms.strict_json import RowFault
from penstock_workers.lanes.batch.apis.openai import SHAPES, OpenAIBatches
from penstock_workers.lanes.batch.apis.provider import BadLine

CHAT, EMBEDDINGS = "/v1/chat/completions", "/v1/embeddings"
SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}


def read(spec: dict[str, Any], url: str, body: dict[str, Any]) -> tuple[dict[str, Any], str | None]:
    line = {"custom_id": "a", "method": "POST", "url": url, "body": body}
    _, made, endpoint = form_of(JobSpec.from_json(spec)).read(line)
    return json.loads(made), endpoint


def test_a_line_has_those_of_the_jobs_parameters_that_its_endpoint_knows() -> None:
    """And the job's model where it names none; what it says itself counts."""
    spec = {"model": "m", "params": {"temperature": 0.5, "user": "u", "max_tokens": 7}}
    assert read(spec, EMBEDDINGS, {"input": "x"}) == (
        {"model": "m", "user": "u", "input": "x"},
        EMBEDDINGS,
    )
    assert read(spec, EMBEDDINGS, {"input": "x", "model": "e"})[0]["model"] == "e"
    assert read(spec, CHAT, {"messages": ["x"]})[1] is None
    form = {"model": "m", "response_format": "json_object"}
    assert "response_format" not in read(form, EMBEDDINGS, {"input": "x"})[0]


@pytest.mark.parametrize(
    ("spec", "url", "why"),
    [
        ({}, "/v1/files", "not one that lines of this job may name"),
        ({}, "/v1/rerank", "not one that lines of this job may name"),
        ({"endpoint": EMBEDDINGS}, "/v1/messages", "not one that lines of this job may name"),
        (
            {"endpoint": "/v1/messages", "params": {"max_tokens": 5}},
            EMBEDDINGS,
            "not one that lines of this job may name",
        ),
        ({"endpoint": EMBEDDINGS, "lane": "embed"}, CHAT, "Lane embed does not answer"),
        (
            {"lane": "api", "lanes": ["api", "embed"], "endpoint": EMBEDDINGS},
            CHAT,
            "Lane embed does not answer",
        ),
        ({"response_schema": SCHEMA}, EMBEDDINGS, "have no text to check"),
    ],
)
def test_what_no_line_may_name_is_refused_by_its_name(
    spec: dict[str, Any], url: str, why: str
) -> None:
    """The fault has the field, the value and what to do."""
    with pytest.raises(RowFault) as raised:
        read({"model": "m", **spec}, url, {"input": "x"})
    assert raised.value.code == "invalid_url"
    assert why in raised.value.message
    assert (raised.value.field, url in raised.value.value, bool(raised.value.fix)) == (
        "url",
        True,
        True,
    )


def test_a_line_for_another_api_is_translated() -> None:
    """A message in a job for chats, and a response in one for messages; a response in a job for
    chats is one, as a provider of OpenAI's kind answers both."""
    line = {"max_tokens": 3, "messages": [{"role": "user", "content": "Hi"}]}
    body, endpoint = read({"model": "m"}, "/v1/messages", {**line, "stop_sequences": ["E"]})
    assert (body, endpoint) == ({"model": "m", **line, "stop": ["E"]}, None)
    made: dict[str, Any] = {"endpoint": "/v1/messages", "model": "m", "params": {"max_tokens": 3}}
    assert read(made, "/v1/responses", {"input": "Hi"}) == ({"model": "m", **line}, None)
    assert read({"model": "m"}, "/v1/responses", {"input": "Hi"})[1] == "/v1/responses"


def test_a_schema_and_texts_go_together() -> None:
    """Lines for another endpoint whose answers have a text are checked as the others are."""
    assert (
        url_refusal("/v1/responses", JobSpec.from_json({"model": "m", "response_schema": SCHEMA}))
        is None
    )


def test_a_batch_api_that_takes_one_endpoint_refuses_the_others() -> None:
    """Groq's takes chat: the line is a dead letter, and the batch goes without it."""
    batches = OpenAIBatches(None, SHAPES["groq"])  # type: ignore[arg-type]  # nothing is sent
    assert b'"custom_id":"a"' in batches.line("a", CHAT, b'{"model":"m"}')
    with pytest.raises(
        BadLine, match=r"take requests to /v1/chat/completions, and this one is for /v1/embeddings"
    ):
        batches.line("a", EMBEDDINGS, b'{"model":"m"}')
