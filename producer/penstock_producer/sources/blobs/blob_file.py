"""A blob as a file that can be sought in, for libraries that read files."""

from __future__ import annotations

import io

from penstock_producer.errors import SourceError
from penstock_producer.sources.blobs.blob import Blob


class BlobFile(io.RawIOBase):
    """Reads through the blob, so that its pin holds for every byte. ``most``: bytes of one read."""

    def __init__(self, blob: Blob, size: int, most: int | None = None) -> None:
        super().__init__()
        self._blob = blob
        self._size = size
        self._most = most
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = max(0, base + offset)
        return self._at

    def tell(self) -> int:
        return self._at

    def read(self, size: int | None = -1, /) -> bytes:
        """Raises SourceError for more than may be read at once, before any memory is taken."""
        left = max(0, self._size - self._at)
        length = left if size is None or size < 0 else min(size, left)
        if self._most is not None and length > self._most:
            raise SourceError(
                "record_batch_too_large",
                f"{self._blob.uri} has a piece of {length} bytes that is decoded whole, and at "
                f"most {self._most} are; write smaller record batches (pyarrow: "
                "max_chunksize=10_000), or Parquet",
            )
        data = self._blob.read(self._at, length) if length else b""
        self._at += len(data)
        return data
