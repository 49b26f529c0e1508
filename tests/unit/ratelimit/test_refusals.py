"""Refusals: what a provider's answer means, row by row, from bodies as they were seen."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_ratelimit.provider.refusals import (
    _NUMBER,
    CODES,
    DAILY_S,
    STATUSES,
    TEXTS,
    Refusal,
    Signal,
    _message,
    classify,
)
from penstock_ratelimit.rates import MAX_PAUSE_S
from penstock_workers.item.run.fates import FATES

NOW = 1_800_000_000.0


def refused(status: int, body: Any = None, **headers: str) -> Refusal:
    """``body`` as an object, or as bytes; ``headers`` with underscores."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    refusal = classify(
        status, {name.replace("_", "-"): value for name, value in headers.items()}, raw, NOW
    )
    assert refusal is not None
    return refusal


def openai(
    code: str | None, type_: str | None = "invalid_request_error", message: str = "…"
) -> dict[str, Any]:
    return {"error": {"message": message, "type": type_, "param": None, "code": code}}


def anthropic(type_: str, message: str = "…", **error: Any) -> dict[str, Any]:
    return {
        "type": "error",
        "error": {"type": type_, "message": message, **error},
        "request_id": "req_1",
    }


def google(
    status: str, *details: dict[str, Any], code: int = 429, message: str = "…"
) -> dict[str, Any]:
    return {"error": {"code": code, "message": message, "status": status, "details": list(details)}}


def mistral(code: object, type_: str, message: str = "…") -> dict[str, Any]:
    return {"object": "error", "message": message, "type": type_, "param": None, "code": code}


RETRY_INFO = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "36s"}
GEMINI_QUOTA = "You exceeded your current quota, please check your plan and billing details."

