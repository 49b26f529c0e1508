"""One translation between the APIs that models are asked by: requests and answers, both ways."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock_producer.dialects import from_anthropic, from_responses, to_anthropic
from penstock_producer.dialects.answers import as_message, as_response, chat_of
from penstock_producer.dialects.translation import (
    Untranslatable,
    answer_for,
    is_translated,
    request_for,
    ways_to,
)
from penstock_producer.job.endpoints import CHAT, CONVERSE, GENERATE, MESSAGES, RESPONSES
from penstock_producer.prompts.messages import BadMessages

SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}
PNG = "data:image/png;base64,AAAA"
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"x":1}'}}
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {"name": "f", "description": "d", "parameters": SCHEMA},
}
FORM = {
    "type": "json_schema",
    "json_schema": {"name": "answer", "schema": SCHEMA, "strict": True},
}
SAY: list[Any] = [{"role": "user", "content": "Hi"}]

# What a chat has, and what Messages have for it: each is translated into the other.
BOTH_WAYS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("text", {}, {}),
    (
        "system",
        {"messages": [{"role": "system", "content": "S"}, *SAY]},
        {"system": "S", "messages": SAY},
    ),
    (
        "tools",
        {"tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False},
        {
            "tools": [{"name": "f", "description": "d", "input_schema": SCHEMA}],
            "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
        },
    ),
    (
        "one tool, strict",
        {
            "tools": [{"type": "function", "function": {**TOOL["function"], "strict": True}}],
            "tool_choice": {"type": "function", "function": {"name": "f"}},
        },
        {
            "tools": [{"name": "f", "description": "d", "strict": True, "input_schema": SCHEMA}],
            "tool_choice": {"type": "tool", "name": "f"},
        },
    ),
    (
        "calls of tools and their results",
        {
            "messages": [
                *SAY,
                {"role": "assistant", "content": "Look", "tool_calls": [CALL]},
                {"role": "tool", "tool_call_id": "c1", "content": "4"},
                {"role": "user", "content": "And?"},
            ]
        },
        {
            "messages": [
                *SAY,
                {
                    "role": "assistant",
                    "content": [
                        {"type": "text", "text": "Look"},
                        {"type": "tool_use", "id": "c1", "name": "f", "input": {"x": 1}},
                    ],
                },
                {
                    "role": "user",
                    "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "4"}],
                },
                {"role": "user", "content": "And?"},
            ]
        },
    ),
    (
        "images",
        {
            "messages": [
                {
                    "role": "user",
                    "content": [
                        {"type": "text", "text": "See"},
                        {"type": "image_url", "image_url": {"url": PNG}},
                        {"type": "image_url", "image_url": {"url": "https://x.example/a.png"}},
                    ],
                }
            ]
        },
        {
            "messages": [
                {
                    "role": "user",
                    "content": [
                        {"type": "text", "text": "See"},
                        {
                            "type": "image",
                            "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"},
                        },
                        {
                            "type": "image",
                            "source": {"type": "url", "url": "https://x.example/a.png"},
                        },
                    ],
                }
            ]
        },
    ),
    (
        "structured output and effort",
        {"response_format": FORM, "reasoning_effort": "high"},
        {
            "output_config": {
                "format": {"type": "json_schema", "schema": SCHEMA},
                "effort": "high",
            }
        },
    ),
    (
        "parameters",
        {"temperature": 0.5, "top_p": 0.9, "top_k": 3, "stop": ["END"], "user": "u"},
        {
            "temperature": 0.5,
            "top_p": 0.9,
            "top_k": 3,
            "stop_sequences": ["END"],
            "metadata": {"user_id": "u"},
        },
    ),
    ("tier", {"service_tier": "default"}, {"service_tier": "standard_only"}),
]


@pytest.mark.parametrize(
    ("chat", "message"), [row[1:] for row in BOTH_WAYS], ids=[row[0] for row in BOTH_WAYS]
)
def test_chats_and_messages_are_translated_into_each_other(
    chat: dict[str, Any], message: dict[str, Any]
) -> None:
    """Each way, and so there and back."""
    chat = {"model": "m", "max_tokens": 9, "messages": SAY} | chat
    message = {"model": "m", "max_tokens": 9, "messages": SAY} | message
    assert to_anthropic.translated(chat) == message
    assert from_anthropic.translated(message) == chat


@pytest.mark.parametrize(
    ("message", "chat"),
    [
        ({"system": [{"type": "text", "text": "S", "cache_control": {"type": "x"}}]}, "S"),
        ({"thinking": {"type": "enabled", "budget_tokens": 2_048}}, {"reasoning_effort": "low"}),
        ({"thinking": {"type": "enabled", "budget_tokens": 9_000}}, {"reasoning_effort": "high"}),
        ({"thinking": {"type": "disabled"}}, {}),
        (
            {
                "thinking": {"type": "enabled", "budget_tokens": 9_000},
                "output_config": {"effort": "low"},
            },
            {"reasoning_effort": "low"},
        ),
        ({"model": "gpt-5", "max_tokens": 7}, {"model": "gpt-5", "max_completion_tokens": 7}),
        ({"model": "o3", "max_tokens": 7}, {"model": "o3", "max_completion_tokens": 7}),
        ({"stream": False, "metadata": {}, "stop_sequences": []}, {}),
    ],
)
def test_messages_become_chats_by_their_meaning(message: dict[str, Any], chat: Any) -> None:
    """What a chat has other words for, or none because it does so anyway."""
    found = from_anthropic.translated({"model": "m", "messages": SAY} | message)
    if isinstance(chat, str):
        assert found["messages"][0] == {"role": "system", "content": chat}
    else:
        assert found == {"model": "m", "messages": SAY} | chat


def test_results_of_tools_and_thoughts_find_their_place() -> None:
    """Results come before what the user says behind them; a failure is said in words; thoughts of
    earlier answers are left out."""
    blocks = [
        {"type": "text", "text": "Go on"},
        {"type": "tool_result", "tool_use_id": "c1", "content": "no", "is_error": True},
        {"type": "tool_result", "tool_use_id": "c2"},
    ]
    thought = {"type": "thinking", "thinking": "Hm", "signature": "s"}
    used = {"type": "tool_use", "id": "c1", "name": "f", "input": {"x": 1}}
    said = from_anthropic.translated(
        {
            "messages": [
                *SAY,
                {"role": "assistant", "content": [thought, used]},
                {"role": "user", "content": blocks},
            ]
        }
    )
    assert said["messages"] == [
        *SAY,
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": "Error: no"},
        {"role": "tool", "tool_call_id": "c2", "content": ""},
        {"role": "user", "content": [{"type": "text", "text": "Go on"}]},
    ]


def of_user(block: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": [block]}]}


@pytest.mark.parametrize(
    ("given", "place"),
    [
        ({"container": "c"}, "container"),
        ({"mcp_servers": [{"url": "http://x"}]}, "mcp_servers"),
        ({"stream": True}, "stream"),
        ({"messages": "x"}, "messages"),
        ({"messages": [{"role": "system", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": "x", "name": "a"}]}, "messages[0].name"),
        ({"messages": [{"role": "user", "content": 7}]}, "messages[0].content"),
        (of_user({"type": "document", "source": {}}), "messages[0].content[0].type"),
        (of_user({"type": []}), "messages[0].content[0].type"),
        (of_user({"type": "image", "source": 7}), "messages[0].content[0].source"),
        (
            of_user({"type": "image", "source": {"type": "file", "file_id": "f"}}),
            "messages[0].content[0].source",
        ),
        (
            of_user({"type": "tool_result", "content": [{"type": "image"}]}),
            "messages[0].content[0].content[0].type",
        ),
        (
            {"messages": [{"role": "assistant", "content": [{"type": "server_tool_use"}]}]},
            "messages[0].content[0].type",
        ),
        ({"system": [{"type": "image"}]}, "system[0].type"),
        ({"system": 7}, "system"),
        ({"tools": [{"type": "web_search_20250305", "name": "w"}]}, "tools[0].type"),
        ({"tools": [{"name": "f", "defer_loading": True}]}, "tools[0].defer_loading"),
        ({"tool_choice": {"type": []}}, "tool_choice"),
        ({"tool_choice": "any"}, "tool_choice"),
        ({"thinking": {"type": "enabled"}}, "thinking"),
        ({"output_config": {"effort": "most"}}, "output_config.effort"),
        ({"output_config": {"format": {"type": "text"}}}, "output_config.format"),
        ({"output_config": {"x": 1}}, "output_config.x"),
        ({"output_config": 7}, "output_config"),
        ({"metadata": {"x": 1}}, "metadata.x"),
        ({"service_tier": []}, "service_tier"),
    ],
)
def test_what_a_chat_has_no_equal_for_is_refused_by_its_place(
    given: dict[str, Any], place: str
) -> None:
    """A request of Messages is sent with all that it says, or not at all."""
    with pytest.raises(BadMessages) as caught:
        from_anthropic.translated({"messages": SAY, **given})
    assert caught.value.place == place
    assert caught.value.fix


@pytest.mark.parametrize(
    ("given", "chat"),
    [
        ({"input": "Hi"}, {"messages": SAY}),
        (
            {"input": "Hi", "instructions": "S"},
            {"messages": [{"role": "system", "content": "S"}, *SAY]},
        ),
        (
            {
                "input": [
                    {"role": "developer", "content": "D"},
                    {
                        "type": "message",
                        "role": "user",
                        "content": [
                            {"type": "input_text", "text": "See"},
                            {"type": "input_image", "image_url": PNG, "detail": "low"},
                        ],
                    },
                    {"type": "reasoning", "id": "r", "summary": []},
                    {
                        "type": "message",
                        "role": "assistant",
                        "id": "m",
                        "content": [{"type": "output_text", "text": "Look", "annotations": []}],
                    },
                    {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
                    {"type": "function_call", "call_id": "c2", "name": "f", "arguments": "{}"},
                    {"type": "function_call_output", "call_id": "c1", "output": "4"},
                ]
            },
            {
                "messages": [
                    {"role": "developer", "content": "D"},
                    {
                        "role": "user",
                        "content": [
                            {"type": "text", "text": "See"},
                            {"type": "image_url", "image_url": {"url": PNG, "detail": "low"}},
                        ],
                    },
                    {
                        "role": "assistant",
                        "content": "Look",
                        "tool_calls": [
                            {
                                "id": name,
                                "type": "function",
                                "function": {"name": "f", "arguments": "{}"},
                            }
                            for name in ("c1", "c2")
                        ],
                    },
                    {"role": "tool", "tool_call_id": "c1", "content": "4"},
                ]
            },
        ),
        (
            {
                "input": "Hi",
                "tools": [{"type": "function", "name": "f", "parameters": SCHEMA, "strict": True}],
                "tool_choice": {"type": "function", "name": "f"},
                "text": {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA}},
                "reasoning": {"effort": "low", "summary": "auto"},
                "max_output_tokens": 5,
                "store": True,
                "include": ["reasoning.encrypted_content"],
                "metadata": {"a": "b"},
            },
            {
                "messages": SAY,
                "tools": [
                    {
                        "type": "function",
                        "function": {"name": "f", "parameters": SCHEMA, "strict": True},
                    }
                ],
                "tool_choice": {"type": "function", "function": {"name": "f"}},
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "n", "schema": SCHEMA},
                },
                "reasoning_effort": "low",
                "max_tokens": 5,
            },
        ),
    ],
)
def test_responses_become_chats(given: dict[str, Any], chat: dict[str, Any]) -> None:
    """Text, items of all kinds, tools, structured output and thoughts."""
    assert from_responses.translated(given) == chat


@pytest.mark.parametrize(
    ("given", "place"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"conversation": "c"}, "conversation"),
        ({"background": True}, "background"),
        ({"include": ["file_search_call.results"]}, "include"),
        ({"input": 7}, "input"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
        ({"input": [{"role": "tool", "content": "x"}]}, "input[0].role"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_file"}]}]},
            "input[0].content[0].type",
        ),
        (
            {"input": [{"type": "function_call_output", "output": [{"type": "input_image"}]}]},
            "input[0].output[0].type",
        ),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tool_choice": {"type": "mcp"}}, "tool_choice"),
        ({"text": {"format": {"type": "grammar"}}}, "text.format"),
        ({"text": 7}, "text"),
        ({"reasoning": {"mode": "x"}}, "reasoning.mode"),
    ],
)
def test_what_a_chat_has_no_equal_for_in_responses_is_refused(
    given: dict[str, Any], place: str
) -> None:
    """By its place, as of Messages."""
    with pytest.raises(BadMessages) as caught:
        from_responses.translated({"input": "Hi", **given})
    assert caught.value.place == place


@pytest.mark.parametrize(
    ("asked", "given", "place"),
    [
        (
            MESSAGES,
            {"tool_choice": {"type": "any", "disable_parallel_tool_use": True}},
            "tool_choice",
        ),
        (MESSAGES, {"metadata": {"user_id": "u"}}, "metadata"),
        (MESSAGES, {"output_config": {"effort": "max"}}, "output_config"),
        (
            MESSAGES,
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [
                            {"type": "image", "source": {"type": "url", "url": "https://x"}}
                        ],
                    }
                ]
            },
            "messages",
        ),
        (RESPONSES, {"input": [{"role": "user", "content": "x"}], "user": "u"}, "user"),
        (RESPONSES, {"reasoning": {"effort": "xhigh"}}, "reasoning"),
        (RESPONSES, {"input": [{"type": "function_call_output", "output": "x"}]}, "input"),
    ],
)
def test_what_only_the_provider_refuses_has_the_callers_name(
    asked: str, given: dict[str, Any], place: str
) -> None:
    """Not that of the chat in between, which the caller has never seen."""
    body = {"messages": SAY} if asked == MESSAGES else {"input": "Hi"}
    with pytest.raises(BadMessages) as caught:
        request_for(GENERATE, {"model": "g", **body, **given}, asked)
    assert caught.value.place == place


def chat_answer(**message: Any) -> dict[str, Any]:
    finish = message.pop("finish", "stop")
    said = {"role": "assistant", "content": None, "refusal": None} | message
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 5,
        "model": "m",
        "choices": [{"index": 0, "message": said, "logprobs": None, "finish_reason": finish}],
        "usage": {
            "prompt_tokens": 10,
            "completion_tokens": 4,
            "total_tokens": 14,
            "prompt_tokens_details": {"cached_tokens": 3},
            "completion_tokens_details": {"reasoning_tokens": 0},
        },
    }


def message_answer(*content: Any, stop: str) -> dict[str, Any]:
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": list(content),
        "stop_reason": stop,
        "stop_sequence": None,
        "usage": {
            "input_tokens": 7,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 3,
            "output_tokens": 4,
        },
    }


USED = {"type": "tool_use", "id": "c1", "name": "f", "input": {"x": 1}}


@pytest.mark.parametrize(
    ("chat", "message"),
    [
        (
            chat_answer(content="Ho"),
            message_answer({"type": "text", "text": "Ho"}, stop="end_turn"),
        ),
        (
            chat_answer(content="Ho", finish="length"),
            message_answer({"type": "text", "text": "Ho"}, stop="max_tokens"),
        ),
        (
            chat_answer(tool_calls=[CALL], finish="tool_calls"),
            message_answer(USED, stop="tool_use"),
        ),
        (
            chat_answer(content="Ho", reasoning_content="Hm"),
            message_answer(
                {"type": "thinking", "thinking": "Hm", "signature": ""},
                {"type": "text", "text": "Ho"},
                stop="end_turn",
            ),
        ),
        (chat_answer(finish="content_filter"), message_answer(stop="refusal")),
    ],
)
def test_answers_are_translated_into_each_other(
    chat: dict[str, Any], message: dict[str, Any]
) -> None:
    """Text, thoughts, calls of tools, why it ended, and usage: there and back."""
    assert as_message(chat) == message
    assert chat_of(message, 5) == {**chat, "id": "chatcmpl-msg_1"}


GEMINI = {
    "responseId": "g1",
    "modelVersion": "gemini-x",
    "candidates": [
        {
            "content": {
                "role": "model",
                "parts": [
                    {"text": "Hm", "thought": True},
                    {"text": "Ho"},
                    {"functionCall": {"name": "f", "args": {"x": 1}}, "thoughtSignature": "sig"},
                ],
            },
            "finishReason": "STOP",
        }
    ],
    "usageMetadata": {
        "promptTokenCount": 10,
        "candidatesTokenCount": 3,
        "thoughtsTokenCount": 1,
        "cachedContentTokenCount": 2,
    },
}


def test_geminis_answer_is_a_chat() -> None:
    """Thoughts, text, calls with their signature, which goes back with them, and usage."""
    chat = chat_of(GEMINI, 5)
    assert chat is not None
    (choice,) = chat["choices"]
    assert (choice["message"]["content"], choice["message"]["reasoning_content"]) == ("Ho", "Hm")
    assert choice["finish_reason"] == "tool_calls"
    assert (chat["usage"]["prompt_tokens"], chat["usage"]["completion_tokens"]) == (10, 4)
    assert chat["usage"]["completion_tokens_details"] == {"reasoning_tokens": 1}
    call = choice["message"]["tool_calls"][0]
    back = request_for(
        GENERATE,
        {
            "model": "g",
            "messages": [
                *SAY,
                choice["message"],
                {"role": "tool", "tool_call_id": call["id"], "content": "4"},
            ],
        },
        CHAT,
    )
    assert back["contents"][1]["parts"][1] == {
        "functionCall": {"name": "f", "args": {"x": 1}},
        "thoughtSignature": "sig",
    }


def test_a_prompt_that_gemini_blocks_is_a_refusal() -> None:
    """It has no candidate, and the chat says why."""
    chat = chat_of({"promptFeedback": {"blockReason": "SAFETY"}}, 5)
    assert chat is not None
    assert chat["choices"][0]["finish_reason"] == "content_filter"
    assert as_message(chat)["stop_reason"] == "refusal"


def test_a_chats_answer_is_a_response() -> None:
    """Thoughts, text and calls are items; what was asked is repeated; a cut one is incomplete."""
    chat = chat_answer(content="Ho", reasoning_content="Hm", tool_calls=[CALL], finish="length")
    response = as_response(chat, {"instructions": "S", "temperature": 0})
    assert [item["type"] for item in response["output"]] == [
        "reasoning",
        "message",
        "function_call",
    ]
    assert response["output"][1]["content"][0]["text"] == "Ho"
    assert response["output"][2]["call_id"] == "c1"
    assert (response["status"], response["incomplete_details"]) == (
        "incomplete",
        {"reason": "max_output_tokens"},
    )
    assert (response["instructions"], response["temperature"]) == ("S", 0)
    assert response["usage"]["input_tokens_details"]["cached_tokens"] == 3


@pytest.mark.parametrize("asked", [CHAT, MESSAGES, RESPONSES])
def test_an_answer_is_in_the_words_of_the_request(asked: str) -> None:
    """Whatever the provider speaks; one that is in these words already is returned as it came."""
    stored: list[dict[str, Any]] = [
        chat_answer(content="Ho"),
        message_answer({"type": "text", "text": "Ho"}, stop="end_turn"),
        GEMINI,
    ]
    for one in stored:
        found = json.loads(answer_for(asked, json.dumps(one).encode(), 5.5))
        named = found.get("object", found.get("type"))
        assert named == {CHAT: "chat.completion", MESSAGES: "message", RESPONSES: "response"}[asked]
    own = b'{"object": "response", "choices": [], "type": "message"}'
    assert answer_for(asked, own, 5) is own


@pytest.mark.parametrize("stored", [b"[]", b"{", b'{"object": "list"}', b"7"])
def test_what_is_no_answer_is_not_made_one(stored: bytes) -> None:
    """It is said so, and the stored bytes stay what they are."""
    with pytest.raises(Untranslatable):
        answer_for(MESSAGES, stored, 5)
    assert answer_for("/v1/embeddings", stored, 5) is stored


def test_odd_answers_do_not_fail() -> None:
    """Nulls, numbers and lists where objects should be, and half of an emoji."""
    odds: tuple[Any, ...] = (None, 7, [], {}, "x")
    for odd in odds:
        answer = {"choices": [{"message": odd, "finish_reason": odd}], "usage": odd, "id": odd}
        assert as_message(answer)["type"] == "message"
        assert as_response(answer, {})["object"] == "response"
        assert chat_of({"type": "message", "content": odd, "usage": odd}, 1) is not None
        assert chat_of({"candidates": [{"content": odd}], "usageMetadata": odd}, 1) is not None
    half = b'{"choices": [{"message": {"content": "\\ud83d"}, "finish_reason": "stop"}]}'
    assert json.loads(answer_for(MESSAGES, half, 1))["content"][0]["text"] == "\ufffd"


def test_each_api_stands_in_front_of_all_others() -> None:
    """Requests go to their own endpoint first, then to one that takes them translated."""
    assert list(ways_to(MESSAGES)) == [MESSAGES, CHAT, GENERATE, CONVERSE]
    assert list(ways_to(RESPONSES)) == [RESPONSES, CHAT, MESSAGES, GENERATE, CONVERSE]
    assert list(ways_to("/v1/embeddings")) == ["/v1/embeddings"]
    assert is_translated(RESPONSES, GENERATE)
    assert not is_translated(CHAT, "/v1/completions")
    assert not is_translated(CHAT, CHAT)
