"""Requests to Anthropic and Gemini: made from prompts, from messages, and from OpenAI's chat
bodies."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest

from penstock_producer import SpecError
from penstock_producer.dialects import to_gemini
from penstock_producer.dialects.pieces import answer_text
from penstock_producer.dialects.to_anthropic import translated
from penstock_producer.job.endpoints import GENERATE, MESSAGES
from penstock_producer.job.request_body import nested_of, prompt_bodies
from penstock_producer.job.spec import JobSpec
from penstock_producer.prompts.messages import BadMessages
from penstock_producer.sources.forms.media import media_of
from penstock_producer.sources.forms.row_forms import RowForm, form_of
from penstock_producer.sources.forms.strict_json import RowFault

ANSWER = {"role": "assistant", "content": "Ho"}
USER = {"role": "user", "content": "Hi"}
LINE = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions"}


def spec(**given: Any) -> JobSpec:
    return JobSpec(**{"endpoint": MESSAGES, "model": "c", "params": {"max_tokens": 9}} | given)


def formed(**given: Any) -> RowForm:
    made = spec(**given)
    return form_of(made, media=media_of(made, None, 10_000))


def asked(made: JobSpec, row: dict[str, Any]) -> Any:
    return json.loads(form_of(made).read(row)[1])


# -- prompts ---------------------------------------------------------------------------------------


def test_a_prompt_becomes_a_message() -> None:
    """The system text stands beside the messages, examples before the document."""
    made = spec(
        prompt="Say {text}", system="Be brief", examples=[{"input": {"text": "x"}, "output": "y"}]
    )
    assert asked(made, {"id": "1", "text": "é"}) == {
        "model": "c",
        "max_tokens": 9,
        "system": "Be brief",
        "messages": [
            {"role": "user", "content": "Say x"},
            {"role": "assistant", "content": "y"},
            {"role": "user", "content": "Say é"},
        ],
    }


def test_parameters_of_a_row_go_before_the_jobs() -> None:
    """No name stands twice in a request."""
    made = spec(prompt="{text}", system="S", param_fields={"max_tokens": "most"})
    text = form_of(made).read({"id": "1", "text": "t", "most": 3})[1]
    assert text.count(b"max_tokens") == 1
    assert json.loads(text) == {
        "model": "c",
        "max_tokens": 3,
        "system": "S",
        "messages": [{"role": "user", "content": "t"}],
    }
    assert asked(made, {"id": "1", "text": "t", "most": None})["max_tokens"] == 9


def test_images_are_sent_as_anthropic_has_them() -> None:
    """An address is passed on."""
    made = spec(prompt="See", image_fields=["pic"])
    row = {"id": "1", "pic": "https://x.example/a.png"}
    body = json.loads(form_of(made, media=media_of(made, None, 10_000)).read(row)[1])
    image = {"type": "image", "source": {"type": "url", "url": "https://x.example/a.png"}}
    assert body["messages"] == [
        {"role": "user", "content": [{"type": "text", "text": "See"}, image]}
    ]


def test_messages_of_a_column_bring_their_system_text() -> None:
    """It goes behind the job's, in one text."""
    made = spec(messages_field="m", system="Job", param_fields={"temperature": "t"})
    row = {"id": "1", "m": [{"role": "system", "content": "Row"}, USER], "t": 0.5}
    assert asked(made, row) == {
        "model": "c",
        "max_tokens": 9,
        "system": "Job\n\nRow",
        "messages": [USER],
        "temperature": 0.5,
    }


@pytest.mark.parametrize(
    ("given", "pointer"),
    [
        ({"params": {}}, "/params/max_tokens"),
        ({"audio_fields": ["a"]}, "/audio_fields"),
        ({"examples": [{"messages": [{**USER, "name": "n"}, ANSWER]}]}, "/examples"),
        ({"params": {"max_tokens": 9, "stop": ["x"]}}, "/params/stop"),
        ({"params": {"max_tokens": 9, "temperature": 1.5}}, "/params/temperature"),
        ({"params": {"max_tokens": 9, "system": "x"}}, "/params/system"),
    ],
)
def test_a_job_that_anthropic_cannot_take_is_refused(given: dict[str, Any], pointer: str) -> None:
    """Before anything is sent, and by the name of what is wrong."""
    with pytest.raises(SpecError) as caught:
        formed(prompt="Hi", **given)
    assert pointer in {problem.pointer for problem in caught.value.problems}


