"""Embeddings as the ledger keeps them: a head that says what they are, then the numbers.

A result's body is JSON or this. The first byte tells: no JSON begins with NUL. So rows of earlier
releases read as ever, and no column is needed. JSON is made of it for those who read JSON, as the
request wanted it.
"""

from __future__ import annotations

import struct
from base64 import b64encode
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final, Literal, NamedTuple

import orjson

__all__ = ["MAGIC", "DamagedVectors", "Form", "VectorType", "Vectors", "as_json", "pack", "unpack"]

VectorType = Literal["float32", "float16", "int8", "binary", "ubinary"]
Form = Literal["float", "base64"]

MAGIC: Final = b"\0penstock vectors 1\n"
_HEAD_LENGTH: Final = struct.Struct("<I")
_HEAD_AT: Final = len(MAGIC) + _HEAD_LENGTH.size
# Bits of one dimension, its letter in `struct`, and as many digits as give back the same number.
_BITS: Final[dict[VectorType, int]] = {
    "float32": 32,
    "float16": 16,
    "int8": 8,
    "binary": 1,
    "ubinary": 1,
}
_LETTERS: Final[dict[VectorType, str]] = {
    "float32": "f",
    "float16": "e",
    "int8": "b",
    "binary": "b",
    "ubinary": "B",
}
_DIGITS: Final[dict[str, bytes]] = {"float32": b"%.9g", "float16": b"%.5g"}


class DamagedVectors(ValueError):
    """The bytes are not what ``pack`` made."""


class Vectors(NamedTuple):
    """The answer to one request: a row of numbers for each of its inputs."""

    data: bytes  # little-endian, row after row; eight dimensions to a byte where the type is binary
    dtype: VectorType
    dimensions: int  # of each row
    form: Form  # how JSON is to have them
    model: str
    prompt_tokens: int

    @property
    def row_bytes(self) -> int:
        return self.dimensions * _BITS[self.dtype] // 8

    def rows(self) -> list[bytes]:
        size = self.row_bytes
        return [self.data[at : at + size] for at in range(0, len(self.data), size)]


def pack(vectors: Vectors) -> bytes:
    """Return the body of a result."""
    data, *rest = vectors
    head = orjson.dumps(dict(zip(Vectors._fields[1:], rest, strict=True)))
    return b"".join((MAGIC, _HEAD_LENGTH.pack(len(head)), head, data))


def unpack(body: bytes) -> Vectors:
    """Read vectors. Raises DamagedVectors."""
    try:
        (length,) = _HEAD_LENGTH.unpack_from(body, len(MAGIC))
        found = Vectors(
            body[_HEAD_AT + length :], **orjson.loads(body[_HEAD_AT : _HEAD_AT + length])
        )
        whole = body.startswith(MAGIC) and len(found.data) % found.row_bytes == 0
    except (ValueError, TypeError, LookupError, ArithmeticError, struct.error) as error:
        raise DamagedVectors(
            f"a result's vectors cannot be read: {type(error).__name__}: {error}"
        ) from error
    if not whole:
        raise DamagedVectors("a result's vectors cannot be read: the end of them is missing")
    return found


def as_json(body: bytes) -> bytes:
    """Return a result's body as JSON: OpenAI's embeddings object, or what it was already."""
    return _answer(unpack(body)) if body.startswith(MAGIC) else body


def _answer(vectors: Vectors) -> bytes:
    """Write the answer. Numbers other than float32 are named as the request named them."""
    write = _text if vectors.form == "base64" else _numbers
    data = [
        {"object": "embedding", "index": at, "embedding": orjson.Fragment(write(row, vectors))}
        for at, row in enumerate(vectors.rows())
    ]
    whole = {
        "object": "list",
        "data": data,
        "model": vectors.model,
        "usage": {"prompt_tokens": vectors.prompt_tokens, "total_tokens": vectors.prompt_tokens},
    }
    if vectors.dtype != "float32":
        whole["output_dtype"] = vectors.dtype
    return orjson.dumps(whole)


def _text(row: bytes, _: Vectors) -> bytes:
    return b'"' + b64encode(row) + b'"'


def _numbers(row: bytes, vectors: Vectors) -> bytes:
    """Return floats as JSON numbers, by numpy where it is installed.

    It has the fewest digits that give back the number, seven times as fast."""
    numpy, dtype = _numpy(), vectors.dtype
    if dtype in _DIGITS and numpy is not None:
        values = numpy.frombuffer(row, f"<f{_BITS[dtype] // 8}").astype(dtype, copy=False)
        return orjson.dumps(values, option=orjson.OPT_SERIALIZE_NUMPY)
    letter = _LETTERS[dtype]
    numbers = struct.unpack(f"<{len(row) // struct.calcsize(letter)}{letter}", row)
    if dtype in _DIGITS:
        return b"[" + b",".join([_DIGITS[dtype]] * len(numbers)) % numbers + b"]"
    return orjson.dumps(numbers)


@cache
def _numpy() -> Any:
    """Return numpy; None where it is not installed: reading results does not need it."""
    return import_module("numpy") if find_spec("numpy") is not None else None
