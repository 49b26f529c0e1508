"""Some files of a folder, prefix or pattern as a listing of its own: those that a watched one has
for its next job."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self

from penstock_producer.sources.blobs.blob import Blob
from penstock_producer.sources.listings.listing import Entry, Listing, order, quoted, unquoted


class ListedFiles:
    """``entries`` are in the order of their names, and as they were when they were listed."""

    def __init__(self, listing: Listing, entries: Sequence[Entry]) -> None:
        self._listing, self._entries = listing, entries
        self.uri, self.at_once = listing.uri, listing.at_once

    @classmethod
    def of_pins(cls, listing: Listing, pins: Sequence[Mapping[str, Any]]) -> Self:
        """Raises BadReference for a name that the listing does not give."""
        entries = [
            listing.named(unquoted(one["name"]), int(one["size"]), str(one["etag"])) for one in pins
        ]
        return cls(listing, entries)

    def pins(self) -> list[dict[str, Any]]:
        """What the job keeps of each."""
        return [
            {
                "uri": self.fresh(one).uri,
                "name": quoted(one.name),
                "size": one.size,
                "etag": one.tag,
            }
            for one in self._entries
        ]

    def entries(self, after: str) -> Iterator[Entry]:
        return (one for one in self._entries if order(one.name) > order(after))

    def named(self, name: str, size: int, tag: str) -> Entry:
        return self._listing.named(name, size, tag)

    def pinned(self, entry: Entry) -> Blob:
        return self._listing.pinned(entry)

    def fresh(self, entry: Entry) -> Blob:
        return self._listing.fresh(entry)
