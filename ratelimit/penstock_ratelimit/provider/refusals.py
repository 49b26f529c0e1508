"""One table turns the error codes and statuses of refusals into signals for pacing.

Codes say more than statuses do: a 429 may be a limit, no credit or a lack of capacity, and each
asks for something else. Texts are read only where a provider sends no code, and then only the
beginning of its own sentence, because what follows may quote the request.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from itertools import islice
from typing import Any, Final, NamedTuple

from penstock_ratelimit.provider.headers import header, parse_duration, parse_retry_after
from penstock_ratelimit.rates import MAX_PAUSE_S

MAX_BODY_BYTES: Final = 1 << 20
"""No provider explains an error in more than a mebibyte; longer bodies are not parsed."""
DETAIL_CHARS: Final = 500
"""Characters kept of a provider's own words."""
PAGE_START: Final = 256
"""Bytes of an answer in which an HTML page shows that it is one."""
MAX_DETAILS: Final = 16
"""Entries of Google's ``details`` and their violations that are looked at."""
DAILY_S: Final = 3600.0
"""A wait of an hour or more means a daily limit (Gemini says up to 10 h). A daily limit is not
tried again before this time, whatever the answer says: Gemini's daily refusals say "36s"
(OmniRoute#9504) and last until midnight (gke-labs#1215)."""


class Signal(Enum):
    """The meaning of an answer for the server and the account, not for the request."""

    OK = "ok"
    """Answered: the server is well."""
    REFUSED = "refused"
    """The request is at fault; says nothing bad about the server."""
    THROTTLED = "throttled"
    """Too much. Unless it is a stray one, no process that shares the quota starts a request before
    Retry-After."""
    RAMP = "ramp"
    """Growing too steeply, even inside the limits."""
    OUT_OF_MONEY = "out_of_money"
    """Balance or spend limit: hold the account, keep the items, alert."""
    UNAUTHORIZED = "unauthorized"
    """The key is not accepted: hold the account."""
    OVERLOADED = "overloaded"
    """The server has no capacity, whatever is sent: for the breaker and the concurrency, not the
    quota."""
    TRANSIENT = "transient"
    """Broken for now: other 5xx, timeouts, lost connections. For the breaker."""


# Tuples: hashing an enum runs Python code. And names of this module: each look at a member runs
# some, too (Python 3.11).
OK: Final = Signal.OK
WINS: Final = (Signal.OK, Signal.REFUSED)
"""Answers that show a server which works, whatever became of the request."""
THROTTLES: Final = (Signal.THROTTLED, Signal.RAMP)
"""Too much, or growing too steeply."""
OVERLOADS: Final = (Signal.OVERLOADED, *THROTTLES)
"""The server has more than it can do, or allows."""
HOLDS: Final = (Signal.OUT_OF_MONEY, Signal.UNAUTHORIZED)
"""No request can succeed before a person acts."""


class Meaning(NamedTuple):
    """One row of the table: the failure's name (as in item/run/fates.py) and its signal."""

    name: str
    signal: Signal


@dataclass(frozen=True, slots=True)
class Refusal:
    """An answer that is not a 2xx.

    ``retry_after_s``: when the provider said so. ``detail``: its own words, cut."""

    signal: Signal
    name: str
    retry_after_s: float | None
    detail: str
    final: bool = False
    """The server said that this request is not to be sent again (``x-should-retry: false``)."""
    page: bool = False
    """An HTML page: a proxy, a firewall or a login answered, not the provider's API."""


