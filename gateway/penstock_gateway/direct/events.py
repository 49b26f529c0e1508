"""Answers as server-sent events, in the words of each API.

A writer writes what is passed on of an answer while it comes, then of the stored answer what is
missing: all of it, where nothing was passed on. It knows what it has written, so that the end never
contradicts the beginning.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final, NamedTuple, Protocol

import orjson

from penstock_producer.dialects.answers import (
    call_item,
    refusal_part,
    said_item,
    text_part,
    thought_item,
)
from penstock_producer.dialects.pieces import Delta
from penstock_producer.job.endpoints import CHAT, COMPLETIONS, MESSAGES, RESPONSES

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


def _object(text: str) -> dict[str, Any]:
    """Return the object that a delta holds. Raises Held."""
    try:
        found = orjson.loads(text)
    except orjson.JSONDecodeError:
        found = None
    if not isinstance(found, dict):
        raise Held
    return found


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
    begun, packed = _packed(had), _packed(full)
    if packed.startswith(begun):
        return packed[len(begun) :]
    value = orjson.loads(full)
    try:
        is_whole = orjson.loads(had) == value
    except orjson.JSONDecodeError:  # arguments that were cut are kept as a text
        is_whole = value == {"arguments": had}
    if not is_whole:
        raise Differs
    return ""


def _packed(text: str) -> str:
    """Return JSON, of which the end may be missing, without blanks outside of strings."""
    return "".join(one for one in _TOKENS.findall(text) if not one.isspace())


_TOKENS: Final = re.compile(r'"(?:[^"\\]|\\.)*"?|\s+|[^\s"]+')


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
        block = _object(delta.text)
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
        given = _object(delta.text)
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


class _OpenItem(NamedTuple):
    """An item of a translated answer that grows."""

    place: int
    at: int  # its index in the output
    make: Callable[[str], dict[str, Any]]  # the item, of its text

    def events(self, text: str) -> Iterator[dict[str, Any]]:
        return _of_output(self.at, self.make(text))


class OfResponses:
    """Writes the events of a response: one item after the other."""

    def __init__(self) -> None:
        self._ident: str | None = None  # of the response, with which those of its items end
        self._is_own = False  # the provider's API is this one, too
        self._number = 0  # of the next event
        self._written: dict[_Key, list[str]] = {}  # each event, and what its deltas have said
        self._items: dict[int, Mapping[str, Any]] = {}  # that have begun, as they were sent last
        self._ended: set[int] = set()
        self._open: _OpenItem | None = None  # of a translated answer

    def begin(self, head: Mapping[str, Any], *, is_own: bool) -> bytes:
        self._ident, self._is_own = str(head.get("id")).removeprefix("resp_"), is_own
        begun = {**head, "status": "in_progress", "output": [], "usage": None}
        begun["incomplete_details"] = None
        return b"".join(
            self._told({"type": f"response.{kind}", "response": begun})
            for kind in ("created", "in_progress")
        )

    def pass_on(self, delta: Delta) -> bytes:
        if delta.choice or (delta.kind == "extra") != self._is_own or delta.kind == "whole":
            return b""
        if self._is_own:
            event = _object(delta.text)
            if _EVENT.fullmatch(str(event.get("type"))) is None:
                raise Held
            return self._told(event)
        place, written = _PLACES[_BLOCKS[delta.kind]] + delta.part, b""
        if self._open is None or self._open.place != place:
            if self._open is not None and place < self._open.place:
                raise Held
            written = self._closed()
            self._open = _OpenItem(place, len(self._items), self._maker(delta))
            for event in self._open.events(""):
                if event["type"].endswith(".delta"):
                    break
                written += self._told(event)
        if delta.text:
            told = (one for one in self._open.events(delta.text) if one["type"].endswith(".delta"))
            written += b"".join(map(self._told, told))
        return written

    def rest(self, answer: Mapping[str, Any]) -> bytes:
        output = _rows(answer.get("output"))
        written = [b"" if self._ident is not None else self.begin(answer, is_own=False)]
        if any(index >= len(output) for index in self._items):
            raise Differs
        for index, item in enumerate(output):
            if index in self._items and _name_of(self._items[index]) != _name_of(item):
                raise Differs
            if index not in self._ended:
                written += [self._told(event) for event in self._missing(_of_output(index, item))]
            elif _texts_of(self._items[index]) != _texts_of(item):
                raise Differs
        state = answer.get("status")
        state = state if state in _STATES else "completed"
        written.append(self._told({"type": f"response.{state}", "response": dict(answer)}))
        return b"".join(written)

    def _missing(self, events: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """Yield those of an item's events that were not written, and what is missing of a text."""
        for event in events:
            had = self._written.get(_key_of(event))
            if had is None:
                yield event
            elif isinstance(event.get("delta"), str):
                is_json = event["type"].endswith("arguments.delta")
                lacking = (missing_json if is_json else missing)("".join(had), event["delta"])
                if lacking:
                    yield {**event, "delta": lacking}

    def _closed(self) -> bytes:
        """End the last item of a translated answer."""
        if self._open is None:
            return b""
        said = (bits for key, bits in self._written.items() if key[:2] == (self._open.at, True))
        events = self._open.events("".join(next(said, ())))
        return b"".join(map(self._told, self._missing(events)))

    def _maker(self, delta: Delta) -> Callable[[str], dict[str, Any]]:
        """Return what makes the item that a delta begins, of a text."""
        ident = str(self._ident)
        if delta.kind == "thought":
            return partial(thought_item, ident)
        if delta.kind == "call":
            number = sum(one.get("type") == "function_call" for one in self._items.values())
            return partial(call_item, ident, number, delta.id, delta.name)
        part = refusal_part if delta.kind == "refusal" else text_part
        return lambda text: said_item(ident, part(text), "completed")

    def _told(self, event: Mapping[str, Any]) -> bytes:
        """Write an event, and remember it."""
        kind, index = str(event.get("type")), event.get("output_index")
        said = event.get("delta")
        self._written.setdefault(_key_of(event), []).append(said if isinstance(said, str) else "")
        if isinstance(index, int) and isinstance(event.get("item"), dict):
            self._items[index] = event["item"]
            if kind == "response.output_item.done":
                self._ended.add(index)
        numbered = {**event, "type": kind, "sequence_number": self._number}
        self._number += 1
        return named_event(numbered)


