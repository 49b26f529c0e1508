"""Every failure has a name, and every name an outcome: the table, row by row."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from penstock_ratelimit import Signal
from penstock_ratelimit.provider.refusals import CODES, STATUSES, TEXTS
from penstock_workers.item.answer import Answer, NoAnswer
from penstock_workers.item.failures import Failure, Reply, name_failure
from penstock_workers.item.outcome import Dead, Outcome, Parked, Retry
from penstock_workers.item.run.fates import FATES

NOW = 1_790_000_000.0


def answer(status: int, body: object, headers: dict[str, str] | None = None) -> Answer:
    raw = body if isinstance(body, bytes) else orjson.dumps(body)
    return Answer(status, headers or {}, raw, latency_ms=5)


def error(code: str | None = None, kind: str | None = None, **more: object) -> dict[str, object]:
    return {"error": {"message": "says the provider", "code": code, "type": kind, **more}}


CHAT: dict[str, Any] = {
    "id": "chatcmpl-1",
    "model": "m",
    "choices": [
        {"message": {"role": "assistant", "content": "a category"}, "finish_reason": "stop"}
    ],
    "usage": {"prompt_tokens": 12, "completion_tokens": 3, "total_tokens": 15},
}

Terms = tuple[type[Outcome], bool]  # the outcome, and whether the attempt counts
RETRY, WAIT, DEAD, PAUSE = (Retry, True), (Retry, False), (Dead, True), (Parked, True)

FAILURES = [
    (answer(429, error("rate_limit_exceeded", "requests")), "rate_limited", WAIT),
    (answer(429, b"slow down, please"), "rate_limited", WAIT),
    (answer(429, error("slow_down", "rate_limit_error")), "slow_down", WAIT),
    (answer(429, error("insufficient_quota", "insufficient_quota")), "out_of_credit", PAUSE),
    (answer(429, error("credit_balance_exhausted")), "out_of_credit", PAUSE),
    (answer(429, error("project_spend_limit_exceeded")), "out_of_credit", PAUSE),
    (
        answer(
            429,
            error(kind="rate_limit_error", details={"error_code": "enforced_spend_limit_reached"}),
        ),
        "out_of_credit",
        PAUSE,
    ),
    (answer(402, error(kind="billing_error")), "out_of_credit", PAUSE),
    (answer(401, error("invalid_api_key")), "unauthorized", PAUSE),
    (answer(403, error()), "forbidden", RETRY),
    (answer(403, b"<html>blocked</html>"), "forbidden", RETRY),
    (answer(401, b"<!DOCTYPE html><title>log in</title>"), "foreign_page", RETRY),
    (answer(402, b"pay here", {"Content-Type": "text/html; charset=utf-8"}), "foreign_page", RETRY),
    (answer(429, b"<html>slow down</html>"), "rate_limited", WAIT),
    (answer(429, b"<html>no</html>", {"x-should-retry": "false"}), "rate_limited", WAIT),
    (answer(400, error("invalid_value", "invalid_request_error")), "bad_request", DEAD),
    (answer(400, error("context_length_exceeded")), "context_overflow", DEAD),
    (answer(400, error("content_policy_violation")), "content_filter", DEAD),
    (answer(404, error("model_not_found")), "not_found", DEAD),
    (answer(413, b""), "request_too_large", DEAD),
    (answer(422, {"detail": "no"}), "unprocessable", DEAD),
    (answer(418, b""), "client_error", DEAD),
    (answer(302, b"", {"Location": "http://elsewhere"}), "redirected", DEAD),
    (answer(408, b""), "request_conflict", RETRY),
    (answer(409, b""), "request_conflict", RETRY),
    (answer(425, b""), "request_conflict", RETRY),
    (answer(500, error()), "server_error", RETRY),
    (answer(502, b"<html>bad gateway</html>"), "server_error", RETRY),
    (answer(503, b""), "overloaded", WAIT),
    (answer(503, error("server_is_overloaded", "service_unavailable_error")), "overloaded", WAIT),
    (answer(529, error(kind="overloaded_error")), "overloaded", WAIT),
    (answer(200, b""), "invalid_answer", RETRY),
    (answer(200, b'{"choices": [{"mess'), "invalid_answer", RETRY),
    (answer(200, b"<html>ok</html>"), "invalid_answer", RETRY),
    (answer(200, [1, 2]), "invalid_answer", RETRY),
    (answer(204, b""), "invalid_answer", RETRY),
    (answer(200, error("server_error")), "error_in_answer", RETRY),
    (answer(200, error("insufficient_quota")), "out_of_credit", PAUSE),
    (answer(200, {**CHAT, "choices": []}), "empty_answer", RETRY),
    (answer(200, {**CHAT, "choices": [{"message": {"content": None}}]}), "empty_answer", RETRY),
    (
        answer(
            200,
            {
                **CHAT,
                "choices": [{"message": {"content": None}, "finish_reason": "content_filter"}],
            },
        ),
        "content_filter",
        DEAD,
    ),
    (NoAnswer("timeout", "no complete answer", 120_000), "timeout", RETRY),
    (NoAnswer("connect_failed", "refused", 1, sent=False), "connect_failed", WAIT),
    (NoAnswer("connection_lost", "reset by peer", 9), "connection_lost", RETRY),
    (NoAnswer("answer_too_large", "33 MB", 900), "answer_too_large", DEAD),
    (NoAnswer("worker_crashed", "twice, alone", 0), "worker_crashed", DEAD),
]


def terms(name: str) -> Terms:
    return FATES[name].outcome, FATES[name].counted


@pytest.mark.parametrize(
    ("tried", "name", "outcome"),
    FAILURES,
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_failure_gets_its_name_and_outcome(
    tried: Answer | NoAnswer, name: str, outcome: Terms
) -> None:
    """Each way to fail has one name, and the name one outcome."""
    happened = name_failure(tried, NOW)
    assert isinstance(happened, Failure)
    assert (happened.name, terms(happened.name)) == (name, outcome)


def test_every_name_that_can_be_given_is_in_the_table() -> None:
    """No classification leads to a name without an outcome, and a pause always tells its fix."""
    named = {row.name for table in (CODES, TEXTS, STATUSES) for row in table.values()}
    assert named | {
        "foreign_page",
        "server_error",
        "client_error",
        "redirected",
        "invalid_answer",
    } <= set(FATES)
    assert all(fate.fix for fate in FATES.values() if fate.outcome is Parked)


def test_a_good_answer_is_kept_whole() -> None:
    """A reply carries the untouched body and what the accounts need."""
    tried = answer(200, CHAT, {"x-request-id": "req-9"})
    reply = name_failure(tried, NOW)
    assert reply == Reply(
        tried.body, 200, "req-9", "m", "stop", 12, 3, "a category", 5, CHAT["usage"]
    )


@pytest.mark.parametrize(
    ("tried", "signal"),
    [
        (answer(429, error("rate_limit_exceeded")), Signal.THROTTLED),
        (answer(429, error("slow_down")), Signal.RAMP),
        (answer(429, error("insufficient_quota")), Signal.OUT_OF_MONEY),
        (answer(401, b""), Signal.UNAUTHORIZED),
        (answer(529, b""), Signal.OVERLOADED),
        (answer(500, b""), Signal.TRANSIENT),
        (answer(200, b"<html>"), Signal.TRANSIENT),
        (answer(400, error("context_length_exceeded")), Signal.REFUSED),
        (answer(200, {**CHAT, "choices": []}), Signal.REFUSED),
        (NoAnswer("timeout", "no complete answer", 9), Signal.TRANSIENT),
        (NoAnswer("connect_failed", "refused", 1, sent=False), Signal.TRANSIENT),
        (NoAnswer("worker_crashed", "twice", 0), Signal.REFUSED),
    ],
)
def test_a_failure_says_what_it_means_for_the_pace(
    tried: Answer | NoAnswer, signal: Signal
) -> None:
    """The server's troubles and the request's own have different names."""
    happened = name_failure(tried, NOW)
    assert isinstance(happened, Failure)
    assert happened.signal is signal


def test_a_refusal_carries_what_the_provider_asked_for() -> None:
    """Retry-After and x-should-retry come with the failure."""
    busy = name_failure(answer(429, b"", {"Retry-After": "7"}), NOW)
    hopeless = name_failure(answer(500, b"", {"x-should-retry": "false"}), NOW)
    assert isinstance(busy, Failure)
    assert isinstance(hopeless, Failure)
    assert (busy.retry_after_s, hopeless.final) == (7.0, True)


@pytest.mark.parametrize(
    "choice",
    [
        {"message": {"content": None, "tool_calls": [{"id": "c"}]}, "finish_reason": "tool_calls"},
        {"message": {"content": None, "refusal": "I will not"}, "finish_reason": "stop"},
        {"message": {"content": "cut", "role": "assistant"}, "finish_reason": "length"},
        {"text": "completions answer with text", "finish_reason": "stop"},
    ],
)
def test_unusual_but_usable_answers_are_results(choice: dict[str, object]) -> None:
    """Tool calls, refusals, cut answers and plain completions are results; checking content is the
    user's business."""
    assert isinstance(name_failure(answer(200, {**CHAT, "choices": [choice]}), NOW), Reply)