# -- lines -----------------------------------------------------------------------------------------


def test_anthropics_own_bodies_are_passed_through() -> None:
    """A line for /v1/messages keeps its body; the job fills in what it lacks."""
    body = {"messages": [USER], "cache_control": {"type": "ephemeral"}}
    assert asked(spec(), {**LINE, "url": MESSAGES, "body": body}) == {
        "model": "c",
        "max_tokens": 9,
        **body,
    }
    with pytest.raises(RowFault) as caught:
        form_of(spec(params={})).read({**LINE, "url": MESSAGES, "body": body})
    assert caught.value.field == "body.max_tokens"


def test_chat_lines_are_translated() -> None:
    """A line for OpenAI's chat in a job for Messages; its own values go before the job's."""
    row = {
        **LINE,
        "body": {
            "model": "own",
            "max_completion_tokens": 5,
            "messages": [{"role": "developer", "content": "D"}, USER],
        },
    }
    assert asked(spec(), row) == {
        "model": "own",
        "max_tokens": 5,
        "system": "D",
        "messages": [USER],
    }
    with pytest.raises(RowFault) as caught:
        form_of(spec()).read({**LINE, "body": {"messages": [USER], "seed": 4}})
    assert (caught.value.code, caught.value.field, caught.value.doc_id) == (
        "untranslatable_request",
        "body.seed",
        "a",
    )
    with pytest.raises(RowFault, match="invalid_url"):
        form_of(spec()).read({**LINE, "url": "/v1/embeddings", "body": {"messages": [USER]}})


CALL = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
USED = {"type": "tool_use", "id": "call_1", "name": "f", "input": {"x": 1}}
PIXEL = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA", "detail": "auto"}}


def results(*texts: str) -> dict[str, Any]:
    return {
        "role": "user",
        "content": [
            {"type": "tool_result", "tool_use_id": text, "content": text} for text in texts
        ],
    }


@pytest.mark.parametrize(
    ("chat", "message"),
    [
        (
            [{"role": "user", "content": [{"type": "text", "text": "a"}, PIXEL]}],
            [
                {
                    "role": "user",
                    "content": [
                        {"type": "text", "text": "a"},
                        {
                            "type": "image",
                            "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"},
                        },
                    ],
                }
            ],
        ),
        (
            [USER, {"role": "assistant", "content": None, "tool_calls": [CALL]}],
            [USER, {"role": "assistant", "content": [USED]}],
        ),
        (
            [USER, {"role": "assistant", "content": "so", "tool_calls": [CALL]}],
            [USER, {"role": "assistant", "content": [{"type": "text", "text": "so"}, USED]}],
        ),
        (
            [
                USER,
                *({"role": "tool", "tool_call_id": text, "content": text} for text in ("a", "b")),
                USER,
            ],
            [USER, results("a", "b"), USER],
        ),
    ],
)
def test_messages_are_translated(chat: list[Any], message: list[Any]) -> None:
    """Texts, images, calls of tools and their results."""
    assert translated({"messages": chat}) == {"messages": message}


@pytest.mark.parametrize(
    ("given", "becomes"),
    [
        ({"max_tokens": 3}, {"max_tokens": 3}),
        ({"stop": "x"}, {"stop_sequences": ["x"]}),
        ({"stop": ["x", "y"]}, {"stop_sequences": ["x", "y"]}),
        ({"user": "u"}, {"metadata": {"user_id": "u"}}),
        ({"temperature": 1, "top_p": 0.5}, {"temperature": 1, "top_p": 0.5}),
        ({"service_tier": "default"}, {"service_tier": "standard_only"}),
        (
            {
                "tools": [
                    {
                        "type": "function",
                        "function": {"name": "f", "parameters": {"type": "object"}},
                    }
                ]
            },
            {"tools": [{"name": "f", "input_schema": {"type": "object"}}]},
        ),
        ({"tool_choice": "required"}, {"tool_choice": {"type": "any"}}),
        (
            {
                "tool_choice": {"type": "function", "function": {"name": "f"}},
                "parallel_tool_calls": False,
            },
            {"tool_choice": {"type": "tool", "name": "f", "disable_parallel_tool_use": True}},
        ),
        (
            {
                "n": 1,
                "stream": False,
                "logprobs": False,
                "seed": None,
                "frequency_penalty": 0,
                "logit_bias": {},
            },
            {},
        ),
    ],
)
def test_parameters_are_translated(given: dict[str, Any], becomes: dict[str, Any]) -> None:
    """By their meaning; what says only what Anthropic does anyway is left out."""
    assert translated({"messages": [USER], **given}) == {"messages": [USER], **becomes}


