"""Those files of a watched folder, prefix or pattern that no earlier job has taken.

A file is known by its place, size and version (the ETag; of a local file the time of its last
change), so one that changes is new again. The key is made of a listing to look for the file, and of
the pin of a job, which says what was read, to take it.

The list of files that were taken has a bound. A file that lies there is never forgotten, so it is
never taken twice. One that was moved away is, once there are as many as are remembered; should it
come back unchanged after that, it is a new file.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple

import orjson

from penstock_producer.errors import SourceError
from penstock_producer.pins import FILES
from penstock_producer.sources.blobs.blob import Blob
from penstock_producer.sources.listings.chosen import Chosen, LocalFolder
from penstock_producer.sources.listings.listing import BucketListing, Entry, order
from penstock_producer.sources.listings.row_files import MAX_FILES, check

__all__ = [
    "KEY_BYTES",
    "SETTLED_S",
    "FoundFiles",
    "Taken",
    "TakenBetween",
    "gone_files",
    "listed_keys",
    "new_files",
    "taken_by",
]

SETTLED_S: Final = 10.0  # a local file that was changed later than this ago may still be written
LISTED_MAX: Final = 1_000_000  # files that are looked at for one job
_ASKED_AT_ONCE: Final = 500
KEY_BYTES: Final = 16

Taken = Callable[[Sequence[bytes]], set[bytes]]
"""Those of some files that jobs have, each by its key."""


class FoundFiles(NamedTuple):
    """New files, as entries and as blobs, and how many may still be written.

    ``entries`` are at most MAX_FILES, and ``blobs`` the same; ``unsettled`` counts those that may
    still be written.
    """

    entries: list[Entry]
    blobs: list[Blob]
    unsettled: int


def new_files(
    chosen: Chosen,
    taken: Taken,
    clock: Callable[[], float] = time.time,
    *,
    among: Sequence[str] | None = None,
    rows: bool = True,
) -> FoundFiles:
    """Return the new files in the order of their names.

    With ``among`` only those are looked at that are named there, and nothing is listed. Without
    ``rows`` each is a document, whatever its name. Raises SourceError for a file that is no file of
    rows, and SourceUnavailable.
    """
    entries: list[Entry] = []
    blobs: list[Blob] = []
    unsettled = 0
    is_local = isinstance(chosen.listing, LocalFolder)  # objects of a store appear whole
    now = clock()
    listed = _listed(chosen) if among is None else _looked_up(chosen, among)
    while some := list(islice(listed, _ASKED_AT_ONCE)):
        keyed = [(_key(blob.uri, entry.size, entry.tag), entry, blob) for entry, blob in some]
        known = taken([key for key, _, _ in keyed])
        for key, entry, blob in keyed:
            if key in known:
                continue
            if is_local and _may_be_written(entry, now):
                unsettled += 1
                continue
            if rows:
                check(chosen, entry)
            entries.append(entry)
            blobs.append(blob)
            if len(blobs) == MAX_FILES:
                return FoundFiles(entries, blobs, unsettled)
    return FoundFiles(entries, blobs, unsettled)


def taken_by(pin: Mapping[str, Any]) -> list[bytes]:
    """Return the files that a job has, by its pin."""
    return [
        _key(one["uri"], one["size"], one.get("etag") or str(one["mtime_ns"])) for one in pin[FILES]
    ]


def listed_keys(chosen: Chosen) -> Iterator[bytes]:
    """Yield the keys of all files that are there. Raises SourceError and SourceUnavailable."""
    return (_key(blob.uri, entry.size, entry.tag) for entry, blob in _listed(chosen))


def _listed(chosen: Chosen) -> Iterator[tuple[Entry, Blob]]:
    for number, entry in enumerate(chosen.entries()):
        if number == LISTED_MAX:
            raise SourceError(
                "too_many_files",
                f"{chosen.uri} holds more than {LISTED_MAX:,} files; move those away that are done",
            )
        yield entry, chosen.listing.fresh(entry)


def _looked_up(chosen: Chosen, names: Sequence[str]) -> Iterator[tuple[Entry, Blob]]:
    """Yield the named files that are there."""
    listing = chosen.listing
    if not isinstance(listing, BucketListing):
        raise SourceError(
            "unsupported_source", f"{chosen.uri}: single objects are looked up in s3:// only"
        )
    for name in sorted(names, key=order):
        entry = listing.look(name)
        if entry is not None:
            yield entry, listing.fresh(entry)


def _may_be_written(entry: Entry, now: float) -> bool:
    """Return whether a file was changed within ``SETTLED_S``.

    A time up to half a minute ahead is that of a clock that runs fast, and counts as now.
    """
    return -3 * SETTLED_S < now - entry.changed_ns / 1e9 < SETTLED_S


def _key(uri: str, size: int, version: str) -> bytes:
    return hashlib.sha256(orjson.dumps([uri, int(size), version])).digest()[:KEY_BYTES]


_PARTS: Final = 256  # by the first byte of a key

TakenBetween = Callable[[bytes, bytes | None], Sequence[bytes]]
"""The keys of taken files from one up to another."""


def gone_files(chosen: Chosen, taken_between: TakenBetween) -> Iterator[Sequence[bytes]]:
    """Yield the keys of files that are gone, in parts.

    It takes 16 bytes of memory for each file that is there.

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
