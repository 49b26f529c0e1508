"""What a file-like source reads from: bytes that stay the same, by offset."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, Protocol

from penstock_producer.errors import SourceError

# One read. Large enough that the cost per read does not count, small enough to hold a few in
# memory.
CHUNK_BYTES = 1024 * 1024


class Blob(Protocol):
    uri: str

    def pin(self) -> dict[str, Any]:
        """What identifies the bytes. Cheap after a whole pass over ``chunks``."""
        ...

    def pinning(self) -> Iterator[bytes]:
        """What ``pin`` still has to read, so that a caller can stop in between."""
        ...

    def chunks(self, offset: int) -> Iterator[bytes]:
        """The bytes from ``offset`` on. Raises SourceChanged, SourceUnavailable."""
        ...

    def read(self, offset: int, length: int) -> bytes:
        """Exactly ``length`` bytes. Raises SourceChanged, SourceUnavailable."""
        ...


class Deadline:
    """``timeout_s`` seconds from now. Looking costs nothing beside a read."""

    def __init__(self, uri: str, timeout_s: float) -> None:
        self._uri = uri
        self._timeout_s = timeout_s
        self._ends_at = time.monotonic() + timeout_s

    def check(self) -> None:
        """Raises SourceError once it has passed."""
        if time.monotonic() > self._ends_at:
            raise SourceError(
                "source_too_slow",
                f"{self._uri} was not read and checked within {self._timeout_s:g} s; split it, or "
                "raise doors.submit_timeout_s (PENSTOCK_DOORS__SUBMIT_TIMEOUT_S)",
            )


class TimedBlob:
    """A blob that has to be read within ``timeout_s`` seconds from now; looked at once per chunk or
    read."""

    def __init__(self, blob: Blob, timeout_s: float) -> None:
        self.uri = blob.uri
        self._blob = blob
        self._deadline = Deadline(blob.uri, timeout_s)

    def pin(self) -> dict[str, Any]:
        for _ in self.pinning():
            pass
        return self._blob.pin()

    def pinning(self) -> Iterator[bytes]:
        for chunk in self._blob.pinning():
            self._deadline.check()
            yield chunk

    def chunks(self, offset: int) -> Iterator[bytes]:
        for chunk in self._blob.chunks(offset):
            self._deadline.check()
            yield chunk

    def read(self, offset: int, length: int) -> bytes:
        self._deadline.check()
        return self._blob.read(offset, length)
