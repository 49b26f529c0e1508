"""What is passed on of an answer while it is written, and how it travels from a worker to a door.

A delta is the next bit of one part of an answer, in words that all APIs share, so that a door
writes it in those of its caller. It is for display alone: what the answer is, says the stored one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct

__all__ = ["PIECE_BYTES", "Delta", "Piece", "decode_piece", "encode_piece", "size_of"]

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
    """What was written since the piece before."""

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
