"""An admitted call gets an answer of the model, written down as its API does, errors too.

A whole answer may leave as the events in which its API streams it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from hashlib import blake2b
from typing import Any, Final, NamedTuple

import orjson

from penstock_simulate.answers import bedrock, gemini, media, refusals
from penstock_simulate.answers.answers import (
    EMBEDDING_DIMENSIONS,
    chat_body,
    completion_body,
    embedding_body,
    forced_function,
)
from penstock_simulate.answers.calls import (
    CHAT,
    COMPLETIONS,
    CONVERSE,
    EMBEDDINGS,
    FLEX_TIER,
    GENERATE,
    MESSAGES,
    Call,
)
from penstock_simulate.answers.faults import Draw, Fates, Fault, Poison, document_of
from penstock_simulate.answers.headers import WRITERS, Meters, RetryHeaders
from penstock_simulate.answers.messages import Answer, forced_tool, message_body
from penstock_simulate.answers.refusals import Refusal
from penstock_simulate.answers.servers import SERVERS
from penstock_simulate.choices import HeaderStyle, RetryStyle
from penstock_simulate.config import SimulatorConfig
from penstock_simulate.hostile import Asked, Kind
from penstock_simulate.reply import NO_USAGE, Manner, Reply, Usage

# a model named so has no context overflows: replaying with one rescues those documents
LONG_CONTEXT_SUFFIX = "-long"
ERROR_BODY = refusals.openai(
    Refusal(200, "The engine is currently unavailable.", "server_error"), ""
)[1]


class Api(NamedTuple):
    """The forms in which one provider's own API writes what is not an answer."""

    headers: HeaderStyle
    write_error: refusals.Dialect
    id_header: str = "x-request-id"
    # the header with the name of an error, which is not in its body
    error_type: Callable[[Refusal], Mapping[str, str]] = lambda _: {}


ANTHROPIC = Api(HeaderStyle.ANTHROPIC, refusals.anthropic, "request-id")
GEMINI = Api(HeaderStyle.NONE, refusals.gemini)
BEDROCK = Api(HeaderStyle.NONE, refusals.bedrock, "x-amzn-requestid", refusals.amazon_header)


def poison_of(call: Call, fates: Fates) -> Poison | None:
    """Return why the call's document can never succeed with its model; None where it can."""
    poison = fates.poison(call.document)
    return None if poison is Poison.CONTEXT and call.model.endswith(LONG_CONTEXT_SUFFIX) else poison


def declines(call: Call, poison: Poison | None) -> bool:
    """Return whether the model answers that it will not, where other APIs refuse the request."""
    return poison is Poison.FILTER and call.endpoint in (MESSAGES, GENERATE, CONVERSE)


