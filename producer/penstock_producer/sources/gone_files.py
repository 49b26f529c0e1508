"""Files that a schedule has taken and that are there no more: what may be forgotten, so that the
list of them has a bound.

A file that lies there is never forgotten, so it is never taken twice. One that was moved away is,
once there are as many as are remembered; should it come back unchanged after that, it is a new
file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from penstock_producer.errors import SourceError
from penstock_producer.sources.listings.chosen import Chosen
from penstock_producer.sources.new_files import KEY_BYTES, listed_keys

__all__ = ["TakenBetween", "gone_files"]

_PARTS: Final = 256  # by the first byte of a key

TakenBetween = Callable[[bytes, bytes | None], Sequence[bytes]]
"""The keys of taken files from one up to another."""


def gone_files(chosen: Chosen, taken_between: TakenBetween) -> Iterator[Sequence[bytes]]:
    """Their keys, in parts. 16 bytes of memory for each file that is there.

    Raises SourceError for a place that holds no file: it may be a mount that is away, and all would
    be taken again.
    """
    there = [bytearray() for _ in range(_PARTS)]
    for key in listed_keys(chosen):
        there[key[0]] += key
    if not any(there):
        raise SourceError(
            "empty_source",
            f"{chosen.uri} holds no file, and those that were taken are not forgotten over that; "
            "check that it is the place that is meant, or remove the schedule and add it again",
        )
    for first, packed in enumerate(there):
        present = {
            bytes(packed[start : start + KEY_BYTES]) for start in range(0, len(packed), KEY_BYTES)
        }
        before = bytes([first + 1]) if first + 1 < _PARTS else None
        gone = [key for key in taken_between(bytes([first]), before) if key not in present]
        if gone:
            yield gone
