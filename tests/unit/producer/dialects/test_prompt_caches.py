"""Requests as prompt caches want them: marks, keys, and nothing else changed."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from penstock_producer.dialects.prompt_caches import (
    Cut,
    laid_out,
    parted,
    pieces_of,
    rules_of,
    with_cache,
    without_marks,
)

CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
GENERATE = "/v1beta/generateContent"
OPENAI = "https://api.openai.com/v1"
CLAUDE = rules_of("anthropic", "https://api.anthropic.com", "claude-sonnet-4-5")
NEW = rules_of("openai", "http://127.0.0.1/v1", "gpt-5.6")
MARK = {"prompt_cache_breakpoint": {"mode": "explicit"}}
EPHEMERAL = {"cache_control": {"type": "ephemeral"}}


def sent(body: dict[str, Any], endpoint: str, rules: Any, *cuts: tuple[int, int]) -> dict[str, Any]:
    raw = laid_out(orjson.dumps(body), endpoint, [Cut(*cut) for cut in cuts], rules, "name")
    parsed: dict[str, Any] = orjson.loads(raw)
    return parsed


@pytest.mark.parametrize(
    ("kind", "model", "least", "lifetime_s"),
    [
        ("anthropic", "claude-sonnet-4-5-20250929", 1_024, 300),
        ("anthropic", "claude-opus-4-5", 4_096, 300),
        ("anthropic", "claude-3-haiku-20240307", 2_048, 300),
        ("anthropic", "claude-opus-5", 512, 300),
        ("anthropic", "a-model-of-tomorrow", 4_096, 300),
        ("gemini", "gemini-2.5-flash", 2_048, 300),
        ("gemini", "models/gemini-3.6-flash", 4_096, 300),
        ("openai", "gpt-5-mini", 1_024, 300),
        ("openai", "gpt-5.6-luna", 1_024, 1_800),
        ("openai", None, 1_024, 300),
    ],
)
def test_each_model_has_the_rules_of_its_provider(
    kind: str, model: str | None, least: int, lifetime_s: float
) -> None:
    """An unknown Claude is taken for the one that wants the longest beginning."""
    rules = rules_of(kind, "", model)
    assert (rules.least_tokens, rules.lifetime_s) == (least, lifetime_s)
    assert rules.marked == (kind == "anthropic" or model == "gpt-5.6-luna")


def test_batches_keep_for_an_hour_at_anthropic_and_have_no_cache_for_old_models_of_openai() -> None:
    """A batch takes longer than five minutes; what OpenAI says of models before GPT-5."""
    assert rules_of("anthropic", "", "claude-opus-5", packs=True).lifetime_s == 3_600
    assert not rules_of("openai", OPENAI, "gpt-4o", packs=True).is_there
    assert rules_of("openai", OPENAI, "gpt-5", packs=True).is_there
    assert rules_of("openai", "https://other.example/v1", "gpt-4o", packs=True).is_there


def test_a_system_text_and_the_beginning_of_a_message_are_marked() -> None:
    """Text becomes a list of blocks, with the mark on the last one that is shared."""
    body = {"messages": [{"role": "user", "content": "Manual. Question?"}], "system": "Be brief."}
    found = sent(body, MESSAGES, CLAUDE, (0, 9), (1, 8))
    assert found["system"] == [{"type": "text", "text": "Be brief.", **EPHEMERAL}]
    assert found["messages"][0]["content"] == [
        {"type": "text", "text": "Manual. ", **EPHEMERAL},
        {"type": "text", "text": "Question?"},
    ]
    hour = rules_of("anthropic", "", "claude-sonnet-4-5", packs=True)
    kept = sent(body, MESSAGES, hour, (0, 9))["system"][0]["cache_control"]
    assert kept == {"type": "ephemeral", "ttl": "1h"}


def test_tools_images_and_parts_are_marked_where_they_end() -> None:
    """A mark within the JSON of tools or of an image goes to the text before."""
    image = {"type": "image", "source": {"type": "url", "url": "https://x.example/a.png"}}
    content: list[dict[str, Any]] = [
        {"type": "text", "text": "Look: "},
        image,
        {"type": "text", "text": "What?"},
    ]
    body = {"messages": [{"role": "user", "content": content}], "tools": [{"name": "t"}]}
    tools, _, picture, _ = (len(one.text) for one in pieces_of(orjson.dumps(body), MESSAGES))
    assert sent(body, MESSAGES, CLAUDE, (0, tools))["tools"] == [{"name": "t", **EPHEMERAL}]
    whole = sent(body, MESSAGES, CLAUDE, (2, picture))["messages"][0]["content"]
    assert whole == [content[0], image | EPHEMERAL, content[2]]
    half = sent(body, MESSAGES, CLAUDE, (2, picture - 1))["messages"][0]["content"]
    assert half == [content[0] | EPHEMERAL, image, content[2]]


@pytest.mark.parametrize(
    "body",
    [
        {"messages": [{"role": "user", "content": "MQ"}], "tools": []},
        {"messages": [{"role": "user", "content": "MQ"}], "tools": 5, "system": [7, None]},
        {"messages": [None, 5, {"role": "assistant", "content": [{"type": "thinking"}]}]},
        {"messages": {"role": "user"}, "system": {"a": 1}},
        {"messages": [], "tools": {"a": 1}},
        {"messages": [], "tools": [None]},
    ],
)
def test_requests_of_any_shape_are_sent_for_their_provider_to_refuse(body: dict[str, Any]) -> None:
    """No shape raises, and nothing is marked that takes no mark."""
    pieces = pieces_of(orjson.dumps(body), MESSAGES)
    for at, piece in enumerate(pieces):
        for chars in (0, 1, len(piece.text)):
            found = sent(body, MESSAGES, CLAUDE, (at, chars))
            assert found.keys() == body.keys()
            assert "thinking" not in orjson.dumps(found).decode() or found == body


def test_new_models_of_openai_write_what_is_marked_and_nothing_else() -> None:
    """From GPT-5.6 on each prompt would be written as a whole, at a higher price."""
    body = {"messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "MQ"}]}
    found = sent(body, CHAT, NEW, (0, 1), (1, 1))
    assert found["messages"][0]["content"] == [{"type": "text", "text": "S", **MARK}]
    assert found["messages"][1]["content"] == [
        {"type": "text", "text": "M", **MARK},
        {"type": "text", "text": "Q"},
    ]
    assert found["prompt_cache_options"] == {"mode": "explicit"}
    asked = sent({"input": "MQ", "instructions": "S"}, RESPONSES, NEW, (0, 1), (1, 1))
    assert asked["input"][0]["content"][0] == {"type": "input_text", "text": "M", **MARK}
    assert asked["instructions"] == "S"  # which takes no marks


def test_openai_gets_a_key_and_others_get_nothing() -> None:
    """An unknown field is an error at many servers that speak its API."""
    body = {"messages": [{"role": "user", "content": "MQ"}]}
    at_openai = rules_of("openai", OPENAI, "gpt-5-mini")
    assert sent(body, CHAT, at_openai, (0, 1)) == body | {"prompt_cache_key": "name"}
    assert sent(body, CHAT, rules_of("openai", "http://x/v1", "gpt-5-mini"), (0, 1)) == body
    gemini = {"contents": [{"role": "user", "parts": [{"text": "MQ"}]}]}
    assert sent(gemini, GENERATE, rules_of("gemini", "", "gemini-2.5-pro"), (0, 1)) == gemini


@pytest.mark.parametrize(
    "body",
    [
        b'{"messages":[{"role":"user","content":[{"type":"text","text":"MQ","cache_control":{"type":"ephemeral"}}]}]}',
        b'{"messages":[{"role":"user","content":"MQ"}],"cache_control":{"type":"ephemeral"}}',
        b'{"messages":[{"role":"user","content":"MQ"}],"prompt_cache_key":"mine"}',
    ],
)
def test_marks_of_the_documents_own_win(body: bytes) -> None:
    """A request that says something of the cache is sent as it came."""
    assert laid_out(body, MESSAGES, [Cut(0, 1)], CLAUDE, "name") == body


def test_a_request_for_another_model_has_no_marks() -> None:
    """As of a replay with another one: its rules may be others."""
    body = orjson.dumps({"model": "gpt-4o", "messages": [{"role": "user", "content": "MQ"}]})
    assert laid_out(body, CHAT, [Cut(0, 1)], NEW, "name", "gpt-5.6") == body
    assert laid_out(body, CHAT, [Cut(0, 1)], NEW, "name", "gpt-4o") != body


def test_what_is_not_marked_is_not_written_anew() -> None:
    """Numbers that no double holds stay as they came."""
    body = b'{"seed":123456789012345678901234567890,"x":1.10,"messages":[{"role":"user","content":"MQ"}]}'
    found = laid_out(body, MESSAGES, [Cut(0, 1)], CLAUDE, "name")
    assert b'"seed":123456789012345678901234567890,"x":1.10' in found


def test_another_model_is_asked_without_the_marks_of_openai() -> None:
    """A fallback may be a model, or a provider, that refuses such fields."""
    body = {"messages": [{"role": "user", "content": "MQ"}], "model": "gpt-5.6"}
    at_openai = rules_of("openai", OPENAI, "gpt-5.6")
    marked = laid_out(orjson.dumps(body), CHAT, [Cut(0, 1)], at_openai, "name")
    assert b"prompt_cache_key" in marked
    parts = [{"type": "text", "text": "M"}, {"type": "text", "text": "Q"}]
    plain = body | {"messages": [{"role": "user", "content": parts}]}
    assert orjson.loads(without_marks(marked)) == plain
    raw = orjson.dumps(body)
    assert without_marks(raw) is raw


GEMINI: dict[str, Any] = {
    "model": "gemini-2.5-pro",
    "systemInstruction": {"parts": [{"text": "S"}]},
    "tools": [{"functionDeclarations": []}],
    "toolConfig": {"functionCallingConfig": {"mode": "ANY"}},
    "contents": [
        {"role": "user", "parts": [{"text": "MMMQ"}, {"text": "R"}]},
        {"role": "model", "parts": [{"text": "A"}]},
    ],
    "generationConfig": {"temperature": 0},
}


def parts_of(cut: Cut, **changed: Any) -> tuple[dict[str, Any], dict[str, Any]] | None:
    found = parted(orjson.dumps(GEMINI | changed), GENERATE, cut, "gemini-2.5-pro")
    return None if found is None else (orjson.loads(found[0]), orjson.loads(found[1]))


def test_a_request_of_gemini_is_parted_into_a_cache_and_the_rest() -> None:
    """Tools, their settings and the system text go to the cache: behind one they are refused."""
    held = {name: GEMINI[name] for name in ("tools", "toolConfig", "systemInstruction")}
    left = {name: GEMINI[name] for name in ("model", "generationConfig")}
    first, answer = GEMINI["contents"]
    cases: list[tuple[Cut, list[Any], list[Any]]] = [
        (Cut(1, 1), [], [first, answer]),
        (
            Cut(2, 3),
            [{"role": "user", "parts": [{"text": "MMM"}]}],
            [{"role": "user", "parts": [{"text": "Q"}, {"text": "R"}]}, answer],
        ),
        (
            Cut(2, 4),
            [{"role": "user", "parts": [{"text": "MMMQ"}]}],
            [{"role": "user", "parts": [{"text": "R"}]}, answer],
        ),
        (Cut(3, 1), [first], [answer]),
    ]
    for cut, kept, rest in cases:
        assert parts_of(cut) == (
            held | ({"contents": kept} if kept else {}),
            left | {"contents": rest},
        )
    body = orjson.dumps(left | {"contents": []})
    assert orjson.loads(with_cache(body, "cachedContents/a"))["cachedContent"] == "cachedContents/a"


def test_what_cannot_be_parted_is_sent_whole() -> None:
    """A cut within the system text, one that leaves nothing, another model, a cache of its own, and
    contents that are no contents."""
    assert parts_of(Cut(0, 3)) is None
    assert parts_of(Cut(4, 1)) is None
    assert parts_of(Cut(9, 1)) is None
    assert parts_of(Cut(2, 3), model="gemini-2.5-flash") is None
    assert parts_of(Cut(2, 3), cachedContent="cachedContents/mine") is None
    assert parts_of(Cut(2, 3), contents="M") is None
    assert parts_of(Cut(2, 1), contents=[{"role": "user"}, {"parts": 3}]) is None


@pytest.mark.parametrize(
    ("kind", "model", "packs", "rents"),
    [
        ("gemini", "models/gemini-2.5-pro", False, True),
        ("gemini", "gemini-3.5-flash", False, True),
        ("gemini", "gemini-4-argon", False, False),
        ("gemini", "gemini-2.5-pro", True, False),
        ("vertex", "gemini-2.5-pro", False, False),
        ("openai", "gpt-5", False, False),
    ],
)
def test_explicit_caches_are_those_of_geminis_own_api(
    kind: str, model: str, packs: bool, rents: bool
) -> None:
    """In real time, of the models that have them."""
    assert rules_of(kind, "", model, packs=packs).rents is rents
