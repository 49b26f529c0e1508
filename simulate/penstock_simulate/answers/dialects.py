"""The body of an error answer, as OpenAI, Anthropic or Google writes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import orjson

from penstock_simulate.answers.refusals import Refusal
from penstock_simulate.choices import CREDIT_ERRORS

ANTHROPIC_TYPES: Mapping[int, str] = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    409: "conflict_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    529: "overloaded_error",
}
GOOGLE_STATUSES: Mapping[int, str] = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    402: "FAILED_PRECONDITION",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    409: "ABORTED",
    413: "INVALID_ARGUMENT",
    429: "RESOURCE_EXHAUSTED",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
    529: "UNAVAILABLE",
}
OVERLOADED = 529  # Anthropic's status for what is a 503 elsewhere

Dialect = Callable[[Refusal, str], tuple[int, bytes]]  # given the id of the request, too


def openai(refusal: Refusal, _: str) -> tuple[int, bytes]:
    error = {
        "message": refusal.message,
        "type": refusal.type,
        "param": refusal.param,
        "code": refusal.code,
    }
    return refusal.status, orjson.dumps({"error": error})


def anthropic(refusal: Refusal, request_id: str) -> tuple[int, bytes]:
    """An empty account differs by `details`, everything else by the type alone."""
    status = OVERLOADED if refusal.status == 503 else refusal.status
    error: dict[str, object] = {
        "type": ANTHROPIC_TYPES.get(status, "api_error"),
        "message": refusal.message,
    }
    if refusal.code in CREDIT_ERRORS:
        error["details"] = {"error_code": refusal.code}
    return status, orjson.dumps({"type": "error", "error": error, "request_id": request_id})


def gemini(refusal: Refusal, _: str) -> tuple[int, bytes]:
    error = {
        "code": refusal.status,
        "message": refusal.message,
        "status": google_status(refusal.status),
    }
    return refusal.status, orjson.dumps({"error": error})


def google_status(status: int) -> str:
    return GOOGLE_STATUSES.get(status, "INTERNAL")
