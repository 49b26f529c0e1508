"""A refused call gets status, code, type and wording as providers send them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

import orjson

from penstock_simulate.answers.faults import Poison
from penstock_simulate.choices import CREDIT_ERRORS
from penstock_simulate.limits import OverLimit

# what OpenAI asks for although no wait helps: a request above the limit itself
NEVER_FITS_RETRY_S = 60.0
HTML_PAGE = (
    b"<html>\r\n<head><title>502 Bad Gateway</title></head>\r\n<body><h1>502 Bad "
    b"Gateway</h1></body>\r\n</html>"
)
UNITS = {
    "requests": ("requests", "min (RPM)"),
    "tokens": ("tokens", "min (TPM)"),
    "input_tokens": ("input tokens", "min (ITPM)"),
    "output_tokens": ("output tokens", "min (OTPM)"),
    "requests_per_day": ("requests", "day (RPD)"),
    "tokens_per_day": ("tokens", "day (TPD)"),
}


@dataclass(frozen=True, slots=True)
class Refusal:
    """An answer that is not a result.

    ``wait_s``: when to come back, None where the answer names no wait."""

    status: int
    message: str
    type: str
    code: str | None = None
    param: str | None = None
    wait_s: float | None = None
    tokens: int = 0  # of a prompt that is too long


ABORTED = "aborted"  # the code of an answer that the server gave up after its beginning


def invalid(
    message: str, param: str | None = None, code: str | None = None, status: int = 400
) -> Refusal:
    return Refusal(status, message, "invalid_request_error", code, param)


def wrong_key() -> Refusal:
    message = (
        "Incorrect API key provided. This simulator was started with --api-key: send that key as "
        "Bearer token."
    )
    return invalid(message, code="invalid_api_key", status=401)


def over_limit(over: OverLimit, model: str) -> Refusal:
    finite = math.isfinite(over.wait_s)
    wait_s = over.wait_s if finite else NEVER_FITS_RETRY_S
    head = "Rate limit reached" if finite else "Request too large"
    thing, per = UNITS[over.dimension]
    message = (
        f"{head} for {model} on {thing} per {per}: Limit {over.limit:.0f}, Requested "
        f"{over.cost:.0f}. Please try again in {wait_s:.3f}s."
    )
    return Refusal(429, message, thing.rpartition(" ")[2], "rate_limit_exceeded", wait_s=wait_s)


def too_many_in_flight(limit: int, wait_s: float) -> Refusal:
    message = f"Too many concurrent requests: at most {limit} may be in flight."
    return Refusal(429, message, "requests", "rate_limit_exceeded", wait_s=wait_s)


def overloaded(wait_s: float | None) -> Refusal:
    message = "That model is currently overloaded with other requests."
    return Refusal(503, message, "service_unavailable_error", "server_is_overloaded", wait_s=wait_s)


def too_steep(wait_s: float | None) -> Refusal:
    message = "Your traffic grows too fast. Please slow down and ramp up gradually."
    return Refusal(429, message, "rate_limit_error", "slow_down", wait_s=wait_s)


def throttled(wait_s: float | None) -> Refusal:
    return Refusal(
        429, "Rate limit reached (injected).", "requests", "rate_limit_exceeded", wait_s=wait_s
    )


def failed() -> Refusal:
    return Refusal(500, "The server had an error processing your request.", "server_error")


def no_money(code: str) -> Refusal:
    """Refuse without a wait: none helps until the account has money again."""
    if code == "billing_error":
        return Refusal(
            402, "There is an issue with your billing or payment information.", code, code
        )
    message = "You exceeded your current quota, please check your plan and billing details."
    return Refusal(429, message, "insufficient_quota", code)


def _no_money_now(code: str, _: float) -> Refusal:
    return no_money(code)


def _forbidden() -> Refusal:
    return Refusal(
        403, "This key may not use this model.", "invalid_request_error", "permission_denied"
    )


def no_room_in_flex(wait_s: float | None) -> Refusal:
    """Refuse as OpenAI's flex tier does: no quota is used up and nothing is charged."""
    message = "Resource unavailable: there is not enough capacity for flex processing."
    return Refusal(429, message, "resource_unavailable", "resource_unavailable", wait_s=wait_s)


