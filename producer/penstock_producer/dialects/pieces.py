"""The texts of requests and answers, whole and while an answer is written.

A delta is the next bit of one part of an answer, in words that all APIs share, so that a door
writes it in those of its caller. It is for display alone: what the answer is, says the stored one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct

__all__ = [
    "PIECE_BYTES",
    "Delta",
    "Piece",
    "answer_text",
    "decode_piece",
    "encode_piece",
    "sent_text",
    "size_of",
]


# of one piece: what is larger is not passed on, and comes with the stored answer
PIECE_BYTES: Final = 64 * 1024
DELTA_BYTES: Final = 64  # about what a delta without text takes

Kind = Literal["text", "thought", "refusal", "call", "extra", "whole"]


class Delta(Struct, frozen=True, array_like=True, omit_defaults=True):
    """The next bit of a part.

    ``call`` is a bit of a tool call's arguments. ``extra`` is what only callers of the provider's
    own API can read, such as a signature, and ``whole`` is a part of a kind that no other API has:
    both are JSON in the provider's words."""

    kind: Kind
    text: str
    choice: int = 0
    part: int = 0  # block, call or item, in the order of the answer
    name: str | None = None  # of a call's function; of a thought, the field that it came in
    id: str | None = None  # of a call


class Piece(Struct, frozen=True, array_like=True):
    """The text that was written since the piece before."""

    job_id: str
    doc_id: str
    run: str  # the try that writes it: pieces of two are never mixed
    number: int  # from 0: a door sees where one is missing
    deltas: Sequence[Delta]
    # how the answer begins, in the provider's words; with the first one
    head: Mapping[str, Any] | None = None


_decoder: Final = msgspec.json.Decoder(Piece)


def encode_piece(piece: Piece) -> bytes | None:
    """Return a piece as it travels; None for one that is too large."""
    raw = msgspec.json.encode(piece)
    return raw if len(raw) <= PIECE_BYTES else None


def decode_piece(raw: bytes) -> Piece | None:
    """Return the piece that came; None for what is none. Anyone who reaches Redis may write it."""
    if len(raw) > PIECE_BYTES:
        return None
    try:
        return _decoder.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def size_of(deltas: Sequence[Delta]) -> int:
    """Return about how many bytes deltas take while they wait."""
    return sum(DELTA_BYTES + len(delta.text) for delta in deltas)


def answer_text(answer: Any) -> str | None:
    """Return the text of an answer of any API; None for what is none."""
    if not isinstance(answer, Mapping):
        return None
    choice = _first(answer.get("choices"))
    for text in (
        _at(choice.get("message"), "content"),
        choice.get("text"),
        answer.get("output_text"),
        answer.get("text"),
    ):
        if isinstance(text, str):
            return text
    candidate = _first(answer.get("candidates"))  # Gemini's
    parts = [
        part
        for part in _mappings(_at(candidate.get("content"), "parts"))
        if not part.get("thought")
    ]
    parts += _mappings(_at(_at(answer.get("output"), "message"), "content"))  # Bedrock's
    # a message of Anthropic has its parts itself
    for holder in (answer, *_mappings(answer.get("output"))):
        parts += _mappings(holder.get("content"))
    texts = [part["text"] for part in parts if isinstance(part.get("text"), str)]
    return "".join(texts) if texts else None


def sent_text(request: Any) -> str | None:
    """Return the text that a request asked about.

    It is its last message of a user, its input or its prompt; None where that is not text.
    """
    if not isinstance(request, Mapping):
        return None
    for message in reversed(_mappings(request.get("messages"))):
        if message.get("role") == "user" and isinstance(message.get("content"), str):
            return str(message["content"])
    return next(
        (request[name] for name in ("input", "prompt") if isinstance(request.get(name), str)), None
    )


def _first(value: Any) -> Mapping[str, Any]:
    return next(iter(_mappings(value)), {})


def _mappings(value: Any) -> list[Mapping[str, Any]]:
    return [one for one in value if isinstance(one, Mapping)] if isinstance(value, list) else []


def _at(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, Mapping) else None
