"""A prefix of a bucket that results are written below, whichever service keeps it."""

from __future__ import annotations

import builtins
import datetime
import os
import secrets
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple, Protocol, Self

from penstock_producer.errors import SinkError, SinkTaken

__all__ = [
    "ABSENT",
    "CONNECT_TIMEOUT_S",
    "PROBE_NAME",
    "READ_TIMEOUT_S",
    "STORES",
    "Condition",
    "Head",
    "NotThere",
    "Place",
    "PlaceWriter",
    "connected",
    "store_at",
]

PROBE_NAME: Final = "penstock-probe"

Condition = Mapping[str, str]
"""What has to hold when an object appears: `IfMatch` with an ETag, `IfNoneMatch` with `*`, or
nothing."""

ABSENT: Final[Condition] = {"IfNoneMatch": "*"}


class NotThere(SinkError):
    """An object that was asked for is not there, or not with that content."""


class Head(NamedTuple):
    etag: str
    metadata: Mapping[str, str]


class PlaceWriter(Protocol):
    """One object being written, which appears whole or not at all."""

    bytes: int
    etag: str  # once it is published

    def write(self, data: builtins.bytes) -> None: ...

    def append(self, name: str, etag: str, size: int) -> None:
        """Append all bytes of another object below the same place.

        Raises NotThere when it is not the one with that ETag any more.
        """
        ...

    def finish(self) -> None: ...

    def publish(self) -> str:
        """Publish the object and return its place.

        Raises SinkTaken where the condition does not hold.
        """
        ...

    def discard(self) -> None: ...

    def probe(self) -> None:
        """Find out whether objects can be written, leaving none. Raises SinkError."""
        ...


class Place(ABC):
    """Objects below a prefix. What each method raises is a SinkError, which says what to do."""

    def __init__(self, bucket: str, prefix: str) -> None:
        self._bucket, self._prefix = bucket, prefix
        self.requests = 0  # so far; most stores count them in their price

    @abstractmethod
    def below(self, name: str) -> Self: ...

    @abstractmethod
    def uri(self, name: str) -> str: ...

    @abstractmethod
    def head(self, name: str) -> Head | None:
        """Return what is known of an object; None where there is no such object."""

    @abstractmethod
    def read(self, name: str) -> tuple[bytes, str] | None:
        """Return a small object and its ETag; None where there is none."""

    @abstractmethod
    def chunks(self, name: str, etag: str, first: int, after: int) -> Iterator[bytes]:
        """Yield bytes ``first`` up to ``after`` of the object, while it has this ETag."""

    @abstractmethod
    def names(self, below: str) -> Iterator[str]:
        """Yield the names of all objects below ``below``, which ends in a slash, page by page."""

    @abstractmethod
    def put(
        self,
        name: str,
        body: bytes,
        *,
        condition: Condition | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> str:
        """Write one small object; return its ETag.

        Raises SinkTaken where the condition does not hold.
        """

    @abstractmethod
    def delete(self, name: str) -> None:
        """Delete an object, there or not."""

    @abstractmethod
    def abort_uploads(self, begin: str) -> int:
        """End the unfinished uploads of objects whose names begin so; return how many they were.

        A process has left them.
        """

    def takes_conditions(self) -> bool:
        """Return whether the store refuses to replace an object that must not be there.

        Some stores do not know the header.
        """
        name = f".{PROBE_NAME}-{secrets.token_hex(8)}"
        try:
            self.put(name, b"", condition=ABSENT)
        except SinkError:
            return False
        try:
            self.put(name, b"", condition=ABSENT)
        except SinkTaken:
            return True
        except SinkError:
            return False
        finally:
            self.delete(name)
        return False

    def _key(self, name: str) -> str:
        """Return the key; ``name`` may end in a slash, for all that lies below it."""
        return f"{self._prefix}/{name.lstrip('/')}".lstrip("/")

    def _name(self, key: str) -> str:
        """Return the name of an object, below the place."""
        return key.removeprefix(self._prefix).lstrip("/")


STORES: Final = ("gs", "az")  # Google Cloud Storage and Azure

CONNECT_TIMEOUT_S: Final = 10
READ_TIMEOUT_S: Final = 60


def connected(
    endpoint_url: str | None, *, tries: int, service: str = "s3", region: str | None = None
) -> Any:
    """Return a client of boto3; ``tries`` are those of one request, with backoff.

    Credentials and region are boto3's own affair, and where no endpoint is given, that as well
    (AWS_ENDPOINT_URL_S3). Nothing is asked yet. Raises ImportError without boto3.
    """
    import boto3
    from botocore.config import Config

    retries = {"mode": "standard", "total_max_attempts": tries}
    config = Config(connect_timeout=CONNECT_TIMEOUT_S, read_timeout=READ_TIMEOUT_S, retries=retries)
    return boto3.client(service, endpoint_url=endpoint_url, config=config, region_name=region)


def store_at(scheme: str, bucket: str, *, tries: int) -> Any:
    """Return a bucket of Google Cloud Storage, or a container of Azure.

    Credentials and the account are obstore's own affair, by the environment. Nothing is asked yet.
    Raises ImportError without obstore, and its errors where the environment has no account.
    """
    from obstore.store import AzureStore, GCSStore

    make: Any
    make, cloud = (GCSStore, "GOOGLE") if scheme == "gs" else (AzureStore, "AZURE")
    options: dict[str, Any] = {
        "client_options": {
            "connect_timeout": f"{CONNECT_TIMEOUT_S}s",
            "timeout": f"{READ_TIMEOUT_S}s",
            "allow_http": os.environ.get(f"{cloud}_ALLOW_HTTP", "").lower() in ("1", "true"),
        },
        "retry_config": {
            "max_retries": tries - 1,
            "retry_timeout": datetime.timedelta(seconds=READ_TIMEOUT_S * tries),
        },
    }
    return make(bucket, **options)