@pytest.mark.parametrize(
    ("given", "place"),
    [
        ({"n": 2}, "n"),
        ({"seed": 1}, "seed"),
        ({"logprobs": True}, "logprobs"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"reasoning_effort": "some"}, "reasoning_effort"),
        ({"temperature": 1.5}, "temperature"),
        ({"service_tier": "flex"}, "service_tier"),
        ({"service_tier": []}, "service_tier"),
        ({"tools": [{"type": "web_search"}]}, "tools[0]"),
        ({"tools": 3}, "tools"),
        ({"tool_choice": "some"}, "tool_choice"),
        ({"tool_choice": 7}, "tool_choice"),
        ({"messages": 7}, "messages"),
        ({"messages": [USER, {"role": "system", "content": "late"}]}, "messages[1].role"),
        ({"messages": [{"role": "function", "content": "x", "name": "f"}]}, "messages[0].role"),
        ({"messages": [{**USER, "name": "anna"}]}, "messages[0].name"),
        (
            {
                "messages": [
                    {"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}
                ]
            },
            "messages[0].content[0]",
        ),
        (
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [{"type": "image_url", "image_url": {"url": "http://x"}}],
                    }
                ]
            },
            "messages[0].content[0].image_url",
        ),
        (
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [
                            {
                                "type": "image_url",
                                "image_url": {"url": "https://x", "detail": "low"},
                            }
                        ],
                    }
                ]
            },
            "messages[0].content[0].image_url.detail",
        ),
        ({"messages": [USER, {"role": "tool", "content": "x"}]}, "messages[1].tool_call_id"),
        (
            {"messages": [USER, {"role": "assistant", "tool_calls": [7]}]},
            "messages[1].tool_calls[0]",
        ),
        ({"messages": [USER, {"role": "assistant", "tool_calls": "x"}]}, "messages[1].tool_calls"),
        (
            {
                "messages": [
                    USER,
                    {
                        "role": "assistant",
                        "tool_calls": [{**CALL, "function": {"name": "f", "arguments": "[1]"}}],
                    },
                ]
            },
            "messages[1].tool_calls[0].function.arguments",
        ),
    ],
)
def test_what_has_no_equal_is_refused_by_its_place(given: dict[str, Any], place: str) -> None:
    """Nothing of a request is dropped in silence."""
    with pytest.raises(BadMessages) as caught:
        translated({"messages": [USER], **given})
    assert caught.value.place == place
    assert caught.value.fix


def test_messages_without_a_system_text_and_parameters_of_their_own_are_a_body() -> None:
    """With nothing to add, nothing is added."""
    row = {"id": "1", "m": [USER]}
    assert asked(spec(messages_field="m"), row) == {
        "model": "c",
        "max_tokens": 9,
        "messages": [USER],
    }


def gemini(**given: Any) -> JobSpec:
    fields: dict[str, Any] = {"endpoint": GENERATE, "model": "g", "lane": "batch", **given}
    return JobSpec(**fields)


def test_a_prompt_becomes_a_request_of_gemini() -> None:
    """Parameters stand in generationConfig, a row's own before the job's."""
    made = gemini(
        prompt="Say {text}",
        system="S",
        params={"maxOutputTokens": 9, "topK": 3},
        param_fields={"maxOutputTokens": "most"},
    )
    contents = [{"role": "user", "parts": [{"text": "Say é"}]}]
    expected = {"model": "g", "systemInstruction": {"parts": [{"text": "S"}]}, "contents": contents}
    config = {"maxOutputTokens": 5, "topK": 3}
    assert asked(made, {"id": "1", "text": "é", "most": 5}) == expected | {
        "generationConfig": config
    }
    assert asked(made, {"id": "1", "text": "é"})["generationConfig"] == {
        "maxOutputTokens": 9,
        "topK": 3,
    }
    assert asked(gemini(prompt="Say {text}"), {"id": "1", "text": "é"}) == {
        "model": "g",
        "contents": contents,
    }


