"""Schemas of requests and answers about dead letters, each with an example for OpenAPI."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictStr

__all__ = ["Letter", "LetterList", "LetterShown", "Replay", "Replayed"]

DOCS_MAX: Final = 10_000  # ids that one replay names

_LETTER: Final[dict[str, Any]] = {
    "doc_id": "ticket-17",
    "generation": 1,
    "reason": "bad_request",
    "attempts": 1,
    "calls": 1,
    "status_code": 400,
    "last_error": "Invalid 'max_tokens': integer below minimum value.",
    "line": None,
    "created_at": 1763740931.4,
    "endpoint": None,
}


def _like(example: Any) -> ConfigDict:
    return ConfigDict(extra="forbid", json_schema_extra={"examples": [example]})


class Replay(BaseModel):
    """Which dead letters are tried again, and with what changed."""

    model_config = _like({"reason": "bad_request", "overrides": {"set": {"max_tokens": 128}}})

    reason: Annotated[StrictStr, Field(min_length=1, max_length=200)] | None = None
    doc_ids: Annotated[list[StrictStr], Field(min_length=1, max_length=DOCS_MAX)] | None = None
    overrides: dict[str, Any] = Field(default_factory=dict)


class Replayed(BaseModel):
    model_config = _like({"object": "replay", "documents": 6, "generation": 2})

    object: Literal["replay"] = "replay"
    documents: int
    generation: int
    note: str | None = Field(
        None,
        description="What becomes of a batch's files, and where the new outcomes are read.",
    )


class LetterShown(BaseModel):
    """A document that has failed for good."""

    model_config = _like(_LETTER)

    doc_id: str
    generation: int
    reason: str
    attempts: int
    calls: int
    status_code: int | None
    last_error: str
    line: int | None = Field(
        description="The line in the source of a row that was refused at submit."
    )
    created_at: float | None
    endpoint: str | None = Field(
        default=None, description="The path of its request, where that is not the job's."
    )


class Letter(LetterShown):
    """The same with the request that was sent, and the last answer to it."""

    model_config = _like(
        _LETTER
        | {
            "request": {
                "model": "gpt-x",
                "messages": [{"role": "user", "content": "Summarise: …"}],
                "max_tokens": 0,
            },
            "response": {"error": {"message": "Invalid 'max_tokens'"}},
        }
    )

    request: Any = None
    response: Any = None


class LetterList(BaseModel):
    model_config = _like({"object": "list", "data": [_LETTER], "next": None})

    object: Literal["list"] = "list"
    data: list[LetterShown]
    next: str | None
