"""Where requests bring a key."""

from __future__ import annotations

from typing import Final

from starlette.requests import HTTPConnection

__all__ = ["secret_in"]

_BEARER: Final = "bearer "


def secret_in(connection: HTTPConnection) -> str | None:
    """As OpenAI's clients send it, or as Anthropic's do."""
    bearer = connection.headers.get("authorization", "")
    if bearer[: len(_BEARER)].lower() == _BEARER:
        return bearer[len(_BEARER) :].strip()
    return connection.headers.get("x-api-key")
