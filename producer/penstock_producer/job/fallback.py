"""A document is asked of other models for some reasons before it is a dead letter."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Final, Literal

from pydantic import Field

__all__ = [
    "MAX_FALLBACKS",
    "USUAL_REASONS",
    "FallbackModel",
    "FallbackReason",
    "may_name_a_provider",
    "provider_and_model",
]

# each is paid for; more than five models for one document is a search, not a job
MAX_FALLBACKS: Final = 4
MODEL_CHARS: Final = 512

FallbackModel = Annotated[str, Field(min_length=1, max_length=MODEL_CHARS)]
FallbackReason = Literal[
    "answer_cut",
    "answer_too_large",
    "bad_request",
    "content_filter",
    "context_overflow",
    "empty_answer",
    "error_in_answer",
    "invalid_answer",
    "invalid_result",
    "request_too_large",
    "schema_mismatch",
    "server_error",
    "timeout",
    "unprocessable",
]
"""What another model may do better. A 404, a 403 or a refused key is the job's own fault, and
pauses it."""
USUAL_REASONS: Final = frozenset(
    {
        "answer_cut",
        "content_filter",
        "context_overflow",
        "invalid_result",
        "schema_mismatch",
    }
)


def may_name_a_provider(name: str) -> bool:
    """Return whether a worker that has a provider of that name would ask it.

    The process that accepts a job need not know all providers.
    """
    return "/" in name


def provider_and_model(name: str, providers: Collection[str]) -> tuple[str | None, str]:
    """Return the provider that a fallback names, and its model.

    Names of models hold slashes too: only a configured provider counts.
    """
    provider, slash, model = name.partition("/")
    return (provider, model) if slash and model and provider in providers else (None, name)