BY_CODE: list[tuple[str, int, Any, str, Signal]] = [
    (
        "rate_limit_exceeded",
        429,
        openai("rate_limit_exceeded", "tokens"),
        "rate_limited",
        Signal.THROTTLED,
    ),
    ("slow_down", 429, openai("slow_down", "rate_limit_error"), "slow_down", Signal.RAMP),
    ("slow_down", 503, openai("slow_down", "service_unavailable_error"), "slow_down", Signal.RAMP),
    (
        "insufficient_quota",
        429,
        openai("insufficient_quota", "insufficient_quota", GEMINI_QUOTA),
        "out_of_credit",
        Signal.OUT_OF_MONEY,
    ),
    (
        "insufficient_quota",
        429,
        openai(None, "insufficient_quota"),
        "out_of_credit",
        Signal.OUT_OF_MONEY,
    ),
    (
        "insufficient_quota",
        429,
        openai("429", "insufficient_quota"),
        "out_of_credit",
        Signal.OUT_OF_MONEY,
    ),
    (
        "insufficient_quota",
        429,
        openai("rate_limit_exceeded", "insufficient_quota"),
        "out_of_credit",
        Signal.OUT_OF_MONEY,
    ),
    *(
        (code, 429, openai(code, "insufficient_quota"), "out_of_credit", Signal.OUT_OF_MONEY)
        for code in (
            "credit_balance_exhausted",
            "organization_spend_limit_exceeded",
            "project_spend_limit_exceeded",
            "organization_usage_limit_exceeded",
        )
    ),
    ("billing_not_active", 429, openai("billing_not_active"), "out_of_credit", Signal.OUT_OF_MONEY),
    (
        "billing_hard_limit_reached",
        400,
        openai("billing_hard_limit_reached"),
        "out_of_credit",
        Signal.OUT_OF_MONEY,
    ),
    (
        "server_is_overloaded",
        503,
        openai("server_is_overloaded", "service_unavailable_error"),
        "overloaded",
        Signal.OVERLOADED,
    ),
    (
        "service_unavailable_error",
        500,
        openai(None, "service_unavailable_error"),
        "overloaded",
        Signal.OVERLOADED,
    ),
    ("resource_unavailable", 429, openai("resource_unavailable"), "overloaded", Signal.OVERLOADED),
    (
        "context_length_exceeded",
        400,
        openai("context_length_exceeded"),
        "context_overflow",
        Signal.REFUSED,
    ),
    (
        "content_policy_violation",
        400,
        openai("content_policy_violation"),
        "content_filter",
        Signal.REFUSED,
    ),
    ("rate_limit_error", 429, anthropic("rate_limit_error"), "rate_limited", Signal.THROTTLED),
    (
        "enforced_spend_limit_reached",
        429,
        anthropic("rate_limit_error", details={"error_code": "enforced_spend_limit_reached"}),
        "out_of_credit",
        Signal.OUT_OF_MONEY,
    ),
    ("billing_error", 402, anthropic("billing_error"), "out_of_credit", Signal.OUT_OF_MONEY),
    ("overloaded_error", 529, anthropic("overloaded_error"), "overloaded", Signal.OVERLOADED),
    ("RateLimitReached", 429, openai("RateLimitReached", None), "rate_limited", Signal.THROTTLED),
    (
        "429",
        429,
        openai("429", None, "Requests to … have exceeded token rate limit."),
        "rate_limited",
        Signal.THROTTLED,
    ),
    ("content_filter", 400, openai("content_filter", None), "content_filter", Signal.REFUSED),
    ("RESOURCE_EXHAUSTED", 429, google("RESOURCE_EXHAUSTED"), "rate_limited", Signal.THROTTLED),
    (
        "RATE_LIMIT_EXCEEDED",
        403,
        google("PERMISSION_DENIED", {"reason": "RATE_LIMIT_EXCEEDED"}, code=403),
        "rate_limited",
        Signal.THROTTLED,
    ),
    (
        "MODEL_CAPACITY_EXHAUSTED",
        429,
        google("RESOURCE_EXHAUSTED", {"reason": "MODEL_CAPACITY_EXHAUSTED"}),
        "overloaded",
        Signal.OVERLOADED,
    ),
    ("UNAVAILABLE", 503, google("UNAVAILABLE", code=503), "overloaded", Signal.OVERLOADED),
    (
        "API_KEY_INVALID",
        400,
        google("INVALID_ARGUMENT", {"reason": "API_KEY_INVALID"}, code=400),
        "unauthorized",
        Signal.UNAUTHORIZED,
    ),
    ("rate_limited", 429, mistral(None, "rate_limited"), "rate_limited", Signal.THROTTLED),
    ("1300", 429, mistral("1300", "rate_limited"), "rate_limited", Signal.THROTTLED),
    ("1300", 429, mistral(1300, "…"), "rate_limited", Signal.THROTTLED),
    ("capacity_exceeded", 498, openai("capacity_exceeded"), "overloaded", Signal.OVERLOADED),
    (
        "overloaded",
        429,
        {"error": "Model is overloaded", "error_type": "overloaded"},
        "overloaded",
        Signal.OVERLOADED,
    ),
    (
        "exceed_context_size_error",
        400,
        {"error": {"code": 400, "message": "…", "type": "exceed_context_size_error"}},
        "context_overflow",
        Signal.REFUSED,
    ),
]


@pytest.mark.parametrize(("code", "status", "body", "name", "signal"), BY_CODE)
def test_each_code_has_its_meaning(
    code: str, status: int, body: Any, name: str, signal: Signal
) -> None:
    """A provider's code says more than its status, wherever in the body it stands."""
    refusal = refused(status, body)
    assert (refusal.name, refusal.signal) == (name, signal)


