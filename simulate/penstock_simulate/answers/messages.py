"""Anthropic's Messages: how a request is read, and how an answer is written down."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import orjson

from penstock_simulate.answers import refusals
from penstock_simulate.answers.prompt_cache import HOUR_S, KEPT_S, CacheUse
from penstock_simulate.answers.refusals import Refusal
from penstock_simulate.reply import Usage

ROLES = ("user", "assistant")
FORMATS = ("json_schema",)  # of `output_config.format`


class Segment(NamedTuple):
    """A part of the prompt; behind a marked one the prompt up to there may be cached."""

    text: str
    kept_s: float | None = None  # of a marked one, for how long


def refusal_of(body: Mapping[str, Any]) -> Refusal | None:
    """Return why a request cannot be used, in the words of the API."""
    most, messages = body.get("max_tokens"), body.get("messages")
    if most is None:
        return refusals.invalid("max_tokens: Field required", "max_tokens")
    if not isinstance(most, int) or isinstance(most, bool) or most < 1:
        return refusals.invalid(
            "max_tokens: Input should be greater than or equal to 1", "max_tokens"
        )
    if not isinstance(messages, list) or not messages:
        return refusals.invalid("messages: at least one message is required", "messages")
    for at, message in enumerate(messages):
        if not isinstance(message, dict) or message.get("role") not in ROLES:
            return refusals.invalid(
                f"messages.{at}.role: Input should be 'user' or 'assistant'", "messages"
            )
        if not _is_content(message.get("content")):
            return refusals.invalid(
                f"messages.{at}.content: Input should be a text or a list of blocks", "messages"
            )
    if not _is_content(body.get("system", "")):
        return refusals.invalid("system: Input should be a text or a list of blocks", "system")
    return (
        None
        if isinstance(body.get("tools", []), list)
        else refusals.invalid("tools: Input should be a list", "tools")
    )


def segments(body: Mapping[str, Any]) -> Iterator[Segment]:
    """Yield the prompt in the order in which it is cached: tools, system, messages."""
    for tool in body.get("tools", ()):
        kept_s = _kept_s(tool) if isinstance(tool, dict) else None
        yield Segment(orjson.dumps(tool).decode(), kept_s)
    yield from _blocks(body.get("system", ""))
    for message in body["messages"]:
        yield from _blocks(message["content"])
    if body.get("cache_control"):
        yield Segment("", _kept_s(body))


def text_of(parts: Sequence[Segment]) -> str:
    return "\n".join(part.text for part in parts if part.text)


def wanted(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the request's wish for JSON as a chat's `response_format`; empty where it has none."""
    tool = forced_tool(body)
    schema = tool.get("input_schema") if tool else None
    config = body.get("output_config")
    form = config.get("format") if isinstance(config, dict) else body.get("output_format")
    if tool is None and isinstance(form, dict) and form.get("type") in FORMATS:
        schema = form.get("schema")
    if schema is None:
        return {}
    return {"response_format": {"type": "json_schema", "json_schema": {"schema": schema}}}


def forced_tool(body: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the tool that the answer must use."""
    choice = body.get("tool_choice")
    tools = [tool for tool in body.get("tools", ()) if isinstance(tool, dict)]
    if not isinstance(choice, dict) or choice.get("type") not in ("tool", "any"):
        return None
    named = [
        tool for tool in tools if choice["type"] == "any" or tool.get("name") == choice.get("name")
    ]
    return named[0] if named else None


def cut(body: Mapping[str, Any], text: str, finish: str) -> tuple[str, str]:
    """Return the answer up to the first stop sequence, and its stop reason in the API's words."""
    given = body.get("stop_sequences")
    ends = [
        (at, stop)
        for stop in given or ()
        if isinstance(stop, str) and stop and (at := text.find(stop)) >= 0
    ]
    if ends:
        return text[: min(ends)[0]], min(ends)[1]
    return text, "max_tokens" if finish == "length" else "end_turn"


class Answer(NamedTuple):
    """The parts that an answer is written from."""

    ident: str
    model: str
    text: str
    finish: str  # "max_tokens", "end_turn", "refusal", or the stop sequence that ended it
    usage: Usage
    cache: CacheUse
    tier: str  # "standard" or "batch"


def message_body(answer: Answer, tool: Mapping[str, Any] | None) -> bytes:
    plain = answer.finish in ("max_tokens", "end_turn", "refusal")
    reason = answer.finish if plain else "stop_sequence"
    content: list[dict[str, Any]] = [{"type": "text", "text": answer.text}] if answer.text else []
    if tool is not None and reason == "end_turn":
        used = {"type": "tool_use", "id": "toolu_" + answer.ident, "name": tool.get("name")}
        content, reason = [used | {"input": orjson.loads(answer.text)}], "tool_use"
    return orjson.dumps(
        {
            "id": "msg_" + answer.ident,
            "type": "message",
            "role": "assistant",
            "model": answer.model,
            "content": content,
            "stop_reason": reason,
            "stop_sequence": None if plain else answer.finish,
            "usage": _usage(answer),
        }
    )


def _usage(answer: Answer) -> dict[str, Any]:
    """Write the usage: tokens of the cache, written or read, are not among the input's."""
    written, read, for_hour = answer.cache
    return {
        "input_tokens": answer.usage.prompt - written - read,
        "cache_creation_input_tokens": written,
        "cache_read_input_tokens": read,
        "cache_creation": {
            "ephemeral_5m_input_tokens": written - for_hour,
            "ephemeral_1h_input_tokens": for_hour,
        },
        "output_tokens": answer.usage.completion,
        "service_tier": answer.tier,
    }


def _is_content(given: object) -> bool:
    return isinstance(given, str) or (
        isinstance(given, list) and all(isinstance(block, dict) for block in given)
    )


def _blocks(content: Any) -> Iterator[Segment]:
    if isinstance(content, str):
        yield Segment(content)
        return
    for block in content:
        text = block.get("text")
        yield Segment(text if isinstance(text, str) else "", _kept_s(block))


def _kept_s(marked: Mapping[str, Any]) -> float | None:
    """Return how long a mark keeps what is before it; None where none is."""
    mark = marked.get("cache_control")
    if not mark:
        return None
    return HOUR_S if isinstance(mark, dict) and mark.get("ttl") == "1h" else KEPT_S