@pytest.mark.parametrize(
    "usage",
    [None, "many", {}, {"prompt_tokens": -4, "completion_tokens": "3"}, {"prompt_tokens": True}],
)
def test_nonsense_usage_never_becomes_money(usage: object) -> None:
    """A usage that is missing, negative, huge or no number keeps the result and counts as
    unknown."""
    reply = name_failure(answer(200, {**CHAT, "usage": usage}), NOW)
    assert isinstance(reply, Reply)
    assert (reply.prompt_tokens, reply.completion_tokens) == (None, None)


def test_embeddings_have_no_choices() -> None:
    """An embeddings answer is a result without a finish reason."""
    reply = name_failure(
        answer(
            200, {"data": [{"embedding": [0.1]}], "usage": {"prompt_tokens": 4, "total_tokens": 4}}
        ),
        NOW,
    )
    assert isinstance(reply, Reply)
    assert (reply.prompt_tokens, reply.completion_tokens) == (4, None)


@pytest.mark.parametrize("status", [401, 402, 403])
def test_a_page_is_no_verdict_on_an_account(status: int) -> None:
    """A firewall's or a proxy's HTML, whatever its status, neither holds the provider nor pauses
    other jobs (A3)."""
    happened = name_failure(answer(status, b"  <!doctype HTML><h1>Access denied</h1>"), NOW)
    assert isinstance(happened, Failure)
    assert (happened.signal, terms(happened.name), happened.page) == (Signal.REFUSED, RETRY, True)