AWS: list[tuple[str, int, str, Signal]] = [
    ("ThrottlingException", 429, "rate_limited", Signal.THROTTLED),
    ("ThrottlingException", 400, "rate_limited", Signal.THROTTLED),
    ("ServiceUnavailableException", 503, "overloaded", Signal.OVERLOADED),
    ("ModelNotReadyException", 429, "overloaded", Signal.OVERLOADED),
    ("ModelErrorException", 424, "server_error", Signal.TRANSIENT),
    ("ModelTimeoutException", 408, "server_error", Signal.TRANSIENT),
    ("ServiceQuotaExceededException", 400, "rate_limited", Signal.THROTTLED),
    ("UnrecognizedClientException", 403, "unauthorized", Signal.UNAUTHORIZED),
    ("InvalidSignatureException", 403, "unauthorized", Signal.UNAUTHORIZED),
    ("IncompleteSignature", 403, "unauthorized", Signal.UNAUTHORIZED),
    ("InvalidClientTokenId", 403, "unauthorized", Signal.UNAUTHORIZED),
    ("ExpiredTokenException", 403, "unauthorized", Signal.UNAUTHORIZED),
    ("MissingAuthenticationToken", 403, "unauthorized", Signal.UNAUTHORIZED),
    ("InvalidAccessKeyId", 403, "unauthorized", Signal.UNAUTHORIZED),
    ("SignatureDoesNotMatch", 403, "unauthorized", Signal.UNAUTHORIZED),
    ("ExpiredToken", 400, "unauthorized", Signal.UNAUTHORIZED),
    ("SlowDown", 503, "rate_limited", Signal.THROTTLED),
]


@pytest.mark.parametrize(("code", "status", "name", "signal"), AWS)
def test_bedrock_names_its_errors_in_a_header(
    code: str, status: int, name: str, signal: Signal
) -> None:
    """Its body has a message only; the header may carry a URL behind the name."""
    for value in (code, f"{code}:http://internal.amazon.com/coral/com.amazon.bedrock/"):
        refusal = refused(
            status, {"message": "Too many tokens, please wait."}, x_amzn_ErrorType=value
        )
        assert (refusal.name, refusal.signal) == (name, signal)


BY_TEXT: list[tuple[int, Any, str, Signal]] = [
    (
        400,
        anthropic(
            "invalid_request_error",
            "Your credit balance is too low to access the Anthropic API. Please …",
        ),
        "out_of_credit",
        Signal.OUT_OF_MONEY,
    ),
    (
        400,
        anthropic(
            "invalid_request_error",
            "You have reached your specified API usage limits. You will regain …",
        ),
        "out_of_credit",
        Signal.OUT_OF_MONEY,
    ),
    (
        429,
        google(
            "RESOURCE_EXHAUSTED",
            message="Your prepayment credits are depleted. Please go to AI Studio …",
        ),
        "out_of_credit",
        Signal.OUT_OF_MONEY,
    ),
    (429, openai(None, None, "Resource unavailable"), "overloaded", Signal.OVERLOADED),
    (
        429,
        openai(
            "RateLimitReached",
            None,
            "The system is currently experiencing high demand and cannot process …",
        ),
        "overloaded",
        Signal.OVERLOADED,
    ),
    (
        429,
        mistral(None, "invalid_request_error", "Service tier capacity exceeded for this model."),
        "overloaded",
        Signal.OVERLOADED,
    ),
    (
        429,
        openai(
            "rate_limit_exceeded",
            "tokens",
            "Request too large for gpt-4o on tokens per min (TPM): Limit 30000 …",
        ),
        "request_too_large",
        Signal.REFUSED,
    ),
    (
        413,
        openai(
            "rate_limit_exceeded",
            "tokens",
            "Request too large for model `llama-3.1-70b-versatile` in …",
        ),
        "request_too_large",
        Signal.REFUSED,
    ),
    (
        429,
        {"message": "Too many tokens per day, please wait before trying again."},
        "daily_limit",
        Signal.THROTTLED,
    ),
    (
        400,
        mistral(
            400, "BadRequestError", "This model's maximum context length is 8192 tokens. However, …"
        ),
        "context_overflow",
        Signal.REFUSED,
    ),
    (
        400,
        anthropic("invalid_request_error", "prompt is too long: 210000 tokens > 200000 maximum"),
        "context_overflow",
        Signal.REFUSED,
    ),
    (
        400,
        {"code": "Client specified an invalid argument", "error": "Incorrect API key provided: x"},
        "unauthorized",
        Signal.UNAUTHORIZED,
    ),
    (
        403,
        {"code": "…", "error": "Your newly created team doesn't have any credits yet."},
        "out_of_credit",
        Signal.OUT_OF_MONEY,
    ),
    *(
        (status, {"detail": text}, "context_overflow", Signal.REFUSED)
        for status, text in (
            (400, "Input length (11680) exceeds model's maximum context length (4096)."),
            (400, "The input (85050 tokens) is longer than the model's context length (32768)."),
            (400, "Requested token count exceeds the model's maximum context length of 4096 …"),
            (422, "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. …"),
            (422, "Input validation error: `inputs` must have less than 4095 tokens. Given: 9000"),
            (400, "The sum of prompt length (72417.0), query length (0) should not exceed …"),
            (400, "`default_max_tokens` (-12) must be greater than 0, …"),
            (400, "the prompt is longer than the context length currently available to …"),
            (400, "the input length exceeds the context length"),
            (500, "Error generating stream: The decoder prompt (length 9) is longer than the …"),
        )
    ),
    (422, {"error": "Input validation error: `n` …"}, "unprocessable", Signal.REFUSED),
    (500, {"error": {"message": "Model is overloaded"}}, "overloaded", Signal.OVERLOADED),
    (
        500,
        {"detail": "[request id: <id_unknown>] Exceeds maximum queue size"},
        "overloaded",
        Signal.OVERLOADED,
    ),
]


