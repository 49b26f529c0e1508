"""An object of a bucket as a pinned blob: known by its size and ETag, and read by ranges.

No connection is held open between two reads: a feeder waits for room in the queue there."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import quote, unquote, urlsplit

from penstock_producer.bucket.place import connected
from penstock_producer.errors import (
    BadReference,
    SourceChanged,
    SourceError,
    SourceUnavailable,
    seen,
)

__all__ = ["Listed", "S3Files", "S3Object", "S3Prefix"]

RANGE_BYTES: Final = 8 * 1024 * 1024  # of one request


class Version(NamedTuple):
    """The facts that tell an object from what may be there later."""

    size: int
    etag: str


class RangedObject(ABC):
    """One object; ``pinned`` is what ``pin()`` returned at submit, None before that."""

    def __init__(self, kind: str, uri: str, pinned: Mapping[str, Any] | None) -> None:
        self._address = self.uri = uri
        self._kind = kind
        self._pin = None if pinned is None else dict(pinned)

    @abstractmethod
    def _version(self) -> Version:
        """Return the version of the object. Raises SourceUnavailable."""

    @abstractmethod
    def _range(self, offset: int, length: int, etag: str) -> bytes:
        """Return bytes of the object with this ETag. Raises SourceChanged and SourceUnavailable."""

    def pin(self) -> dict[str, Any]:
        if self._pin is None:
            found = self._version()
            self._pin = {
                "kind": self._kind,
                "uri": self._address,
                "size": found.size,
                "etag": found.etag,
            }
        return dict(self._pin)

    def pinning(self) -> Iterator[bytes]:
        return iter(())

    def unchanged(self) -> bool:
        """Return whether the object that is there now still has the pinned ETag and size."""
        return self._pin is not None and self._version() == (self._pin["size"], self._pin["etag"])

    def chunks(self, offset: int) -> Iterator[bytes]:
        size = int(self.pin()["size"])
        while offset < size:
            chunk = self.read(offset, min(RANGE_BYTES, size - offset))
            yield chunk
            offset += len(chunk)

    def read(self, offset: int, length: int) -> bytes:
        """Return bytes of the object.

        Raises BadReference beyond its end, SourceChanged and SourceUnavailable.
        """
        pin = self.pin()
        if offset + length > int(pin["size"]):
            raise BadReference(
                f"{self.uri} has {pin['size']} bytes and no document at {offset}:{length}"
            )
        if length == 0:  # which no range can ask for
            return b""
        data = self._range(offset, length, str(pin["etag"]))
        if len(data) != length:
            raise SourceChanged(
                f"{self.uri} gave {len(data)} of {length} bytes at {offset}; restore the pinned "
                "object"
            )
        return data


def another_object(uri: str) -> SourceChanged:
    """Return the error for an object whose ETag is not the pinned one."""
    return SourceChanged(
        f"{uri} is not the object that was submitted; restore it, or submit it as a new job"
    )


KIND = "s3"
TRIES = 4  # boto3's own, with backoff; after that the feed pauses and comes back


class S3Object(RangedObject):
    """One object of S3."""

    def __init__(
        self,
        uri: str,
        pinned: Mapping[str, Any] | None = None,
        *,
        endpoint_url: str | None = None,
        client: Any = None,
    ) -> None:
        try:
            parts = urlsplit(uri)
        except ValueError as error:
            raise SourceError(
                "invalid_uri", f"{seen(uri)} is not an address ({error}); write s3://bucket/key"
            ) from None
        super().__init__(KIND, uri, pinned)
        self._bucket, self._key = parts.netloc, unquote(parts.path.lstrip("/"))
        if not self._bucket or not self._key:
            raise SourceError(
                "source_unavailable", f"{seen(uri)} names no object; write s3://bucket/key"
            )
        self._client = client if client is not None else _client(endpoint_url)

    def _version(self) -> Version:
        head = _ask(self.uri, lambda: self._client.head_object(Bucket=self._bucket, Key=self._key))
        return Version(int(head["ContentLength"]), str(head["ETag"]))

    def _range(self, offset: int, length: int, etag: str) -> bytes:
        def get() -> bytes:
            answer = self._client.get_object(
                Bucket=self._bucket,
                Key=self._key,
                Range=f"bytes={offset}-{offset + length - 1}",
                IfMatch=etag,
            )
            return bytes(answer["Body"].read())

        data: bytes = _ask(self.uri, get)
        return data


class Listed(NamedTuple):
    """One object below a prefix."""

    path: str  # below the prefix
    size: int
    etag: str
    changed: float  # Unix time


class S3Prefix:
    """`s3://bucket/prefix`, with all objects below `prefix/`.

    Safe to use in several threads, as boto3's clients are."""

    def __init__(self, uri: str, *, endpoint_url: str | None = None) -> None:
        parts = urlsplit(uri)
        if parts.scheme != "s3" or not parts.netloc or parts.query or parts.fragment:
            raise SourceError(
                "invalid_uri", f"{seen(uri)} is no prefix of a bucket; write s3://bucket/prefix"
            )
        self._bucket, prefix = parts.netloc, unquote(parts.path).strip("/")
        self._below = f"{prefix}/" if prefix else ""
        self.uri = f"s3://{self._bucket}/{prefix}"
        self._client = _client(endpoint_url)

    def objects(self, most: int) -> list[Listed]:
        """Return at most so many objects.

        Raises SourceError for a prefix with more, and SourceUnavailable.
        """
        found: list[Listed] = []
        for listed in self.listed():
            found.append(listed)
            if len(found) > most:
                raise SourceError(
                    "too_many_objects",
                    f"{self.uri} has more than {most:,} objects; name a prefix with fewer",
                )
        return found

    def listed(self, after: str = "") -> Iterator[Listed]:
        """Yield the objects later than ``after`` in the order of their names, 1,000 at a time.

        Raises SourceUnavailable.
        """
        given = {"StartAfter": f"{self._below}{after}"} if after else {}
        while True:
            page = _ask(
                self.uri,
                lambda: self._client.list_objects_v2(
                    Bucket=self._bucket,
                    Prefix=self._below,
                    **given,  # noqa: B023 - at once
                ),
            )
            for entry in page.get("Contents", ()):
                path = entry["Key"][len(self._below) :]
                # consoles make such objects and show them as folders
                if path and not path.endswith("/"):
                    yield Listed(
                        path, entry["Size"], entry["ETag"], entry["LastModified"].timestamp()
                    )
            if not page.get("IsTruncated"):
                return
            given = {"ContinuationToken": page["NextContinuationToken"]}

    def look(self, path: str) -> Listed | None:
        """Return one object as it is now; None where there is none. Raises SourceUnavailable."""
        from botocore.exceptions import ClientError

        def head() -> Any:
            try:
                return self._client.head_object(Bucket=self._bucket, Key=f"{self._below}{path}")
            except ClientError as error:
                if error.response.get("ResponseMetadata", {}).get("HTTPStatusCode") == 404:
                    return None
                raise

        found = _ask(f"{self.uri}/{path}", head)
        if found is None:
            return None
        return Listed(
            path, int(found["ContentLength"]), str(found["ETag"]), found["LastModified"].timestamp()
        )

    def object(self, listed: Listed) -> S3Object:
        """Return an object, pinned to what was listed."""
        uri = f"s3://{self._bucket}/{quote(self._below + listed.path)}"
        pinned = {"kind": KIND, "uri": uri, "size": listed.size, "etag": listed.etag}
        return S3Object(uri, pinned, client=self._client)


