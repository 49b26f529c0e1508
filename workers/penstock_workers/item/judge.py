"""Every failure has a name and a fate. ``name_failure`` says what happened; ``FATES`` says what becomes of the item.

What an answer that is no 2xx is called, and what it says about the server and the account, is told by one table of error
codes: ``penstock_ratelimit.refusals``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import orjson

from penstock_ledger.redaction import redact
from penstock_ratelimit import Signal, classify
from penstock_ratelimit.refusals import is_page
from penstock_workers.lanes.answer import Answer, NoAnswer, Tried


class Act(Enum):
    """What is done with the item, or with its whole job."""

    RETRY = "retry"  # the try counts; after max_attempts the item is dead
    WAIT = "wait"  # waiting for capacity: the try does not count
    RELEASE = "release"  # no fault of the item's: back to the queue at once, but its start stays counted as a crash
    DEAD = "dead"  # it can never succeed as it is
    PAUSE = "pause"  # no item of this job can succeed until a person acts: the job pauses, the item stays


@dataclass(frozen=True, slots=True)
class Fate:
    """One row of the table."""

    act: Act
    max_tries: int | None = None  # tighter than the job's max_attempts
    fix: str = ""  # for PAUSE: what a person has to do


@dataclass(frozen=True, slots=True)
class Failure:
    """A named failure with the words of whoever reported it, without the secrets that these may repeat."""

    name: str
    detail: str
    status: int | None
    signal: Signal = Signal.REFUSED  # what it says about the server and the account
    retry_after_s: float | None = None  # what the provider asked for, if anything
    final: bool = False  # the provider said that sending it again is of no use
    page: bool = False  # an HTML page: something between us and the provider answered
    prompt_tokens: int | None = None  # of an answer that came, and was paid for, and is of no use
    completion_tokens: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "detail", redact(self.detail, cut=True))

    @property
    def fate(self) -> Fate:
        return FATES[self.name]

    @property
    def astray(self) -> bool:
        """The request may have gone to a wrong place, or may not go there at all: true of one document, or of all."""
        if self.name in ASTRAY:
            return True
        return self.page and self.signal is not Signal.THROTTLED and self.status is not None and self.status < 500


ASTRAY = frozenset({"redirected", "not_found", "forbidden", "client_error", "foreign_page"})


FATES: Mapping[str, Fate] = {
    # Capacity: the provider says "not now". Never costs an attempt.
    "rate_limited": Fate(Act.WAIT),  # 429 with or without Retry-After
    "daily_limit": Fate(Act.WAIT),  # a limit of a day: with its Retry-After the job pauses
    "slow_down": Fate(Act.WAIT),  # 429 `slow_down`: the ramp is too steep
    "overloaded": Fate(Act.WAIT),  # 503, 529
    "connect_failed": Fate(Act.WAIT),  # nothing was sent: nobody answers there
    "engine_busy": Fate(Act.WAIT),  # our own engine has no room
    "engine_died": Fate(Act.RELEASE),  # our own engine; what was in flight is suspect from the second time on
    # Transient: probably works next time.
    "engine_failed": Fate(Act.RETRY),  # our own engine could not do this one, and goes on
    "engine_aborted": Fate(Act.RETRY),  # ended by somebody else than us: what there is of an answer is none
    "server_error": Fate(Act.RETRY),  # other 5xx
    "timeout": Fate(Act.RETRY),  # ambiguous: the call may have been billed
    "connection_lost": Fate(Act.RETRY),  # reset or closed after sending
    "request_conflict": Fate(Act.RETRY),  # 408, 409, 425
    "invalid_answer": Fate(Act.RETRY),  # 200 with HTML, an empty or a truncated body
    "error_in_answer": Fate(Act.RETRY),  # 200 whose body is {"error": …}
    "empty_answer": Fate(Act.RETRY, max_tries=2),  # no choices, null content without a reason
    "schema_mismatch": Fate(Act.RETRY, max_tries=2),  # asked for a schema, got something else
    "invalid_result": Fate(Act.RETRY),  # the job's own hook refused the answer
    "unexpected_error": Fate(Act.RETRY),  # a bug of ours; the traceback is in the worker's log
    "forbidden": Fate(Act.RETRY, max_tries=2),  # 403: this document, model or project; firewalls err once in a while
    "foreign_page": Fate(Act.RETRY, max_tries=2),  # 401 or 402 in HTML: a proxy's, and no verdict on the account
    # Permanent: the request itself is at fault.
    "bad_request": Fate(Act.DEAD),  # 400
    "context_overflow": Fate(Act.DEAD),  # 400 `context_length_exceeded`
    "not_found": Fate(Act.DEAD),  # 404: the model or the route
    "request_too_large": Fate(Act.DEAD),  # 413
    "unprocessable": Fate(Act.DEAD),  # 422
    "content_filter": Fate(Act.DEAD),  # refused by the provider's policy, as an error or as a finish reason
    "client_error": Fate(Act.DEAD),  # any other 4xx
    "redirected": Fate(Act.DEAD),  # 3xx: redirects are off, so that keys go nowhere else
    "hook_failed": Fate(Act.DEAD),  # the job's own hook raised
    "answer_too_large": Fate(Act.DEAD),  # above the setting max_answer_bytes
    "source_lost": Fate(Act.DEAD),  # the document behind a reference cannot be read any more
    "worker_crashed": Fate(Act.DEAD),  # it kills the process that runs it
    # The account, not the item.
    "unauthorized": Fate(Act.PAUSE, fix="check the API key (the variable named by api_key_env), then resume"),
    "out_of_credit": Fate(Act.PAUSE, fix="add credit or raise the spend limit at the provider, then resume"),
}

# Failures without an answer that tell something of the server; all others tell nothing bad.
_SIGNALS: Mapping[str, Signal] = {
    "timeout": Signal.TRANSIENT,
    "connect_failed": Signal.TRANSIENT,
    "connection_lost": Signal.TRANSIENT,
    "invalid_answer": Signal.TRANSIENT,
}

DETAIL_CHARS = 500  # of a provider's message kept as `last_error`


@dataclass(frozen=True, slots=True)
class Reply:
    """A good answer, parsed once: what the ledger and the accounts need of it."""

    body: bytes
    status: int
    request_id: str | None
    model: str | None
    finish_reason: str | None
    prompt_tokens: int | None
    completion_tokens: int | None
    content: str | None  # of the first choice, for schema checks
    latency_ms: int
    usage: Mapping[str, Any] | None = None  # as the provider reported it, for the quota


def name_failure(tried: Tried, now: float) -> Failure | Reply:
    """What happened in one try: a failure with its name, or a reply worth keeping. ``now`` is unix time."""
    if isinstance(tried, NoAnswer):
        return _failure(tried.failure, tried.detail, None)
    if tried.status != 200:
        return _refused(tried, tried.status, now)
    parsed = _parse(tried.body)
    if parsed is None:
        failure = _failure("invalid_answer", f"200 with a body that is not a JSON object: {_cut(tried.body)}", 200)
        return replace(failure, page=is_page(tried.headers, tried.body))
    if parsed.get("error"):
        return _failure_inside(tried, now)
    return _accept(tried, parsed)


def _failure(name: str, detail: str, status: int | None) -> Failure:
    return Failure(name, detail, status, _SIGNALS.get(name, Signal.REFUSED))


def _refused(answer: Answer, status: int, now: float) -> Failure:
    refusal = classify(status, answer.headers, answer.body, now)
    if refusal is None:
        return _failure("invalid_answer", f"HTTP {status}: {_cut(answer.body)}", status)
    return Failure(
        refusal.name, refusal.detail, status, refusal.signal, refusal.retry_after_s, refusal.final, refusal.page
    )


def _failure_inside(answer: Answer, now: float) -> Failure:
    """A 200 whose body is an error: what its code says, if that is a code we know."""
    inside = _refused(answer, _UNTOLD_STATUS, now)
    if inside.name == "server_error":
        return Failure("error_in_answer", inside.detail.removeprefix(f"HTTP {_UNTOLD_STATUS}: "), 200)
    return replace(inside, status=200)


_UNTOLD_STATUS = 500  # says nothing by itself, so that only the code in the body speaks


def _accept(answer: Answer, parsed: dict[str, Any]) -> Failure | Reply:
    finish_reason, content = None, None
    prompt_tokens, completion_tokens = _usage(parsed)

    def useless(name: str, detail: str) -> Failure:
        return replace(_failure(name, detail, 200), prompt_tokens=prompt_tokens, completion_tokens=completion_tokens)

    if "choices" in parsed:
        choice = _first_choice(parsed)
        if choice is None:
            return useless("empty_answer", f"200 without choices: {_cut(answer.body)}")
        finish_reason, content, empty = _read_choice(choice)
        if finish_reason == "content_filter":
            return useless("content_filter", "the provider stopped the answer: finish_reason content_filter")
        if empty:
            return useless("empty_answer", f"200 without content: {_cut(answer.body)}")
    model = parsed.get("model")
    return Reply(
        body=answer.body,
        status=answer.status,
        request_id=_request_id(answer.headers),
        model=model if isinstance(model, str) else None,
        finish_reason=finish_reason,
        prompt_tokens=prompt_tokens,
        completion_tokens=completion_tokens,
        content=content,
        latency_ms=answer.latency_ms,
        usage=_mapping(parsed.get("usage")),
    )


def _request_id(headers: Mapping[str, str]) -> str | None:
    """The one header that is stored."""
    found = headers.get("x-request-id") or headers.get("request-id")
    return None if found is None else redact(found)


def _first_choice(parsed: dict[str, Any]) -> dict[str, Any] | None:
    choices = parsed["choices"]
    if isinstance(choices, list) and choices and isinstance(choices[0], dict):
        return choices[0]
    return None


def _read_choice(choice: dict[str, Any]) -> tuple[str | None, str | None, bool]:
    """(finish reason, text, whether there is nothing usable at all). Tool calls and refusals are content too."""
    reason = choice.get("finish_reason")
    message = choice.get("message")
    if not isinstance(message, dict):  # /v1/completions answers with `text`
        text = choice.get("text")
        return _text(reason), _text(text), not isinstance(text, str)
    content = message.get("content")
    usable = content is not None or message.get("tool_calls") or message.get("refusal")
    return _text(reason), _text(content), not usable


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _mapping(value: object) -> dict[str, Any] | None:
    return value if isinstance(value, dict) else None


def _usage(parsed: dict[str, Any]) -> tuple[int | None, int | None]:
    """Prompt and completion tokens; what is missing, negative or no integer counts as unknown and never as money."""
    usage = _mapping(parsed.get("usage"))
    if usage is None:
        return None, None
    return (
        _tokens(usage.get("prompt_tokens", usage.get("input_tokens"))),
        _tokens(usage.get("completion_tokens", usage.get("output_tokens"))),
    )


MAX_TOKENS_BELIEVED = 100_000_000  # a usage figure above this is a provider's mistake


def _tokens(value: object) -> int | None:
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_TOKENS_BELIEVED:
        return value
    return None


def _parse(body: bytes) -> dict[str, Any] | None:
    try:
        parsed = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    return parsed if isinstance(parsed, dict) else None


def _cut(body: bytes) -> str:
    return body[:DETAIL_CHARS].decode("utf-8", "replace") or "(empty body)"
