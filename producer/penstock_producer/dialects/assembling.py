"""Answers put together from the events that a provider streams, as it would have sent them whole.

There is one reader for each API. It takes the events in their order, and returns what each of them
adds, to be passed on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

from penstock_ledger.lone_surrogates import dump_json, parse_json
from penstock_producer.dialects import CHAT, COMPLETIONS, GENERATE, MESSAGES, RESPONSES
from penstock_producer.dialects.answers import geminis_usage
from penstock_producer.dialects.pieces import Delta

__all__ = ["Assembler", "BrokenStream", "assembler_for"]

_Event = dict[str, Any]


class BrokenStream(ValueError):
    """An event came that the API which was asked does not have."""


class Assembler(Protocol):
    """Reads one streamed answer."""

    held: int
    """About how many bytes the answer takes so far."""
    written: int
    """How many characters the model has written so far, of any kind."""

    def take(self, event: _Event, size: int) -> Sequence[Delta]:
        """Take an event of ``size`` bytes; return what it adds. Raises BrokenStream."""
        ...

    def end(self) -> None:
        """Note that the provider says that there are no more events."""

    def head(self) -> dict[str, Any]:
        """Return how the answer begins: all but what is written bit by bit."""
        ...

    def whole(self) -> dict[str, Any] | None:
        """Return the answer; None where its end has not come. Raises BrokenStream."""
        ...

    def usage(self) -> Mapping[str, Any]:
        """Return what has been said of its usage so far, as OpenAI or Anthropic say it."""
        ...


def assembler_for(endpoint: str) -> Assembler | None:
    """Return a reader for what the endpoint streams; None where it streams nothing."""
    make = _READERS.get(endpoint)
    return None if make is None else make()


class OfChats:
    """Reads chunks of OpenAI's chat and completions."""

    def __init__(self) -> None:
        self.held = self.written = 0
        self._about: dict[str, Any] = {}
        self._choices: dict[int, _Choice] = {}
        self._has_ended = False
        self._kind = "chat.completion"

    def take(self, event: _Event, size: int) -> Sequence[Delta]:
        choices = event.get("choices")
        if not isinstance(choices, list):
            raise BrokenStream("a chunk of the stream has no choices")
        if event.get("object") == "text_completion":
            self._kind = "text_completion"
        for name, value in event.items():
            if name not in _OF_CHUNKS and value is not None:
                self.held += 0 if name in self._about else len(str(value))
                self._about[name] = value
        deltas: list[Delta] = []
        for given in choices:
            index = given.get("index", 0) if isinstance(given, dict) else None
            if type(index) is not int:
                raise BrokenStream("a choice of the stream has no index")
            choice = self._choices.get(index)
            if choice is None:
                choice = self._choices[index] = _Choice(index)
            new = choice.take(given)
            written = sum(len(delta.text) for delta in new)
            self.written += written
            self.held += size if choice.keeps_more else written
            deltas += new
        return deltas

    def end(self) -> None:
        self._has_ended = True

    def head(self) -> dict[str, Any]:
        return {**self._about, "object": self._kind, "choices": []}

    def whole(self) -> dict[str, Any] | None:
        choices = [self._choices[index] for index in sorted(self._choices)]
        finished = choices and all(choice.reason is not None for choice in choices)
        if not self._has_ended and not finished:
            return None
        return self.head() | {"choices": [choice.whole() for choice in choices]}

    def usage(self) -> Mapping[str, Any]:
        return _map(self._about.get("usage"))


_OF_CHUNKS: Final = frozenset({"choices", "object", "obfuscation", "error"})
# fields of a message that are written bit by bit
_SAID: Final[Mapping[str, str]] = {
    "content": "text",
    "reasoning_content": "thought",
    "reasoning": "thought",
    "refusal": "refusal",
}


