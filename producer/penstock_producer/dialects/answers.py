"""Answers of all APIs as OpenAI's chat has them, and a chat's answer in the words of another API.

What was stored is never changed: answers are translated where they are read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import orjson

__all__ = [
    "as_message",
    "as_response",
    "bedrocks_usage",
    "call_item",
    "chat_of",
    "geminis_usage",
    "in_openais_words",
    "refusal_part",
    "said_item",
    "signature_of",
    "text_part",
    "thought_item",
]

# What Anthropic and Bedrock call a stop reason, and Gemini a finish reason, in OpenAI's words.
# Others keep their own.
_REASONS: Final[Mapping[str, str]] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
    "refusal": "content_filter",
    "guardrail_intervened": "content_filter",
    "content_filtered": "content_filter",
    "STOP": "stop",
    "MAX_TOKENS": "length",
    "SAFETY": "content_filter",
    "RECITATION": "content_filter",
    "BLOCKLIST": "content_filter",
    "PROHIBITED_CONTENT": "content_filter",
    "SPII": "content_filter",
    "IMAGE_SAFETY": "content_filter",
    "IMAGE_PROHIBITED_CONTENT": "content_filter",
    "IMAGE_RECITATION": "content_filter",
}
_STOPS: Final[Mapping[str, str]] = {
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "function_call": "tool_use",
    "content_filter": "refusal",
}


def in_openais_words(reason: str) -> str:
    """Return why an answer ended, as OpenAI's chat says it."""
    return _REASONS.get(reason, reason)


def chat_of(answer: Any, created: int) -> dict[str, Any] | None:
    """Return an answer of any API as one of OpenAI's chat; None for what is no answer.

    ``created`` is when it came, in Unix seconds, where it does not say so itself.
    """
    if not isinstance(answer, Mapping):
        return None
    if isinstance(answer.get("choices"), list):
        return dict(answer)
    if answer.get("type") == "message":
        choices, usage = [_choice_of_message(answer)], _usage_of_message(_map(answer.get("usage")))
    elif "stopReason" in answer:
        choices = [_choice_of_converse(answer)]
        usage = _usage_of_message(bedrocks_usage(_map(answer.get("usage"))))
    elif "candidates" in answer or "promptFeedback" in answer:
        choices = _choices_of_candidates(answer)
        usage = _whole(geminis_usage(_map(answer.get("usageMetadata"))))
    else:
        return None
    return {
        "id": f"chatcmpl-{answer.get('id', answer.get('responseId', ''))}",
        "object": "chat.completion",
        "created": created,
        "model": answer.get("model", answer.get("modelVersion")),
        "choices": choices,
        "usage": usage,
    }


def _choice_of_message(answer: Mapping[str, Any]) -> dict[str, Any]:
    texts, thoughts, calls = list[str](), list[str](), list[dict[str, Any]]()
    for block in _rows(answer.get("content")):
        match block.get("type"):
            case "text":
                texts.append(str(block.get("text", "")))
            case "thinking":
                thoughts.append(str(block.get("thinking", "")))
            case "tool_use":
                calls.append(_call(block.get("id"), block.get("name"), block.get("input")))
    return _choice(0, texts, thoughts, calls, _reason(answer.get("stop_reason")))


def _choice_of_converse(answer: Mapping[str, Any]) -> dict[str, Any]:
    texts, thoughts, calls = list[str](), list[str](), list[dict[str, Any]]()
    for block in _rows(_map(_map(answer.get("output")).get("message")).get("content")):
        used, thought = _map(block.get("toolUse")), _map(block.get("reasoningContent"))
        if used:
            calls.append(_call(used.get("toolUseId"), used.get("name"), used.get("input")))
        elif isinstance(text := _map(thought.get("reasoningText")).get("text"), str):
            thoughts.append(text)
        elif isinstance(block.get("text"), str):
            texts.append(block["text"])
    return _choice(0, texts, thoughts, calls, _reason(answer.get("stopReason")))


