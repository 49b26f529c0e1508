"""Vectors as other numbers: what sentence-transformers and the providers mean by each type."""

from __future__ import annotations

import numpy
import pytest

from penstock_workers.lanes.embed.bodies import NotRepresentable, as_bytes

GENERATOR = numpy.random.default_rng(7)
VECTORS = GENERATOR.normal(size=(200, 64)).astype(numpy.float32)
UNIT = VECTORS / numpy.linalg.norm(VECTORS, axis=1, keepdims=True)


def test_float32_is_as_it_is() -> None:
    """Little-endian, bit for bit."""
    assert as_bytes(VECTORS[0], "float32", 64) == VECTORS[0].astype("<f4").tobytes()


def test_fewer_dimensions_have_length_one() -> None:
    """The first ones, scaled; all of them are left as they are, whatever their length."""
    short = numpy.frombuffer(as_bytes(VECTORS[0], "float32", 16), "<f4")
    assert numpy.linalg.norm(short) == pytest.approx(1, abs=1e-6)
    numpy.testing.assert_allclose(short / short[0], VECTORS[0][:16] / VECTORS[0][0], rtol=1e-5)
    assert numpy.frombuffer(as_bytes(numpy.zeros(4), "float32", 2), "<f4").tolist() == [0, 0]


def test_int8_orders_neighbours_by_dot_product_as_cosines_do() -> None:
    """Of vectors of any length, 127 is 1: the dot product is the cosine, to a hundredth."""
    numbers = numpy.stack(
        [numpy.frombuffer(as_bytes(vector, "int8", 64), numpy.int8) for vector in VECTORS]
    )
    numpy.testing.assert_array_equal(numbers, numpy.rint(UNIT * 127))
    dots = numbers.astype(int) @ numbers.astype(int).T / 127**2
    numpy.testing.assert_allclose(dots, UNIT @ UNIT.T, atol=0.02)
    assert numpy.frombuffer(as_bytes([1.0, 0.0], "int8", 2), numpy.int8).tolist() == [127, 0]


def test_bits_are_signs_packed_by_eight() -> None:
    """As `quantize_embeddings` of sentence-transformers packs them: `ubinary` unsigned, `binary`
    128 less."""
    unsigned = numpy.frombuffer(as_bytes(VECTORS[0], "ubinary", 64), numpy.uint8)
    numpy.testing.assert_array_equal(numpy.unpackbits(unsigned), VECTORS[0] > 0)
    signed = numpy.frombuffer(as_bytes(VECTORS[0], "binary", 64), numpy.int8)
    numpy.testing.assert_array_equal(signed, unsigned.astype(int) - 128)


def test_what_float16_cannot_hold_is_refused() -> None:
    """An infinite number in a vector would spoil every distance to it."""
    assert numpy.frombuffer(as_bytes([0.5, -2.0], "float16", 2), "<f2").tolist() == [0.5, -2.0]
    with pytest.raises(NotRepresentable, match="float16"):
        as_bytes([1.0, 70_000.0], "float16", 2)
