"""The content of many small files: one by one from a disk, several at a time from a bucket, in the
order that was asked for."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

from penstock_producer.sources.listings.listing import Entry, Listing

AHEAD_FILES: Final = 64  # that are read before they are asked for
AHEAD_BYTES: Final = 32 * 1024 * 1024


def contents(listing: Listing, entries: Sequence[Entry], most: int) -> Iterator[bytes | None]:
    """For each entry its bytes; None for one that is not read: it has a fault, or more than
    ``most`` bytes.

    Raises SourceChanged, SourceUnavailable.
    """
    if listing.at_once == 1:
        return (_content(listing, entry, most) for entry in entries)
    return _read_ahead(listing, entries, most)


def _read_ahead(listing: Listing, entries: Sequence[Entry], most: int) -> Iterator[bytes | None]:
    waiting: deque[tuple[int, Future[bytes | None]]] = deque()
    held = 0
    pool = ThreadPoolExecutor(listing.at_once, thread_name_prefix="penstock-read")
    try:
        for entry in entries:
            size = min(entry.size, most)
            while waiting and (len(waiting) >= AHEAD_FILES or held + size > AHEAD_BYTES):
                done, content = waiting.popleft()
                yield content.result()
                held -= done
            waiting.append((size, pool.submit(_content, listing, entry, most)))
            held += size
        while waiting:
            yield waiting.popleft()[1].result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _content(listing: Listing, entry: Entry, most: int) -> bytes | None:
    if entry.fault is not None or entry.size > most:
        return None
    return listing.pinned(entry).read(0, entry.size) if entry.size else b""