DEMANDED_TOKENS = 4_097  # of a prompt that is too long on demand
# What can be asked for by name: POST /control {"refuse": {"kind": …, "calls": …}}. Given the wait
# that the answer names.
BY_NAME: Mapping[str, Callable[[float], Refusal]] = {
    "rate_limit_exceeded": throttled,
    "slow_down": too_steep,
    "invalid_api_key": lambda _: wrong_key(),
    "permission_denied": lambda _: _forbidden(),
    "server_is_overloaded": overloaded,
    "overloaded_error": lambda wait_s: Refusal(
        529, "Overloaded", "overloaded_error", "overloaded_error", None, wait_s
    ),
    "resource_unavailable": no_room_in_flex,
    "context_length_exceeded": lambda _: poisoned(Poison.CONTEXT, DEMANDED_TOKENS),
    "model_not_found": lambda _: Refusal(
        404, "The model does not exist.", "invalid_request_error", "model_not_found"
    ),
    ABORTED: lambda _: Refusal(500, "The server is shutting down.", "server_error", ABORTED),
    "server_error": lambda _: failed(),
    **{code: partial(_no_money_now, code) for code in CREDIT_ERRORS},
}


def poisoned(poison: Poison, prompt_tokens: int) -> Refusal:
    match poison:
        case Poison.CONTEXT:
            message = (
                f"This model's maximum context length is {max(1, prompt_tokens - 1)} tokens. "
                f"However, your messages resulted in {prompt_tokens} tokens. Please reduce the "
                "length of the messages."
            )
            return replace(invalid(message, "messages", poison.value), tokens=prompt_tokens)
        case Poison.FILTER:
            return invalid(
                "The prompt was rejected by the content policy.", "messages", poison.value
            )
        case Poison.INVALID:
            return invalid(
                "Invalid value: the messages could not be processed.", "messages", poison.value
            )


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
    """Write the body; an empty account differs by `details`, all else by the type alone."""
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


AMAZON_TYPES: Mapping[int, str] = {
    400: "ValidationException",
    401: "UnrecognizedClientException",
    402: "AccessDeniedException",
    403: "AccessDeniedException",
    404: "ResourceNotFoundException",
    408: "ModelTimeoutException",
    409: "ConflictException",
    429: "ThrottlingException",
    503: "ServiceUnavailableException",
    529: "ServiceUnavailableException",
}


def bedrock(refusal: Refusal, _: str) -> tuple[int, bytes]:
    """Write the body, which has a message alone; ``amazon_header`` has the name of the error."""
    status = {401: 403, 402: 403, OVERLOADED: 503}.get(refusal.status, refusal.status)
    return status, orjson.dumps({"message": refusal.message})


def s3(refusal: Refusal, _: str) -> tuple[int, bytes]:
    """Write the body as S3 does, in XML; a wrong key has a name of its own there."""
    status, code = refusal.status, refusal.code or "InternalError"
    if status == 401:
        status, code = 403, "InvalidAccessKeyId"
    message = refusal.message.replace("<", "(")
    xml = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{message}</Message></Error>"
    return status, xml.encode()


def amazon_header(refusal: Refusal) -> dict[str, str]:
    """Return the header that names an error. A code that is Amazon's own word stays."""
    code = refusal.code or ""
    own = AMAZON_TYPES.get(refusal.status, "InternalServerException")
    return {"x-amzn-ErrorType": code if code[:1].isupper() else own}


def google_status(status: int) -> str:
    return GOOGLE_STATUSES.get(status, "INTERNAL")
