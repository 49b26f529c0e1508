"""One place in a bucket of S3, and an object that is written there in parts.

Requests have bounded patience, and their failures are said to who chose the place.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from penstock_producer.bucket.place import Condition, Head, NotThere, Place, connected
from penstock_producer.errors import SinkError, SinkTaken

__all__ = ["PART_BYTES", "Bucket", "ObjectWriter", "s3_client"]

TRIES: Final = 5  # per request, boto3's own, with backoff
CHUNK_BYTES: Final = 1024 * 1024  # of an object that is read
SMALL_BYTES: Final = 16 * 1024 * 1024  # of an object that is read whole
_MISSING: Final = frozenset({"NoSuchKey", "404", "NotFound", "NoSuchUpload"})
_RIGHTS: Final = {
    "write": "s3:PutObject",
    "read": "s3:GetObject and s3:ListBucket",
    "delete": "s3:DeleteObject",
}
_TAKEN: Final = frozenset({"PreconditionFailed", "412", "ConditionalRequestConflict", "409"})


class Bucket(Place):
    """Objects below a prefix."""

    def __init__(self, client: Any, bucket: str, prefix: str) -> None:
        super().__init__(bucket, prefix)
        self._client = client

    def below(self, name: str) -> Bucket:
        return Bucket(self._client, self._bucket, self._key(name))

    def uri(self, name: str) -> str:
        return f"s3://{self._bucket}/{self._key(name)}"

    def source(self, name: str) -> Mapping[str, str]:
        """Return the object as a copy names it."""
        return {"Bucket": self._bucket, "Key": self._key(name)}

    def ask(self, name: str, request: str, *, verb: str = "write", **more: Any) -> Any:
        """Ask one request about one object.

        Raises SinkError, NotThere, and SinkTaken where a condition does not hold.
        """
        asked = getattr(self._client, request)
        return self._tried(
            name, lambda: asked(Bucket=self._bucket, Key=self._key(name), **more), verb
        )

    def head(self, name: str) -> Head | None:
        try:
            found = self.ask(name, "head_object", verb="read")
        except NotThere:
            return None
        return Head(str(found["ETag"]), dict(found.get("Metadata") or {}))

    def read(self, name: str) -> tuple[bytes, str] | None:
        try:
            found = self.ask(name, "get_object", verb="read")
        except NotThere:
            return None
        return bytes(self._tried(name, lambda: found["Body"].read(SMALL_BYTES), "read")), str(
            found["ETag"]
        )

    def chunks(self, name: str, etag: str, first: int, after: int) -> Iterator[bytes]:
        span = f"bytes={first}-{after - 1}"
        body = self.ask(name, "get_object", verb="read", Range=span, IfMatch=etag)["Body"]
        with contextlib.closing(body):
            while chunk := self._tried(name, lambda: body.read(CHUNK_BYTES), "read"):
                yield bytes(chunk)

    def names(self, below: str) -> Iterator[str]:
        where: dict[str, str] = {"Bucket": self._bucket, "Prefix": self._key(below)}
        while True:
            page = self._listed("list_objects_v2", where)
            for entry in page.get("Contents") or ():
                yield self._name(str(entry["Key"]))
            if not page.get("IsTruncated"):
                return
            where["ContinuationToken"] = str(page["NextContinuationToken"])

    def abort_uploads(self, begin: str) -> int:
        """Abort uploads as far as possible.

        No reader sees them, and it needs a right that nothing else does.
        """
        ended = 0
        with contextlib.suppress(SinkError):
            listed = self._listed(
                "list_multipart_uploads", {"Bucket": self._bucket, "Prefix": self._key(begin)}
            )
            for upload in listed.get("Uploads") or ():
                self.ask(
                    self._name(str(upload["Key"])),
                    "abort_multipart_upload",
                    UploadId=upload["UploadId"],
                )
                ended += 1
        return ended

    def _listed(self, request: str, where: dict[str, str]) -> Any:
        asked = getattr(self._client, request)
        return self._tried("", lambda: asked(**where), "read")

    def put(
        self,
        name: str,
        body: bytes,
        *,
        condition: Condition | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> str:
        more: dict[str, Any] = {} if metadata is None else {"Metadata": dict(metadata)}
        return str(self.ask(name, "put_object", Body=body, **more, **(condition or {}))["ETag"])

    def delete(self, name: str) -> None:
        self.ask(name, "delete_object", verb="delete")

    def _tried(self, name: str, request: Callable[[], Any], verb: str) -> Any:
        from botocore.exceptions import BotoCoreError, ClientError

        self.requests += 1
        try:
            return request()
        except ClientError as error:
            code = str(error.response.get("Error", {}).get("Code"))
            if code in _MISSING or (verb == "read" and code in _TAKEN):
                raise NotThere(f"{self.uri(name)} is not there, or has other content") from error
            if code in _TAKEN:
                raise SinkTaken(
                    f"{self.uri(name)} was written by another process at this moment"
                ) from error
            raise SinkError(_explain(verb, self.uri(name), self._bucket, code, error)) from error
        # botocore asks a store that redirects for the region, and is redirected again
        except RecursionError as error:
            elsewhere = (
                f"cannot {verb} {self.uri(name)}: the store sends each request elsewhere and does "
                "not say where"
            )
            raise SinkError(f"{elsewhere}; check the endpoint and the region") from error
        except (BotoCoreError, OSError) as error:
            message = (
                f"cannot {verb} {self.uri(name)}: {error}; check the endpoint, the region and the "
                "credentials"
            )
            raise SinkError(message) from error


def s3_client(endpoint_url: str | None = None) -> Any:
    """Return a client for writing. Raises SinkError without boto3."""
    try:
        return connected(endpoint_url, tries=TRIES)
    except ImportError as error:
        raise SinkError("writing to s3:// needs boto3; `pip install penstock[s3]`") from error


def _explain(verb: str, uri: str, bucket: str, code: str, error: Exception) -> str:
    """Return what S3's answer means for the person who chose the destination."""
    begin = f"cannot {verb} {uri}"
    match code:
        case "NoSuchBucket":
            return f"{begin}: there is no bucket {bucket!r}; create it, or name another"
        case "AccessDenied" | "403" | "AllAccessDisabled":
            return f"{begin}: the credentials may not; grant {_RIGHTS[verb]} on it"
        case "InvalidAccessKeyId" | "SignatureDoesNotMatch" | "ExpiredToken":
            return f"{begin}: the credentials are refused ({code}); renew or replace them"
        case (
            "PermanentRedirect"
            | "AuthorizationHeaderMalformed"
            | "IllegalLocationConstraintException"
        ):
            return (
                f"{begin}: the bucket is in another region ({code}); set AWS_REGION to its region"
            )
        case _:
            return f"{begin}: {error}"


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
        """Append a small object. Large ones are copied by the store, and never come here."""
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
        """Publish the object and return its URI.

        Raises SinkTaken where the condition does not hold.
        """
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
        """Abort the upload as far as possible: no reader sees an unfinished one."""
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
