"""The objects below a prefix of S3, Google Cloud Storage or Azure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from penstock_producer.errors import SourceError
from penstock_producer.sources.blobs.s3 import Listed, S3Object, S3Prefix
from penstock_producer.sources.blobs.store import StoreObject, StorePrefix
from penstock_producer.sources.listings.listing import Entry, is_data

AT_ONCE: Final = 16  # small objects cost a round trip each


class BucketListing:
    at_once = AT_ONCE

    def __init__(self, prefix: S3Prefix | StorePrefix) -> None:
        self._prefix = prefix
        self.uri = f"{self._prefix.uri.rstrip('/')}/"

    def entries(self, after: str) -> Iterator[Entry]:
        for listed in self._prefix.listed(after):
            if is_data(listed.path):
                yield Entry(listed.path, listed.size, listed.etag, int(listed.changed * 1e9))

    def look(self, name: str) -> Entry | None:
        """One object of S3 as it is now; None where there is none. Raises SourceUnavailable."""
        if not isinstance(self._prefix, S3Prefix):
            raise SourceError(
                "unsupported_source", f"{self.uri}: single objects are looked up in s3:// only"
            )
        found = self._prefix.look(name)
        return (
            None
            if found is None
            else Entry(found.path, found.size, found.etag, int(found.changed * 1e9))
        )

    def named(self, name: str, size: int, tag: str) -> Entry:
        return Entry(name, size, tag, 0)

    def pinned(self, entry: Entry) -> S3Object | StoreObject:
        return self._prefix.object(Listed(entry.name, entry.size, entry.tag, 0))

    def fresh(self, entry: Entry) -> S3Object | StoreObject:
        return self.pinned(entry)