@pytest.mark.parametrize(("status", "body", "name", "signal"), BY_TEXT)
def test_each_text_has_its_meaning(status: int, body: Any, name: str, signal: Signal) -> None:
    """Where a provider sends no code for it, its own first words tell."""
    refusal = refused(status, body)
    assert (refusal.name, refusal.signal) == (name, signal)


BY_STATUS: list[tuple[int, str, Signal]] = [
    (400, "bad_request", Signal.REFUSED),
    (401, "unauthorized", Signal.UNAUTHORIZED),
    (402, "out_of_credit", Signal.OUT_OF_MONEY),
    (403, "forbidden", Signal.REFUSED),
    (404, "not_found", Signal.REFUSED),
    (408, "request_conflict", Signal.TRANSIENT),
    (409, "request_conflict", Signal.REFUSED),
    (413, "request_too_large", Signal.REFUSED),
    (422, "unprocessable", Signal.REFUSED),
    (424, "server_error", Signal.TRANSIENT),
    (425, "request_conflict", Signal.REFUSED),
    (429, "rate_limited", Signal.THROTTLED),
    (498, "overloaded", Signal.OVERLOADED),
    (503, "overloaded", Signal.OVERLOADED),
    (529, "overloaded", Signal.OVERLOADED),
    # by class
    (418, "client_error", Signal.REFUSED),
    (500, "server_error", Signal.TRANSIENT),
    (502, "server_error", Signal.TRANSIENT),
    (504, "server_error", Signal.TRANSIENT),
    (524, "server_error", Signal.TRANSIENT),
    (302, "redirected", Signal.REFUSED),
    (0, "invalid_answer", Signal.TRANSIENT),
]
RUBBISH: list[Any] = [
    None,
    {},
    b"",
    b"\xff\xfe",
    b"<html><title>429 Too Many Requests</title></html>",
    b"{",
    b"[]",
    b"[[]]",
    b"null",
    b'"slow_down"',
    b"[" * 100_000,
    b'{"error": null}',
    b'{"error": []}',
    b'{"error": {"code": {"a": 1}}}',
    b'{"error": {"code": true, "type": ["slow_down"], "details": "x", "message": {}}}',
    b'{"error": {"details": [null, 1, {"violations": [1, {"quotaId": 5}], "retryDelay": 7, '
    b'"metadata": []}]}}',
]


@pytest.mark.parametrize(("status", "name", "signal"), BY_STATUS)
@pytest.mark.parametrize("body", RUBBISH, ids=range(len(RUBBISH)))
def test_without_words_the_status_decides(
    status: int, name: str, signal: Signal, body: Any
) -> None:
    """HTML of a proxy, what is not JSON, and an empty body are read by the status, and never raise.

    But for one thing: HTML says nothing of an account (A3).
    """
    refusal = refused(status, body)
    if status in (401, 402) and isinstance(body, bytes) and body.startswith(b"<html"):
        name, signal = "foreign_page", Signal.REFUSED
    assert (refusal.name, refusal.signal) == (name, signal)