class _Choice:
    """One choice of a chat, or of a completion, which has its text beside its index."""

    def __init__(self, index: int) -> None:
        self._index = index
        self._said: dict[str, list[str]] = {}
        self._thoughts_in: str | None = None  # the field; some servers send them under both names
        self._message: dict[str, Any] = {}
        self._calls: dict[int, _Call] = {}
        self._more: dict[str, Any] = {}
        self._logprobs: dict[str, Any] = {}
        self._has_begun = False
        self.reason: Any = None
        self.keeps_more = False  # of the last event: more than the text of its deltas

    def take(self, given: Mapping[str, Any]) -> list[Delta]:
        self.keeps_more = not self._has_begun
        self._has_begun = True
        deltas: list[Delta] = []
        for name, value in given.items():
            match name:
                case "index":
                    pass
                case "delta":
                    deltas += self._take_delta(_map(value))
                case "text" if isinstance(value, str):
                    deltas += self._say("text", "text", value)
                case "finish_reason":
                    self.reason = value if value is not None else self.reason
                case "logprobs":
                    self._take_logprobs(value)
                case _ if value is not None:
                    self._more[name], self.keeps_more = value, True
        return deltas

    def whole(self) -> dict[str, Any]:
        said = {name: "".join(bits) for name, bits in self._said.items()}
        end = {"logprobs": self._logprobs or None, "finish_reason": self.reason, **self._more}
        if "text" in said:
            return {"index": self._index, "text": said["text"], **end}
        message = {"role": "assistant", "content": None, **self._message, **said}
        if self._calls:
            message["tool_calls"] = [self._calls[at].whole() for at in sorted(self._calls)]
            message["content"] = message["content"] or None
        return {"index": self._index, "message": message, **end}

    def _take_delta(self, delta: Mapping[str, Any]) -> list[Delta]:
        deltas: list[Delta] = []
        for name, value in delta.items():
            if name in _SAID and isinstance(value, str):
                deltas += self._say(name, _SAID[name], value)
            elif name == "tool_calls" and isinstance(value, list):
                for at, call in enumerate(value):
                    deltas += self._take_call(call, at)
            elif name == "function_call" and isinstance(value, dict):  # of old models
                before = self._message.get(name)
                known = dict(before) if isinstance(before, dict) else {}
                for key, bit in value.items():
                    had = _text(known.get(key))
                    known[key] = had + bit if had is not None and isinstance(bit, str) else bit
                self._message[name] = known
                self.keeps_more = True
            elif isinstance(value, list) and isinstance(self._message.get(name), list):
                self._message[name] += value
                self.keeps_more = True
            elif value is not None or name not in self._message:
                self._message[name], self.keeps_more = value, value is not None
        return deltas

    def _say(self, name: str, kind: Any, text: str) -> list[Delta]:
        self._said.setdefault(name, []).append(text)
        if kind == "thought":
            self._thoughts_in = self._thoughts_in or name
        if not text or (kind == "thought" and name != self._thoughts_in):
            self.keeps_more = self.keeps_more or bool(text)
            return []
        return [Delta(kind, text, self._index, name=name if kind == "thought" else None)]

    def _take_call(self, given: Any, at: int) -> list[Delta]:
        index = given.get("index", at) if isinstance(given, dict) else None
        if type(index) is not int:
            raise BrokenStream("a call of the stream has no index")
        call = self._calls.get(index)
        is_new = call is None
        if call is None:
            call = self._calls[index] = _Call()
            self.keeps_more = True
        text = call.take(given)
        if not is_new:
            return [Delta("call", text, self._index, index)] if text else []
        return [Delta("call", text, self._index, index, call.name, call.id)]

    def _take_logprobs(self, value: Any) -> None:
        for name, rows in _map(value).items():
            self.keeps_more = True
            if isinstance(rows, list) and isinstance(self._logprobs.get(name), list):
                self._logprobs[name] += rows
            elif rows is not None or name not in self._logprobs:
                self._logprobs[name] = rows


class _Call:
    """One call of a tool in a chat."""

    def __init__(self) -> None:
        self._about: dict[str, Any] = {}
        self._function: dict[str, Any] = {}
        self._arguments: list[str] = []

    @property
    def id(self) -> str | None:
        return _text(self._about.get("id"))

    @property
    def name(self) -> str | None:
        return _text(self._function.get("name"))

    def take(self, given: Mapping[str, Any]) -> str:
        """Take a bit of the call; return what it adds to the arguments."""
        function = _map(given.get("function"))
        for known, bits in ((self._about, given), (self._function, function)):
            known |= {
                name: value
                for name, value in bits.items()
                if name not in ("index", "function", "arguments") and value is not None
            }
        text = _text(function.get("arguments")) or ""
        self._arguments.append(text)
        return text

    def whole(self) -> dict[str, Any]:
        function = {**self._function, "arguments": "".join(self._arguments)}
        return {"type": "function", **self._about, "function": function}


