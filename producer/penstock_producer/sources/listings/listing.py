"""What a listing yields, wherever the files lie: names in the order of their UTF-8 bytes, as object
stores give them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple, Protocol
from urllib.parse import quote, unquote_to_bytes

from penstock_producer.errors import seen
from penstock_producer.sources.blobs.blob import Blob

_RAW: Final = (
    "surrogateescape"  # a file's name is bytes: those that are not UTF-8 are lone surrogates here
)


class Fault(NamedTuple):
    """Why a file is not read."""

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
        """What changes when the file does."""
        return repr((self.name, self.size, self.tag, self.fault and self.fault.code)).encode()


class Listing(Protocol):
    uri: str  # what names are below; ends in a slash
    at_once: int  # how many files are best read at a time

    def entries(self, after: str) -> Iterator[Entry]:
        """Those whose names come later than ``after``. Raises SourceError, SourceUnavailable."""
        ...

    def named(self, name: str, size: int, tag: str) -> Entry:
        """What a position stands for. Raises BadReference for a name that no listing gives."""
        ...

    def pinned(self, entry: Entry) -> Blob:
        """The file, of which nothing but the content that was listed is read."""
        ...

    def fresh(self, entry: Entry) -> Blob:
        """The file, for a source that pins it by its content where it can."""
        ...


def order(name: str) -> bytes:
    """What names are sorted by."""
    return name.encode(errors=_RAW)


def is_data(name: str) -> bool:
    """Not what tools leave beside data: `.DS_Store`, `_SUCCESS`, `_temporary/0/part`."""
    return not any(part.startswith((".", "_")) for part in name.split("/"))


def quoted(name: str) -> str:
    """A name as printable text, from which ``unquoted`` makes the name again."""
    if name.isprintable() and "%" not in name:
        return name
    return "".join(
        one if one.isprintable() and one != "%" else quote(order(one), safe="") for one in name
    )


def unquoted(text: str) -> str:
    return unquote_to_bytes(text).decode(errors=_RAW)


def shown(uri: str, name: str) -> str:
    """A file in messages: a name that would break a line or a terminal as Python writes it."""
    return f"{uri}{name}" if name.isprintable() else f"{uri}{seen(name)}"
