"""The OpenAPI document describes calls that wait: their bodies, their answers, and examples.

The fields are those that most callers send; docs/gateway-direct.md says which others are taken.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from penstock_producer.job.endpoints import CHAT, COMPLETIONS, EMBEDDINGS, MESSAGES, RESPONSES

__all__ = ["PROMPTS", "documented"]

PROMPTS: Final = "/v1/batch/sync"

_TEXT: Final = {"type": "string", "minLength": 1}
_OBJECTS: Final = {"type": "array", "items": {"type": "object"}}
_COUNT: Final = {"type": "integer", "minimum": 1}
_CONTENT: Final = {"anyOf": [_TEXT, {**_OBJECTS, "minItems": 1}]}


def _messages(*roles: str) -> dict[str, Any]:
    message = {
        "type": "object",
        "required": ["role", "content"],
        "properties": {"role": {"type": "string", "enum": list(roles)}, "content": _CONTENT},
    }
    return {"type": "array", "minItems": 1, "items": message}


_OF_ALL: Final = {
    "model": {**_TEXT, "maxLength": 512},
    "temperature": {"type": "number", "minimum": 0},
    "stream": {
        "type": "boolean",
        "description": "Answer by server-sent events: as the provider writes, where its lane "
        "streams, else all of them when the answer is there. What breaks off ends with `error`.",
    },
}
_SAY: Final = [{"role": "user", "content": "Say hello."}]
# of each endpoint: fields besides those of all, those that must be there, and an example
_BODIES: Final[Mapping[str, tuple[dict[str, Any], list[str], dict[str, Any]]]] = {
    CHAT: (
        {
            **_OF_ALL,
            "messages": _messages("system", "developer", "user", "assistant"),
            "max_tokens": _COUNT,
            "tools": _OBJECTS,
            "response_format": {"type": "object"},
        },
        ["model", "messages"],
        {"model": "gpt-x", "messages": _SAY},
    ),
    MESSAGES: (
        {
            **_OF_ALL,
            "messages": _messages("user", "assistant"),
            "max_tokens": _COUNT,
            "system": _CONTENT,
            "tools": _OBJECTS,
        },
        ["model", "max_tokens", "messages"],
        {"model": "gpt-x", "max_tokens": 100, "messages": _SAY},
    ),
    RESPONSES: (
        {
            **_OF_ALL,
            "input": _CONTENT,
            "instructions": _TEXT,
            "max_output_tokens": _COUNT,
            "tools": _OBJECTS,
            "text": {"type": "object"},
        },
        ["model", "input"],
        {"model": "gpt-x", "input": "Say hello."},
    ),
    COMPLETIONS: (
        {**_OF_ALL, "prompt": _TEXT, "max_tokens": _COUNT},
        ["model", "prompt"],
        {"model": "gpt-x", "prompt": "Once upon a time"},
    ),
    EMBEDDINGS: (
        {
            "model": _OF_ALL["model"],
            "input": {"anyOf": [_TEXT, {"type": "array", "items": _TEXT, "minItems": 1}]},
        },
        ["model", "input"],
        {"model": "embed-x", "input": ["a", "b"]},
    ),
    PROMPTS: (
        {
            "model": _OF_ALL["model"],
            "prompts": {"type": "array", "items": _CONTENT, "minItems": 1, "maxItems": 256},
            "system": _TEXT,
            "max_tokens": _COUNT,
            "timeout_s": {"type": "number", "exclusiveMinimum": 0},
        },
        ["model", "prompts"],
        {"model": "gpt-x", "prompts": ["First?", "Second?"]},
    ),
}


def documented(endpoint: str) -> dict[str, Any]:
    """Return what a route says in the document besides what the framework knows."""
    properties, required, example = _BODIES[endpoint]
    schema = {"type": "object", "required": required, "properties": properties}
    asked = {"application/json": {"schema": schema, "example": example}}
    answered: dict[str, Any] = {"application/json": {"schema": {"type": "object"}}}
    if "stream" in properties:
        answered["text/event-stream"] = {
            "schema": {"type": "string", "description": "The events of the API that was asked."}
        }
    told = {200: {"description": "The answer, as the API has it.", "content": answered}}
    return {
        "responses": told | _ERRORS,
        "openapi_extra": {"requestBody": {"required": True, "content": asked}},
    }


_ERRORS: Final[dict[int | str, dict[str, Any]]] = {
    400: {"description": "a field is missing, wrong or not taken here"},
    409: {"description": "a request with this Idempotency-Key is under way"},
    422: {"description": "this Idempotency-Key was used for another request"},
    429: {"description": "too many calls wait, or the provider limits this server"},
    503: {"description": "no worker, or a store is away"},
    504: {"description": "no answer in the time that the call had"},
}