class OfMessages:
    """Reads the events of Anthropic's Messages."""

    def __init__(self) -> None:
        self.held = self.written = 0
        self._message: dict[str, Any] | None = None
        self._blocks: dict[int, dict[str, Any]] = {}
        self._bits: dict[int, list[str]] = {}
        self._has_ended = False

    def take(self, event: _Event, size: int) -> Sequence[Delta]:
        kind = event.get("type")
        if kind in ("ping", None):
            return ()
        if kind == "message_start":
            self._message = dict(_map(event.get("message")))
            self.held += size
            return ()
        if self._message is None:
            raise BrokenStream("the stream does not begin with message_start")
        match kind:
            case "content_block_start":
                self.held += size
                return self._begun(_at(event), _map(event.get("content_block")))
            case "content_block_delta":
                deltas = self._grown(_at(event), _map(event.get("delta")))
                written = sum(len(one.text) for one in deltas if one.kind != "extra")
                self.written += written
                self.held += written or size
                return deltas
            case "content_block_stop":
                return self._ended(_at(event))
            case "message_delta":
                usage = {**_map(self._message.get("usage"))}
                usage |= {n: v for n, v in _map(event.get("usage")).items() if v is not None}
                self._message |= {**_map(event.get("delta")), "usage": usage}
            case "message_stop":
                self._has_ended = True
        return ()

    def end(self) -> None:
        """Do nothing: an event of its own says so."""

    def head(self) -> dict[str, Any]:
        return {**(self._message or {}), "content": []}

    def whole(self) -> dict[str, Any] | None:
        if not self._has_ended:
            return None
        return self.head() | {"content": [self._block(at) for at in sorted(self._blocks)]}

    def usage(self) -> Mapping[str, Any]:
        return _map((self._message or {}).get("usage"))

    def _begun(self, at: int, block: Mapping[str, Any]) -> list[Delta]:
        self._blocks[at], self._bits[at] = dict(block), []
        kind = block.get("type")
        if kind == "tool_use":
            return [Delta("call", "", 0, at, _text(block.get("name")), _text(block.get("id")))]
        field = _FIELDS.get(str(kind))
        if field is None:
            return []
        text = _text(block.get(field)) or ""
        self._bits[at].append(text)
        return [Delta(_KINDS[field], text, 0, at)]  # without a text it says which block begins

    def _grown(self, at: int, delta: Mapping[str, Any]) -> list[Delta]:
        block = self._blocks.get(at)
        if block is None:
            raise BrokenStream("the stream has a delta of a block that it has not begun")
        kind, bits = delta.get("type"), self._bits[at]
        text = _text(delta.get(_TEXTS.get(str(kind), "")))
        if text is not None:
            bits.append(text)
            passed = _PASSED.get(str(kind))
            if not text or passed is None or block.get("type") not in (*_FIELDS, "tool_use"):
                return []
            return [Delta(passed, text, 0, at)]
        if kind == "signature_delta":
            block["signature"] = delta.get("signature")
        elif kind == "citations_delta":
            before = block.get("citations")
            cited = before if isinstance(before, list) else []
            block["citations"] = [*cited, delta.get("citation")]
        return [Delta("extra", dump_json(dict(delta)).decode(), 0, at)]

    def _ended(self, at: int) -> list[Delta]:
        block = self._blocks.get(at)
        if block is None or block.get("type") in (*_FIELDS, "tool_use"):
            return []
        return [Delta("whole", dump_json(self._block(at)).decode(), 0, at)]

    def _block(self, at: int) -> dict[str, Any]:
        block, text = self._blocks[at], "".join(self._bits[at])
        field = _FIELDS.get(str(block.get("type")))
        if field is not None:
            return block | {field: text}
        return block | {"input": self._input(text)} if text else block

    def _input(self, text: str) -> dict[str, Any]:
        try:
            found = parse_json(text.encode("utf-8", "surrogatepass"))
        except ValueError:
            found = None
        if isinstance(found, dict):
            return found
        if (self._message or {}).get("stop_reason") in (None, "max_tokens"):
            return {"arguments": text}  # cut, or not at its end
        raise BrokenStream("the input of a tool is not a JSON object")


_FIELDS: Final[Mapping[str, str]] = {"text": "text", "thinking": "thinking"}  # of blocks, by type
_KINDS: Final[Mapping[str, Any]] = {"text": "text", "thinking": "thought"}
_TEXTS: Final[Mapping[str, str]] = {
    "text_delta": "text",
    "thinking_delta": "thinking",
    "input_json_delta": "partial_json",
}
_PASSED: Final[Mapping[str, Any]] = {
    "text_delta": "text",
    "thinking_delta": "thought",
    "input_json_delta": "call",
}


