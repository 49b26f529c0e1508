"""Requests of OpenAI's chat become requests of Bedrock's Converse, or are refused."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from pydantic import ValidationError

from penstock_producer import SpecError
from penstock_producer.accepting.estimates import output_asked
from penstock_producer.dialects.answers import bedrocks_usage, chat_of
from penstock_producer.dialects.pieces import answer_text
from penstock_producer.dialects.to_bedrock import translated
from penstock_producer.job.endpoints import CONVERSE, converse_path
from penstock_producer.job.provider_facts import ProviderFacts
from penstock_producer.job.request_body import nested_of, prompt_bodies
from penstock_producer.job.spec import JobSpec
from penstock_producer.prompts.messages import BadMessages

HELLO = {"role": "user", "content": "Hello"}
PIXEL = "data:image/png;base64,iVBORw0KGgo="


def test_a_conversation_with_tools_and_images_is_translated() -> None:
    """Results of tools that were used together are one message."""
    call = {"type": "function", "function": {"name": "look", "arguments": '{"at": 1}'}}
    told = translated(
        {
            "model": "m",
            "messages": [
                {"role": "system", "content": "Be brief."},
                {
                    "role": "user",
                    "content": [
                        {"type": "text", "text": "What is it?"},
                        {"type": "image_url", "image_url": {"url": PIXEL}},
                    ],
                },
                {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [{"id": "a", **call}, {"id": "b", **call}],
                },
                {"role": "tool", "tool_call_id": "a", "content": "red"},
                {"role": "tool", "tool_call_id": "b", "content": "blue"},
            ],
            "max_tokens": 9,
            "top_p": 0.5,
            "stop": "end",
            "tools": [{"type": "function", "function": {"name": "look"}}],
            "tool_choice": "required",
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "it", "schema": {"type": "object"}},
            },
        }
    )
    use = {"name": "look", "input": {"at": 1}}
    assert told == {
        "model": "m",
        "system": [{"text": "Be brief."}],
        "messages": [
            {
                "role": "user",
                "content": [
                    {"text": "What is it?"},
                    {"image": {"format": "png", "source": {"bytes": "iVBORw0KGgo="}}},
                ],
            },
            {
                "role": "assistant",
                "content": [
                    {"toolUse": {"toolUseId": "a", **use}},
                    {"toolUse": {"toolUseId": "b", **use}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"toolResult": {"toolUseId": "a", "content": [{"text": "red"}]}},
                    {"toolResult": {"toolUseId": "b", "content": [{"text": "blue"}]}},
                ],
            },
        ],
        "inferenceConfig": {"maxTokens": 9, "topP": 0.5, "stopSequences": ["end"]},
        "toolConfig": {
            "tools": [{"toolSpec": {"name": "look", "inputSchema": {"json": {"type": "object"}}}}],
            "toolChoice": {"any": {}},
        },
        "outputConfig": {
            "textFormat": {
                "type": "json_schema",
                "structure": {"jsonSchema": {"schema": '{"type":"object"}', "name": "it"}},
            }
        },
    }
    assert output_asked(told) == 9


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("seed", 1),
        ("logprobs", True),
        ("n", 2),
        ("temperature", 1.5),
        ("reasoning_effort", "low"),
        ("tool_choice", "none"),
        ("user", "me"),
        ("response_format", {"type": "json_object"}),
        ("service_tier", "flex"),
    ],
)
def test_what_has_no_equal_is_refused_by_its_field(field: str, value: Any) -> None:
    """Nothing is dropped in silence."""
    with pytest.raises(BadMessages) as caught:
        translated({"model": "m", "messages": [HELLO], field: value})
    assert caught.value.place == field


@pytest.mark.parametrize("url", ["https://example.com/a.png", "data:image/tiff;base64,AAAA"])
def test_an_image_that_bedrock_does_not_take_is_refused(url: str) -> None:
    """It loads none from addresses."""
    part = {"type": "image_url", "image_url": {"url": url}}
    with pytest.raises(BadMessages) as caught:
        translated({"messages": [{"role": "user", "content": [part]}]})
    assert caught.value.place == "messages[0].content[0].image_url"


def test_an_answer_is_read_as_a_chat() -> None:
    """Its text, its thoughts, its reason and its tokens, with those that a cache has read and
    written beside them."""
    answer: dict[str, Any] = {
        "output": {
            "message": {
                "role": "assistant",
                "content": [
                    {"reasoningContent": {"reasoningText": {"text": "hm"}}},
                    {"text": "Yes."},
                ],
            }
        },
        "stopReason": "content_filtered",
        "usage": {
            "inputTokens": 3,
            "outputTokens": 2,
            "totalTokens": 15,
            "cacheReadInputTokens": 4,
            "cacheWriteInputTokens": 6,
            "cacheDetails": [{"ttl": "1h", "inputTokens": 5}, {"ttl": "5m", "inputTokens": 1}],
        },
        "metrics": {"latencyMs": 1},
    }
    chat = chat_of(answer, 7)
    assert chat is not None
    (choice,) = chat["choices"]
    assert (choice["message"]["content"], choice["message"]["reasoning_content"]) == ("Yes.", "hm")
    assert choice["finish_reason"] == "content_filter"
    assert (chat["usage"]["prompt_tokens"], chat["usage"]["completion_tokens"]) == (13, 2)
    assert bedrocks_usage(answer["usage"])["cache_creation"] == {"ephemeral_1h_input_tokens": 5}
    assert answer_text(answer) == "Yes."


def test_a_prompt_becomes_a_request_with_its_parameters_in_their_place() -> None:
    """Those of inferenceConfig stand in it, others beside it."""
    given = {"prompt": "{text}", "model": "m.n-v1:0", "endpoint": CONVERSE, "system": "Be brief."}
    params = {"maxTokens": 5, "additionalModelRequestFields": {"top_k": 3}}
    spec = JobSpec.from_json({**given, "params": params})
    assert orjson.loads(prompt_bodies(spec, ())("hi")) == {
        "model": "m.n-v1:0",
        "system": [{"text": "Be brief."}],
        "messages": [{"role": "user", "content": [{"text": "hi"}]}],
        "inferenceConfig": {"maxTokens": 5},
        "additionalModelRequestFields": {"top_k": 3},
    }
    nested = nested_of(CONVERSE)
    assert nested is not None
    told = nested.with_params({"inferenceConfig": {"maxTokens": 1, "topP": 0.1}}, {"maxTokens": 2})
    assert told == {"inferenceConfig": {"maxTokens": 2, "topP": 0.1}}
    with pytest.raises(SpecError, match="max_tokens"):
        JobSpec.from_json({**given, "params": {"max_tokens": 5}})


@pytest.mark.parametrize(
    ("model", "path"),
    [
        ("amazon.nova-lite-v1:0", "/model/amazon.nova-lite-v1%3A0/converse"),
        ("arn:aws:bedrock:x:1:a/b", "/model/arn%3Aaws%3Abedrock%3Ax%3A1%3Aa%2Fb/converse"),
        ("../files", None),
        ("a/../b", None),
        ("a?b", None),
        ("", None),
        (None, None),
    ],
)
def test_a_model_is_one_part_of_its_path(model: object, path: str | None) -> None:
    """However it is written, it leads nowhere else."""
    assert converse_path(model) == path


def test_a_region_and_an_address_say_the_same() -> None:
    """Either is enough; two that disagree are refused, and so is neither."""
    address = "https://bedrock-runtime.eu-central-1.amazonaws.com"
    assert ProviderFacts(kind="bedrock", region="eu-central-1").base_url == address
    assert ProviderFacts(kind="bedrock", base_url=address).region == "eu-central-1"
    own = ProviderFacts(kind="bedrock", base_url="http://127.0.0.1:1", region="us-east-1")
    assert own.region == "us-east-1"
    for wrong, why in (
        ({}, "needs its region"),
        ({"base_url": address, "region": "us-east-1"}, "another region is refused"),
        ({"region": "Frankfurt"}, "region"),
    ):
        with pytest.raises(ValidationError, match=why):
            ProviderFacts.model_validate({"kind": "bedrock", **wrong})