_THROTTLED: Final = Meaning("rate_limited", Signal.THROTTLED)
_DAILY: Final = Meaning("daily_limit", Signal.THROTTLED)
_RAMP: Final = Meaning("slow_down", Signal.RAMP)
_BROKE: Final = Meaning("out_of_credit", Signal.OUT_OF_MONEY)
_NO_KEY: Final = Meaning("unauthorized", Signal.UNAUTHORIZED)
_BUSY: Final = Meaning("overloaded", Signal.OVERLOADED)
_BROKEN: Final = Meaning("server_error", Signal.TRANSIENT)
_TOO_LARGE: Final = Meaning("request_too_large", Signal.REFUSED)
_TOO_LONG: Final = Meaning("context_overflow", Signal.REFUSED)
_FILTERED: Final = Meaning("content_filter", Signal.REFUSED)
_UNFIT: Final = Meaning("unprocessable", Signal.REFUSED)
_PAGE: Final = Meaning("foreign_page", Signal.REFUSED)

CODES: Final[Mapping[str, Meaning]] = {
    # OpenAI `error.code` or `error.type` (developersdigest.tech/errors/api/openai-api)
    "rate_limit_exceeded": _THROTTLED,  # also Groq
    "slow_down": _RAMP,  # 429, "previously 503"
    # 429; learn.microsoft.com dev-proxy "openai-insufficient-quota", codex#6340
    "insufficient_quota": _BROKE,
    "credit_balance_exhausted": _BROKE,
    "organization_spend_limit_exceeded": _BROKE,
    "project_spend_limit_exceeded": _BROKE,
    "organization_usage_limit_exceeded": _BROKE,
    "billing_not_active": _BROKE,  # 429, help.openai.com 6891767
    "billing_hard_limit_reached": _BROKE,  # 400 at the images API, community.openai.com
    "server_is_overloaded": _BUSY,  # 503; codex#43337
    "service_unavailable_error": _BUSY,  # the type beside it
    # flex: 429 without charge, developers.openai.com/api/docs/guides/flex-processing
    "resource_unavailable": _BUSY,
    "context_length_exceeded": _TOO_LONG,
    "content_policy_violation": _FILTERED,
    # Anthropic `error.type`, or `error.details.error_code` (platform.claude.com/docs/en/api/errors,
    # rate-limits)
    "rate_limit_error": _THROTTLED,
    "enforced_spend_limit_reached": _BROKE,  # 429 without retry-after until the month ends
    "billing_error": _BROKE,  # 402
    "overloaded_error": _BUSY,  # 529
    # Azure `error.code`: its 429s say "429" or this; more in TEXTS
    "RateLimitReached": _THROTTLED,
    "429": _THROTTLED,
    "content_filter": _FILTERED,  # 400, learn.microsoft.com .../concepts/content-filter
    # Google `error.status` and `error.details[].reason` (google.rpc.Code, google.rpc.ErrorInfo)
    "RESOURCE_EXHAUSTED": _THROTTLED,
    "RATE_LIMIT_EXCEEDED": _THROTTLED,
    "MODEL_CAPACITY_EXHAUSTED": _BUSY,  # as 503 and as 429 (gemini-cli#23520, #26633)
    # 503 "the model is overloaded", ai.google.dev/gemini-api/docs/troubleshooting
    "UNAVAILABLE": _BUSY,
    "API_KEY_INVALID": _NO_KEY,  # comes as a 400
    # Mistral, at the top level of the body
    "rate_limited": _THROTTLED,
    "1300": _THROTTLED,
    # Groq (console.groq.com/docs/flex-processing): status 498
    "capacity_exceeded": _BUSY,
    # TGI `error_type`: 429, though it has no limits (router/src/infer/mod.rs)
    "overloaded": _BUSY,
    # llama.cpp's server: 400 (tools/server/server-common.cpp)
    "exceed_context_size_error": _TOO_LONG,
    # Bedrock `x-amzn-errortype`, see
    # docs.aws.amazon.com/bedrock/latest/userguide/troubleshooting-api-error-codes.html
    "ThrottlingException": _THROTTLED,
    "ServiceUnavailableException": _BUSY,
    "ModelNotReadyException": _BUSY,  # 429
    "ModelErrorException": _BROKEN,  # 424
    "ModelTimeoutException": _BROKEN,  # 408
    "ServiceQuotaExceededException": _THROTTLED,  # 400
    # of all AWS APIs, 403: docs.aws.amazon.com/bedrock/latest/APIReference/CommonErrors.html
    "UnrecognizedClientException": _NO_KEY,
    "InvalidSignatureException": _NO_KEY,
    "IncompleteSignature": _NO_KEY,
    "InvalidClientTokenId": _NO_KEY,
    "ExpiredTokenException": _NO_KEY,
    "MissingAuthenticationToken": _NO_KEY,
    # of S3: docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html
    "InvalidAccessKeyId": _NO_KEY,
    "SignatureDoesNotMatch": _NO_KEY,
    "ExpiredToken": _NO_KEY,
    "SlowDown": _THROTTLED,
}
"""What a provider's error code means, wherever in the answer it stands. Goes before the status."""

