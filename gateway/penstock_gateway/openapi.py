"""The OpenAPI document: what the framework knows of the routes, with how callers prove who they are
and how errors look."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import orjson
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from penstock_gateway.errors import is_problem_path

__all__ = ["Doors"]

_METHODS: Final = frozenset({"get", "put", "post", "delete", "patch", "head", "options"})
_TAGS: Final = (
    (
        "jobs",
        "Jobs: submit, push, look, steer, read results. Errors are problem details (RFC 9457).",
    ),
    ("schedules", "Jobs that start themselves, and notifications of buckets."),
    ("limits", "What keeps requests to the providers from starting."),
    ("keys", "API keys of these doors: make, list, revoke."),
)
_SCHEMES: Final = {
    "bearer": {
        "type": "http",
        "scheme": "bearer",
        "description": "An API key of these doors, as OpenAI's clients send it.",
    },
    "apiKey": {
        "type": "apiKey",
        "in": "header",
        "name": "x-api-key",
        "description": "The same, as Anthropic's clients do.",
    },
}
_PROBLEM: Final = {
    "type": "object",
    "required": ["type", "title", "status", "detail"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string", "description": "What is wrong, and what to do."},
        "code": {"type": "string", "description": "For programs; it stays."},
        "param": {"type": "string"},
        "request_id": {"type": "string"},
        "errors": {
            "type": "array",
            "description": "Each field that is wrong.",
            "items": {
                "type": "object",
                "required": ["code", "pointer", "message", "fix"],
                "properties": {
                    name: {"type": "string"} for name in ("code", "pointer", "message", "fix")
                },
            },
        },
    },
    "example": {
        "type": "about:blank",
        "title": "Bad Request",
        "status": 400,
        "code": "unknown_field",
        "param": "promt",
        "detail": "job spec: /promt: unknown_field; did you mean 'prompt'?",
        "request_id": "req_0a1b2c",
        "errors": [
            {
                "code": "unknown_field",
                "pointer": "/promt",
                "message": "the value is refused",
                "fix": "did you mean 'prompt'?",
            }
        ],
    },
}
_OPENAI: Final = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}
_ERRORS: Final = {
    "400": "A field, or the content, cannot be used.",
    "401": "There is no API key, or it is not valid.",
    "403": "The key may not do that.",
    "404": "There is no such thing for this caller.",
    "408": "The body did not come in time.",
    "409": "It is not in a state for that, or there is something else under this name.",
    "413": "The body is too large.",
    "415": "The body is of another type.",
    "429": "The limits of the key are reached; see Retry-After.",
    "503": "A server behind this one does not answer, or there is too much to do; see Retry-After.",
}


class Doors(FastAPI):
    """The app, whose document says what every door shares."""

    _document: bytes | None = None

    def setup(self) -> None:
        """Serve the document as it was written once: no key is needed for it, and writing it takes
        as long as fifty requests."""

        async def document(_: Request) -> Response:
            if self._document is None:
                self._document = orjson.dumps(self.openapi())
            return Response(self._document, media_type="application/json")

        self.add_route("/openapi.json", document, include_in_schema=False)

    def openapi(self) -> dict[str, Any]:
        if self.openapi_schema is None:
            self.openapi_schema = _completed(super().openapi())
        return self.openapi_schema


def _completed(document: dict[str, Any]) -> dict[str, Any]:
    parts = document.setdefault("components", {})
    schemas = parts.setdefault("schemas", {})
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    schemas |= {"Problem": _PROBLEM, "OpenAIError": _OPENAI}
    parts["securitySchemes"] = _SCHEMES
    document["security"] = [{name: []} for name in _SCHEMES]
    document["tags"] = [{"name": name, "description": text} for name, text in _TAGS]
    for path, operation in _operations(document):
        _complete(path, operation)
    return document


def _operations(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for path, methods in document.get("paths", {}).items():
        yield from (
            (path, operation) for method, operation in methods.items() if method in _METHODS
        )


def _complete(path: str, operation: dict[str, Any]) -> None:
    """With every error that a caller may get; what the framework would answer by itself it does not
    here."""
    answers = operation["responses"]
    answers.pop("422", None)
    name, kind = (
        ("Problem", "application/problem+json")
        if is_problem_path(path)
        else ("OpenAIError", "application/json")
    )
    for status, words in _ERRORS.items():
        content = {kind: {"schema": {"$ref": f"#/components/schemas/{name}"}}}
        answers.setdefault(status, {"description": words, "content": content})
