"""One object of Google Cloud Storage or Azure being written: small ones by one request, larger ones
in parts, by obstore."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any, Final

from penstock_producer.bucket.place import ABSENT, PROBE_NAME, Condition, NotThere
from penstock_producer.bucket.stores import StoreBucket
from penstock_producer.errors import SinkError, SinkTaken

__all__ = ["StoreWriter"]

PART_BYTES: Final = 16 * 1024 * 1024
PARTS_AT_ONCE: Final = 2  # being sent while a third is filled; all of them are in memory
PARTS_MAX: Final = (
    10_000  # that Google takes of one object, which then has 156 GiB; Azure takes 50,000
)
SENT_BYTES: Final = 1024 * 1024  # handed over at a time


class StoreWriter:
    """Nothing is seen of the object before ``publish``, and what was there stays until then."""

    def __init__(
        self,
        place: StoreBucket,
        name: str,
        *,
        metadata: Mapping[str, str] | None = None,
        condition: Condition | None = None,
    ) -> None:
        self._place, self._name = place, name
        self._metadata, self._condition = metadata, condition
        self._buffer = bytearray()
        self._upload: Any = None  # once there is more than one part
        self.bytes = 0
        self.etag = ""

    def write(self, data: bytes) -> None:
        self._buffer += data
        self.bytes += len(data)
        if len(self._buffer) >= (PART_BYTES if self._upload is None else SENT_BYTES):
            self._send()

    def append(self, name: str, etag: str, size: int) -> None:
        """Read here and sent again: obstore makes no object of others."""
        left = size
        for chunk in self._place.chunks(name, etag, 0, size):
            self.write(chunk)
            left -= len(chunk)
        if left:
            raise NotThere(f"{self._place.uri(name)} is shorter than it was")

    def finish(self) -> None:
        if self._upload is not None and self._buffer:
            self._send()

    def publish(self) -> str:
        """A condition holds at one request, and is looked at before the last one of an object in
        parts."""
        if self._upload is None:
            self.etag = self._place.put(
                self._name, bytes(self._buffer), condition=self._condition, metadata=self._metadata
            )
        else:
            self._check_condition()
            upload, self._upload = self._upload, None
            self._place.tried(self._name, upload.close, "write")
            there = self._place.head(self._name)
            self.etag = "" if there is None else there.etag
        return self._place.uri(self._name)

    def discard(self) -> None:
        """What was sent of it stays an unfinished upload, which no reader sees."""
        self._upload = None
        self._buffer.clear()

    def probe(self) -> None:
        """An object that is removed at once: replacing results needs the right to both."""
        name = f".{PROBE_NAME}-{secrets.token_hex(8)}"
        self._place.put(name, b"", condition=ABSENT)
        self._place.delete(name)

    def _send(self) -> None:
        if self.bytes > PART_BYTES * PARTS_MAX:
            raise SinkError(
                f"{self._place.uri(self._name)} would have more than {PARTS_MAX:,} parts of "
                f"{PART_BYTES} bytes, which no store takes: write Parquet, which is smaller, or "
                "several jobs"
            )
        if self._upload is None:
            self._upload = self._place.upload(self._name, self._metadata, PART_BYTES, PARTS_AT_ONCE)
        upload, data = self._upload, bytes(self._buffer)
        self._place.tried(self._name, lambda: upload.write(data), "write")
        self._buffer.clear()

    def _check_condition(self) -> None:
        if not self._condition:
            return
        there = self._place.head(self._name)
        if ("" if there is None else there.etag) != self._condition.get("IfMatch", ""):
            raise SinkTaken(
                f"{self._place.uri(self._name)} was written by another process at this moment"
            )