class Replies:
    """Writes replies under one configuration.

    ``wall`` gives Unix seconds, ``request_id`` a new one per reply."""

    def __init__(
        self,
        config: SimulatorConfig,
        wall: Callable[[], float],
        request_id: Callable[[], str],
        api: Api | None = None,
    ) -> None:
        """Write replies as ``api``, where it is one provider's own.

        Else errors and headers are in the style of the settings."""
        self._config = config
        self._wall = wall
        self._request_id = request_id
        self._fates = Fates(config)
        metering = config.metering
        given = HeaderStyle(metering.headers)
        # what is asked in another API, such as Anthropic's, is answered in that
        self._server = SERVERS.get(config.like or "") if api is None else None
        api = api or Api(
            given, refusals.anthropic if given is HeaderStyle.ANTHROPIC else refusals.openai
        )
        self._write_headers = WRITERS[
            HeaderStyle.NONE if given is HeaderStyle.NONE else api.headers
        ]
        self._write_error = api.write_error if self._server is None else self._server.refuse
        self._id_header = api.id_header
        self._error_type = api.error_type
        self._retry = RetryHeaders(RetryStyle(metering.retry_style), wall)

    def refuse(
        self, refusal: Refusal, call: Call, meters: Meters, now: float, latency_s: float = 0.0
    ) -> Reply:
        """Reply with a refusal.

        Those by limit or key are immediate, those by the model take their time."""
        headers = self._headers(meters, now)
        if self._server is not None and is_streamed(call):
            events = self._server.refuse_in_stream(refusal)
            if events is not None:
                headers |= {"Content-Type": "text/event-stream; charset=utf-8"}
                return Reply(200, events, headers, latency_s, code=refusal.code)
        status, body = self._write_error(refusal, headers[self._id_header])
        headers |= self._error_type(refusal)
        if refusal.wait_s is not None:
            headers |= self._retry.write(refusal.wait_s)
        return Reply(status, body, headers, latency_s, outcome=str(status), code=refusal.code)

    def work(self, call: Call, meters: Meters, now: float) -> Reply:
        """Return what the model makes of an admitted call, by the luck of its document."""
        call.document = document_of(call.tag)
        draw = self._fates.draw(call.document, call.number)
        poison = poison_of(call, self._fates)
        call.declines = declines(call, poison)
        if poison is None or call.declines:
            return self._infer(call, draw, meters, now)
        return self.refuse(
            refusals.poisoned(poison, call.prompt_tokens), call, meters, now, draw.latency_s
        )

    def hostile(self, kind: Kind, call: Call, host: str, meters: Meters, now: float) -> Reply:
        """Return the answer that the model would have given, spoilt, after the same time."""
        call.document = document_of(call.tag)
        draw = self._fates.draw(call.document, call.number)._replace(fault=None)
        answer = self._answer(call, draw, meters, now)
        reply = kind.make(Asked(answer, call.authorization or "", host))
        delay_s = self._config.hang_s if reply.manner is Manner.HUNG else answer.delay_s
        usage = answer.usage if kind.answers else NO_USAGE
        return reply._replace(delay_s=delay_s, outcome=kind.name, good=kind.answers, usage=usage)

    def _infer(self, call: Call, draw: Draw, meters: Meters, now: float) -> Reply:
        config = self._config
        if call.tier == FLEX_TIER and self._fates.is_flex_full(call.document, call.number):
            full = refusals.no_room_in_flex if call.endpoint == CHAT else refusals.overloaded
            return self.refuse(full(config.retry_after_s), call, meters, now)
        match draw.fault:
            case None | Fault.TRUNCATE | Fault.DROP:
                return self._answer(call, draw, meters, now)
            case Fault.THROTTLE:
                return self.refuse(refusals.throttled(config.retry_after_s), call, meters, now)
            case Fault.OVERLOAD:
                return self.refuse(
                    refusals.overloaded(config.retry_after_s), call, meters, now, draw.latency_s
                )
            case Fault.ERROR:
                return self.refuse(refusals.failed(), call, meters, now, draw.latency_s)
            case Fault.HTML:
                headers = self._headers(meters, now) | {"Content-Type": "text/html"}
                return Reply(502, refusals.HTML_PAGE, headers, draw.latency_s, outcome="502")
            case Fault.ERROR_BODY:
                return Reply(200, ERROR_BODY, self._headers(meters, now), draw.latency_s)
            case Fault.HANG:
                return Reply(200, b"", {}, config.hang_s, Manner.HUNG, outcome=Manner.HUNG.value)

    def _answer(self, call: Call, draw: Draw, meters: Meters, now: float) -> Reply:
        """Answer; with a fault drawn the work is done, and its result does not arrive whole."""
        body, usage = answer_body(call)
        if self._server is not None and call.endpoint in _KINDS:
            body = self._server.answered(body)
        headers = self._headers(meters, now)
        delay_s = draw.latency_s + usage.completion * self._config.latency_ms_per_token / 1000
        if draw.fault is None:
            return Reply(200, body, headers, delay_s, usage=usage, price=call.price, good=True)
        if draw.fault is Fault.TRUNCATE:
            return Reply(
                200, body[: len(body) // 2], headers, delay_s, usage=usage, price=call.price
            )
        manner = Manner.DROPPED if draw.fraction < 0.5 else Manner.CUT
        return Reply(200, body, headers, delay_s, manner, usage, call.price, outcome=manner.value)

    def _headers(self, meters: Meters, now: float) -> dict[str, str]:
        headers = {"Content-Type": "application/json", self._id_header: self._request_id()}
        return headers | self._write_headers(meters, now, self._wall()) if meters else headers


def answer_body(call: Call, tier: str = "standard") -> tuple[bytes, Usage]:
    """Return a good answer, in the words of the call's endpoint."""
    cache = call.cache
    if call.endpoint in media.MEDIA:
        return media.answer(call.endpoint, call.body, f"http://{call.host}")
    usage = Usage(call.prompt_tokens, call.output_tokens(), cache.read, cache.written, cache.extra)
    if call.endpoint == EMBEDDINGS:
        dimensions = call.body.get("dimensions") or EMBEDDING_DIMENSIONS
        encoding = call.body.get("encoding_format", "float")
        return embedding_body(call.model, call.texts, dimensions, encoding, usage), usage
    text, finish = call.answer()
    if call.endpoint == MESSAGES:
        said = Answer(_ident(call), call.model, text, finish, usage, call.cache, tier)
        return message_body(said, forced_tool(call.body)), usage
    about = (_ident(call), call.model, text, finish, usage)
    if call.endpoint not in _FUNCTIONS:
        return completion_body(*about), usage
    make, tool_of = _FUNCTIONS[call.endpoint]
    return make(*about, tool_of(call.body), call.tier), usage


def _ident(call: Call) -> str:
    return blake2b(call.document.encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()


_FUNCTIONS = {
    CHAT: (chat_body, forced_function),
    GENERATE: (gemini.content_body, gemini.forced_tool),
    CONVERSE: (bedrock.converse_body, bedrock.forced_tool),
}


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
    named = ("id", "created", "model", "service_tier")
    return {name: answer[name] for name in named if name in answer} | {"object": _KINDS[endpoint]}


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