TEXTS: Final[Mapping[str, Meaning]] = {
    # Anthropic: 400 invalid_request_error (anthropics/claude-code#66314, #88711)
    "your credit balance is too low": _BROKE,
    "you have reached your specified api usage limits": _BROKE,
    # xAI: 400 with a sentence for a code; 403 of an account without credits
    "incorrect api key provided": _NO_KEY,
    "your newly created team": _BROKE,
    # Google AI Studio: 429 RESOURCE_EXHAUSTED like any other (JeffOtano/roni#125)
    "your prepayment credits are depleted": _BROKE,
    # OpenAI flex, in the words of its guide
    "resource unavailable": _BUSY,
    # Azure under peak load: 429 with a code like any other (pollinations#6260)
    "the system is currently experiencing high demand": _BUSY,
    # Mistral: 429 invalid_request_error (continuedev/continue#6185)
    "service tier capacity exceeded": _BUSY,
    # OpenAI 429, Groq 413, both `rate_limit_exceeded`: more than a whole minute's tokens
    # (vanna-flask#11, gpt-researcher#985). It never fits, however long one waits.
    "request too large": _TOO_LARGE,
    # Bedrock: ThrottlingException like any other (Ivy-Tendril#1756, agent-book#29)
    "too many tokens per day": _DAILY,
    # vLLM: 400 BadRequestError; Anthropic: 400 invalid_request_error
    "this model's maximum context length": _TOO_LONG,
    "input length (#) exceeds model's maximum context length": _TOO_LONG,
    "prompt is too long": _TOO_LONG,
    # SGLang: 400 BadRequestError (sglang:srt/managers/tokenizer_manager.py)
    "the input (# tokens) is longer than the model's context length": _TOO_LONG,
    "requested token count exceeds the model's maximum context length": _TOO_LONG,
    # TGI: 422 `validation` (router/src/validation.rs)
    "input validation error: `inputs` tokens + `max_new_tokens` must be <=": _TOO_LONG,
    "input validation error: `inputs` must have less than": _TOO_LONG,
    # and the rest of TGI's, in streams: there it says 422 of a full queue, too
    "input validation error:": _UNFIT,
    "model is overloaded": _BUSY,
    # TensorRT-LLM: 400 BadRequestError (TensorRT-LLM:llmapi/llm.py, :executor/base_worker.py)
    "the sum of prompt length (#), query length (#)": _TOO_LONG,
    "`default_max_tokens` (#) must be greater than #": _TOO_LONG,
    # Ollama: 400, where the model does not cut prompts in silence (llm/llama_server.go)
    "the prompt is longer than the context length": _TOO_LONG,
    "the input length exceeds the context length": _TOO_LONG,
    # Triton's OpenAI frontend: 500 for all that its backends say (vllm_backend:src/model.py,
    # core:src/scheduler_utils.cc)
    "error generating stream: the decoder prompt (length #) is longer than": _TOO_LONG,
    "[request id: <id_unknown>] exceeds maximum queue size": _BUSY,
}
"""How a message begins, in lower case with # for numbers, where no code says it; believed with
``SPOKEN`` only. Goes before the codes.

Not here, on purpose: "You exceeded your current quota, please check your plan and billing details"
means no credit at OpenAI (which sends a code) and any limit per minute at Gemini.
"""

