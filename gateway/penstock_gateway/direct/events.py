"""Answers as server-sent events, in the words of each API.

A writer writes what is passed on of an answer while it comes, then of the stored answer what is
missing: all of it, where nothing was passed on. It knows what it has written, so that the end never
contradicts the beginning.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, Protocol

import orjson

from penstock_producer.dialects import COMPLETIONS
from penstock_producer.dialects.pieces import Delta
from penstock_producer.job.endpoints import CHAT, MESSAGES, RESPONSES

__all__ = ["Differs", "Held", "Writer", "data_event", "named_event", "writer_for"]


class Held(Exception):
    """This delta cannot be written now: it and all that follows come with the stored answer."""


class Differs(Exception):
    """The stored answer is another one than what was passed on."""


class Writer(Protocol):
    """Writes the events of one answer; belongs to one task at a time."""

    def begin(self, head: Mapping[str, Any], *, is_own: bool) -> bytes:
        """Return the events before the first delta; ``head`` is an answer without its parts.

        ``is_own`` says that the provider's API is the caller's."""
        ...

    def pass_on(self, delta: Delta) -> bytes:
        """Return the events of a delta. Raises Held."""
        ...

    def rest(self, answer: Mapping[str, Any]) -> bytes:
        """Return the events of the whole answer that were not written yet. Raises Differs."""
        ...


def writer_for(endpoint: str, *, with_usage: bool) -> Writer:
    """Return a writer for the callers of an endpoint.

    ``with_usage`` asks a chat for its usage, too."""
    if endpoint == MESSAGES:
        return OfMessages()
    return OfResponses() if endpoint == RESPONSES else OfChats(endpoint, with_usage=with_usage)


def data_event(value: Mapping[str, Any]) -> bytes:
    return b"data: %b\n\n" % orjson.dumps(value)


def named_event(event: Mapping[str, Any]) -> bytes:
    return b"event: %b\n%b" % (event["type"].encode(), data_event(event))


def missing(had: str, full: str) -> str:
    """Return what ``had`` lacks. Raises Differs."""
    if not full.startswith(had):
        raise Differs
    return full[len(had) :]


def missing_json(had: str, full: str) -> str:
    """Return what JSON lacks, which another program may have written with other blanks.

    Raises Differs."""
    if full.startswith(had):
        return full[len(had) :]
    value = orjson.loads(full)
    try:
        is_whole = orjson.loads(had) == value
    except orjson.JSONDecodeError:  # arguments that were cut are kept as a text
        is_whole = value == {"arguments": had}
    if not is_whole:
        raise Differs
    return ""


# -- OpenAI's chat and completions

_KINDS: Final[Mapping[str, str]] = {CHAT: "chat.completion.chunk", COMPLETIONS: "text_completion"}
_REPEATED: Final = ("id", "created", "model", "system_fingerprint", "service_tier")
_SAID: Final = ("reasoning_content", "reasoning", "content", "refusal")


class _Call:
    """A call of a tool, as far as it was written."""

    def __init__(self, number: int, ident: str | None, name: str | None) -> None:
        self.number, self.id, self.name = number, ident, name
        self.arguments = ""


class _Choice:
    """A choice, as far as it was written."""

    def __init__(self) -> None:
        self.said: dict[str, list[str]] = {}
        self.calls: dict[int, _Call] = {}


class OfChats:
    """Writes chunks."""

    def __init__(self, endpoint: str, *, with_usage: bool) -> None:
        self._endpoint, self._with_usage = endpoint, with_usage
        self._about: dict[str, Any] | None = None
        self._choices: dict[int, _Choice] = {}

    def begin(self, head: Mapping[str, Any], *, is_own: bool) -> bytes:
        self._about = self._repeated(head)
        return b""

    def pass_on(self, delta: Delta) -> bytes:
        if delta.kind in ("extra", "whole") or not (delta.text or delta.kind == "call"):
            return b""  # translated answers have no such parts
        written = list[Any]()
        choice = self._choices.get(delta.choice)
        if choice is None:
            choice = self._choices[delta.choice] = _Choice()
            written += self._begun()
        written.append(
            self._of_call(choice, delta) if delta.kind == "call" else self._of_text(choice, delta)
        )
        return b"".join(self._chunk(delta.choice, one) for one in written)

    def rest(self, answer: Mapping[str, Any]) -> bytes:
        self._about = self._about or self._repeated(answer)
        choices = _rows(answer.get("choices"))
        told = list[bytes]()
        for at, choice in enumerate(choices):
            index = choice.get("index", at)
            told += [self._chunk(index, one) for one in self._rest_of(index, choice)]
        if self._choices:
            raise Differs
        if self._with_usage:
            told.append(data_event({**self._about, "choices": [], "usage": answer.get("usage")}))
        return b"".join(told) + b"data: [DONE]\n\n"

    def _rest_of(self, index: int, choice: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Yield what is missing of a choice, which then has been written."""
        had = self._choices.pop(index, None)
        if self._endpoint == COMPLETIONS:
            said = "" if had is None else "".join(had.said.get("text", ()))
            yield {**choice, "text": missing(said, str(choice.get("text") or ""))}
            return
        message = _map(choice.get("message"))
        if had is None:
            had = _Choice()
            yield from self._begun()
        for name in _SAID:
            said, value = "".join(had.said.get(name, ())), message.get(name)
            if said:
                value = missing(said, value if isinstance(value, str) else "")
            if value:
                yield {"delta": {name: value}}
        calls = list(had.calls.values())
        for number, call in enumerate(_rows(message.get("tool_calls"))):
            if number >= len(calls):
                yield {"delta": {"tool_calls": [{"index": number, **call}]}}
                continue
            function, begun = _map(call.get("function")), calls[number]
            if (begun.id, begun.name) != (call.get("id"), function.get("name")):
                raise Differs
            more = missing_json(begun.arguments, str(function.get("arguments") or ""))
            if more:
                told = {"index": number, "function": {"arguments": more}}
                yield {"delta": {"tool_calls": [told]}}
        if len(calls) > len(_rows(message.get("tool_calls"))):
            raise Differs
        if choice.get("logprobs"):
            yield {"delta": {}, "logprobs": choice["logprobs"]}
        yield {"delta": {}, "finish_reason": choice.get("finish_reason")}

    def _begun(self) -> list[dict[str, Any]]:
        is_chat = self._endpoint == CHAT
        return [{"delta": {"role": "assistant", "content": ""}}] if is_chat else []

    def _of_text(self, choice: _Choice, delta: Delta) -> dict[str, Any]:
        if self._endpoint == COMPLETIONS:
            choice.said.setdefault("text", []).append(delta.text)
            return {"text": delta.text}
        usual = {"thought": "reasoning_content", "text": "content"}.get(delta.kind, "refusal")
        name = delta.name if delta.kind == "thought" and delta.name in _SAID else usual
        choice.said.setdefault(name, []).append(delta.text)
        return {"delta": {name: delta.text}}

    def _of_call(self, choice: _Choice, delta: Delta) -> dict[str, Any]:
        call = choice.calls.get(delta.part)
        told: dict[str, Any] = {"function": {"arguments": delta.text}}
        if call is None:
            call = _Call(len(choice.calls), delta.id, delta.name)
            choice.calls[delta.part] = call
            told = {"id": delta.id, "type": "function"}
            told["function"] = {"name": delta.name, "arguments": delta.text}
        call.arguments += delta.text
        return {"delta": {"tool_calls": [{"index": call.number, **told}]}}

    def _repeated(self, answer: Mapping[str, Any]) -> dict[str, Any]:
        repeated = {name: answer[name] for name in _REPEATED if name in answer}
        return {**repeated, "object": _KINDS[self._endpoint]}

    def _chunk(self, index: int, told: Mapping[str, Any]) -> bytes:
        choice = {"index": index, "logprobs": None, "finish_reason": None, **told}
        usage = {"usage": None} if self._with_usage else {}
        return data_event({**(self._about or {}), "choices": [choice], **usage})