class OfCandidates:
    """Reads what Gemini streams: answers that each have the next parts."""

    def __init__(self) -> None:
        self.held = self.written = 0
        self._about: dict[str, Any] = {}
        self._candidates: dict[int, _Candidate] = {}

    def take(self, event: _Event, size: int) -> Sequence[Delta]:
        given = event.get("candidates", [])
        if not isinstance(given, list):
            raise BrokenStream("an event of the stream has no list of candidates")
        for name, value in event.items():
            if name != "candidates" and value is not None:
                self.held += 0 if name in self._about else len(str(value))
                self._about[name] = value
        deltas: list[Delta] = []
        for one in given:
            index = one.get("index", 0) if isinstance(one, dict) else None
            if type(index) is not int:
                raise BrokenStream("a candidate of the stream has no index")
            candidate = self._candidates.setdefault(index, _Candidate(index))
            deltas += candidate.take(one)
        self.held += size if given else 0
        self.written += sum(len(delta.text) for delta in deltas)
        return deltas

    def end(self) -> None:
        """Do nothing: a reason to finish says so."""

    def head(self) -> dict[str, Any]:
        return {**self._about, "candidates": []}

    def whole(self) -> dict[str, Any] | None:
        found = [self._candidates[index].whole() for index in sorted(self._candidates)]
        if not found and "promptFeedback" in self._about:
            return dict(self._about)
        if not found or any(one.get("finishReason") is None for one in found):
            return None
        return self._about | {"candidates": found}

    def usage(self) -> Mapping[str, Any]:
        return geminis_usage(_map(self._about.get("usageMetadata")))


class _Candidate:
    """One of Gemini's answers: bits of text of one kind in a row are one part."""

    def __init__(self, index: int) -> None:
        self._index = index
        self._about: dict[str, Any] = {}
        self._parts: list[dict[str, Any]] = []
        self._bits: list[str] = []  # of the last part, where it may grow
        self._passes_on = True

    def take(self, given: Mapping[str, Any]) -> list[Delta]:
        self._about |= {n: v for n, v in given.items() if n != "content" and v is not None}
        parts, deltas = _map(given.get("content")).get("parts"), list[Delta]()
        for part in parts if isinstance(parts, list) else ():
            if not isinstance(part, dict):
                raise BrokenStream("a part of the stream is no object")
            text = self._add(part)
            if text is None:  # a call comes whole, and with the stored answer
                self._passes_on = False
            elif text and self._passes_on:
                kind: Any = "thought" if part.get("thought") else "text"
                deltas.append(Delta(kind, text, self._index))
        return deltas

    def whole(self) -> dict[str, Any]:
        self._join()
        return {"content": {"role": "model", "parts": self._parts}, **self._about}

    def _add(self, part: dict[str, Any]) -> str | None:
        """Add a part, or the next bit of the last one; return its text."""
        text = _text(part.get("text"))
        grows = text is not None and part.keys() <= {"text", "thought"}
        if text is not None and grows and self._bits:
            last = self._parts[-1]
            if bool(last.get("thought")) == bool(part.get("thought")):
                self._bits.append(text)
                return text
        self._join()
        self._parts.append(dict(part))
        self._bits = [text] if text is not None and grows else []
        return text

    def _join(self) -> None:
        if self._bits:
            self._parts[-1]["text"] = "".join(self._bits)


class OfResponses:
    """Reads the events of OpenAI's Responses, the last of which has the whole answer.

    They are passed on as they come: to a caller of the same API, since requests of other APIs are
    not sent as responses."""

    def __init__(self) -> None:
        self.held = self.written = 0
        self._response: dict[str, Any] = {}
        self._has_ended = False

    def take(self, event: _Event, size: int) -> Sequence[Delta]:
        kind, index = str(event.get("type")), event.get("output_index")
        response = event.get("response")
        if isinstance(response, dict):
            self._response, self.held = response, size
            self._has_ended = kind.removeprefix("response.") in _ENDS
            return ()
        if not kind.startswith("response.") or type(index) is not int:
            return ()
        if not self._response:
            raise BrokenStream("the stream does not begin with response.created")
        if kind.endswith(".delta"):
            self.written += len(_text(event.get("delta")) or "")
        return [Delta("extra", dump_json(event).decode(), 0, index)]

    def end(self) -> None:
        """Do nothing: an event of its own says so."""

    def head(self) -> dict[str, Any]:
        return {**self._response, "output": []}

    def whole(self) -> dict[str, Any] | None:
        return self._response if self._has_ended else None

    def usage(self) -> Mapping[str, Any]:
        return _map(self._response.get("usage"))


_ENDS: Final = ("completed", "incomplete", "failed")
_READERS: Final[Mapping[str, Callable[[], Assembler]]] = {
    CHAT: OfChats,
    COMPLETIONS: OfChats,
    MESSAGES: OfMessages,
    GENERATE: OfCandidates,
    RESPONSES: OfResponses,
}


def _at(event: Mapping[str, Any]) -> int:
    index = event.get("index")
    if type(index) is not int:
        raise BrokenStream("an event of the stream has no index")
    return index


def _map(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None