def test_every_row_of_the_tables_is_tested() -> None:
    """A row that is added without an example fails here; the names are those of the workers'
    fates."""
    assert {code for code, *_ in BY_CODE} | {code for code, *_ in AWS} == set(CODES)
    messages = [_NUMBER.sub("#", _message(body).lower()) for _, body, *_ in BY_TEXT]
    assert all(any(message.startswith(start) for message in messages) for start in TEXTS)
    assert {status for status, *_ in BY_STATUS} >= set(STATUSES)
    names = {row.name for table in (CODES, TEXTS, STATUSES) for row in table.values()}
    assert names - set(FATES) <= {"daily_limit"}


@pytest.mark.parametrize("status", [200, 201, 204, 299])
def test_an_answer_is_no_refusal(status: int) -> None:
    """A 2xx is None, whatever it says."""
    assert classify(status, {}, b'{"error": {"code": "insufficient_quota"}}', NOW) is None


def test_gemini_words_for_a_minute_limit_are_not_an_empty_wallet() -> None:
    """It says "check your plan and billing details" of a limit per minute: hold for its delay, not
    for a person."""
    refusal = refused(429, google("RESOURCE_EXHAUSTED", RETRY_INFO, message=GEMINI_QUOTA))
    assert (refusal.signal, refusal.retry_after_s) == (Signal.THROTTLED, 36.0)


def test_a_body_in_a_list_is_read() -> None:
    """Gemini's OpenAI endpoint wraps its error in a list."""
    refusal = refused(429, [google("RESOURCE_EXHAUSTED", RETRY_INFO)])
    assert (refusal.name, refusal.retry_after_s) == ("rate_limited", 36.0)


@pytest.mark.parametrize(
    "detail",
    [
        {
            "violations": [
                {"quotaId": "GenerateRequestsPerDayPerProjectPerModel-FreeTier", "quotaValue": "20"}
            ]
        },
        {"reason": "RATE_LIMIT_EXCEEDED", "metadata": {"quota_limit": "Gemini25ProRequestsPerDay"}},
    ],
)
def test_a_daily_limit_is_held_though_the_answer_says_seconds(detail: dict[str, Any]) -> None:
    """It is a limit, which passes, and not money; but not in the 36 s that Gemini tells beside
    it."""
    refusal = refused(429, google("RESOURCE_EXHAUSTED", detail, RETRY_INFO))
    assert (refusal.name, refusal.signal, refusal.retry_after_s) == (
        "daily_limit",
        Signal.THROTTLED,
        DAILY_S,
    )


@pytest.mark.parametrize(
    ("delay", "seconds"), [("36000s", 36_000.0), ("21599.960323804s", 21_599.960323804)]
)
def test_hours_of_delay_are_a_daily_limit(delay: str, seconds: float) -> None:
    """When the provider asks for ten hours, the whole time is kept."""
    refusal = refused(429, google("RESOURCE_EXHAUSTED", {"retryDelay": delay}))
    assert (refusal.name, refusal.retry_after_s) == pytest.approx(("daily_limit", seconds))


def test_the_header_goes_before_the_delay_in_the_body() -> None:
    """Both at once: the standard one."""
    refusal = refused(429, google("RESOURCE_EXHAUSTED", RETRY_INFO), Retry_After="7")
    assert refusal.retry_after_s == 7.0


def test_what_is_too_large_by_its_status_is_not_waited_for() -> None:
    """Groq's 413 carries the code of a limit: waiting would never end."""
    assert refused(413, openai("rate_limit_exceeded", "tokens")).name == "request_too_large"


def test_a_spend_limit_has_no_end_that_anybody_told() -> None:
    """Anthropic's enforced limit comes without Retry-After: there is nothing to wait for but a
    person."""
    refusal = refused(
        429, anthropic("rate_limit_error", details={"error_code": "enforced_spend_limit_reached"})
    )
    assert refusal.retry_after_s is None


