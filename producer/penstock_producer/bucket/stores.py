"""One place in Google Cloud Storage (`gs://`) or Azure (`az://`), by obstore.

An object is known by what its store compares at a conditional write: the generation at Google, the
ETag at Azure. `writer_of` chooses who writes an object, by its place.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final
from urllib.parse import quote

from penstock_producer.bucket.place import (
    ABSENT,
    PROBE_NAME,
    Condition,
    Head,
    NotThere,
    Place,
    PlaceWriter,
    store_at,
)
from penstock_producer.bucket.s3 import Bucket, ObjectWriter
from penstock_producer.errors import SinkError, SinkTaken

__all__ = ["StoreBucket", "StoreWriter", "open_place", "writer_of"]

TRIES: Final = 5  # per request, obstore's own, with backoff
# of one ranged request: the patience of READ_TIMEOUT_S is for a whole request
CHUNK_BYTES: Final = 8 * 1024 * 1024
SMALL_BYTES: Final = 16 * 1024 * 1024  # of an object that is read whole
REASON_CHARS: Final = 300  # of what a store said
_RIGHTS: Final = {
    "gs": "the role Storage Object User (storage.objects.create, get, list and delete)",
    "az": "the role Storage Blob Data Contributor",
}
_NO_BUCKET: Final = ("NoSuchBucket", "ContainerNotFound", "The specified bucket does not exist")


def open_place(scheme: str, bucket: str, prefix: str) -> StoreBucket:
    """Return the place in a bucket or container. Nothing is asked yet.

    Raises SinkError without obstore, and where the environment has no account.
    """
    try:
        from obstore.exceptions import BaseError

        try:
            return StoreBucket(scheme, bucket, prefix, store_at(scheme, bucket, tries=TRIES))
        except BaseError as error:
            raise SinkError(
                f"cannot write {scheme}://{bucket}: {_reason(error)}; check the account and the "
                "credentials in the environment"
            ) from error
    except ImportError as error:
        raise SinkError(
            f"writing to {scheme}:// needs obstore; `pip install penstock[stores]`"
        ) from error


class StoreBucket(Place):
    """Objects below a prefix."""

    def __init__(self, scheme: str, bucket: str, prefix: str, store: Any) -> None:
        super().__init__(bucket, prefix)
        self._scheme, self._store = scheme, store

    def below(self, name: str) -> StoreBucket:
        return StoreBucket(self._scheme, self._bucket, self._key(name), self._store)

    def uri(self, name: str) -> str:
        return f"{self._scheme}://{self._bucket}/{quote(self._key(name))}"

    def head(self, name: str) -> Head | None:
        import obstore

        options: Any = {"head": True}
        try:
            found = self.tried(
                name, lambda: obstore.get(self._store, self._key(name), options=options), "read"
            )
        except NotThere:
            return None
        kept = {str(key).replace("_", "-"): str(value) for key, value in found.attributes.items()}
        return Head(self._tag(found.meta), kept)

    def read(self, name: str) -> tuple[bytes, str] | None:
        import obstore

        try:
            found = self.tried(name, lambda: obstore.get(self._store, self._key(name)), "read")
            if found.meta["size"] > SMALL_BYTES:
                raise SinkError(
                    f"{self.uri(name)} has {found.meta['size']} bytes, and at most {SMALL_BYTES} "
                    "are read"
                )
            return bytes(self.tried(name, found.bytes, "read")), self._tag(found.meta)
        except NotThere:
            return None

    def chunks(self, name: str, etag: str, first: int, after: int) -> Iterator[bytes]:
        for begin in range(first, after, CHUNK_BYTES):
            yield self._range(name, etag, begin, min(after, begin + CHUNK_BYTES))

    def names(self, below: str) -> Iterator[str]:
        import obstore

        prefix = self._key(below).rstrip("/") or None
        pages = iter(self.tried(below, lambda: obstore.list(self._store, prefix), "read"))
        while (page := self.tried(below, lambda: next(pages, None), "read")) is not None:
            for meta in page:
                yield self._name(str(meta["path"]))

    def put(
        self,
        name: str,
        body: bytes,
        *,
        condition: Condition | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> str:
        import obstore

        mode: Any = "overwrite"
        if condition is not None and "IfMatch" in condition:
            tag = condition["IfMatch"]
            mode = {"version": tag, "e_tag": tag}  # each store reads its own of the two
        elif condition:
            mode = "create"
        kept = attributes(metadata)
        key = self._key(name)
        answer = self.tried(
            name,
            lambda: obstore.put(
                self._store, key, body, mode=mode, attributes=kept, use_multipart=False
            ),
            "write",
        )
        return self._tag(answer)

    def upload(
        self, name: str, metadata: Mapping[str, str] | None, part_bytes: int, at_once: int
    ) -> Any:
        """Return a writer of an object in parts, which appears when it is closed.

        Nothing is sent yet.
        """
        import obstore

        return obstore.open_writer(
            self._store,
            self._key(name),
            attributes=attributes(metadata),
            buffer_size=part_bytes,
            max_concurrency=at_once,
        )

    def delete(self, name: str) -> None:
        import obstore

        try:
            self.tried(name, lambda: obstore.delete(self._store, self._key(name)), "delete")
        except NotThere:
            return

    def abort_uploads(self, begin: str) -> int:
        """Return 0, and end none: obstore does not show unfinished uploads.

        Azure forgets unfinished blocks after a week, Google by a rule of the bucket.
        """
        return 0

    def tried(self, name: str, request: Callable[[], Any], verb: str) -> Any:
        """Return the answer to a request.

        Raises SinkError, NotThere, and SinkTaken where a condition does not hold.
        """
        from obstore import exceptions

        self.requests += 1
        try:
            return request()
        except (exceptions.AlreadyExistsError, exceptions.PreconditionError) as error:
            if verb == "read":
                raise NotThere(f"{self.uri(name)} has other content") from error
            raise SinkTaken(
                f"{self.uri(name)} was written by another process at this moment"
            ) from error
        except (FileNotFoundError, exceptions.NotFoundError) as error:
            if verb == "write" or any(said in str(error) for said in _NO_BUCKET):
                raise SinkError(
                    f"cannot {verb} {self.uri(name)}: there is no bucket {self._bucket!r}; create "
                    "it, or name another"
                ) from error
            raise NotThere(f"{self.uri(name)} is not there") from error
        except exceptions.PermissionDeniedError as error:
            raise SinkError(
                f"cannot {verb} {self.uri(name)}: the credentials may not; grant "
                f"{_RIGHTS[self._scheme]} on it"
            ) from error
        except (exceptions.BaseError, OSError) as error:
            raise SinkError(
                f"cannot {verb} {self.uri(name)}: {_reason(error)}; check the endpoint, the "
                "account and the credentials"
            ) from error

    def _range(self, name: str, etag: str, first: int, after: int) -> bytes:
        """Read a range, and compare the ETag of the answer.

        Not every service knows the condition.
        """
        import obstore

        options: Any = {"range": (first, after)}
        found = self.tried(
            name, lambda: obstore.get(self._store, self._key(name), options=options), "read"
        )
        if self._tag(found.meta) != etag:
            raise NotThere(f"{self.uri(name)} has other content")
        return bytes(self.tried(name, found.bytes, "read"))

    def _tag(self, meta: Mapping[str, Any]) -> str:
        version = meta.get("version") if self._scheme == "gs" else None
        return str(version or meta.get("e_tag") or "")


def attributes(metadata: Mapping[str, str] | None) -> dict[str, str]:
    """Return the names that Azure takes: of letters, digits and underscores only."""
    return {name.replace("-", "_"): value for name, value in (metadata or {}).items()}


def _reason(error: BaseException) -> str:
    return str(error).partition("\n")[0][:REASON_CHARS]


PART_BYTES: Final = 16 * 1024 * 1024
PARTS_AT_ONCE: Final = 2  # being sent while a third is filled; all of them are in memory
# that Google takes of one object, which then has 156 GiB; Azure takes 50,000
PARTS_MAX: Final = 10_000
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
        """Publish the object and return its URI.

        A condition holds at one request, and is looked at before the last one of an object in
        parts.
        """
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
        """Forget the object.

        What was sent of it stays an unfinished upload, which no reader sees.
        """
        self._upload = None
        self._buffer.clear()

    def probe(self) -> None:
        """Write an object and remove it at once: replacing results needs the right to both."""
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


def writer_of(
    place: Place,
    name: str,
    *,
    metadata: Mapping[str, str] | None = None,
    condition: Condition | None = None,
) -> PlaceWriter:
    """Return a writer of an object; ``condition`` has to hold when the object appears."""
    if isinstance(place, StoreBucket):
        return StoreWriter(place, name, metadata=metadata, condition=condition)
    if isinstance(place, Bucket):
        return ObjectWriter(place, name, metadata=metadata, condition=condition)
    raise TypeError(f"{type(place).__name__} has no writer")
