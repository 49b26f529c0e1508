"""Where each request of a batch lies in its input file and what it gets, in the order in which it
is answered."""

from __future__ import annotations

import os
import random
import struct
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from penstock_simulate.batches.fates import Fate

_ENTRY = struct.Struct("<QQB")
_AT_ONCE = 4096  # entries read together


class Entry(NamedTuple):
    """One request."""

    offset: int  # in the input file
    length: int
    fate: Fate


class Index:
    """On disk but for a byte per request, from which counts are made while the batch runs."""

    def __init__(self, path: Path, fates: bytes) -> None:
        self._path, self._fates = path, fates

    def __len__(self) -> int:
        return len(self._fates)

    def good(self, done: int) -> int:
        """How many of the first ``done`` requests get an answer."""
        return self._fates.count(Fate.GOOD, 0, done) + self._fates.count(Fate.DECLINED, 0, done)

    def read(self, source: Path) -> Iterator[tuple[Fate, bytes]]:
        """Each request's fate and its line of the input, in the order of the answers."""
        with self._path.open("rb") as index, source.open("rb") as lines:
            while entries := index.read(_AT_ONCE * _ENTRY.size):
                for offset, length, fate in _ENTRY.iter_unpack(entries):
                    yield Fate(fate), os.pread(lines.fileno(), length, offset)

    def remove(self) -> None:
        self._path.unlink(missing_ok=True)


class IndexMaker:
    """Collects the requests as they are read: some 20 bytes for each."""

    def __init__(self) -> None:
        self._offsets, self._lengths, self._fates = array("Q"), array("Q"), bytearray()

    def add(self, offset: int, length: int, fate: Fate) -> None:
        self._offsets.append(offset)
        self._lengths.append(length)
        self._fates.append(fate)

    def write(self, path: Path, shuffled_by: str | None) -> Index:
        """Put it on disk in an order that follows from ``shuffled_by``, or as it was given where
        that is None."""
        order = list(range(len(self._fates)))
        if shuffled_by is not None:
            random.Random(shuffled_by).shuffle(order)
        with path.open("wb") as file:
            for at in order:
                file.write(_ENTRY.pack(self._offsets[at], self._lengths[at], self._fates[at]))
        return Index(path, bytes(self._fates[at] for at in order))
