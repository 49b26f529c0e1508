"""An object of a bucket as a pinned blob: known by its size and ETag, and read by ranges.

No connection is held open between two reads: a feeder waits for room in the queue there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from penstock_producer.errors import BadReference, SourceChanged

RANGE_BYTES: Final = 8 * 1024 * 1024  # of one request


class Version(NamedTuple):
    """What tells an object from what may be there later."""

    size: int
    etag: str


class RangedObject(ABC):
    """One object; ``pinned`` is what ``pin()`` returned at submit, None before that."""

    def __init__(self, kind: str, uri: str, pinned: Mapping[str, Any] | None) -> None:
        self._address = self.uri = uri
        self._kind = kind
        self._pin = None if pinned is None else dict(pinned)

    @abstractmethod
    def _version(self) -> Version:
        """Raises SourceUnavailable."""

    @abstractmethod
    def _range(self, offset: int, length: int, etag: str) -> bytes:
        """Bytes of the object with this ETag. Raises SourceChanged and SourceUnavailable."""

    def pin(self) -> dict[str, Any]:
        if self._pin is None:
            found = self._version()
            self._pin = {
                "kind": self._kind,
                "uri": self._address,
                "size": found.size,
                "etag": found.etag,
            }
        return dict(self._pin)

    def pinning(self) -> Iterator[bytes]:
        return iter(())

    def unchanged(self) -> bool:
        """Whether the object that is there now still has the pinned ETag and size."""
        return self._pin is not None and self._version() == (self._pin["size"], self._pin["etag"])

    def chunks(self, offset: int) -> Iterator[bytes]:
        size = int(self.pin()["size"])
        while offset < size:
            chunk = self.read(offset, min(RANGE_BYTES, size - offset))
            yield chunk
            offset += len(chunk)

    def read(self, offset: int, length: int) -> bytes:
        """Bytes of the object.

        Raises BadReference beyond its end, SourceChanged and SourceUnavailable."""
        pin = self.pin()
        if offset + length > int(pin["size"]):
            raise BadReference(
                f"{self.uri} has {pin['size']} bytes and no document at {offset}:{length}"
            )
        if length == 0:  # which no range can ask for
            return b""
        data = self._range(offset, length, str(pin["etag"]))
        if len(data) != length:
            raise SourceChanged(
                f"{self.uri} gave {len(data)} of {length} bytes at {offset}; restore the pinned "
                "object"
            )
        return data


def another_object(uri: str) -> SourceChanged:
    """For an object whose ETag is not the pinned one."""
    return SourceChanged(
        f"{uri} is not the object that was submitted; restore it, or submit it as a new job"
    )
