"""The body of one answer: counted, unpacked, and held back until the memory for it is reserved."""

from __future__ import annotations

from collections.abc import Mapping

from penstock_workers.http.client import Limits
from penstock_workers.http.errors import AnswerTooLarge
from penstock_workers.http.unpack import Unpacker, unpacker


class Body:
    """Fed by the parser.

    ``wants`` is how many bytes must be reserved before it takes more; 0 where it takes all."""

    __slots__ = ("_free", "_held_back", "_limits", "_parts", "_size", "_unpacker", "wants")

    def __init__(self, limits: Limits, headers: Mapping[str, str], *, reserves: bool) -> None:
        """Raises AnswerTooLarge where the headers say so."""
        self._limits = limits
        self._parts: list[bytes] = []
        self._held_back: list[bytes] = []
        self._size = 0
        self._free = limits.free_body_bytes if reserves else limits.max_body_bytes
        self.wants = 0
        encoding = headers.get("content-encoding")
        self._unpacker: Unpacker | None = None if encoding is None else unpacker(encoding)
        length = headers.get("content-length")
        if length is not None and self._unpacker is None and "transfer-encoding" not in headers:
            self._expect(int(length))

    def _expect(self, size: int) -> None:
        if size > self._limits.max_body_bytes:
            raise self._too_large()
        if size > self._free:
            self.wants = size

    def feed(self, part: bytes) -> None:
        """Raises AnswerTooLarge and ConnectionLost."""
        if self.wants:
            self._held_back.append(part)  # of the segment that was read already: reading pauses
        else:
            self._take(part)

    def _take(self, part: bytes) -> None:
        if self._unpacker is not None:
            part = self._unpacker.feed(part, self._free - self._size + 1)
        self._size += len(part)
        self._parts.append(part)
        if self._size > self._free:
            if self._free == self._limits.max_body_bytes:
                raise self._too_large()
            self.wants = self._limits.max_body_bytes  # nothing says how large it becomes

    def grant(self) -> None:
        """Go on after the memory was reserved. Raises AnswerTooLarge and ConnectionLost."""
        self.wants, self._free = 0, self._limits.max_body_bytes
        held_back, self._held_back = self._held_back, []
        for part in (b"", *held_back):  # the empty one is for what the unpacker still has
            self._take(part)

    def whole(self) -> bytes:
        """Raises ConnectionLost where a compressed body is cut short."""
        if self._unpacker is not None:
            self._unpacker.end()
        return self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)

    def _too_large(self) -> AnswerTooLarge:
        return AnswerTooLarge(f"the answer has more than {self._limits.max_body_bytes} bytes")