def test_a_403_is_about_the_request() -> None:
    """A model that a key may not use says nothing of the account's other models: no hold, and the
    second is the last (A3)."""
    happened = name_failure(answer(403, error("permission_denied")), NOW)
    assert isinstance(happened, Failure)
    assert (happened.signal, FATES[happened.name].max_attempts) == (Signal.REFUSED, 2)


@pytest.mark.parametrize(
    ("tried", "astray"),
    [
        (answer(302, b""), True),
        (answer(403, error()), True),
        (answer(404, error("model_not_found")), True),
        (answer(405, b""), True),
        (answer(410, b""), True),
        (answer(421, b""), True),
        (answer(400, b"<html>The plain HTTP request was sent to HTTPS port</html>"), True),
        (answer(200, b"<html>welcome</html>"), True),
        (answer(401, b"<html>log in</html>"), True),
        (answer(400, error()), False),
        (answer(422, error()), False),
        (answer(429, b"<html>slow down</html>"), False),
        (answer(502, b"<html>bad gateway</html>"), False),
        (answer(200, b'{"choices": [{"mess'), False),
        (NoAnswer("timeout", "no complete answer", 9), False),
    ],
)
def test_answers_that_may_come_from_a_wrong_place(tried: Answer | NoAnswer, astray: bool) -> None:
    """Redirects, unknown routes, refusals and pages count for the run that pauses a job; others do
    not (A7)."""
    happened = name_failure(tried, NOW)
    assert isinstance(happened, Failure)
    assert happened.astray is astray
