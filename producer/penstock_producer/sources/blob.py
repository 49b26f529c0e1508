"""What a file-like source reads from: bytes that stay the same, by offset."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

# One read. Large enough that the cost per read vanishes, small enough to hold a few in memory.
CHUNK_BYTES = 1024 * 1024


class Blob(Protocol):
    uri: str

    def pin(self) -> dict[str, Any]:
        """What identifies the bytes. Cheap after a whole pass over ``chunks``."""
        ...

    def chunks(self, offset: int) -> Iterator[bytes]:
        """The bytes from ``offset`` on. Raises SourceChanged, SourceUnavailable."""
        ...

    def read(self, offset: int, length: int) -> bytes:
        """Exactly ``length`` bytes. Raises SourceChanged, SourceUnavailable."""
        ...
