"""Names for what can fail in a call, and for what turns an item away before it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import orjson
from msgspec import Struct

from penstock_ledger import JobNotFound
from penstock_ledger.lone_surrogates import parse_json, replace_surrogates
from penstock_ledger.reasons import By, Code, Reason
from penstock_ledger.redaction import redact
from penstock_ledger.vectors import unpack
from penstock_producer.errors import BadReference, ContentError, ProducerError, SpecError, WireError
from penstock_ratelimit import NeverFits, QuotaHeld, Signal, classify
from penstock_ratelimit.for_penstock import DETAIL_CHARS, is_page
from penstock_workers.errors import JobCannotRun, stop_reason
from penstock_workers.item.answer import Answer, NoAnswer, Tried
from penstock_workers.item.answer_forms import counted, model_of, read_form, usage_of
from penstock_workers.item.outcome import Outcome, Parked, Released, Unreadable

__all__ = ["ASTRAY", "refuses_format"]


class RefusedAnswer(NamedTuple):
    """An answer that the job's schema refuses, for a request that shows it to the model again."""

    answer: str  # its text, cut
    rule: str  # where and by which rule, in words of the schema alone


@dataclass(frozen=True, slots=True)
class Failure:
    """A named failure with the words of who reported it, without the secrets in them."""

    name: str
    detail: str
    status: int | None
    signal: Signal = Signal.REFUSED  # what it says about the server and the account
    retry_after_s: float | None = None  # what the provider asked for, if anything
    final: bool = False  # the provider said that the same request will fail again
    page: bool = False  # an HTML page: a proxy or a firewall answered in the provider's place
    prompt_tokens: int | None = None  # of an answer that was paid for and cannot be used
    completion_tokens: int | None = None
    usage: Mapping[str, Any] | None = None  # of it, as the provider reported it
    model: str | None = None  # that gave it
    refused: RefusedAnswer | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "detail", replace_surrogates(redact(self.detail, cut=True)))

    @property
    def astray(self) -> bool:
        """Return whether the address, a proxy or the key may be at fault: see ``runs.py``."""
        if self.name in ASTRAY:
            return True
        return (
            self.page
            and self.signal is not Signal.THROTTLED
            and self.status is not None
            and self.status < 500
        )


def refuses_format(name: str, detail: str) -> bool:
    """Return whether a provider's refusal is about the form that its answer was to have.

    No code says so: its words do."""
    return name in _AT_FAULT and _FORMAT.search(detail) is not None


_AT_FAULT = frozenset({"bad_request", "unprocessable"})
_FORMAT = re.compile(r"response_format|json[_ ]schema|json_object", re.IGNORECASE)

ASTRAY = frozenset({"redirected", "not_found", "forbidden", "client_error", "foreign_page"})


# Failures without an answer that say something about the server; all others say nothing against it.
_SIGNALS: Mapping[str, Signal] = {
    "timeout": Signal.TRANSIENT,
    "connect_failed": Signal.TRANSIENT,
    "connection_lost": Signal.TRANSIENT,
    "invalid_answer": Signal.TRANSIENT,
}


class Reply(Struct, frozen=True):
    """A good answer, parsed once: what the ledger, the checks and the quota need of it."""

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
    """Return what one call came to: a failure with its name, or a reply. ``now`` is unix time."""
    if isinstance(tried, NoAnswer):
        failure = _failure(tried.failure, tried.detail, None)
        return failure if tried.cut is None else _with_cost(failure, tried.cut)
    if tried.status != 200:
        return _refused(tried, tried.status, now)
    parsed = _parse(tried.body)
    if parsed is None and tried.packed:
        return _read_vectors(tried)
    if parsed is None:
        failure = _failure(
            "invalid_answer", f"200 with a body that is not a JSON object: {_cut(tried.body)}", 200
        )
        return replace(failure, page=is_page(tried.headers, tried.body))
    if parsed.get("error"):
        return _with_cost(_failure_inside(tried, parsed["error"], now), parsed)
    return _read_reply(tried, parsed)


# Finish reasons of answers that are none, with the name and the words of the failure. The servers
# of vLLM and SGLang say `abort` as they end, TensorRT-LLM's says `cancelled` and `timeout`.
_STOPPED: Mapping[str | None, tuple[str, str]] = {
    "content_filter": (
        "content_filter",
        "the provider stopped the answer: finish_reason content_filter",
    ),
    "abort": ("engine_aborted", "the server ended the request before its end: finish_reason abort"),
    **{
        reason: ("engine_aborted", f"the server ended the request early: finish_reason {reason}")
        for reason in ("cancelled", "timeout")
    },
    "error": ("error_in_answer", "the server gave the request up: finish_reason error"),
}


def _failure(name: str, detail: str, status: int | None) -> Failure:
    return Failure(name, detail, status, _SIGNALS.get(name, Signal.REFUSED))


