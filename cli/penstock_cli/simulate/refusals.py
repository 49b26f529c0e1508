"""OpenAI's error answers, word for word where clients read them: `type`, `code` and the wording around the figures."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import orjson

from penstock_cli.simulate.faults import Fault, Poison
from penstock_cli.simulate.limits import OverLimit

NEVER_FITS_RETRY_S = 60.0  # what OpenAI asks for although no wait helps: a request above the limit itself
HTML_PAGE = b"<html>\r\n<head><title>502 Bad Gateway</title></head>\r\n<body><h1>502 Bad Gateway</h1></body>\r\n</html>"


@dataclass(frozen=True, slots=True)
class Refusal:
    """An answer that is no result."""

    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


def error_body(message: str, kind: str, code: str | None, param: str | None = None) -> bytes:
    return orjson.dumps({"error": {"message": message, "type": kind, "param": param, "code": code}})


def invalid(message: str, param: str | None = None, code: str | None = None, status: int = 400) -> Refusal:
    return Refusal(status, error_body(message, "invalid_request_error", code, param))


def wrong_key() -> Refusal:
    message = "Incorrect API key provided. This simulator was started with --api-key: send that key as Bearer token."
    return invalid(message, code="invalid_api_key", status=401)


def out_of_credit() -> Refusal:
    message = "You exceeded your current quota, please check your plan and billing details."
    return Refusal(429, error_body(message, "insufficient_quota", "insufficient_quota"))


def over_limit(over: OverLimit, model: str) -> Refusal:
    wait_s = over.wait_s if math.isfinite(over.wait_s) else NEVER_FITS_RETRY_S
    head = "Rate limit reached" if math.isfinite(over.wait_s) else "Request too large"
    unit = "RPM" if over.dimension == "requests" else "TPM"
    message = (
        f"{head} for {model} on {over.dimension} per min ({unit}): Limit {over.limit:.0f}, Requested {over.cost:.0f}. "
        f"Please try again in {wait_s:.3f}s."
    )
    return Refusal(429, error_body(message, over.dimension, "rate_limit_exceeded"), retry_headers(wait_s))


def too_many_in_flight(limit: int, retry_after_s: float) -> Refusal:
    message = f"Too many concurrent requests: at most {limit} may be in flight."
    return Refusal(429, error_body(message, "requests", "rate_limit_exceeded"), retry_headers(retry_after_s))


def injected(fault: Fault, retry_after_s: float) -> Refusal:
    """The answer for the faults that are one; dropped, cut and hanging calls are no answers."""
    match fault:
        case Fault.THROTTLE:
            message = "Rate limit reached (injected)."
            return Refusal(429, error_body(message, "requests", "rate_limit_exceeded"), retry_headers(retry_after_s))
        case Fault.OVERLOAD:
            message = "That model is currently overloaded with other requests."
            body = error_body(message, "service_unavailable_error", "server_is_overloaded")
            return Refusal(503, body, retry_headers(retry_after_s))
        case Fault.HTML:
            return Refusal(502, HTML_PAGE, {"Content-Type": "text/html"})
        case Fault.ERROR_BODY:
            return Refusal(200, error_body("The engine is currently unavailable.", "server_error", None))
        case _:
            return Refusal(500, error_body("The server had an error processing your request.", "server_error", None))


def poisoned(poison: Poison, prompt_tokens: int) -> Refusal:
    match poison:
        case Poison.CONTEXT:
            message = (
                f"This model's maximum context length is {max(1, prompt_tokens - 1)} tokens. However, your messages "
                f"resulted in {prompt_tokens} tokens. Please reduce the length of the messages."
            )
            return invalid(message, "messages", poison.value)
        case Poison.FILTER:
            return invalid("The prompt was rejected by the content policy.", "messages", poison.value)
        case Poison.INVALID:
            return invalid("Invalid value: the messages could not be processed.", "messages", poison.value)


def retry_headers(wait_s: float) -> dict[str, str]:
    """Whole seconds for everybody, milliseconds for clients that know the header; both rounded up."""
    return {"retry-after": str(math.ceil(wait_s)), "retry-after-ms": str(math.ceil(wait_s * 1000))}