SPOKEN: Final = frozenset({400, 403, 413, 422, 429, 500, 503})
_NUMBER: Final = re.compile(r"-?\d+(?:\.\d+)?")

STATUSES: Final[Mapping[int, Meaning]] = {
    400: Meaning("bad_request", Signal.REFUSED),
    401: _NO_KEY,
    402: _BROKE,
    # this document, model or project: says nothing of the account's others
    403: Meaning("forbidden", Signal.REFUSED),
    404: Meaning("not_found", Signal.REFUSED),
    408: Meaning("request_conflict", Signal.TRANSIENT),
    409: Meaning("request_conflict", Signal.REFUSED),
    413: _TOO_LARGE,
    422: _UNFIT,
    424: _BROKEN,  # TGI: generation failed
    425: Meaning("request_conflict", Signal.REFUSED),
    429: _THROTTLED,
    498: _BUSY,  # Groq: flex tier capacity exceeded
    503: _BUSY,
    529: _BUSY,  # Anthropic
}
"""What a status means when neither a text nor a code says more."""

_OF_THE_ACCOUNT: Final = (Signal.OUT_OF_MONEY, Signal.UNAUTHORIZED)
"""Only the provider's own answers count for these statuses: pages of proxies and firewalls do
not."""

_GRAVITY: Final = (Signal.OUT_OF_MONEY, Signal.UNAUTHORIZED, Signal.RAMP, Signal.OVERLOADED)
"""Where an answer has several codes, the first of these decides: an `insufficient_quota` is never
just a limit."""


def classify(
    status: int, headers: Mapping[str, str], body: bytes | Mapping[str, Any] | None, now: float
) -> Refusal | None:
    """Return what an answer means, or None for a 2xx.

    Never raises, whatever the body is. ``now`` is unix time."""
    if 200 <= status < 300:
        return None
    answer = _answer(body)
    page = not answer and is_page(headers, body)
    row = _row(status, headers, answer)
    if page and row.signal in _OF_THE_ACCOUNT:
        row = _PAGE
    retry_after_s = parse_retry_after(headers, now)
    if retry_after_s is None:
        retry_after_s = _retry_info(answer)
    if row is _THROTTLED and (_is_daily(answer) or (retry_after_s or 0.0) >= DAILY_S):
        row = _DAILY
    if row is _DAILY:
        retry_after_s = max(retry_after_s or 0.0, DAILY_S)
    stop = (header(headers, "x-should-retry") or "").strip().lower() == "false"
    if stop and row is _THROTTLED and not page and not _known(headers, answer):
        # a limit passes and this does not: it is about the account, and holding that loses no item
        row = _BROKE
    final = stop and row.signal in (Signal.TRANSIENT, Signal.REFUSED)
    return Refusal(row.signal, row.name, retry_after_s, _detail(status, answer, body), final, page)


def is_page(headers: Mapping[str, str], body: bytes | Mapping[str, Any] | None) -> bool:
    """Return whether an answer is an HTML page, by what it says it is or by how it begins."""
    if "html" in (header(headers, "content-type") or "").lower():
        return True
    start = body[:PAGE_START].lstrip().lower() if isinstance(body, bytes) else b""
    return start.startswith((b"<!doctype html", b"<html"))


def _row(status: int, headers: Mapping[str, str], answer: Mapping[str, Any]) -> Meaning:
    text = _message(answer).lower()
    if status in SPOKEN:
        said = _NUMBER.sub("#", text)
        spoken = next((row for start, row in TEXTS.items() if said.startswith(start)), None)
        if spoken is not None:
            return spoken
    # Anthropic: no code of its own (.../api/rate-limits)
    if status == 429 and "acceleration limit" in text:
        return _RAMP
    known = _known(headers, answer)
    grave = next((row for signal in _GRAVITY for row in known if row.signal is signal), None)
    if grave is not None:
        return grave
    if known and not (known[0] is _THROTTLED and status == 413):  # Groq: see "request too large"
        return known[0]
    return STATUSES.get(status) or _by_class(status)


