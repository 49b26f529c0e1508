"""Streamed answers put together, in each API, and what is passed on of them."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_producer.dialects import CHAT, COMPLETIONS, GENERATE, MESSAGES, RESPONSES
from penstock_producer.dialects.assembling import Assembler, BrokenStream, assembler_for
from penstock_producer.dialects.pieces import Delta

CHUNK: Any = {"id": "c", "object": "chat.completion.chunk", "created": 5, "model": "m"}
USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}


def of(endpoint: str) -> Assembler:
    found = assembler_for(endpoint)
    assert found is not None
    return found


def read(endpoint: str, events: Sequence[Any]) -> tuple[Any, list[Delta]]:
    """Read a whole stream; its answer and its deltas."""
    reader = of(endpoint)
    deltas = [one for event in events for one in reader.take(event, len(orjson.dumps(event)))]
    return reader.whole(), deltas


def chunk(index: int = 0, reason: str | None = None, **delta: Any) -> Any:
    choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": reason}
    return CHUNK | {"choices": [choice], "usage": None}


def call(index: int, **function: Any) -> Any:
    about = {"id": f"call_{index}", "type": "function"} if "name" in function else {}
    return {"index": index, **about, "function": function}


def test_a_chat_is_as_it_would_have_come_whole() -> None:
    """Thoughts, text, calls that alternate, two choices, usage, and fields that only some have."""
    answer, deltas = read(
        CHAT,
        [
            chunk(role="assistant", content="", refusal=None),
            chunk(reasoning_content="H"),
            chunk(reasoning_content="m"),
            chunk(content="Loo"),
            chunk(1, content="Other"),
            chunk(content="k"),
            chunk(tool_calls=[call(0, name="f", arguments="")]),
            chunk(tool_calls=[call(1, name="g", arguments="{")]),
            chunk(tool_calls=[call(0, arguments='{"x":')]),
            chunk(tool_calls=[call(0, arguments="1}"), call(1, arguments="}")]),
            chunk(reason="tool_calls"),
            chunk(1, reason="stop"),
            CHUNK | {"choices": [], "usage": USAGE, "system_fingerprint": "fp", "obfuscation": "x"},
        ],
    )
    about = {"id": "c", "object": "chat.completion", "created": 5, "model": "m"}
    first = {
        "role": "assistant",
        "content": "Look",
        "refusal": None,
        "reasoning_content": "Hm",
        "tool_calls": [
            {"id": "call_0", "type": "function", "function": {"name": "f", "arguments": '{"x":1}'}},
            {"id": "call_1", "type": "function", "function": {"name": "g", "arguments": "{}"}},
        ],
    }
    second = {"role": "assistant", "content": "Other"}
    assert answer == about | {
        "choices": [
            {"index": 0, "message": first, "logprobs": None, "finish_reason": "tool_calls"},
            {"index": 1, "message": second, "logprobs": None, "finish_reason": "stop"},
        ],
        "usage": USAGE,
        "system_fingerprint": "fp",
    }
    assert [one.text for one in deltas if one.kind == "thought"] == ["H", "m"]
    assert [(one.part, one.text) for one in deltas if one.kind == "call"] == [
        (0, ""),
        (1, "{"),
        (0, '{"x":'),
        (0, "1}"),
        (1, "}"),
    ]


def test_thoughts_that_come_under_two_names_are_passed_on_once() -> None:
    """Some servers write both, for old clients and new ones; both are stored."""
    answer, deltas = read(
        CHAT, [chunk(reasoning="Hm", reasoning_content="Hm"), chunk(content="a", reason="stop")]
    )
    assert [one.text for one in deltas] == ["Hm", "a"]
    message = answer["choices"][0]["message"]
    assert (message["reasoning"], message["reasoning_content"]) == ("Hm", "Hm")


def test_logprobs_are_joined() -> None:
    """Each chunk has those of its own tokens."""
    events = [chunk(content="a"), chunk(content="b"), chunk(reason="stop")]
    for event, token in zip(events, "ab", strict=False):
        event["choices"][0]["logprobs"] = {"content": [{"token": token}], "refusal": None}
    answer, _ = read(CHAT, events)
    assert answer["choices"][0]["logprobs"] == {
        "content": [{"token": "a"}, {"token": "b"}],
        "refusal": None,
    }


def test_a_completion_has_its_text_beside_its_index() -> None:
    """As OpenAI's old API has it."""
    about: Any = {"id": "c", "object": "text_completion", "created": 5, "model": "m"}
    events: list[Any] = [
        about | {"choices": [{"index": 0, "text": bit, "finish_reason": None}]} for bit in "ab"
    ]
    events[-1]["choices"][0]["finish_reason"] = "stop"
    answer, deltas = read(COMPLETIONS, events)
    assert answer == about | {
        "choices": [{"index": 0, "text": "ab", "logprobs": None, "finish_reason": "stop"}]
    }
    assert [one.text for one in deltas] == ["a", "b"]