_STATES: Final = ("completed", "incomplete", "failed")
_EVENT: Final = re.compile(r"response\.[a-z0-9_.]+")
# of an event: its item, whether it is a delta, its type, and the part of the item
_Key = tuple[Any, bool, str, Any]


def _key_of(event: Mapping[str, Any]) -> _Key:
    kind = str(event.get("type"))
    part = event.get("content_index", event.get("summary_index"))
    return event.get("output_index"), kind.endswith(".delta"), kind, part


def _name_of(item: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(item.get(name) for name in ("type", "id", "call_id", "name"))


def _texts_of(item: Mapping[str, Any]) -> list[Any]:
    parts = [*_rows(item.get("summary")), *_rows(item.get("content"))]
    return [part.get("text", part.get("refusal")) for part in parts]


def _of_output(index: int, item: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    at = {"output_index": index}
    started = {**item, "status": "in_progress"}
    started |= {name: [] for name in ("content", "summary") if isinstance(item.get(name), list)}
    if "arguments" in item:
        started["arguments"] = ""
    yield {"type": "response.output_item.added", "item": started, **at}
    yield from _of_item(item, {"item_id": item.get("id"), **at})
    yield {"type": "response.output_item.done", "item": dict(item), **at}


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
        kind, name = _PARTS.get(str(part.get("type")), ("response.output_text", "text"))
        more = {"logprobs": part.get("logprobs") or []} if kind.endswith("output_text") else {}
        empty = {**part, name: ""}
        yield {"type": "response.content_part.added", "part": empty, **place}
        yield {"type": f"{kind}.delta", "delta": part.get(name), **more, **place}
        yield {"type": f"{kind}.done", name: part.get(name), **more, **place}
        yield {"type": "response.content_part.done", "part": dict(part), **place}


_PARTS: Final[Mapping[str, tuple[str, str]]] = {
    "refusal": ("response.refusal", "refusal"),
    "reasoning_text": ("response.reasoning_text", "text"),
}


def _map(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _rows(value: Any) -> list[Mapping[str, Any]]:
    return [one for one in value if isinstance(one, Mapping)] if isinstance(value, list) else []
