"""What the simulated provider answers to one call: a pipeline of checks, with the time passed in and nothing sent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from hashlib import blake2b
from hmac import compare_digest
from typing import Any, NamedTuple

import orjson

from penstock_cli.simulate import refusals
from penstock_cli.simulate.answers import (
    EMBEDDING_DIMENSIONS,
    MAX_EMBEDDING_DIMENSIONS,
    Usage,
    chat_body,
    completion_body,
    cut_answer,
    embedding_body,
    last_of,
    prompt_of,
    tokens_of,
    write_answer,
)
from penstock_cli.simulate.book import CallBook
from penstock_cli.simulate.config import SimulatorConfig
from penstock_cli.simulate.faults import Draw, Fates, Fault, Poison, document_of
from penstock_cli.simulate.limits import make_limits
from penstock_cli.simulate.refusals import Refusal

CHAT, COMPLETIONS, EMBEDDINGS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
MODELS = ("sim-small", "sim-large", "sim-embed")  # listed; any other name works too
LONG_CONTEXT_SUFFIX = "-long"  # a model named so has no context overflows: replaying with one rescues those documents
RESERVED_OUTPUT_TOKENS = 256  # charged beforehand for a request that names no max_tokens
MAX_INPUTS = 2048  # texts of one embeddings request, as at OpenAI
NO_USAGE = Usage(0, 0)


class Manner(Enum):
    """How an answer leaves."""

    WHOLE = "whole"
    DROPPED = "dropped"  # the connection ends before the first byte
    CUT = "cut"  # the connection ends in the middle of the body
    HUNG = "hung"  # nothing at all, until the client gives up


@dataclass(slots=True)
class Call:
    """One request and its identity. ``tag`` names the document in the accounts, ``document`` decides its luck."""

    endpoint: str
    raw: bytes
    authorization: str | None
    tag: str
    number: int  # among the calls of this tag, from 1
    document: str = ""
    body: Mapping[str, Any] = field(default_factory=dict)
    model: str = ""
    prompt_tokens: int = 0
    texts: list[str] = field(default_factory=list)  # of an embeddings request


class Reply(NamedTuple):
    """What to send, when, and how. ``outcome`` is its name in the statistics: a status, or how it failed to leave."""

    status: int
    body: bytes
    headers: Mapping[str, str]
    delay_s: float = 0.0
    manner: Manner = Manner.WHOLE
    usage: Usage = NO_USAGE
    good: bool = False
    outcome: str = "200"


class Provider:
    """Decides about calls; owns the limits, the luck and the accounts."""

    def __init__(self, config: SimulatorConfig) -> None:
        self._config = config
        self._fates = Fates(config)
        self._authorization = f"Bearer {config.api_key}".encode() if config.api_key else None
        self.book = CallBook(config.call_log)
        self._fill()

    def reset(self) -> None:
        """Accounts and limits as at the start; the log on disk is kept."""
        self.book.reset()
        self._fill()

    def open_call(self, endpoint: str, raw: bytes, tag: str | None, authorization: str | None) -> Call:
        """Count a call before anything else happens to it. Without a tag the body's hash names the document."""
        tag = tag or "body-" + blake2b(raw, digest_size=8).hexdigest()
        return Call(endpoint, raw, authorization, tag, self.book.arrived(tag))

    def decide(self, call: Call, now: float) -> Reply:
        """The reply to a call that arrives at ``now`` (seconds of any steady clock), noted in the call log."""
        draw = Draw(None, 0.0, 0.0)
        refusal = self._wrong_key(call) or _unreadable(call) or self._no_credit() or self._crowded()
        refusal = refusal or self._over_limit(call, now)
        if refusal is None:
            call.document = document_of(call.tag)
            draw = self._fates.draw(call.document, call.number)
            refusal = self._poisoned(call)
        reply = self._refuse(refusal, draw, now) if refusal else self._infer(call, draw, now)
        self.book.decided(call.tag, call.number, reply.outcome)
        return reply

    def close_call(self, call: Call, reply: Reply, *, unread: bool) -> None:
        self.book.left(call.tag, reply.outcome, reply.usage, ok=reply.good, unread=unread)

    def _fill(self) -> None:
        config = self._config
        self._limits = make_limits(
            config.rpm, config.tpm, window=config.window, depth_s=config.depth_s, charge_failed=config.charge_failed
        )

    def _wrong_key(self, call: Call) -> Refusal | None:
        if self._authorization is None or compare_digest((call.authorization or "").encode(), self._authorization):
            return None
        return refusals.wrong_key()

    def _no_credit(self) -> Refusal | None:
        left = self._config.credit_calls
        return refusals.out_of_credit() if left is not None and self.book.requests > left else None

    def _crowded(self) -> Refusal | None:
        most = self._config.max_concurrency
        if most is None or self.book.in_flight <= most:
            return None
        self.book.refused("concurrency")
        return refusals.too_many_in_flight(most, self._config.retry_after_s)

    def _over_limit(self, call: Call, now: float) -> Refusal | None:
        over = self._limits.admit(self._cost(call), now)
        if over is None:
            return None
        self.book.refused(over.dimension)
        return refusals.over_limit(over, call.model)

    def _cost(self, call: Call) -> int:
        if self._config.tpm is None:
            return 0
        if call.endpoint == EMBEDDINGS:
            return call.prompt_tokens
        if self._config.charge == "actual":
            return call.prompt_tokens + tokens_of(self._text(call)[0])
        most = _max_tokens(call.body)
        return call.prompt_tokens + (RESERVED_OUTPUT_TOKENS if most is None else most)

    def _poisoned(self, call: Call) -> Refusal | None:
        poison = self._fates.poison(call.document)
        if poison is None or (poison is Poison.CONTEXT and call.model.endswith(LONG_CONTEXT_SUFFIX)):
            return None
        return refusals.poisoned(poison, call.prompt_tokens)

    def _refuse(self, refusal: Refusal, draw: Draw, now: float) -> Reply:
        """Refusals by limit or key are immediate; those by the model (drawn) take their time."""
        headers = self._headers(now, refusal.headers)
        return Reply(refusal.status, refusal.body, headers, draw.latency_s, outcome=str(refusal.status))

    def _infer(self, call: Call, draw: Draw, now: float) -> Reply:
        if draw.fault is None:
            body, usage = self._answer(call)
            return Reply(200, body, self._headers(now, {}), self._delay_s(draw, usage), usage=usage, good=True)
        match draw.fault:
            case Fault.THROTTLE | Fault.ERROR | Fault.OVERLOAD | Fault.HTML | Fault.ERROR_BODY as fault:
                refusal = refusals.injected(fault, self._config.retry_after_s)
                slow = draw if fault is not Fault.THROTTLE else draw._replace(latency_s=0.0)
                return self._refuse(refusal, slow, now)
            case Fault.HANG:
                return Reply(200, b"", {}, self._config.hang_s, Manner.HUNG, outcome=Manner.HUNG.value)
        body, usage = self._answer(call)
        headers, delay_s = self._headers(now, {}), self._delay_s(draw, usage)
        if draw.fault is Fault.TRUNCATE:
            return Reply(200, body[: len(body) // 2], headers, delay_s, usage=usage)
        manner = Manner.DROPPED if draw.fraction < 0.5 else Manner.CUT
        return Reply(200, body, headers, delay_s, manner, usage, outcome=manner.value)

    def _delay_s(self, draw: Draw, usage: Usage) -> float:
        return draw.latency_s + usage.completion * self._config.latency_ms_per_token / 1000

    def _answer(self, call: Call) -> tuple[bytes, Usage]:
        if call.endpoint == EMBEDDINGS:
            usage = Usage(call.prompt_tokens, 0)
            dimensions = call.body.get("dimensions") or EMBEDDING_DIMENSIONS
            encoding = call.body.get("encoding_format", "float")
            return embedding_body(call.model, call.texts, dimensions, encoding, usage), usage
        text, finish = self._text(call)
        usage = Usage(call.prompt_tokens, tokens_of(text))
        ident = blake2b(call.document.encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()
        make = chat_body if call.endpoint == CHAT else completion_body
        return make(ident, call.model, text, finish, usage), usage

    def _text(self, call: Call) -> tuple[str, str]:
        return cut_answer(write_answer(call.body, last_of(call.body, call.texts[0])), _max_tokens(call.body))

    def _headers(self, now: float, more: Mapping[str, str]) -> dict[str, str]:
        ident = f"req_{self.book.requests:016x}"
        return {"Content-Type": "application/json", "x-request-id": ident} | self._limits.headers(now) | dict(more)


def _max_tokens(body: Mapping[str, Any]) -> int | None:
    most = body.get("max_completion_tokens", body.get("max_tokens"))
    return most if isinstance(most, int) and not isinstance(most, bool) else None


def _unreadable(call: Call) -> Refusal | None:
    """Fill in what the request says, or refuse it as the provider would."""
    try:
        body = orjson.loads(call.raw)
    except orjson.JSONDecodeError as error:
        return refusals.invalid(f"We could not parse the JSON body of your request: {error}")
    if not isinstance(body, dict):
        return refusals.invalid("The body of your request must be a JSON object.")
    call.body, model = body, body.get("model")
    if not isinstance(model, str) or not model:
        return refusals.invalid("you must provide a model parameter", "model")
    call.model = model
    if body.get("stream"):
        return refusals.invalid("This simulator does not stream: leave stream out.", "stream")
    return _embedding_texts(call) if call.endpoint == EMBEDDINGS else _prompt(call)


def _prompt(call: Call) -> Refusal | None:
    field_name = "messages" if call.endpoint == CHAT else "prompt"
    given = call.body.get(field_name)
    usable = isinstance(given, list) and given and all(isinstance(message, dict) for message in given)
    if not (usable if call.endpoint == CHAT else isinstance(given, str)):
        return refusals.invalid(f"Missing or unusable parameter: '{field_name}'.", field_name)
    most = call.body.get("max_completion_tokens", call.body.get("max_tokens"))
    if most is not None and (_max_tokens(call.body) is None or most < 1):
        return refusals.invalid(f"Invalid value for max_tokens: {most!r}.", "max_tokens")
    call.texts = [prompt_of(call.body)]
    call.prompt_tokens = max(1, tokens_of(call.texts[0]))
    return None


def _embedding_texts(call: Call) -> Refusal | None:
    given = call.body.get("input")
    texts: list[Any] = given if isinstance(given, list) else [given]
    if not 0 < len(texts) <= MAX_INPUTS or not all(isinstance(text, str) and text for text in texts):
        return refusals.invalid(f"'input' must be a text or 1 to {MAX_INPUTS} texts, none of them empty.", "input")
    dimensions = call.body.get("dimensions", EMBEDDING_DIMENSIONS)
    if not isinstance(dimensions, int) or not 1 <= dimensions <= MAX_EMBEDDING_DIMENSIONS:
        return refusals.invalid(f"'dimensions' must be between 1 and {MAX_EMBEDDING_DIMENSIONS}.", "dimensions")
    call.texts = texts
    call.prompt_tokens = sum(tokens_of(text) for text in texts)
    return None
