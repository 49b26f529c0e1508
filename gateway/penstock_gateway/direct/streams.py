"""Answers as server-sent events, in the words of the caller's client.

An answer is stored before it is sent, so it comes in one piece: the events of its dialect in their
order, each text in one of them. Until it is there, comments keep the connection.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import orjson
from starlette.types import Receive, Scope, Send

from penstock_gateway.direct.fields import COMPLETIONS
from penstock_gateway.errors import anthropic_error, openai_error, refused_for
from penstock_gateway.refused import Refused
from penstock_gateway.routing import QUIET_S, STILL_THERE, EventResponse
from penstock_ledger import PenstockError
from penstock_ledger.lone_surrogates import parse_json
from penstock_producer.job.endpoints import CHAT, MESSAGES, RESPONSES

__all__ = ["AnswerStream", "error_event", "events_of"]

log = logging.getLogger("penstock.gateway")

Coming = asyncio.Task[tuple[bytes, Any]]
"""All events of an answer, and what else is known of it."""


class AnswerStream(EventResponse):
    """Sends comments until the answer has come, then its events, or one that says why not."""

    def __init__(
        self, coming: Coming, endpoint: str, request_id: str, leave: Callable[[], None]
    ) -> None:
        """Wait for what comes; ``leave`` is called when the last event was sent."""
        super().__init__()
        self._coming, self._endpoint, self._leave = coming, endpoint, leave
        self._request_id = request_id

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self.begin(send)
            while not self._coming.done():
                await self.send_piece(send, STILL_THERE)
                await asyncio.wait({self._coming}, timeout=QUIET_S)
            await self.send_piece(send, self._events())
            await self.end(send)
        except TimeoutError:
            log.warning("a reader of an answer took nothing and is dropped (%s)", self._request_id)
        except OSError:
            pass  # it has gone while something was sent
        finally:
            if not self._coming.cancel() and not self._coming.cancelled():
                self._coming.exception()  # of which a reader that has gone heard nothing
            self._leave()

    def _events(self) -> bytes:
        try:
            return self._coming.result()[0]
        except (Refused, PenstockError) as error:
            return error_event(self._endpoint, refused_for(error), self._request_id)
        except Exception as error:
            log.exception("an answer could not be sent (%s)", self._request_id)
            return error_event(self._endpoint, refused_for(error), self._request_id)


def events_of(endpoint: str, answer: bytes, *, with_usage: bool) -> bytes:
    """Return all events of an answer. ``with_usage`` asks a chat for its usage, too."""
    found = parse_json(answer)
    if endpoint == MESSAGES:
        return b"".join(_named(event) for event in _of_message(found))
    if endpoint == RESPONSES:
        numbered = enumerate(_of_response(found))
        return b"".join(_named({**event, "sequence_number": at}) for at, event in numbered)
    chunks = _of_completion(found) if endpoint == COMPLETIONS else _of_chat(found)
    usage = _map(found).get("usage")
    told = [{**chunk, "usage": None} for chunk in chunks] if with_usage else list(chunks)
    if with_usage:
        told.append({**_about(found, endpoint), "choices": [], "usage": usage})
    return b"".join(map(_data, told)) + b"data: [DONE]\n\n"


def error_event(endpoint: str, refused: Refused, request_id: str) -> bytes:
    """Return the event that ends a stream which has failed."""
    if endpoint == MESSAGES:
        return _named(anthropic_error(refused, request_id))
    error = openai_error(refused)["error"]
    if endpoint == RESPONSES:
        return _named({**error, "type": "error", "sequence_number": 0})
    return _data({"error": error})


def _data(value: Mapping[str, Any]) -> bytes:
    return b"data: %b\n\n" % orjson.dumps(value)


def _named(event: Mapping[str, Any]) -> bytes:
    return b"event: %b\n%b" % (event["type"].encode(), _data(event))


# -- OpenAI's chat and completions

_KINDS: Final[Mapping[str, str]] = {CHAT: "chat.completion.chunk", COMPLETIONS: "text_completion"}
_REPEATED: Final = ("id", "created", "model", "system_fingerprint", "service_tier")
_SAID: Final = ("reasoning_content", "reasoning", "content", "refusal")


def _about(answer: Any, endpoint: str) -> dict[str, Any]:
    given = _map(answer)
    repeated = {name: given[name] for name in _REPEATED if name in given}
    return {**repeated, "object": _KINDS[endpoint]}


def _of_chat(answer: Any) -> Iterator[dict[str, Any]]:
    about = _about(answer, CHAT)
    for at, choice in enumerate(_rows(_map(answer).get("choices"))):
        message, index = _map(choice.get("message")), choice.get("index", at)
        deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
        deltas += [{name: message[name]} for name in _SAID if message.get(name)]
        for number, call in enumerate(_rows(message.get("tool_calls"))):
            deltas.append({"tool_calls": [{"index": number, **call}]})
        chunk = {"index": index, "logprobs": None, "finish_reason": None}
        for delta in deltas:
            yield {**about, "choices": [{**chunk, "delta": delta}]}
        if choice.get("logprobs"):
            told = {**chunk, "delta": {}, "logprobs": choice["logprobs"]}
            yield {**about, "choices": [told]}
        end = {**chunk, "delta": {}, "finish_reason": choice.get("finish_reason")}
        yield {**about, "choices": [end]}


def _of_completion(answer: Any) -> Iterator[dict[str, Any]]:
    about = _about(answer, COMPLETIONS)
    for choice in _rows(_map(answer).get("choices")):
        yield {**about, "choices": [choice]}


# -- Anthropic's Messages


def _of_message(answer: Any) -> Iterator[dict[str, Any]]:
    message = _map(answer)
    usage = _map(message.get("usage"))
    begun = {**message, "content": [], "stop_reason": None, "stop_sequence": None}
    yield {"type": "message_start", "message": {**begun, "usage": {**usage, "output_tokens": 0}}}
    for index, block in enumerate(_rows(message.get("content"))):
        started, deltas = _block(block)
        yield {"type": "content_block_start", "index": index, "content_block": started}
        for delta in deltas:
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    ended = {name: message.get(name) for name in ("stop_reason", "stop_sequence")}
    yield {"type": "message_delta", "delta": ended, "usage": usage}
    yield {"type": "message_stop"}


def _block(block: Mapping[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return how a block begins, and what follows; one of another kind begins whole."""
    match block.get("type"):
        case "text":
            return {**block, "text": ""}, [{"type": "text_delta", "text": block.get("text")}]
        case "tool_use":
            given = orjson.dumps(block.get("input")).decode()
            return {**block, "input": {}}, [{"type": "input_json_delta", "partial_json": given}]
        case "thinking":
            signature = block.get("signature", "")
            return {**block, "thinking": "", "signature": ""}, [
                {"type": "thinking_delta", "thinking": block.get("thinking")},
                {"type": "signature_delta", "signature": signature},
            ]
    return dict(block), []


