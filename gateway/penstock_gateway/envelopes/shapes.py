"""One error, in the shape that the clients of a path can read."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

import orjson
from starlette.responses import Response

from penstock_gateway.pages.render import error_page
from penstock_gateway.refused import Refused

__all__ = ["answer_to", "is_problem_path", "openai_error"]

_ANTHROPIC: Final = "/v1/messages"
_PROBLEMS: Final = (
    "/v1/jobs",
    "/v1/webhooks",
    "/v1/keys",
    "/v1/schedules",
    "/v1/notifications",
    "/v1/limits",
)
_PAGES: Final = "/ui"
_ANTHROPIC_TYPES: Final[Mapping[int, str]] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    503: "overloaded_error",
    504: "timeout_error",
}
_PHRASES: Final[Mapping[int, str]] = {int(status): status.phrase for status in HTTPStatus}


def answer_to(refused: Refused, path: str, request_id: str) -> Response:
    """What is sent for it."""
    if path == "/" or _is_below(path, _PAGES):
        return error_page(refused.status, refused.message, request_id, refused.headers)
    if _is_below(path, _ANTHROPIC):
        return _json(refused, _anthropic(refused, request_id))
    if is_problem_path(path):
        return _json(refused, _problem(refused, request_id), "application/problem+json")
    return _json(refused, openai_error(refused))


def is_problem_path(path: str) -> bool:
    """Whether errors of this path are problem details."""
    return any(_is_below(path, place) for place in _PROBLEMS)


def _is_below(path: str, place: str) -> bool:
    return path == place or path.startswith(f"{place}/")


def openai_error(refused: Refused) -> dict[str, Any]:
    kind = "server_error" if refused.status >= 500 else refused.kind
    return {
        "error": {
            "message": refused.message,
            "type": kind,
            "param": refused.param,
            "code": refused.code,
        }
    }


def _anthropic(refused: Refused, request_id: str) -> dict[str, Any]:
    default = "invalid_request_error" if refused.status < 500 else "api_error"
    kind = _ANTHROPIC_TYPES.get(refused.status, default)
    return {
        "type": "error",
        "error": {"type": kind, "message": refused.message},
        "request_id": request_id,
    }


def _problem(refused: Refused, request_id: str) -> dict[str, Any]:
    told = {
        "type": "about:blank",
        "title": _title(refused.status),
        "status": refused.status,
        "detail": refused.message,
        "code": refused.code,
        "param": refused.param,
        "request_id": request_id,
        "errors": list(refused.problems) or None,
    }
    return {name: value for name, value in told.items() if value is not None}


def _json(refused: Refused, body: dict[str, Any], media_type: str = "application/json") -> Response:
    return Response(orjson.dumps(body), refused.status, refused.headers, media_type)


def _title(status: int) -> str:
    return _PHRASES.get(status, "Error")