def test_lines_of_gemini_are_filled_in() -> None:
    """What a line says itself stays."""
    row = {"custom_id": "a", "method": "POST", "url": GENERATE}
    made = gemini(params={"temperature": 0, "topK": 3})
    body = {"contents": [{"parts": [{"text": "x"}]}], "generationConfig": {"topK": 1}}
    assert asked(made, {**row, "body": body}) == {
        "model": "g",
        "contents": body["contents"],
        "generationConfig": {"temperature": 0, "topK": 1},
    }
    with pytest.raises(RowFault) as caught:
        form_of(made).read({**row, "body": {"generationConfig": 7}})
    assert caught.value.field == "body.contents"
    with pytest.raises(RowFault) as caught:
        form_of(made).read({**row, "body": {**body, "model": "../files"}})
    assert caught.value.field == "body.model"


def test_the_tier_stands_beside_the_parameters_of_a_request_to_gemini() -> None:
    """`serviceTier` is a field of the request, and the others are its `generationConfig`; a line's
    own tier wins."""
    for params, sent in (
        (
            {"serviceTier": "flex", "topK": 3},
            {"serviceTier": "flex", "generationConfig": {"topK": 3}},
        ),
        ({"serviceTier": "flex"}, {"serviceTier": "flex"}),
        ({}, {}),
    ):
        spec = JobSpec.from_json(
            {"prompt": "{text}", "model": "m", "endpoint": GENERATE, "params": params}
        )
        body = orjson.loads(prompt_bodies(spec, ())("hi"))
        assert {name: body[name] for name in body if name not in ("model", "contents")} == sent
    given = {"contents": [], "serviceTier": "standard"}
    nested = nested_of(GENERATE)
    assert nested is not None
    filled = nested.with_defaults(given, None, {"serviceTier": "flex", "topK": 3})
    assert filled == {**given, "generationConfig": {"topK": 3}}


def test_chat_lines_become_requests_of_gemini() -> None:
    """Messages, calls of functions and their results, parameters, and the job's own where the line
    has none."""
    line = {
        "model": "models/own",
        "max_tokens": 7,
        "stop": "END",
        "n": None,
        "stream": False,
        "messages": [
            {"role": "system", "content": "S"},
            {"role": "developer", "content": "D"},
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "see"},
                    {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
                    {"type": "input_audio", "input_audio": {"format": "wav", "data": "BBBB"}},
                ],
            },
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": CALL["id"], "content": "4"},
        ],
    }
    row = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": line}
    assert asked(gemini(params={"temperature": 0, "maxOutputTokens": 99}), row) == {
        "model": "models/own",
        "systemInstruction": {"parts": [{"text": "S\n\nD"}]},
        "contents": [
            {
                "role": "user",
                "parts": [
                    {"text": "see"},
                    {"inlineData": {"mimeType": "image/png", "data": "AAAA"}},
                    {"inlineData": {"mimeType": "audio/wav", "data": "BBBB"}},
                ],
            },
            {"role": "model", "parts": [{"functionCall": {"name": "f", "args": {"x": 1}}}]},
            {
                "role": "user",
                "parts": [{"functionResponse": {"name": "f", "response": {"result": "4"}}}],
            },
        ],
        "generationConfig": {"temperature": 0, "maxOutputTokens": 7, "stopSequences": ["END"]},
    }


@pytest.mark.parametrize(
    ("given", "becomes"),
    [
        (
            {"temperature": 1.5, "top_p": 0.5, "seed": 3, "n": 2},
            {"generationConfig": {"temperature": 1.5, "topP": 0.5, "seed": 3, "candidateCount": 2}},
        ),
        (
            {"response_format": {"type": "json_object"}},
            {"generationConfig": {"responseMimeType": "application/json"}},
        ),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "x", "schema": {"type": "object"}},
                }
            },
            {
                "generationConfig": {
                    "responseMimeType": "application/json",
                    "responseJsonSchema": {"type": "object"},
                }
            },
        ),
        ({"response_format": {"type": "text"}}, {}),
        (
            {
                "tools": [
                    {
                        "type": "function",
                        "function": {"name": "f", "parameters": {"type": "object"}},
                    }
                ]
            },
            {
                "tools": [
                    {
                        "functionDeclarations": [
                            {"name": "f", "parametersJsonSchema": {"type": "object"}}
                        ]
                    }
                ]
            },
        ),
        ({"tool_choice": "required"}, {"toolConfig": {"functionCallingConfig": {"mode": "ANY"}}}),
        (
            {"tool_choice": {"type": "function", "function": {"name": "f"}}},
            {
                "toolConfig": {
                    "functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["f"]}
                }
            },
        ),
        ({"parallel_tool_calls": True, "logprobs": False, "logit_bias": {}, "store": False}, {}),
        ({"service_tier": "auto"}, {}),
        ({"service_tier": "flex"}, {"serviceTier": "flex"}),
    ],
)
def test_parameters_are_translated_for_gemini(
    given: dict[str, Any], becomes: dict[str, Any]
) -> None:
    """By their meaning; what says only what Gemini does anyway is left out."""
    contents = [{"role": "user", "parts": [{"text": USER["content"]}]}]
    assert to_gemini.translated({"messages": [USER], **given}) == {
        "contents": contents,
        **becomes,
    }