# -- Anthropic's Messages


class _Block:
    """A block, as far as it was written."""

    def __init__(self, place: int, kind: str, ident: str | None, name: str | None) -> None:
        self.place, self.kind, self.id, self.name = place, kind, ident, name
        self.text = ""
        self.is_signed = False
        self.is_open = True


_BLOCKS: Final[Mapping[str, str]] = {
    "text": "text",
    "refusal": "text",
    "thought": "thinking",
    "call": "tool_use",
}
# of a block of another API: thoughts come first in a translated answer, then the text, then calls
_PLACES: Final[Mapping[str, int]] = {"thinking": -2, "text": -1, "tool_use": 0}


class OfMessages:
    """Writes the events of a message: one block after the other."""

    def __init__(self) -> None:
        self._has_begun = False
        self._is_own = False  # the provider's API is this one, too
        self._blocks: list[_Block] = []

    def begin(self, head: Mapping[str, Any], *, is_own: bool) -> bytes:
        self._has_begun, self._is_own = True, is_own
        begun = {**head, "content": [], "stop_reason": None, "stop_sequence": None}
        begun["usage"] = {**_map(head.get("usage")), "output_tokens": 0}
        return named_event({"type": "message_start", "message": begun})

    def pass_on(self, delta: Delta) -> bytes:
        if delta.choice:
            return b""  # a message has one answer
        last = self._blocks[-1] if self._blocks else None
        if delta.kind == "whole":
            return self._whole(delta, last)
        if delta.kind == "extra":
            return self._extra(delta, last)
        kind = _BLOCKS[delta.kind]
        place = delta.part if self._is_own else _PLACES[kind] + delta.part
        written = b""
        if last is None or last.place != place:
            self._follows(place, last)
            last = _Block(place, kind, delta.id, delta.name)
            written = self._ended() + self._started(last)
        if not last.is_open or last.kind != kind:
            raise Held
        last.text += delta.text
        return written + (self._grown(kind, delta.text) if delta.text else b"")

    def rest(self, answer: Mapping[str, Any]) -> bytes:
        content = _rows(answer.get("content"))
        written = [b"" if self._has_begun else self.begin(answer, is_own=False)]
        if len(self._blocks) > len(content):
            raise Differs
        for index, block in enumerate(content):
            if index < len(self._blocks):
                written.append(self._rest_of(self._blocks[index], block))
            else:
                written.append(self._new(index, block))
        ended = {name: answer.get(name) for name in ("stop_reason", "stop_sequence")}
        usage = _map(answer.get("usage"))
        written.append(named_event({"type": "message_delta", "delta": ended, "usage": usage}))
        written.append(named_event({"type": "message_stop"}))
        return b"".join(written)

    def _whole(self, delta: Delta, last: _Block | None) -> bytes:
        """Write a block that is of no other API."""
        self._follows(delta.part, last)
        block = orjson.loads(delta.text)
        written = self._ended()
        self._blocks.append(_Block(delta.part, str(block.get("type")), None, None))
        self._blocks[-1].is_open = False
        return written + self._new(len(self._blocks) - 1, block)

    def _follows(self, place: int, last: _Block | None) -> None:
        """Raise Held unless the block at this place may be the next one."""
        next_place = len(self._blocks) if self._is_own else place
        if place != next_place or (last is not None and place <= last.place):
            raise Held

    def _extra(self, delta: Delta, last: _Block | None) -> bytes:
        if last is None or not last.is_open or last.place != delta.part:
            return b""
        given = orjson.loads(delta.text)
        last.is_signed = last.is_signed or given.get("type") == "signature_delta"
        return self._event("content_block_delta", delta=given)

    def _started(self, block: _Block) -> bytes:
        self._blocks.append(block)
        empty: dict[str, Any] = {"type": block.kind}
        match block.kind:
            case "tool_use":
                empty |= {"id": block.id, "name": block.name, "input": {}}
            case "thinking":
                empty |= {"thinking": "", "signature": ""}
            case _:
                empty |= {"text": ""}
        return self._event("content_block_start", content_block=empty)

    def _grown(self, kind: str, text: str) -> bytes:
        name, field = _DELTAS[kind]
        return self._event("content_block_delta", delta={"type": name, field: text})

    def _ended(self, signature: object = "") -> bytes:
        """End the last block, where it has not ended."""
        if not self._blocks or not self._blocks[-1].is_open:
            return b""
        block, written = self._blocks[-1], b""
        if block.kind == "thinking" and not block.is_signed:
            signed = {"type": "signature_delta", "signature": signature}
            written = self._event("content_block_delta", delta=signed)
        block.is_open = False
        return written + self._event("content_block_stop")

    def _rest_of(self, had: _Block, block: Mapping[str, Any]) -> bytes:
        if had.kind != block.get("type"):
            raise Differs
        match had.kind:
            case "tool_use":
                if (had.id, had.name) != (block.get("id"), block.get("name")):
                    raise Differs
                more = missing_json(had.text, orjson.dumps(block.get("input")).decode())
            case "text" | "thinking":
                more = missing(had.text, str(block.get(had.kind) or ""))
            case _:
                return b""  # it was written whole
        if more and not had.is_open:
            raise Differs
        written = self._grown(had.kind, more) if more else b""
        return written + (self._ended(block.get("signature", "")) if had.is_open else b"")

    def _event(self, kind: str, **told: Any) -> bytes:
        return named_event({"type": kind, "index": len(self._blocks) - 1, **told})

    def _new(self, index: int, block: Mapping[str, Any]) -> bytes:
        started, deltas = _block(block)
        told = [{"type": "content_block_start", "index": index, "content_block": started}]
        told += [{"type": "content_block_delta", "index": index, "delta": one} for one in deltas]
        told.append({"type": "content_block_stop", "index": index})
        return b"".join(map(named_event, told))


_DELTAS: Final[Mapping[str, tuple[str, str]]] = {
    "text": ("text_delta", "text"),
    "thinking": ("thinking_delta", "thinking"),
    "tool_use": ("input_json_delta", "partial_json"),
}


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


class OfResponses:
    """Writes the events of a response: they tell each item whole, so it comes in one piece."""

    def begin(self, head: Mapping[str, Any], *, is_own: bool) -> bytes:
        return b""

    def pass_on(self, delta: Delta) -> bytes:
        raise Held

    def rest(self, answer: Mapping[str, Any]) -> bytes:
        numbered = enumerate(_of_response(answer))
        return b"".join(named_event({**event, "sequence_number": at}) for at, event in numbered)


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
