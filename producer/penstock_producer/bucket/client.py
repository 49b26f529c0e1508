"""One place in a bucket of S3: requests with bounded patience, and what their failures mean for who
chose the place."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from penstock_producer.bucket.connect import connected
from penstock_producer.bucket.place import Condition, Head, NotThere, Place
from penstock_producer.errors import SinkError, SinkTaken

__all__ = ["Bucket", "s3_client"]

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
        """The object as a copy names it."""
        return {"Bucket": self._bucket, "Key": self._key(name)}

    def ask(self, name: str, request: str, *, verb: str = "write", **more: Any) -> Any:
        """One request about one object.

        Raises SinkError, NotThere, and SinkTaken where a condition does not hold."""
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
        """Best effort: no reader sees them, and it needs a right that nothing else does."""
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
        except (
            RecursionError
        ) as error:  # botocore asks a store that redirects for the region, and is redirected again
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
    """A client for writing. Raises SinkError without boto3."""
    try:
        return connected(endpoint_url, tries=TRIES)
    except ImportError as error:
        raise SinkError("writing to s3:// needs boto3; `pip install penstock[s3]`") from error


def _explain(verb: str, uri: str, bucket: str, code: str, error: Exception) -> str:
    """What S3's answer means for the person who chose the destination."""
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