@pytest.mark.parametrize(
    ("given", "place"),
    [
        ({"logprobs": True}, "logprobs"),
        ({"tools": [{"type": "function", "function": {"name": "f", "strict": True}}]}, "tools[0]"),
        ({"user": "u"}, "user"),
        ({"reasoning_effort": "some"}, "reasoning_effort"),
        ({"parallel_tool_calls": False}, "parallel_tool_calls"),
        ({"service_tier": "scale"}, "service_tier"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        ({"response_format": 7}, "response_format"),
        ({"tools": [{"type": "web_search"}]}, "tools[0]"),
        ({"tools": 3}, "tools"),
        ({"tool_choice": "some"}, "tool_choice"),
        ({"messages": 7}, "messages"),
        ({"messages": [USER, {"role": "system", "content": "late"}]}, "messages[1].role"),
        ({"messages": [{**USER, "name": "anna"}]}, "messages[0].name"),
        (
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [{"type": "image_url", "image_url": {"url": "https://x"}}],
                    }
                ]
            },
            "messages[0].content[0].image_url",
        ),
        (
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [{"type": "input_audio", "input_audio": {"format": "ogg"}}],
                    }
                ]
            },
            "messages[0].content[0].input_audio",
        ),
        (
            {"messages": [USER, {"role": "tool", "tool_call_id": "of nothing", "content": "x"}]},
            "messages[1].tool_call_id",
        ),
        (
            {"messages": [USER, {"role": "assistant", "tool_calls": [7]}]},
            "messages[1].tool_calls[0]",
        ),
        (
            {
                "messages": [
                    USER,
                    {
                        "role": "assistant",
                        "tool_calls": [{**CALL, "function": {"name": "f", "arguments": "[1]"}}],
                    },
                ]
            },
            "messages[1].tool_calls[0].function.arguments",
        ),
    ],
)
def test_what_has_no_equal_at_gemini_is_refused_by_its_place(
    given: dict[str, Any], place: str
) -> None:
    """Nothing of a request is dropped in silence."""
    with pytest.raises(BadMessages) as caught:
        to_gemini.translated({"messages": [USER], **given})
    assert caught.value.place == place
    assert caught.value.fix


@pytest.mark.parametrize(
    ("given", "pointer"),
    [
        ({"prompt": "x", "examples": [{"input": "a", "output": "b"}]}, "/examples"),
        ({"messages_field": "m"}, "/messages_field"),
        ({"prompt": "x", "params": {"max_tokens": 5}}, "/params/max_tokens"),
        ({"prompt": "x", "model": "../files"}, "/model"),
    ],
)
def test_a_job_that_gemini_cannot_take_is_refused(given: dict[str, Any], pointer: str) -> None:
    """By name, before anything is sent."""
    with pytest.raises(SpecError) as caught:
        form_of(gemini(**given))
    assert pointer in {problem.pointer for problem in caught.value.problems}


def test_the_text_of_a_message_is_read() -> None:
    """All of its text blocks, without what it thought."""
    content = [
        {"type": "thinking", "thinking": "hm"},
        {"type": "text", "text": "a"},
        {"type": "text", "text": "b"},
    ]
    assert answer_text({"type": "message", "content": content}) == "ab"


def test_the_text_of_geminis_answer_is_read() -> None:
    """Likewise without its thoughts."""
    parts = [{"text": "hm", "thought": True}, {"text": "a"}, {"text": "b"}]
    assert answer_text({"candidates": [{"content": {"parts": parts}}]}) == "ab"
