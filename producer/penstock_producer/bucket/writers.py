"""The writer of an object, by the service that keeps it."""

from __future__ import annotations

from collections.abc import Mapping

from penstock_producer.bucket.client import Bucket
from penstock_producer.bucket.place import Condition, Place, PlaceWriter
from penstock_producer.bucket.store_writer import StoreWriter
from penstock_producer.bucket.stores import StoreBucket
from penstock_producer.bucket.writer import ObjectWriter

__all__ = ["writer_of"]


def writer_of(
    place: Place,
    name: str,
    *,
    metadata: Mapping[str, str] | None = None,
    condition: Condition | None = None,
) -> PlaceWriter:
    """``condition`` has to hold when the object appears."""
    if isinstance(place, StoreBucket):
        return StoreWriter(place, name, metadata=metadata, condition=condition)
    if isinstance(place, Bucket):
        return ObjectWriter(place, name, metadata=metadata, condition=condition)
    raise TypeError(f"{type(place).__name__} has no writer")
