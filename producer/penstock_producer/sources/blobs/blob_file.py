"""A blob as a file that can be sought in, for libraries that read files."""

from __future__ import annotations

import io

from penstock_producer.sources.blobs.blob import Blob


class BlobFile(io.RawIOBase):
    """Reads through the blob, so that its pin holds for every byte."""

    def __init__(self, blob: Blob, size: int) -> None:
        super().__init__()
        self._blob = blob
        self._size = size
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
        left = max(0, self._size - self._at)
        length = left if size is None or size < 0 else min(size, left)
        data = self._blob.read(self._at, length) if length else b""
        self._at += len(data)
        return data
