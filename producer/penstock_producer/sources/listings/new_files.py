"""Files of rows below a folder, a prefix or a pattern: all of them, or those that no job has taken.

A folder that `datasets.save_to_disk` of Hugging Face wrote has an order of its own, which stands in
its `state.json`.

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

from penstock_ledger.texts import SetOption, Text
from penstock_producer.errors import SourceError, seen
from penstock_producer.pins import FILES
from penstock_producer.sources.blobs.blob import Blob
from penstock_producer.sources.listings.chosen import Chosen, LocalFolder
from penstock_producer.sources.listings.listing import BucketListing, Entry, Listing, order, shown

__all__ = ["KEY_BYTES", "Taken", "TakenBetween", "gone_files", "new_files", "taken_by"]


_STATE: Final = "state.json"
_INFO: Final = "dataset_info.json"
_SPLITS: Final = "dataset_dict.json"
_MAX_STATE_BYTES: Final = 16 * 1024**2


def _shards(listing: Listing, entries: Sequence[Entry]) -> list[Entry] | None:
    """Return the files of rows in the dataset's own order; None for no saved dataset.

    Raises SourceError for one of several splits, and one whose files are not there.
    """
    by_name = {entry.name: entry for entry in entries}
    if _SPLITS in by_name:
        raise SourceError(
            "several_splits", _advice(listing, _json(listing, by_name[_SPLITS]).get("splits"))
        )
    if _STATE not in by_name or _INFO not in by_name:
        return None
    state = _json(listing, by_name[_STATE])
    if state.get("_indices_data_files") or state.get("_indices_files"):
        raise SourceError(
            "unsupported_format",
            f"{listing.uri} holds a selection of rows by numbers; write it with "
            "dataset.flatten_indices().save_to_disk(…)",
        )
    given = state.get("_data_files")
    names = (
        [str(one.get("filename") if isinstance(one, dict) else one) for one in given]
        if isinstance(given, list)
        else []
    )
    missing = [name for name in names if name not in by_name]
    if not names or missing:
        raise SourceError(
            "invalid_dataset",
            f"{listing.uri}{_STATE} names {seen(missing[0]) if missing else 'no files'}, and the "
            "folder has no such file; save the dataset again",
        )
    return [by_name[name] for name in names]


def _json(listing: Listing, entry: Entry) -> dict[str, Any]:
    uri = f"{listing.uri}{entry.name}"
    if entry.size > _MAX_STATE_BYTES:
        raise SourceError(
            "invalid_dataset",
            f"{uri} has {entry.size} bytes, at most {_MAX_STATE_BYTES} are read; save the dataset "
            "again",
        )
    try:
        value = orjson.loads(listing.pinned(entry).read(0, entry.size))
    except orjson.JSONDecodeError as error:
        raise SourceError(
            "invalid_dataset", f"{uri} is not JSON ({error}); save the dataset again"
        ) from None
    if not isinstance(value, dict):
        raise SourceError("invalid_dataset", f"{uri} is not a JSON object; save the dataset again")
    return value


def _advice(listing: Listing, splits: Any) -> str:
    names = [name for name in splits if isinstance(name, str)] if isinstance(splits, list) else []
    shown = " or ".join(f"{listing.uri}{name}/" for name in names[:5]) or "the folder of one split"
    return (
        f"{listing.uri} holds several splits of a dataset; submit each as a job of its own: {shown}"
    )


MAX_FILES: Final = 1_000  # of rows: each has its pin in the job's row


def row_files(chosen: Chosen) -> list[Blob]:
    """Return the files of rows, each as it is now.

    Raises SourceError for what is none, and for too many.
    """
    entries: list[Entry] = []
    for entry in chosen.entries():
        entries.append(entry)
        if len(entries) > MAX_FILES:
            raise SourceError(
                "too_many_files",
                f"{chosen.uri} stands for more than {MAX_FILES} files of rows, the most that a job "
                "has; join some of them",
            )
    if not entries:
        names = ", ".join(chosen.skipped.names)
        raise SourceError(
            "unsupported_format",
            Text(
                f"{chosen.uri} holds no file whose name says that it has rows ({names}); name the "
                f"files to read by a pattern such as {chosen.uri}*.jsonl, or make each file one "
                "document with ",
                SetOption("format", "text"),
            ),
        )
    if not chosen.pattern:
        entries = _shards(chosen.listing, entries) or entries
    for entry in entries:
        check(chosen, entry)
    return [chosen.listing.fresh(entry) for entry in entries]


def check(chosen: Chosen, entry: Entry) -> None:
    """Raise SourceError for an entry that is no file of rows."""
    uri = shown(chosen.listing.uri, entry.name)
    if entry.fault is not None:
        raise SourceError(
            entry.fault.code, Text(f"{uri}: {entry.fault.message} Fix: ", entry.fault.fix)
        )


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
