"""A local file as a pinned blob.

The pin holds size, sha256 and modification time. A reader compares size and time, which is free,
and hashes the file again only when the time differs; so a touched or copied file is fine and a
changed one is never read.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from penstock_producer.errors import (
    BadReference,
    SourceChanged,
    SourceError,
    SourceUnavailable,
    seen,
)
from penstock_producer.source_roots import SourceRoots
from penstock_producer.sources.blobs.blob import CHUNK_BYTES
from penstock_producer.sources.blobs.detect import cannot_open, refuse_kind

KIND = "file"


class _Identity(NamedTuple):
    """The facts of a file that change with any ordinary write.

    Compared for each chunk, so a file edited under a reader is noticed."""

    size: int
    mtime_ns: int
    inode: int


class LocalFile:
    """One regular file; ``pinned`` is what ``pin()`` returned at submit, None before that.

    With ``roots`` it must lie in one of them each time it is opened.
    """

    def __init__(
        self,
        path: str | Path,
        pinned: Mapping[str, Any] | None = None,
        *,
        roots: SourceRoots | None = None,
    ) -> None:
        self._path = self.uri = str(Path(path).absolute())
        self._roots = roots
        self._pinned = pinned
        self._verified: _Identity | None = None
        self._sha256: str | None = None if pinned is None else str(pinned["sha256"])

    def pin(self) -> dict[str, Any]:
        for _ in self.pinning():
            pass
        assert self._verified is not None
        return {
            "kind": KIND,
            "uri": self._path,
            "size": self._verified.size,
            "sha256": self._sha256,
            "mtime_ns": self._verified.mtime_ns,
        }

    def pinning(self) -> Iterator[bytes]:
        return self.chunks(0) if self._sha256 is None or self._verified is None else iter(())

    def unchanged(self) -> bool:
        """Return whether size and modification time are those of the pin.

        That is enough to skip a second survey of the same job.
        """
        if self._pinned is None:
            return False
        with self._opened() as (_, identity):
            return (identity.size, identity.mtime_ns) == (
                self._pinned["size"],
                self._pinned.get("mtime_ns"),
            )

    def chunks(self, offset: int) -> Iterator[bytes]:
        with self._opened() as (descriptor, identity):
            self._verify(descriptor, identity)
            hasher = hashlib.sha256() if self._sha256 is None and offset == 0 else None
            os.lseek(descriptor, offset, os.SEEK_SET)
            while chunk := os.read(descriptor, CHUNK_BYTES):
                if hasher is not None:
                    hasher.update(chunk)
                yield chunk
                self._expect(identity, _identity(descriptor))
            self._expect(identity, _identity(descriptor))
            if hasher is not None:
                self._sha256 = hasher.hexdigest()
                self._verified = identity

    def read(self, offset: int, length: int) -> bytes:
        """Return bytes of the file.

        Raises BadReference beyond its end, SourceChanged and SourceUnavailable.
        """
        with self._opened() as (descriptor, identity):
            self._verify(descriptor, identity)
            if offset + length > identity.size:
                raise BadReference(
                    f"{self.uri} has {identity.size} bytes and no document at {offset}:{length}"
                )
            data = os.pread(descriptor, length, offset)
        if len(data) != length:
            raise SourceChanged(
                f"{self.uri} ends before byte {offset + length}; restore the file that was "
                "submitted"
            )
        return data

    def _open(self) -> int:
        # O_NONBLOCK: opening a FIFO that nothing writes to must fail later, not hang here.
        return os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)

    def _verify(self, descriptor: int, identity: _Identity) -> None:
        """Compare the open file with the pin.

        It is read whole only when it is not plainly the same.
        """
        if self._verified is not None:
            self._expect(self._verified, identity)
        elif self._pinned is not None:
            same_time = identity.mtime_ns == self._pinned.get("mtime_ns")
            if identity.size != self._pinned["size"] or not (
                same_time or self._hash(descriptor) == self._sha256
            ):
                raise self._changed()
            self._verified = identity

    def _hash(self, descriptor: int) -> str:
        hasher = hashlib.sha256()
        os.lseek(descriptor, 0, os.SEEK_SET)
        while chunk := os.read(descriptor, CHUNK_BYTES):
            hasher.update(chunk)
        return hasher.hexdigest()

    def _expect(self, expected: _Identity, actual: _Identity) -> None:
        if actual != expected:
            raise self._changed()

    def _changed(self) -> SourceChanged:
        if self._pinned is None:
            return SourceChanged(
                f"{self.uri} changed while it was read; submit it once its writer has finished"
            )
        return SourceChanged(
            f"{self.uri} is not the file that was submitted; restore it, or submit the new content "
            "as a new job"
        )

    @contextmanager
    def _opened(self) -> Iterator[tuple[int, _Identity]]:
        try:
            descriptor = self._open() if self._roots is None else self._roots.open(self._path)
        except OSError as error:
            raise cannot_open(self.uri, error) from error
        except ValueError:  # a NUL, or half a surrogate pair
            raise SourceError(
                "invalid_path", f"{seen(self.uri)} cannot be a path; check its characters"
            ) from None
        try:
            refuse_kind(self.uri, os.fstat(descriptor).st_mode)
            yield descriptor, _identity(descriptor)
        except OSError as error:
            raise SourceUnavailable(f"{self.uri} cannot be read ({error.strerror})") from error
        finally:
            os.close(descriptor)


def _identity(descriptor: int) -> _Identity:
    status = os.fstat(descriptor)
    return _Identity(status.st_size, status.st_mtime_ns, status.st_ino)