def _choices_of_candidates(answer: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the choices; a prompt that was refused has none, only a reason."""
    candidates = _rows(answer.get("candidates"))
    if not candidates:
        why = _map(answer.get("promptFeedback")).get("blockReason")
        refused = _choice(0, [], [], [], "content_filter")
        refused["message"]["refusal"] = None if why is None else str(why)
        return [refused]
    ident = answer.get("responseId", "")
    return [_choice_of_candidate(at, one, ident) for at, one in enumerate(candidates)]


def _choice_of_candidate(at: int, candidate: Mapping[str, Any], ident: Any) -> dict[str, Any]:
    texts, thoughts, calls = list[str](), list[str](), list[dict[str, Any]]()
    for part in _rows(_map(candidate.get("content")).get("parts")):
        called = part.get("functionCall")
        if isinstance(called, Mapping):
            name = called.get("id") or f"call_{ident}_{at}_{len(calls)}"
            call = _call(name, called.get("name"), called.get("args"))
            calls.append(call | _signed(part.get("thoughtSignature")))
        elif isinstance(part.get("text"), str):
            (thoughts if part.get("thought") else texts).append(part["text"])
    reason = _reason(candidate.get("finishReason"))
    return _choice(
        at, texts, thoughts, calls, "tool_calls" if calls and reason == "stop" else reason
    )


def _choice(
    at: int, texts: list[str], thoughts: list[str], calls: list[dict[str, Any]], reason: str | None
) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": "".join(texts) if texts else None}
    message |= {"refusal": None}
    if thoughts:
        message["reasoning_content"] = "".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    return {"index": at, "message": message, "logprobs": None, "finish_reason": reason}


def _call(ident: Any, name: Any, given: Any) -> dict[str, Any]:
    arguments = orjson.dumps({} if given is None else given).decode()
    return {"id": ident, "type": "function", "function": {"name": name, "arguments": arguments}}


def _signed(signature: Any) -> dict[str, Any]:
    """Return where Google's own translation puts the signature of the thought behind a call.

    Gemini refuses a conversation that has lost it.
    """
    if not isinstance(signature, str):
        return {}
    return {"extra_content": {"google": {"thought_signature": signature}}}


def signature_of(call: Mapping[str, Any]) -> str | None:
    """Return the signature of a call that was one of Gemini's; None for others."""
    google = _map(_map(call.get("extra_content")).get("google"))
    signature = google.get("thought_signature")
    return signature if isinstance(signature, str) else None


def _usage_of_message(usage: Mapping[str, Any]) -> dict[str, Any]:
    """Return Anthropic's usage: it counts what its cache read and wrote beside the rest."""
    read = _count(usage.get("cache_read_input_tokens")) or 0
    written = _count(usage.get("cache_creation_input_tokens")) or 0
    prompt = (_count(usage.get("input_tokens")) or 0) + read + written
    thought = _count(_map(usage.get("output_tokens_details")).get("thinking_tokens")) or 0
    details = {"cached_tokens": read} | ({"cache_write_tokens": written} if written else {})
    return _whole(
        {
            "prompt_tokens": prompt,
            "completion_tokens": _count(usage.get("output_tokens")),
            "prompt_tokens_details": details,
            "completion_tokens_details": {"reasoning_tokens": thought},
        }
    )


def bedrocks_usage(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the usage of Converse in Anthropic's names: what its cache read and wrote is beside.

    `cacheDetails` says how much was written for how long."""
    for_hour = sum(
        _count(one.get("inputTokens")) or 0
        for one in _rows(given.get("cacheDetails"))
        if one.get("ttl") == "1h"
    )
    return {
        "input_tokens": given.get("inputTokens"),
        "output_tokens": given.get("outputTokens"),
        "cache_read_input_tokens": given.get("cacheReadInputTokens") or 0,
        "cache_creation_input_tokens": given.get("cacheWriteInputTokens") or 0,
    } | ({"cache_creation": {"ephemeral_1h_input_tokens": for_hour}} if for_hour else {})


def geminis_usage(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return Gemini's usage: thoughts count as output, what its tools brought as input."""
    thought = _count(given.get("thoughtsTokenCount")) or 0
    prompt = _count(given.get("promptTokenCount"))
    of_tools = _count(given.get("toolUsePromptTokenCount")) or 0
    written = [_count(given.get(name)) for name in ("candidatesTokenCount", "thoughtsTokenCount")]
    known = [tokens for tokens in written if tokens is not None]
    return {
        "prompt_tokens": None if prompt is None else prompt + of_tools,
        "completion_tokens": sum(known) if known else None,
        "prompt_tokens_details": {"cached_tokens": given.get("cachedContentTokenCount")},
        "completion_tokens_details": {"reasoning_tokens": thought},
    }


def _whole(usage: dict[str, Any]) -> dict[str, Any]:
    """Return usage with its sum, and zeros where the provider gave no figure."""
    prompt, completion = usage["prompt_tokens"] or 0, usage["completion_tokens"] or 0
    sums = {"prompt_tokens": prompt, "completion_tokens": completion}
    return usage | sums | {"total_tokens": prompt + completion}


# -- in the words of another API


def as_message(chat: Mapping[str, Any]) -> dict[str, Any]:
    """Return a chat's first answer as one of Anthropic's Messages."""
    choice, usage = _first(chat), _map(chat.get("usage"))
    message = _map(choice.get("message"))
    cached = _count(_map(usage.get("prompt_tokens_details")).get("cached_tokens")) or 0
    content = list[dict[str, Any]]()
    if thought := _thought(message):
        content.append({"type": "thinking", "thinking": thought, "signature": ""})
    if text := _text(message.get("content")) or _text(message.get("refusal")):
        content.append({"type": "text", "text": text})
    for call in _rows(message.get("tool_calls")):
        function = _map(call.get("function"))
        used = {"id": call.get("id"), "name": function.get("name")}
        content.append({"type": "tool_use", **used, "input": _arguments(function)})
    reason = choice.get("finish_reason")
    return {
        "id": f"msg_{str(chat.get('id', '')).removeprefix('chatcmpl-').removeprefix('msg_')}",
        "type": "message",
        "role": "assistant",
        "model": chat.get("model"),
        "content": content,
        "stop_reason": _STOPS.get(reason, "end_turn") if isinstance(reason, str) else "end_turn",
        "stop_sequence": None,
        "usage": {
            "input_tokens": max(0, (_count(usage.get("prompt_tokens")) or 0) - cached),
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": cached,
            "output_tokens": _count(usage.get("completion_tokens")) or 0,
        },
    }


def as_response(chat: Mapping[str, Any], asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return a chat's first answer as one of OpenAI's Responses.

    ``asked`` is the request, some of whose fields an answer repeats.
    """
    choice, usage = _first(chat), _map(chat.get("usage"))
    message, reason = _map(choice.get("message")), choice.get("finish_reason")
    ident = str(chat.get("id", "")).removeprefix("chatcmpl-").removeprefix("msg_")
    why = {"length": "max_output_tokens", "content_filter": "content_filter"}.get(str(reason))
    state = "completed" if why is None else "incomplete"
    output = list[dict[str, Any]]()
    if thought := _thought(message):
        output.append(thought_item(ident, thought))
    if text := _text(message.get("content")):
        output.append(said_item(ident, text_part(text), state))
    elif refusal := _text(message.get("refusal")):
        output.append(said_item(ident, refusal_part(refusal), state))
    for at, call in enumerate(_rows(message.get("tool_calls"))):
        function = _map(call.get("function"))
        name, arguments = function.get("name"), function.get("arguments")
        output.append(call_item(ident, at, call.get("id"), name, arguments))
    return {
        "id": f"resp_{ident}",
        "object": "response",
        "created_at": chat.get("created"),
        "status": state,
        "error": None,
        "incomplete_details": None if why is None else {"reason": why},
        "model": chat.get("model"),
        "output": output,
        **{name: asked.get(name, usual) for name, usual in _REPEATED.items()},
        "usage": _usage_of_response(usage),
    }


_REPEATED: Final[Mapping[str, Any]] = {
    "instructions": None,
    "max_output_tokens": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "previous_response_id": None,
    "reasoning": {"effort": None, "summary": None},
    "store": False,
    "temperature": None,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_p": None,
    "truncation": "disabled",
}


def thought_item(ident: str, text: str) -> dict[str, Any]:
    """Return the thoughts of a response; ``ident`` is the end of its id."""
    summary = [{"type": "summary_text", "text": text}]
    return {"id": f"rs_{ident}", "type": "reasoning", "summary": summary}


def text_part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def refusal_part(text: str) -> dict[str, Any]:
    return {"type": "refusal", "refusal": text}


def call_item(ident: str, number: int, call: Any, name: Any, arguments: Any) -> dict[str, Any]:
    """Return a call of a tool in a response."""
    about = {"id": f"fc_{ident}_{number}", "type": "function_call", "call_id": call}
    return about | {"name": name, "arguments": arguments, "status": "completed"}


def said_item(ident: str, part: dict[str, Any], state: str) -> dict[str, Any]:
    """Return what a response says."""
    said = {"id": f"msg_{ident}", "type": "message", "role": "assistant", "status": state}
    return said | {"content": [part]}


def _usage_of_response(usage: Mapping[str, Any]) -> dict[str, Any]:
    prompt = _count(usage.get("prompt_tokens")) or 0
    completion = _count(usage.get("completion_tokens")) or 0
    of_prompt = _map(usage.get("prompt_tokens_details"))
    of_answer = _map(usage.get("completion_tokens_details"))
    return {
        "input_tokens": prompt,
        "input_tokens_details": {
            "cached_tokens": _count(of_prompt.get("cached_tokens")) or 0,
            "cache_write_tokens": _count(of_prompt.get("cache_write_tokens")) or 0,
        },
        "output_tokens": completion,
        "output_tokens_details": {
            "reasoning_tokens": _count(of_answer.get("reasoning_tokens")) or 0
        },
        "total_tokens": prompt + completion,
    }


def _first(chat: Mapping[str, Any]) -> Mapping[str, Any]:
    return next(iter(_rows(chat.get("choices"))), {})


def _thought(message: Mapping[str, Any]) -> str | None:
    """Return the model's thoughts, as vLLM, DeepSeek and OpenRouter name them."""
    named = (message.get(name) for name in ("reasoning_content", "reasoning"))
    return next((one for one in named if isinstance(one, str) and one), None)


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _arguments(function: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call; of those that are no object, their text."""
    given = function.get("arguments") or "{}"
    try:
        arguments = orjson.loads(given)
    except (orjson.JSONDecodeError, TypeError):
        arguments = None
    return arguments if isinstance(arguments, dict) else {"arguments": given}


def _reason(value: Any) -> str | None:
    return in_openais_words(value) if isinstance(value, str) else None


def _count(value: Any) -> int | None:
    return value if type(value) is int and value >= 0 else None


def _map(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _rows(value: Any) -> list[Mapping[str, Any]]:
    return [one for one in value if isinstance(one, Mapping)] if isinstance(value, list) else []
