"""Answers that a provider streams: asked for, put together, and passed on as they come.

What is stored is the whole. A stream that breaks off is a failure like a call without an answer,
with what it has cost so far.
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil
from typing import Any, Final, NamedTuple

from penstock_ledger.lone_surrogates import dump_json, parse_json
from penstock_producer.dialects.assembling import Assembler, BrokenStream, assembler_for
from penstock_workers.http import AnswerTooLarge, ConnectionLost
from penstock_workers.item.answer import Answer, NoAnswer, Tried
from penstock_workers.item.answer_forms import counted, counts_cache_beside
from penstock_workers.item.lane import Request
from penstock_workers.item.passing import Passing
from penstock_workers.item.run.cost import EXPECTED_BYTES, estimated_prompt
from penstock_workers.settings import Streams

_DONE: Final = b"[DONE]"
SHOWN_BYTES: Final = 200  # of an event that cannot be read
# times the size of an answer: chunks have some 200 bytes for each token
OVERHEAD: Final = 16
# lines and events in a row that bring nothing, such as pings: 20,000 chunks of that kind
IDLE_BYTES: Final = 4 * 1024 * 1024
# that one of them counts at most: a large one brings something, such as the whole at the end
IDLE_EVENT_BYTES: Final = 1024


class Pace(NamedTuple):
    """The longest waits for the next byte of a stream; the job's ``timeout_s`` bounds the whole."""

    first_s: float
    next_s: float


# A model that thinks may do so for minutes before it writes. Between two tokens servers that are
# busy say nothing for seconds, and those that think on send comments or pings.
USUAL_PACE: Final = Pace(first_s=300.0, next_s=60.0)


class Streamed:
    """Reads one event stream. Implements ``http.PartReader``."""

    def __init__(
        self,
        request: Request,
        assembler: Assembler,
        passing: Passing,
        way: Streams,
        most: int,
        pace: Pace,
    ) -> None:
        self._request, self._assembler, self._passing = request, assembler, passing
        self.way: Streams = way
        self._most, self._left = most, most * OVERHEAD
        self.first_s, self.next_s = pace
        self.has_begun = False
        self._open = bytearray()  # a line whose end has not come
        self._data = bytearray()  # of an event whose end has not come
        self._idle = 0  # bytes since the last bit of the answer
        self._broken: str | None = None  # what is wrong with the stream
        self._error: Any = None  # what the provider says in the stream, instead of an answer

    @classmethod
    def of(cls, request: Request, way: Streams, most: int, pace: Pace) -> Streamed | None:
        """Make a reader of at most ``most`` bytes; None where the answer comes in one piece."""
        if request.passing is None or way == "no":
            return None
        assembler = assembler_for(request.endpoint)
        if assembler is None or b'"audio"' in request.body:
            return None  # sounds come in bits that cannot be joined
        return cls(request, assembler, request.passing, way, most, pace)

    def feed(self, part: bytes) -> int:
        self.has_begun = True
        self._left -= len(part)
        if self._left < 0:
            raise AnswerTooLarge(f"the stream has more than {OVERHEAD} times {self._most} bytes")
        self._open += part
        if b"\n" in part:
            *lines, rest = self._open.split(b"\n")
            self._open = rest
            for line in lines:
                self._read(line.removesuffix(b"\r"))
        return len(self._open) + len(self._data) + self._assembler.held

    def whole(self) -> bytes:
        """Return the answer as if it had come whole. Raises ConnectionLost where it did not."""
        answer = self._whole()
        if answer is None:
            self._broken = self._broken or "the stream ended before its answer"
            raise ConnectionLost(self._broken)
        return dump_json(answer)

    def judged(self, tried: Tried) -> Tried:
        """Return what came of the call, by what the stream has said."""
        if isinstance(tried, Answer):
            return tried
        if not self.has_begun:
            return self._waited(tried, self.first_s)
        if self._error is not None:
            said = dump_json({"error": self._error, **self._cost()})
            return Answer(200, tried.headers, said, tried.latency_ms)
        if self._broken is not None:
            cut = self._cost() or None
            return replace(tried, failure="invalid_answer", detail=self._broken, cut=cut)
        answer = self._whole()  # it may be whole although the connection did not end well
        if answer is not None and tried.failure != "answer_too_large":
            return Answer(200, tried.headers, dump_json(answer), tried.latency_ms)
        return replace(self._waited(tried, self.next_s), cut=self._cost() or None)

    def _waited(self, tried: NoAnswer, longest_s: float) -> NoAnswer:
        if tried.failure != "timeout" or tried.latency_ms >= self._request.timeout_s * 1000:
            return tried
        when = "after the last" if self.has_begun else "before the first"
        return replace(tried, detail=f"no token of the answer came for {longest_s:g} s {when}")

    def _read(self, line: bytes | bytearray) -> None:
        self._idle += min(len(line) + 1, IDLE_EVENT_BYTES)
        if self._idle > IDLE_BYTES:
            raise self._break(f"the stream has {IDLE_BYTES} bytes in a row that bring nothing")
        if not line:
            if self._data:
                data, self._data = bytes(self._data), bytearray()
                self._take(data)
        elif line.startswith(b"data:"):
            if self._data:
                self._data += b"\n"
            self._data += line[5:].removeprefix(b" ")

    def _take(self, data: bytes) -> None:
        if data == _DONE:
            self._assembler.end()
            return
        try:
            event = parse_json(data)
        except ValueError:
            event = None
        if not isinstance(event, dict):
            shown = data[:SHOWN_BYTES].decode("utf-8", "replace")
            raise self._break(f"an event of the stream is not a JSON object: {shown}")
        if event.get("error") or event.get("type") == "error":
            self._error = event.get("error") or event
            raise ConnectionLost("the provider has given the answer up")
        try:
            deltas = self._assembler.take(event, len(data))
        except BrokenStream as error:
            raise self._break(str(error)) from None
        if deltas:
            self._idle = 0
        self._passing.put(self._assembler.head, deltas)

    def _break(self, why: str) -> ConnectionLost:
        self._broken = why
        return ConnectionLost(why)

    def _whole(self) -> dict[str, Any] | None:
        try:
            return self._assembler.whole()
        except BrokenStream as error:
            self._broken = str(error)
            return None

    def _cost(self) -> dict[str, Any]:
        """Return the model and the usage so far: what the provider said, else an estimate.

        Nothing where it has neither said nor written anything."""
        head, said = self._assembler.head(), self._assembler.usage()
        if not self._assembler.written and counted(said) == (None, None):
            return {}
        prompt, completion = counted(said)
        prompt = estimated_prompt(self._request.body) if prompt is None else prompt
        completion = max(completion or 0, ceil(self._assembler.written / EXPECTED_BYTES))
        usage = {"prompt_tokens": prompt, "completion_tokens": completion}
        if counts_cache_beside(said):
            usage = {**said, "output_tokens": completion}
        return {"model": head.get("model", head.get("modelVersion")), "usage": usage}
