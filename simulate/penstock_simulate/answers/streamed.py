"""A whole answer as the events in which its API streams it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import orjson

from penstock_simulate.answers.calls import CHAT, COMPLETIONS, GENERATE, MESSAGES, Call

CHARS: Final = 8  # of an answer's text, in one event
_KINDS: Final = {CHAT: "chat.completion.chunk", COMPLETIONS: "text_completion"}


def is_streamed(call: Call) -> bool:
    """Return whether the call asks for its answer as events."""
    return call.streams or bool(call.body.get("stream"))


def events_of(call: Call, body: bytes) -> list[bytes]:
    """Return the events of an answer; its usage last, where the call asks for it."""
    answer = orjson.loads(body)
    if call.endpoint == MESSAGES:
        return [b"event: %b\n%b" % (one["type"].encode(), _data(one)) for one in _message(answer)]
    if call.endpoint == GENERATE:
        return [_data(one) for one in _candidates(answer)]
    options = call.body.get("stream_options")
    with_usage = isinstance(options, dict) and options.get("include_usage") is True
    told = list(_chunks(answer, call.endpoint))
    if with_usage:
        told = [one | {"usage": None} for one in told]
        told.append(_about(answer, call.endpoint) | {"choices": [], "usage": answer["usage"]})
    return [*map(_data, told), b"data: [DONE]\n\n"]


def _data(event: Mapping[str, Any]) -> bytes:
    return b"data: %b\n\n" % orjson.dumps(event)


def _bits(text: str) -> Iterator[str]:
    return (text[at : at + CHARS] for at in range(0, len(text), CHARS))


def _about(answer: Mapping[str, Any], endpoint: str) -> dict[str, Any]:
    return {name: answer[name] for name in ("id", "created", "model")} | {
        "object": _KINDS[endpoint]
    }


def _chunks(answer: Mapping[str, Any], endpoint: str) -> Iterator[dict[str, Any]]:
    about, (choice,) = _about(answer, endpoint), answer["choices"]
    if endpoint == COMPLETIONS:
        told: list[Any] = [{"text": bit} for bit in _bits(choice["text"])] or [{"text": ""}]
        told[-1]["finish_reason"] = choice["finish_reason"]
    else:
        message = choice["message"]
        told = [{"delta": {"role": "assistant", "content": "", "refusal": None}}]
        told += [{"delta": {"content": bit}} for bit in _bits(message["content"] or "")]
        for at, call in enumerate(message.get("tool_calls", ())):
            begun = call | {"index": at, "function": call["function"] | {"arguments": ""}}
            told.append({"delta": {"tool_calls": [begun]}})
            for bit in _bits(call["function"]["arguments"]):
                more = {"index": at, "function": {"arguments": bit}}
                told.append({"delta": {"tool_calls": [more]}})
        told.append({"delta": {}, "finish_reason": choice["finish_reason"]})
    for one in told:
        yield about | {"choices": [{"index": 0, "logprobs": None, "finish_reason": None} | one]}


def _message(answer: dict[str, Any]) -> Iterator[dict[str, Any]]:
    usage, reason = answer["usage"], answer["stop_reason"]
    begun = {"content": [], "stop_reason": None, "usage": usage | {"output_tokens": 1}}
    yield {"type": "message_start", "message": answer | begun}
    yield {"type": "ping"}
    for index, block in enumerate(answer["content"]):
        is_text = block["type"] == "text"
        empty: dict[str, Any] = {"text": ""} if is_text else {"input": {}}
        yield {"type": "content_block_start", "index": index, "content_block": block | empty}
        text = block["text"] if is_text else orjson.dumps(block["input"]).decode()
        kind, field = ("text_delta", "text") if is_text else ("input_json_delta", "partial_json")
        for bit in _bits(text):
            delta = {"type": kind, field: bit}
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    ended = {"stop_reason": reason, "stop_sequence": answer["stop_sequence"]}
    told = {"output_tokens": usage["output_tokens"]}
    yield {"type": "message_delta", "delta": ended, "usage": told}
    yield {"type": "message_stop"}


def _candidates(answer: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if "candidates" not in answer:
        yield answer
        return
    (candidate,) = answer["candidates"]
    (part,) = candidate["content"]["parts"]
    if "text" not in part:  # a call of a function comes whole
        yield answer
        return
    about = {name: answer[name] for name in ("modelVersion", "responseId")}
    for bit in _bits(part["text"]):
        content = {"parts": [{"text": bit}], "role": "model"}
        yield about | {"candidates": [{"content": content, "index": 0}]}
    content = {"parts": [{"text": ""}], "role": "model"}
    yield answer | {"candidates": [candidate | {"content": content}]}
