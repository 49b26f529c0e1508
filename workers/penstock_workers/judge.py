"""Every failure has a name and a fate. ``name_failure`` says what happened; ``FATES`` says what becomes of the item.

Sources: OpenAI's and Anthropic's published error codes; what each provider answers in practice is noted beside the row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

import orjson

from penstock_workers.answer import Answer, NoAnswer, Tried


class Act(Enum):
    """What is done with the item, or with its whole job."""

    RETRY = "retry"  # the try counts; after max_attempts the item is dead
    WAIT = "wait"  # waiting for capacity: the try does not count
    DEAD = "dead"  # it can never succeed as it is
    PAUSE = "pause"  # no item of this job can succeed until a person acts: the job pauses, the item stays


@dataclass(frozen=True, slots=True)
class Fate:
    """One row of the table. ``slow_all`` asks the quota to hold the whole fleet back, not just this item."""

    act: Act
    slow_all: bool = False
    max_tries: int | None = None  # tighter than the job's max_attempts
    fix: str = ""  # for PAUSE: what a person has to do


@dataclass(frozen=True, slots=True)
class Failure:
    """A named failure with the words of whoever reported it."""

    name: str
    detail: str
    status: int | None

    @property
    def fate(self) -> Fate:
        return FATES[self.name]


FATES: Mapping[str, Fate] = {
    # Capacity: the provider says "not now". Never costs an attempt.
    "rate_limited": Fate(Act.WAIT, slow_all=True),  # 429 with or without Retry-After
    "slow_down": Fate(Act.WAIT, slow_all=True),  # 429 `slow_down`: the ramp is too steep
    "overloaded": Fate(Act.WAIT),  # 529, 503 `server_is_overloaded`
    "connect_failed": Fate(Act.WAIT, slow_all=True),  # nothing was sent: nobody answers there
    # Transient: probably works next time.
    "server_error": Fate(Act.RETRY),  # 5xx
    "timeout": Fate(Act.RETRY),  # ambiguous: the call may have been billed
    "connection_lost": Fate(Act.RETRY),  # reset or closed after sending
    "request_conflict": Fate(Act.RETRY),  # 408, 409, 425
    "invalid_answer": Fate(Act.RETRY),  # 200 with HTML, an empty or a truncated body
    "error_in_answer": Fate(Act.RETRY),  # 200 whose body is {"error": …}
    "empty_answer": Fate(Act.RETRY, max_tries=2),  # no choices, null content without a reason
    "schema_mismatch": Fate(Act.RETRY, max_tries=2),  # asked for a schema, got something else
    "unexpected_error": Fate(Act.RETRY),  # a bug of ours; the traceback is in the worker's log
    # Permanent: the request itself is at fault.
    "bad_request": Fate(Act.DEAD),  # 400
    "context_overflow": Fate(Act.DEAD),  # 400 `context_length_exceeded`
    "not_found": Fate(Act.DEAD),  # 404: the model or the route
    "request_too_large": Fate(Act.DEAD),  # 413
    "unprocessable": Fate(Act.DEAD),  # 422
    "content_filter": Fate(Act.DEAD),  # refused by the provider's policy, as an error or as a finish reason
    "client_error": Fate(Act.DEAD),  # any other 4xx
    "redirected": Fate(Act.DEAD),  # 3xx: redirects are off, so that keys go nowhere else
    "answer_too_large": Fate(Act.DEAD),  # above MAX_ANSWER_BYTES
    "source_lost": Fate(Act.DEAD),  # the document behind a reference cannot be read any more
    "worker_crashed": Fate(Act.DEAD),  # it kills the process that runs it
    # The account, not the item.
    "unauthorized": Fate(Act.PAUSE, fix="check the API key (the variable named by api_key_env), then resume"),
    "forbidden": Fate(Act.PAUSE, fix="the key may not use this model or project; change either, then resume"),
    "out_of_credit": Fate(Act.PAUSE, fix="add credit or raise the spend limit at the provider, then resume"),
}

# Codes (OpenAI `error.code`/`error.type`, Anthropic `error.details.error_code`) that say more than their status does.
CODES: Mapping[str, str] = {
    "insufficient_quota": "out_of_credit",
    "credit_balance_exhausted": "out_of_credit",
    "organization_spend_limit_exceeded": "out_of_credit",
    "project_spend_limit_exceeded": "out_of_credit",
    "organization_usage_limit_exceeded": "out_of_credit",
    "enforced_spend_limit_reached": "out_of_credit",
    "billing_error": "out_of_credit",
    "slow_down": "slow_down",
    "server_is_overloaded": "overloaded",
    "overloaded_error": "overloaded",
    "context_length_exceeded": "context_overflow",
    "content_filter": "content_filter",
    "content_policy_violation": "content_filter",
}

STATUSES: Mapping[int, str] = {
    400: "bad_request",
    401: "unauthorized",
    402: "out_of_credit",
    403: "forbidden",
    404: "not_found",
    408: "request_conflict",
    409: "request_conflict",
    413: "request_too_large",
    422: "unprocessable",
    425: "request_conflict",
    429: "rate_limited",
    529: "overloaded",
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


def name_failure(tried: Tried) -> Failure | Reply:
    """What happened in one try: a failure with its name, or a reply worth keeping."""
    if isinstance(tried, NoAnswer):
        return Failure(tried.failure, tried.detail, None)
    parsed = _parse(tried.body)
    if tried.status != 200:
        return _rejected(tried, parsed)
    if parsed is None:
        return Failure("invalid_answer", f"200 with a body that is not a JSON object: {_cut(tried.body)}", 200)
    if parsed.get("error"):
        return Failure(_by_code(parsed) or "error_in_answer", _message(parsed, tried.body), 200)
    return _accept(tried, parsed)


def _rejected(answer: Answer, parsed: dict[str, Any] | None) -> Failure:
    name = _by_code(parsed) or STATUSES.get(answer.status) or _by_class(answer.status)
    return Failure(name, f"HTTP {answer.status}: {_message(parsed, answer.body)}", answer.status)


def _by_class(status: int) -> str:
    if status >= 500:
        return "server_error"
    if status >= 400:
        return "client_error"
    if status >= 300:
        return "redirected"
    return "invalid_answer"


def _by_code(parsed: dict[str, Any] | None) -> str | None:
    error = (parsed or {}).get("error")
    if not isinstance(error, dict):
        return None
    details = error.get("details")
    candidates = [error.get("code"), error.get("type")]
    if isinstance(details, dict):
        candidates.insert(0, details.get("error_code"))
    return next((CODES[code] for code in candidates if isinstance(code, str) and code in CODES), None)


def _accept(answer: Answer, parsed: dict[str, Any]) -> Failure | Reply:
    finish_reason, content = None, None
    if "choices" in parsed:
        choice = _first_choice(parsed)
        if choice is None:
            return Failure("empty_answer", f"200 without choices: {_cut(answer.body)}", 200)
        finish_reason, content, empty = _read_choice(choice)
        if finish_reason == "content_filter":
            return Failure("content_filter", "the provider stopped the answer: finish_reason content_filter", 200)
        if empty:
            return Failure("empty_answer", f"200 without content: {_cut(answer.body)}", 200)
    prompt_tokens, completion_tokens = _usage(parsed)
    model = parsed.get("model")
    return Reply(
        body=answer.body,
        status=answer.status,
        request_id=answer.headers.get("x-request-id") or answer.headers.get("request-id"),
        model=model if isinstance(model, str) else None,
        finish_reason=finish_reason,
        prompt_tokens=prompt_tokens,
        completion_tokens=completion_tokens,
        content=content,
        latency_ms=answer.latency_ms,
    )


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


def _usage(parsed: dict[str, Any]) -> tuple[int | None, int | None]:
    """Prompt and completion tokens; what is missing, negative or no integer counts as unknown and never as money."""
    usage = parsed.get("usage")
    if not isinstance(usage, dict):
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


def _message(parsed: dict[str, Any] | None, body: bytes) -> str:
    error = (parsed or {}).get("error")
    if isinstance(error, dict) and isinstance(error.get("message"), str):
        code = error.get("code") or error.get("type")
        text = f"{error['message']} ({code})" if code else error["message"]
        return str(text)[:DETAIL_CHARS]
    return str(error)[:DETAIL_CHARS] if isinstance(error, str) else _cut(body)


def _cut(body: bytes) -> str:
    return body[:DETAIL_CHARS].decode("utf-8", "replace") or "(empty body)"
