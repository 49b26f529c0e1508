"""A listing of files yields the same entries, wherever they lie.

Names come in the order of their UTF-8 bytes, as object stores give them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol, Self
from urllib.parse import quote, unquote_to_bytes

from penstock_producer.errors import SourceError, seen
from penstock_producer.sources.blobs.blob import Blob
from penstock_producer.sources.blobs.s3 import Listed, S3Object, S3Prefix
from penstock_producer.sources.blobs.store import StoreObject, StorePrefix

# a file's name is bytes: those that are not UTF-8 are lone surrogates here
_RAW: Final = "surrogateescape"


class Fault(NamedTuple):
    """The reason why a file is not read."""

    code: str
    message: str
    fix: str


class Entry(NamedTuple):
    """One file or object."""

    name: str  # below the listing, with slashes
    size: int
    tag: str  # what changes with its content: the ETag, or the time of its last change
    changed_ns: int  # Unix time
    fault: Fault | None = None

    @property
    def identity(self) -> bytes:
        """Return what changes when the file does."""
        return repr((self.name, self.size, self.tag, self.fault and self.fault.code)).encode()


class Listing(Protocol):
    uri: str  # what names are below; ends in a slash
    at_once: int  # how many files are best read at a time

    def entries(self, after: str) -> Iterator[Entry]:
        """Yield files whose names come later than ``after``.

        Raises SourceError, SourceUnavailable.
        """
        ...

    def named(self, name: str, size: int, tag: str) -> Entry:
        """Return what a position stands for.

        Raises BadReference for a name that no listing gives.
        """
        ...

    def pinned(self, entry: Entry) -> Blob:
        """Return the file, of which nothing but the content that was listed is read."""
        ...

    def fresh(self, entry: Entry) -> Blob:
        """Return the file, for a source that pins it by its content where it can."""
        ...


def order(name: str) -> bytes:
    """Return what names are sorted by."""
    return name.encode(errors=_RAW)


def is_data(name: str) -> bool:
    """Return whether a file is data.

    Tools leave others beside it: `.DS_Store`, `_SUCCESS`, `_temporary/0/part`.
    """
    return not any(part.startswith((".", "_")) for part in name.split("/"))


def quoted(name: str) -> str:
    """Return a name as printable text, from which ``unquoted`` makes the name again."""
    if name.isprintable() and "%" not in name:
        return name
    return "".join(
        one if one.isprintable() and one != "%" else quote(order(one), safe="") for one in name
    )


def unquoted(text: str) -> str:
    return unquote_to_bytes(text).decode(errors=_RAW)


def shown(uri: str, name: str) -> str:
    """Return a file as messages name it.

    A name that would break a line or a terminal is written as Python writes it.
    """
    return f"{uri}{name}" if name.isprintable() else f"{uri}{seen(name)}"


class ListedFiles:
    """``entries`` are in the order of their names, and as they were when they were listed."""

    def __init__(self, listing: Listing, entries: Sequence[Entry]) -> None:
        self._listing, self._entries = listing, entries
        self.uri, self.at_once = listing.uri, listing.at_once

    @classmethod
    def of_pins(cls, listing: Listing, pins: Sequence[Mapping[str, Any]]) -> Self:
        """Return the files of some pins. Raises BadReference for a name that no listing gives."""
        entries = [
            listing.named(unquoted(one["name"]), int(one["size"]), str(one["etag"])) for one in pins
        ]
        return cls(listing, entries)

    def pins(self) -> list[dict[str, Any]]:
        """Return what the job keeps of each file."""
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
        """Return one object of S3 as it is now; None where there is none.

        Raises SourceUnavailable.
        """
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