def block(index: int, started: Any, *deltas: Any) -> list[Any]:
    told: list[Any] = [{"type": "content_block_start", "index": index, "content_block": started}]
    told += [{"type": "content_block_delta", "index": index, "delta": one} for one in deltas]
    return [*told, {"type": "content_block_stop", "index": index}]


MESSAGE: list[Any] = [
    {
        "type": "message_start",
        "message": {
            "id": "msg",
            "type": "message",
            "role": "assistant",
            "model": "claude",
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {"input_tokens": 7, "cache_read_input_tokens": 2, "output_tokens": 1},
        },
    },
    {"type": "ping"},
    *block(
        0,
        {"type": "thinking", "thinking": "", "signature": ""},
        {"type": "thinking_delta", "thinking": "Hm"},
        {"type": "signature_delta", "signature": "sig"},
    ),
    *block(1, {"type": "redacted_thinking", "data": "xyz"}),
    *block(
        2,
        {"type": "text", "text": ""},
        {"type": "text_delta", "text": "He"},
        {"type": "citations_delta", "citation": {"cited_text": "x"}},
        {"type": "text_delta", "text": "llo"},
    ),
    *block(
        3,
        {"type": "tool_use", "id": "t", "name": "f", "input": {}},
        {"type": "input_json_delta", "partial_json": ""},
        {"type": "input_json_delta", "partial_json": '{"x": '},
        {"type": "input_json_delta", "partial_json": "1}"},
    ),
    {
        "type": "message_delta",
        "delta": {"stop_reason": "tool_use", "stop_sequence": None},
        "usage": {"output_tokens": 9},
    },
    {"type": "message_stop"},
]


def test_a_message_is_as_it_would_have_come_whole() -> None:
    """Each block of its kind, and the usage of the end."""
    answer, deltas = read(MESSAGES, MESSAGE)
    assert answer["content"] == [
        {"type": "thinking", "thinking": "Hm", "signature": "sig"},
        {"type": "redacted_thinking", "data": "xyz"},
        {"type": "text", "text": "Hello", "citations": [{"cited_text": "x"}]},
        {"type": "tool_use", "id": "t", "name": "f", "input": {"x": 1}},
    ]
    assert answer["stop_reason"] == "tool_use"
    assert answer["usage"] == {
        "input_tokens": 7,
        "cache_read_input_tokens": 2,
        "output_tokens": 9,
    }
    assert [one.kind for one in deltas if one.part == 1] == ["whole"]
    assert "".join(one.text for one in deltas if one.kind == "text") == "Hello"


def test_the_input_of_a_tool_that_was_cut_is_kept_as_a_text() -> None:
    """As in a chat whose arguments cannot be read; one that is not cut is an error."""
    events = [orjson.loads(orjson.dumps(event)) for event in MESSAGE]
    del events[-4]  # the end of its input
    events[-2]["delta"]["stop_reason"] = "max_tokens"
    answer, _ = read(MESSAGES, events)
    assert answer["content"][-1]["input"] == {"arguments": '{"x": '}
    events[-2]["delta"]["stop_reason"] = "end_turn"
    with pytest.raises(BrokenStream, match="not a JSON object"):
        read(MESSAGES, events)


def content(*parts: Any, **candidate: Any) -> Any:
    return {"candidates": [{"content": {"role": "model", "parts": list(parts)}, **candidate}]}