def test_an_acceleration_limit_is_a_ramp() -> None:
    """Anthropic tells it by its words only."""
    message = "This request would exceed the acceleration limit of your organization."
    assert refused(429, anthropic("rate_limit_error", message)).signal is Signal.RAMP


def test_words_that_quote_the_request_hold_no_account() -> None:
    """A document about credit balances must not stop the fleet: only the beginning of a message is
    believed."""
    quoted = openai(None, message="Invalid value: 'Your credit balance is too low'")
    assert refused(400, quoted).name == "bad_request"
    assert (
        refused(404, openai(None, message="Resource unavailable: no such model")).name
        == "not_found"
    )


def test_a_limit_that_is_not_to_be_retried_is_about_the_account() -> None:
    """`x-should-retry: false` on a 429 without a code: holding the account loses no item, trying
    for ever pays for it."""
    assert refused(429, b"", X_Should_Retry="false").signal is Signal.OUT_OF_MONEY
    assert refused(429, b"", X_Should_Retry="true").signal is Signal.THROTTLED
    assert (
        refused(429, openai("rate_limit_exceeded"), X_Should_Retry="false").signal
        is Signal.THROTTLED
    )


def test_a_request_that_is_not_to_be_retried_is_final() -> None:
    """`x-should-retry: false` on other failures: the server still counts as broken, the request is
    not sent again."""
    refusal = refused(500, b"", x_should_retry="false")
    assert (refusal.signal, refusal.final) == (Signal.TRANSIENT, True)
    assert not refused(500, b"").final
    assert not refused(529, b"", x_should_retry="false").final


def test_the_detail_is_the_providers_own_words_and_bounded() -> None:
    """What a person reads in the ledger: status and message, or the beginning of the body."""
    assert (
        refused(400, openai("x", message="no such parameter")).detail
        == "HTTP 400: no such parameter"
    )
    assert refused(502, b"<html>bad gateway").detail == "HTTP 502: <html>bad gateway"
    assert refused(502, b"").detail == "HTTP 502: (no words)"
    assert len(refused(400, openai("x", message="y" * 10**6)).detail) < 600
    assert len(refused(502, b"z" * 10**6).detail) < 600
    assert classify(400, {}, {"error": {"message": "parsed already"}}, NOW) == Refusal(
        Signal.REFUSED, "bad_request", None, "HTTP 400: parsed already"
    )


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.floats()
    | st.text()
    | st.sampled_from(sorted(CODES))
    | st.just("36s"),
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(
            st.sampled_from(
                [
                    "error",
                    "code",
                    "type",
                    "status",
                    "details",
                    "message",
                    "retryDelay",
                    "violations",
                ]
            ),
            inner,
        )
    ),
    max_leaves=20,
)


@given(
    status=st.integers(-10, 700),
    body=st.binary() | json_values.map(lambda value: json.dumps(value).encode()),
)
def test_no_body_breaks_the_table(status: int, body: bytes) -> None:
    """Whatever arrives has a meaning, and a wait that is bounded."""
    refusal = classify(status, {}, body, NOW)
    assert (refusal is None) == (200 <= status < 300)
    assert (
        refusal is None
        or refusal.retry_after_s is None
        or 0 <= refusal.retry_after_s <= MAX_PAUSE_S
    )


@given(
    place=st.sampled_from(["code", "type", "status"]),
    other=st.sampled_from(
        [code for code, row in CODES.items() if row.signal in (Signal.THROTTLED, Signal.RAMP)]
    ),
    retry=st.sampled_from([{}, {"retry-after": "2"}, {"x-should-retry": "true"}]),
)
def test_an_empty_wallet_is_never_just_a_limit(
    place: str, other: str, retry: dict[str, str]
) -> None:
    """insufficient_quota decides wherever it stands and whatever stands beside it."""
    error = {"code": other, "type": other, "status": other, place: "insufficient_quota"}
    refusal = classify(429, retry, {"error": error}, NOW)
    assert refusal is not None
    assert refusal.signal is Signal.OUT_OF_MONEY
