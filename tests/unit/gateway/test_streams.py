"""An answer as server-sent events, in the words of each API."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock_gateway.direct.events import writer_for
from penstock_gateway.direct.fields import Stream, stream_of
from penstock_gateway.direct.streams import error_event
from penstock_gateway.refused import Refused
from penstock_producer.dialects import COMPLETIONS
from penstock_producer.dialects.answers import as_message, as_response
from penstock_producer.job.endpoints import CHAT, MESSAGES, RESPONSES

CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"x":1}'}}
ANSWER: dict[str, Any] = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 5,
    "model": "m",
    "choices": [
        {
            "index": 0,
            "message": {
                "role": "assistant",
                "reasoning_content": "Hm",
                "content": "Ho",
                "tool_calls": [CALL],
            },
            "finish_reason": "tool_calls",
        }
    ],
    "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5},
}


def told(endpoint: str, answer: dict[str, Any], *, with_usage: bool = False) -> list[Any]:
    """The data of each event: JSON, but for the mark of the end."""
    written = writer_for(endpoint, with_usage=with_usage).rest(answer).decode()
    assert written.endswith("\n\n")
    found = list[Any]()
    for event in written.removesuffix("\n\n").split("\n\n"):
        *names, data = event.split("\n")
        value = data.removeprefix("data: ")
        found.append(value if value == "[DONE]" else json.loads(value))
        assert names == ([] if endpoint in (CHAT, COMPLETIONS) else [f"event: {found[-1]['type']}"])
    return found


def test_a_chat_comes_as_chunks() -> None:
    """Its role first, then thoughts, text and calls, why it ended, and the end."""
    *chunks, done = told(CHAT, ANSWER)
    assert done == "[DONE]"
    assert {(one["object"], one["id"], one["model"]) for one in chunks} == {
        ("chat.completion.chunk", "chatcmpl-1", "m")
    }
    deltas = [one["choices"][0]["delta"] for one in chunks]
    assert deltas == [
        {"role": "assistant", "content": ""},
        {"reasoning_content": "Hm"},
        {"content": "Ho"},
        {"tool_calls": [{"index": 0, **CALL}]},
        {},
    ]
    ends = [one["choices"][0]["finish_reason"] for one in chunks]
    assert ends == [None] * 4 + ["tool_calls"]
    assert all("usage" not in one for one in chunks)


def test_a_chat_tells_its_usage_where_it_is_asked_for() -> None:
    """In a chunk of its own behind the others, which have none."""
    *chunks, last, _ = told(CHAT, ANSWER, with_usage=True)
    assert (last["choices"], last["usage"]) == ([], ANSWER["usage"])
    assert all(one["usage"] is None for one in chunks)


def test_a_completion_comes_as_chunks() -> None:
    """One for each choice, and the end."""
    choice = {"index": 0, "text": "Ho", "finish_reason": "stop", "logprobs": None}
    chunk, done = told(COMPLETIONS, {"id": "cmpl-1", "choices": [choice]})
    assert (chunk["object"], chunk["choices"], done) == ("text_completion", [choice], "[DONE]")


def test_a_message_comes_block_by_block() -> None:
    """From message_start to message_stop, each block begun, filled and ended."""
    events = told(MESSAGES, as_message(ANSWER))
    assert [one["type"] for one in events] == [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_delta",
        "content_block_stop",
        *["content_block_start", "content_block_delta", "content_block_stop"] * 2,
        "message_delta",
        "message_stop",
    ]
    assert events[0]["message"]["content"] == []
    deltas = [one["delta"] for one in events if one["type"] == "content_block_delta"]
    assert deltas == [
        {"type": "thinking_delta", "thinking": "Hm"},
        {"type": "signature_delta", "signature": ""},
        {"type": "text_delta", "text": "Ho"},
        {"type": "input_json_delta", "partial_json": '{"x":1}'},
    ]
    assert events[-2]["delta"]["stop_reason"] == "tool_use"
    assert events[-2]["usage"]["output_tokens"] == 2


def test_a_response_comes_item_by_item() -> None:
    """Numbered from its creation to its end, which has all of it."""
    response = as_response(ANSWER, {})
    events = told(RESPONSES, response)
    assert [one["sequence_number"] for one in events] == list(range(len(events)))
    assert [one["type"].removeprefix("response.") for one in events] == [
        "created",
        "in_progress",
        "output_item.added",
        "reasoning_summary_part.added",
        "reasoning_summary_text.delta",
        "reasoning_summary_text.done",
        "reasoning_summary_part.done",
        "output_item.done",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "completed",
    ]
    assert events[0]["response"]["output"] == []
    assert events[-1]["response"] == response


@pytest.mark.parametrize("endpoint", [CHAT, COMPLETIONS, MESSAGES, RESPONSES])
def test_an_odd_answer_does_not_break_a_stream(endpoint: str) -> None:
    """What is no list of objects has no events of its own."""
    odds: tuple[Any, ...] = (None, 7, "x", [7], {})
    for odd in odds:
        answer = {"choices": odd, "content": odd, "output": odd, "usage": odd}
        assert told(endpoint, answer)


def test_a_failure_is_an_event_of_the_dialect() -> None:
    """Each client raises its own error for it."""
    refused = Refused(429, "Slow down.", code="rate_limit_exceeded", kind="rate_limit_error")
    message = error_event(MESSAGES, refused, "req_1")
    assert message.startswith(b"event: error\ndata: ")
    assert json.loads(message.split(b"data: ")[1]) == {
        "type": "error",
        "error": {"type": "rate_limit_error", "message": "Slow down."},
        "request_id": "req_1",
    }
    assert json.loads(error_event(CHAT, refused, "").removeprefix(b"data: "))["error"]["code"]
    response = json.loads(error_event(RESPONSES, refused, "").split(b"data: ")[1])
    assert (response["type"], response["code"]) == ("error", "rate_limit_exceeded")


def test_options_of_a_stream_are_read() -> None:
    """Only beside `stream: true`, and only those that there are."""
    assert stream_of({}) is None
    assert stream_of({"stream": False, "stream_options": None}) is None
    assert stream_of({"stream": True}) == Stream(with_usage=False)
    usage = {"stream": True, "stream_options": {"include_usage": True}}
    assert stream_of(usage) == Stream(with_usage=True)
    for given, param in (
        ({"stream": 1}, "stream"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": 7}, "stream_options"),
        ({"stream": True, "stream_options": {"x": 1}}, "stream_options.x"),
        (
            {"stream": True, "stream_options": {"include_usage": 1}},
            "stream_options.include_usage",
        ),
    ):
        with pytest.raises(Refused) as refused:
            stream_of(given)
        assert refused.value.param == param
