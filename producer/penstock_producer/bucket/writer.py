"""One object of S3 being written: in parts of a few MiB, one of them in memory, or by the store
from other objects of it."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any, Final

from penstock_producer.bucket.client import Bucket
from penstock_producer.bucket.place import Condition, NotThere
from penstock_producer.errors import SinkError

__all__ = ["PART_BYTES", "ObjectWriter"]

# S3 takes parts of 5 MiB to 5 GiB and at most 10,000 of them; a writer holds one in memory.
PART_BYTES: Final = 8 * 1024 * 1024
# From then on parts are larger, so that 10,000 of them make 430 GiB and not 78. A constant size
# until there suits servers that want all parts equal.
PARTS_PER_SIZE: Final = 1_000
COPIED_BYTES_MIN: Final = 5 * 1024 * 1024  # of a part that is not the last
COPIED_BYTES: Final = 1024 * 1024 * 1024  # of one copy; stores take some seconds for it


class ObjectWriter:
    """A multipart upload, begun with the first full part; small and empty objects are one PUT.

    S3 shows nothing of an upload before ``publish``, and keeps the object that was there until
    then.
    """

    def __init__(
        self,
        bucket: Bucket,
        name: str,
        *,
        metadata: Mapping[str, str] | None = None,
        condition: Condition | None = None,
    ) -> None:
        self._bucket, self._name = bucket, name
        self._metadata = {} if metadata is None else {"Metadata": dict(metadata)}
        self._condition = dict(condition or {})
        self._buffer = bytearray()
        self._upload: str | None = None
        self._parts: list[dict[str, Any]] = []  # S3 allows 10,000
        self.bytes = 0
        self.etag = ""  # once it is published

    def begin(self) -> str:
        if self._upload is None:
            self._upload = str(self._ask("create_multipart_upload", **self._metadata)["UploadId"])
        return self._upload

    def write(self, data: bytes) -> None:
        self._buffer += data
        self.bytes += len(data)
        if len(self._buffer) >= self._part_bytes():
            self._send_part()

    def append(self, name: str, etag: str, size: int) -> None:
        """Large ones are copied by the store, and never come here."""
        there = self._bucket.head(name)  # not every store holds a copy to its condition
        if there is None or there.etag != etag:
            raise NotThere(f"{self._bucket.uri(name)} is not there, or has other content")
        held = len(self._buffer)
        first = 0 if held == 0 or held >= COPIED_BYTES_MIN else COPIED_BYTES_MIN - held
        if size - first < COPIED_BYTES_MIN:
            first = size
        if first:
            self._stream(name, etag, 0, first)
        if first == size:
            return
        if self._buffer:
            self._send_part()
        while first < size:
            after = (
                first + COPIED_BYTES if size - first >= COPIED_BYTES + COPIED_BYTES_MIN else size
            )
            self._copy(name, etag, first, after)
            first = after

    def finish(self) -> None:
        if self._upload is not None and self._buffer:
            self._send_part()

    def publish(self) -> str:
        """Raises SinkTaken where the condition does not hold."""
        if self._upload is not None:
            parts = {"Parts": self._parts}
            answer = self._ask(
                "complete_multipart_upload",
                UploadId=self._upload,
                MultipartUpload=parts,
                **self._condition,
            )
            self._upload = None
        else:
            answer = self._ask(
                "put_object", Body=bytes(self._buffer), **self._metadata, **self._condition
            )
        self.etag = str(answer["ETag"])
        return self._bucket.uri(self._name)

    def discard(self) -> None:
        """Best effort: what cannot be aborted is an unfinished upload, which no reader sees."""
        if self._upload is not None:
            with contextlib.suppress(SinkError):
                self._ask("abort_multipart_upload", UploadId=self._upload)
            self._upload = None

    def probe(self) -> None:
        """Start an upload and abort it: needs the same right as writing, and makes no object."""
        self.begin()
        self.discard()

    def _stream(self, name: str, etag: str, first: int, after: int) -> None:
        for chunk in self._bucket.chunks(name, etag, first, after):
            self.write(chunk)

    def _copy(self, name: str, etag: str, first: int, after: int) -> None:
        answer = self._ask(
            "upload_part_copy",
            UploadId=self.begin(),
            PartNumber=len(self._parts) + 1,
            CopySource=self._bucket.source(name),
            CopySourceIfMatch=etag,
            CopySourceRange=f"bytes={first}-{after - 1}",
        )
        self._parts.append(
            {"ETag": answer["CopyPartResult"]["ETag"], "PartNumber": len(self._parts) + 1}
        )
        self.bytes += after - first

    def _send_part(self) -> None:
        number = len(self._parts) + 1
        upload, body = self.begin(), bytes(self._buffer)
        answer = self._ask("upload_part", UploadId=upload, PartNumber=number, Body=body)
        self._parts.append({"ETag": answer["ETag"], "PartNumber": number})
        self._buffer.clear()

    def _part_bytes(self) -> int:
        return PART_BYTES * (1 + len(self._parts) // PARTS_PER_SIZE)

    def _ask(self, request: str, **more: Any) -> Any:
        return self._bucket.ask(self._name, request, **more)
