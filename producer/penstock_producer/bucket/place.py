"""A prefix of a bucket that results are written below, whichever service keeps it: what those who
write may ask."""

from __future__ import annotations

import builtins
import secrets
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple, Protocol, Self

from penstock_producer.errors import SinkError, SinkTaken

__all__ = ["ABSENT", "PROBE_NAME", "Condition", "Head", "NotThere", "Place", "PlaceWriter"]

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
        """All bytes of another object below the same place.

        Raises NotThere when it is not the one with that ETag any more."""
        ...

    def finish(self) -> None: ...

    def publish(self) -> str:
        """Its place. Raises SinkTaken where the condition does not hold."""
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
        """None where there is no such object."""

    @abstractmethod
    def read(self, name: str) -> tuple[bytes, str] | None:
        """A small object and its ETag; None where there is none."""

    @abstractmethod
    def chunks(self, name: str, etag: str, first: int, after: int) -> Iterator[bytes]:
        """Bytes ``first`` up to ``after`` of the object, while it is the one with this ETag."""

    @abstractmethod
    def names(self, below: str) -> Iterator[str]:
        """Of all objects below ``below``, which ends in a slash, page by page."""

    @abstractmethod
    def put(
        self,
        name: str,
        body: bytes,
        *,
        condition: Condition | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> str:
        """One small object; returns its ETag.

        Raises SinkTaken where the condition does not hold."""

    @abstractmethod
    def delete(self, name: str) -> None:
        """There or not."""

    @abstractmethod
    def abort_uploads(self, begin: str) -> int:
        """End the uploads of objects whose names begin so, which a process has left unfinished;
        returns how many."""

    def takes_conditions(self) -> bool:
        """Whether the store refuses to replace an object that must not be there; some do not know
        the header."""
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
        """``name`` may end in a slash, for all that lies below it."""
        return f"{self._prefix}/{name.lstrip('/')}".lstrip("/")

    def _name(self, key: str) -> str:
        """Of an object, below the place."""
        return key.removeprefix(self._prefix).lstrip("/")