class S3Files:
    """Small objects that rows name, each read at once."""

    def __init__(self, endpoint_url: str | None = None) -> None:
        self._client = _client(endpoint_url)

    def read(self, uri: str, most: int) -> tuple[bytes, int, int]:
        """Return the bytes of an object, their number, and when it was changed (Unix time in ns).

        The bytes are returned where there are at most ``most``. Raises FileNotFoundError for what
        is not there or not allowed, and SourceUnavailable where S3 does not answer.
        """
        from botocore.exceptions import ClientError

        parts = urlsplit(uri)

        def get() -> tuple[bytes, int, int]:
            try:
                answer = self._client.get_object(
                    Bucket=parts.netloc, Key=unquote(parts.path.lstrip("/"))
                )
            except ClientError as error:
                if error.response.get("ResponseMetadata", {}).get("HTTPStatusCode") in (403, 404):
                    raise FileNotFoundError(uri) from None
                raise
            size, changed_ns = (
                int(answer["ContentLength"]),
                int(answer["LastModified"].timestamp()) * 10**9,
            )
            with contextlib.closing(answer["Body"]) as body:
                return b"" if size > most else bytes(body.read(most + 1)), size, changed_ns

        found: tuple[bytes, int, int] = _ask(uri, get)
        return found


def _ask(uri: str, request: Callable[[], Any]) -> Any:
    from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError

    try:
        return request()
    except ClientError as error:
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        if status in (412, 416):
            raise another_object(uri) from error
        raise SourceUnavailable(
            f"{uri}: S3 answered {status} ({error}); check the name and the rights"
        ) from error
    except FileNotFoundError:
        raise
    # botocore asks a store that redirects for the region, and is redirected again
    except RecursionError as error:
        raise SourceUnavailable(
            f"{uri}: S3 sends each request elsewhere and does not say where; check the endpoint "
            "and the region"
        ) from error
    except (BotoCoreError, HTTPClientError, OSError) as error:
        raise SourceUnavailable(
            f"{uri}: {error}; check the endpoint, region and credentials"
        ) from error


def _client(endpoint_url: str | None) -> Any:
    try:
        return connected(endpoint_url, tries=TRIES)
    except ImportError as error:
        raise SourceUnavailable(
            "reading s3:// needs boto3 on this machine; `pip install penstock[s3]`"
        ) from error
