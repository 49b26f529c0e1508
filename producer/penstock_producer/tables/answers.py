"""What an answer says: its text, or its vectors, by the endpoint that was asked."""

from __future__ import annotations

import base64
import binascii
import json
import struct
from typing import Any, Final

import orjson

from penstock_ledger.lone_surrogates import parse_json
from penstock_ledger.vectors import MAGIC, DamagedVectors, Vectors, unpack
from penstock_producer.texts_in_bodies import answer_text

__all__ = ["FLOAT32_BYTES", "parsed", "text_of", "vectors_of"]

FLOAT32_BYTES: Final = 4
_TEXT: Final = frozenset({"/v1/chat/completions", "/v1/completions", "/v1/responses"})
_LETTERS: Final = {"float16": "e", "int8": "b", "binary": "b", "ubinary": "B"}


def parsed(body: bytes | str | None) -> Any:
    """JSON as a value, None where it is not JSON: a table has a row for every document, whatever
    its answer is."""
    if not body:
        return None
    try:
        return parse_json(body)
    except orjson.JSONDecodeError:
        pass
    try:
        return json.loads(body)  # which takes NaN
    except (ValueError, RecursionError):
        return None


def text_of(endpoint: str, body: bytes) -> str | None:
    """The answer's text where it has one, and all of the body for endpoints whose answers are
    something else."""
    if body.startswith(MAGIC):
        return None
    if endpoint in _TEXT:
        return answer_text(parsed(body))
    return None if endpoint == "/v1/embeddings" else body.decode("utf-8", "replace")


def vectors_of(body: bytes) -> list[bytes]:
    """The vectors of an answer in the order of its inputs, float32 and little-endian; none where it
    has no usable ones."""
    try:
        if body.startswith(MAGIC):
            return _of_stored(unpack(body))
        return _of_json(parsed(body))
    except (
        DamagedVectors,
        struct.error,
        OverflowError,
        ValueError,
        TypeError,
        LookupError,
        binascii.Error,
    ):
        return []


def _of_stored(vectors: Vectors) -> list[bytes]:
    rows = vectors.rows()
    letter = _LETTERS.get(vectors.dtype)
    if letter is None:
        return rows
    number = f"{vectors.row_bytes // struct.calcsize(letter)}"
    return [struct.pack(f"<{number}f", *struct.unpack(f"<{number}{letter}", row)) for row in rows]


def _of_json(answer: Any) -> list[bytes]:
    listed = sorted(answer["data"], key=lambda one: one["index"])
    return [_numbers(one["embedding"]) for one in listed]


def _numbers(given: Any) -> bytes:
    """A list of numbers, or OpenAI's base64 of float32."""
    if isinstance(given, str):
        raw = base64.b64decode(given, validate=True)
        if len(raw) % FLOAT32_BYTES:
            raise ValueError("not whole numbers of float32")
        return raw
    return struct.pack(f"<{len(given)}f", *given)