def _refused(answer: Answer, status: int, now: float) -> Failure:
    refusal = classify(status, answer.headers, answer.body, now)
    if refusal is None:
        return _failure("invalid_answer", f"HTTP {status}: {_cut(answer.body)}", status)
    return Failure(
        refusal.name,
        refusal.detail,
        status,
        refusal.signal,
        refusal.retry_after_s,
        refusal.final,
        refusal.page,
    )


def _failure_inside(answer: Answer, error: object, now: float) -> Failure:
    """Name a 200 whose body is an error, by the status or the code that it names.

    A stream has its 200 before its server knows; OpenRouter and SGLang write the status inside."""
    status = _status_inside(error)
    inside = _refused(answer, status, now)
    if inside.name == "server_error":
        return Failure("error_in_answer", inside.detail.removeprefix(f"HTTP {status}: "), 200)
    return replace(inside, status=200)


_NO_STATUS = 500  # in place of the 200: it names nothing by itself, so the code in the body decides


def _status_inside(error: object) -> int:
    """Return the HTTP status that an error in a body names; _NO_STATUS where it names none."""
    status = error.get("code") if isinstance(error, dict) else None
    return status if type(status) is int and 400 <= status < 600 else _NO_STATUS


def _read_reply(answer: Answer, parsed: dict[str, Any]) -> Failure | Reply:
    usage = usage_of(parsed)
    prompt_tokens, completion_tokens = counted(usage)
    finish_reason, content, is_empty = read_form(parsed)
    if finish_reason in _STOPPED:
        return _useless(*_STOPPED[finish_reason], parsed)
    if is_empty:
        return _useless("empty_answer", f"200 without content: {_cut(answer.body)}", parsed)
    return Reply(
        body=answer.body,
        status=answer.status,
        request_id=_request_id(answer.headers),
        model=model_of(parsed),
        finish_reason=finish_reason,
        prompt_tokens=prompt_tokens,
        completion_tokens=completion_tokens,
        content=content,
        latency_ms=answer.latency_ms,
        usage=usage,
    )


def _read_vectors(answer: Answer) -> Reply:
    vectors = unpack(answer.body)
    return Reply(
        body=answer.body,
        status=answer.status,
        request_id=None,
        model=vectors.model,
        finish_reason=None,
        prompt_tokens=vectors.prompt_tokens,
        completion_tokens=None,
        content=None,
        latency_ms=answer.latency_ms,
    )


def _useless(name: str, detail: str, parsed: dict[str, Any]) -> Failure:
    """Name a 200 that the job cannot use, with what it cost."""
    return _with_cost(_failure(name, detail, 200), parsed)


def _with_cost(failure: Failure, parsed: Mapping[str, Any]) -> Failure:
    usage = usage_of(parsed)
    prompt, completion = counted(usage)
    return replace(
        failure,
        prompt_tokens=prompt,
        completion_tokens=completion,
        usage=usage,
        model=model_of(parsed),
    )


def _request_id(headers: Mapping[str, str]) -> str | None:
    """Return the one header that is stored."""
    named = ("x-request-id", "request-id", "x-amzn-requestid")
    found = next((found for name in named if (found := headers.get(name))), None)
    return None if found is None else replace_surrogates(redact(found))


def _parse(body: bytes) -> dict[str, Any] | None:
    try:
        parsed = parse_json(body)
    except orjson.JSONDecodeError:
        return None
    return parsed if isinstance(parsed, dict) else None


def _cut(body: bytes) -> str:
    return body[:DETAIL_CHARS].decode("utf-8", "replace") or "(empty body)"


STOPPED = Released("this worker has stopped working on it")


class TurnedAway(Exception):
    """A step does not go on with the item. The one way out of the runner's recipe.

    ``outcome`` says what the item ends in; without one it is a suspect, and the same steps are
    taken once more, apart from other items.
    """

    def __init__(self, outcome: Outcome | None) -> None:
        super().__init__(outcome)
        self.outcome = outcome


def outcome_of(error: Exception) -> Outcome | None:
    """Return the outcome of an attempt that a step refused; None for an unexpected error."""
    match error:
        case TurnedAway():
            return error.outcome
        # only the message is wrong: its job must not stop for it
        case WireError() | JobNotFound() | BadReference():
            return Unreadable(str(error))
        case JobCannotRun() | SpecError():
            return Parked(pauses=stop_reason(error))
        case QuotaHeld():
            held = {"detail": error.reason, "quota": error.quota_id}
            return Parked(pauses=Reason(Code.PROVIDER_HELD, By.PROVIDER, held))
        case ContentError():
            return Parked(pauses=stop_reason(error))
        case ProducerError():
            detail = {"detail": str(error)}
            return Parked(pauses=Reason("source_unavailable", By.SOURCE, detail))
    return None


def failure_of(error: Exception) -> Failure:
    """Return the failure that an exception stands for where it does not turn the item away."""
    if isinstance(error, NeverFits):
        return Failure("request_too_large", str(error), None)
    return Failure("unexpected_error", f"{type(error).__name__}: {error}", None)