# -- OpenAI's Responses


def _of_response(answer: Any) -> Iterator[dict[str, Any]]:
    response = _map(answer)
    state = response.get("status", "completed")
    begun = {**response, "status": "in_progress", "output": [], "usage": None}
    for kind in ("created", "in_progress"):
        yield {"type": f"response.{kind}", "response": {**begun, "incomplete_details": None}}
    for index, item in enumerate(_rows(response.get("output"))):
        at = {"output_index": index}
        started = {**item, "status": "in_progress"}
        started |= {name: [] for name in ("content", "summary") if isinstance(item.get(name), list)}
        if "arguments" in item:
            started["arguments"] = ""
        yield {"type": "response.output_item.added", "item": started, **at}
        yield from _of_item(item, {"item_id": item.get("id"), **at})
        yield {"type": "response.output_item.done", "item": dict(item), **at}
    yield {"type": f"response.{state}", "response": dict(response)}


def _of_item(item: Mapping[str, Any], at: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    if isinstance(item.get("arguments"), str):
        kind, given = "response.function_call_arguments", item["arguments"]
        yield {"type": f"{kind}.delta", "delta": given, **at}
        yield {"type": f"{kind}.done", "arguments": given, "name": item.get("name"), **at}
    for number, part in enumerate(_rows(item.get("summary"))):
        place, kind = {**at, "summary_index": number}, "response.reasoning_summary"
        yield {"type": f"{kind}_part.added", "part": {**part, "text": ""}, **place}
        yield {"type": f"{kind}_text.delta", "delta": part.get("text"), **place}
        yield {"type": f"{kind}_text.done", "text": part.get("text"), **place}
        yield {"type": f"{kind}_part.done", "part": dict(part), **place}
    for number, part in enumerate(_rows(item.get("content"))):
        place = {**at, "content_index": number}
        name = "refusal" if part.get("type") == "refusal" else "text"
        kind = f"response.{'refusal' if name == 'refusal' else 'output_text'}"
        more = {} if name == "refusal" else {"logprobs": part.get("logprobs") or []}
        empty = {**part, name: ""}
        yield {"type": "response.content_part.added", "part": empty, **place}
        yield {"type": f"{kind}.delta", "delta": part.get(name), **more, **place}
        yield {"type": f"{kind}.done", name: part.get(name), **more, **place}
        yield {"type": "response.content_part.done", "part": dict(part), **place}


def _map(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _rows(value: Any) -> list[Mapping[str, Any]]:
    return [one for one in value if isinstance(one, Mapping)] if isinstance(value, list) else []