def test_geminis_parts_are_joined() -> None:
    """Bits of text are one part, thoughts another; a call comes with the stored answer."""
    answer, deltas = read(
        GENERATE,
        [
            content({"text": "H", "thought": True}) | {"responseId": "r", "modelVersion": "g"},
            content({"text": "m", "thought": True}),
            content({"text": "He"}),
            content({"text": "llo"}, {"functionCall": {"name": "f", "args": {}}}),
            content({"text": "after"}, finishReason="STOP")
            | {"usageMetadata": {"promptTokenCount": 3, "candidatesTokenCount": 4}},
        ],
    )
    (candidate,) = answer["candidates"]
    assert candidate["content"]["parts"] == [
        {"text": "Hm", "thought": True},
        {"text": "Hello"},
        {"functionCall": {"name": "f", "args": {}}},
        {"text": "after"},
    ]
    assert (answer["responseId"], candidate["finishReason"]) == ("r", "STOP")
    assert answer["usageMetadata"]["candidatesTokenCount"] == 4
    assert [one.text for one in deltas] == ["H", "m", "He", "llo"]


def test_a_prompt_that_gemini_blocks_is_an_answer() -> None:
    """It has no candidate, only a reason."""
    blocked = {"promptFeedback": {"blockReason": "SAFETY"}, "modelVersion": "g"}
    assert read(GENERATE, [blocked]) == (blocked, [])


def test_a_response_has_its_whole_in_the_last_event() -> None:
    """What is between is passed on as it is, to a caller who reads the same API."""
    bit = {"type": "response.output_text.delta", "output_index": 0, "delta": "Hi"}
    ended = {"id": "resp", "object": "response", "status": "completed", "output": [1]}
    reader = of(RESPONSES)
    assert not reader.take({"type": "response.created", "response": {"id": "resp"}}, 50)
    (delta,) = reader.take(bit, 50)
    assert (delta.kind, orjson.loads(delta.text), reader.written) == ("extra", bit, 2)
    assert reader.whole() is None
    assert not reader.take({"type": "response.completed", "response": ended}, 90)
    assert (reader.whole(), reader.held) == (ended, 90)


@pytest.mark.parametrize(
    ("endpoint", "events"),
    [
        (CHAT, []),
        (CHAT, [chunk(content="a")]),
        (CHAT, [chunk(content="a", reason="stop"), chunk(1, content="b")]),
        (MESSAGES, MESSAGE[:-1]),
        (GENERATE, [content({"text": "a"})]),
        (RESPONSES, [{"type": "response.created", "response": {"id": "resp"}}]),
    ],
)
def test_a_stream_without_its_end_is_no_answer(endpoint: str, events: list[Any]) -> None:
    """However much has come."""
    assert read(endpoint, events)[0] is None


def test_a_chat_whose_server_says_done_is_whole() -> None:
    """Where it gives no reason, there is none."""
    reader = of(CHAT)
    reader.take(chunk(content="a"), 10)
    reader.end()
    answer = reader.whole()
    assert answer is not None
    assert answer["choices"][0]["finish_reason"] is None


NAMES = [
    *("choices", "delta", "content", "text", "index", "type", "tool_calls", "function"),
    *("arguments", "function_call", "logprobs", "message", "usage", "content_block", "input"),
    *("citation", "citations", "candidates", "parts", "thought", "finishReason"),
]
JSON: Any = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(NAMES),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@pytest.mark.parametrize("endpoint", [CHAT, COMPLETIONS, MESSAGES, GENERATE, RESPONSES])
@given(odd=st.lists(st.tuples(st.integers(0, 12), st.lists(JSON, max_size=3)), max_size=4))
def test_nothing_but_a_broken_stream_is_raised(endpoint: str, odd: Any) -> None:
    """Whatever a server sends between good events, or in their place."""
    response = {"type": "response.created", "response": {}, "output_index": 0, "delta": "a"}
    streams = {GENERATE: [content({"text": "a"})] * 3, MESSAGES: MESSAGE, RESPONSES: [response] * 3}
    good: list[Any] = streams.get(
        endpoint, [chunk(content="a"), chunk(function_call={"name": "f"}), chunk(reason="stop")]
    )
    events = orjson.loads(orjson.dumps(good))
    for at, values in odd:
        spoilt = events[at % len(events)]
        for name in list(spoilt)[: len(values)]:
            spoilt[name] = values.pop()
    reader = of(endpoint)
    with contextlib.suppress(BrokenStream):
        for event in events:
            reader.take(event, 1)
        reader.end()
        reader.whole()
    orjson.dumps([reader.head(), dict(reader.usage())])
