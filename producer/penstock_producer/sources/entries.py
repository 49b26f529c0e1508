"""In how many places the reading of a source can begin without reading what lies before."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock_producer.pins import FILES, MEMBERS
from penstock_producer.sources.blobs.unpacked import PACKED
from penstock_producer.sources.several import KIND

__all__ = ["entries"]


def entries(pin: Mapping[str, Any]) -> int | None:
    """Of a pinned source; None: anywhere.

    A compressed file is entered where a member (gzip) or frame (zstd) begins."""
    if pin.get("kind") == KIND:
        of_files = [entries(file) for file in pin[FILES]]
        known = [number for number in of_files if number is not None]
        return sum(known) if len(known) == len(of_files) else None
    return len(pin[MEMBERS]) if PACKED in pin else None
