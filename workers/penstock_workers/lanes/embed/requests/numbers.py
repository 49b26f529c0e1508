"""Vectors as other numbers: fewer dimensions, and half, a quarter or a thirty-second of the bytes.
docs/embed.md has the prices.

int8 is ``round(127 * x)`` of the vector at length 1. Nothing is calibrated: ranges taken from the
first texts would differ between workers and between a job and the queries put to it, and these have
nothing to be calibrated with. So each vector is the same wherever it was made, and dot products
order neighbours as cosines do. On real texts this finds more of the true neighbours than ranges of
1,000 vectors do (benchmarks/RESULTS.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from penstock_ledger.vectors import VectorType
from penstock_workers.lanes.embed.encoding.buckets import Vector

INT8_MOST: Final = 127
PER_BYTE: Final[Mapping[VectorType, int]] = {"binary": 8, "ubinary": 8}  # dimensions


class NotRepresentable(Exception):
    """A number of the vector is too large for the type that the request asks for."""


def as_bytes(vector: Vector, dtype: VectorType, dimensions: int) -> bytes:
    """Little-endian.

    A vector that is cut has length 1 afterwards, as OpenAI's have. Raises NotRepresentable."""
    import numpy  # not before it is needed: with a server upstream it seldom is

    numbers = numpy.asarray(vector, numpy.float32)
    if dimensions < len(numbers):
        numbers = _of_length_1(numbers[:dimensions])
    return bytes(_as(dtype, numbers).data)


def _as(dtype: VectorType, numbers: Any) -> Any:
    import numpy

    match dtype:
        case "float32":
            return numpy.ascontiguousarray(numbers, "<f4")
        case "float16":
            return _halves(numbers)
        case "int8":
            return numpy.rint(_of_length_1(numbers) * INT8_MOST).astype(numpy.int8)
        case "ubinary":
            return numpy.packbits(numbers > 0)
        case (
            "binary"
        ):  # the same bits, less 128, as sentence-transformers, Voyage and Cohere have it
            return numpy.packbits(numbers > 0) ^ 0x80


def _of_length_1(numbers: Any) -> Any:
    import numpy

    return numbers / (float(numpy.linalg.norm(numbers)) or 1.0)


def _halves(numbers: Any) -> Any:
    import numpy

    with numpy.errstate(over="ignore"):
        halves = numbers.astype("<f2")
    if not numpy.isfinite(halves).all():
        raise NotRepresentable(
            "a number of the vector is above 65,504, the most of float16; ask for float32"
        )
    return halves