def _known(headers: Mapping[str, str], answer: Mapping[str, Any]) -> list[Meaning]:
    return [CODES[code] for code in _codes(headers, answer) if code in CODES]


def _by_class(status: int) -> Meaning:
    if status >= 500:
        return _BROKEN
    if status >= 400:
        return Meaning("client_error", Signal.REFUSED)
    if status >= 300:
        return Meaning("redirected", Signal.REFUSED)
    return Meaning("invalid_answer", Signal.TRANSIENT)


# --- reading the body, whatever it is
# ------------------------------------------------------------------------------


def _answer(body: bytes | Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Return the body as a mapping; empty for HTML, for other text, and for nothing.

    Gemini's OpenAI endpoint wraps it in a list."""
    parsed: object = body
    if isinstance(body, bytes):
        try:
            parsed = json.loads(body) if len(body) <= MAX_BODY_BYTES else None
        except (ValueError, RecursionError):
            return {}
    if isinstance(parsed, list) and parsed:
        parsed = parsed[0]
    return parsed if isinstance(parsed, Mapping) else {}


def _error(answer: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what describes the error, which is ``error`` or the whole (Mistral, Bedrock, vLLM)."""
    error = answer.get("error")
    return error if isinstance(error, Mapping) else answer


def _details(answer: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Return the details: Anthropic has one mapping of them, Google a list."""
    details = _error(answer).get("details")
    entries = details if isinstance(details, list) else [details]
    return (entry for entry in islice(entries, MAX_DETAILS) if isinstance(entry, Mapping))


def _codes(headers: Mapping[str, str], answer: Mapping[str, Any]) -> Iterator[str]:
    """Yield every code that the answer carries, the most telling first."""
    error = _error(answer)
    found: list[object] = [
        detail.get(name) for detail in _details(answer) for name in ("error_code", "reason")
    ]
    found += [error.get(name) for name in ("code", "type", "status")]
    found += [answer.get(name) for name in ("code", "type", "error_type")]
    found.append((header(headers, "x-amzn-errortype") or "").partition(":")[0])
    for code in found:
        if isinstance(code, str):
            yield code
        elif isinstance(code, int):
            yield str(code)


def _message(answer: Mapping[str, Any]) -> str:
    error = answer.get("error")
    # `detail`: what FastAPI says, as in Triton's frontend
    found = (error, _error(answer).get("message"), answer.get("detail"))
    return next((text[:DETAIL_CHARS] for text in found if isinstance(text, str)), "")


def _retry_info(answer: Mapping[str, Any]) -> float | None:
    """Return the wait in Google's ``RetryInfo``: a delay such as "36s" among the details."""
    for detail in _details(answer):
        delay = detail.get("retryDelay")
        seconds = parse_duration(delay) if isinstance(delay, str) else None
        if seconds is not None:
            return min(seconds, MAX_PAUSE_S)
    return None


def _is_daily(answer: Mapping[str, Any]) -> bool:
    """Return whether Google names a daily limit as the one that was hit.

    It says "GenerateRequestsPerDayPerProjectPerModel-FreeTier", for example."""
    for detail in _details(answer):
        metadata, violations = detail.get("metadata"), detail.get("violations")
        names = [metadata.get("quota_limit")] if isinstance(metadata, Mapping) else []
        if isinstance(violations, list):
            names += [
                entry.get("quotaId")
                for entry in violations[:MAX_DETAILS]
                if isinstance(entry, Mapping)
            ]
        if any(isinstance(name, str) and "PerDay" in name for name in names):
            return True
    return False


def _detail(status: int, answer: Mapping[str, Any], body: bytes | Mapping[str, Any] | None) -> str:
    message = _message(answer)
    if not message:
        raw = body if isinstance(body, bytes) else b""
        message = raw[:DETAIL_CHARS].decode("utf-8", "replace") or "(no words)"
    return f"HTTP {status}: {message}"
