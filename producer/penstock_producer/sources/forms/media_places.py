"""The files that rows name lie in the folder of the source, or in `source_roots`.

A document must not make this machine read anything else, so paths are looked at by name, resolved,
and opened from the allowed folder without following links, as sources of remote doors are
(source_roots.py). Without a folder only addresses are taken.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Sequence
from typing import Final
from urllib.parse import quote

from penstock_producer.errors import SourceForbidden, seen
from penstock_producer.settings import ProducerSettings
from penstock_producer.source_roots import SourceRoots
from penstock_producer.sources.blobs.s3 import S3Files
from penstock_producer.sources.forms.strict_json import RowFault

__all__ = ["MediaPlaces", "places_of"]

S3: Final = "s3://"
SMALLER: Final = "make it smaller: cut a recording into parts, give an image's https:// address"


class MediaPlaces:
    """Reads the files that the rows of one source name.

    ``newest_ns``: of a source that is pinned; a file that was changed since is refused. Else it
    grows with each file read.
    """

    def __init__(
        self,
        folders: Sequence[str] = (),
        roots: Sequence[str] = (),
        *,
        private: Sequence[str] = (),
        s3_endpoint_url: str | None = None,
        newest_ns: int | None = None,
    ) -> None:
        """Note where rows may read from.

        ``folders`` are the source's own, the first of which relative paths count from; none for
        addresses only. ``private`` places stay shut to rows, wherever they lie.
        """
        self._base = folders[0] if folders else None
        self._roots = SourceRoots((*folders, *roots), private) if folders else None
        self._s3_endpoint_url = s3_endpoint_url
        self._pinned_ns = newest_ns
        self._s3: S3Files | None = None
        self.newest_ns = newest_ns or 0

    def read(self, where: str, most: int, field: str) -> bytes:
        """Return at most ``most`` bytes of a file or an object.

        Raises RowFault, and SourceUnavailable where S3 does not answer.
        """
        if self._roots is None or self._base is None:
            raise _forbidden(
                field,
                where,
                "Documents of this job come without a folder, so they may name addresses only.",
            )
        place = self._absolute(where)
        try:
            self._roots.admit(place)
            data, size, changed_ns = (
                self._object(place, most) if place.startswith(S3) else self._file(place, most)
            )
        except SourceForbidden:
            allowed = ", ".join(self._roots.entries)
            raise _forbidden(field, where, f"Files may lie in {allowed} only.") from None
        except FileNotFoundError:
            raise _unavailable(field, where, "there is no such file") from None
        except (OSError, ValueError) as error:
            raise _unavailable(
                field, where, str(getattr(error, "strerror", None) or error)
            ) from None
        if size > most:
            raise RowFault(
                "media_too_large",
                f"The file has {size} bytes, and {most} may still go into this request.",
                fix=SMALLER,
                field=field,
                value=seen(where),
            )
        self._note(changed_ns, where, field)
        return data

    def _absolute(self, where: str) -> str:
        if where.startswith(("/", S3)):
            return where
        assert self._base is not None
        return f"{self._base}/{quote(where) if self._base.startswith(S3) else where}"

    def _note(self, changed_ns: int, where: str, field: str) -> None:
        if self._pinned_ns is not None and changed_ns > self._pinned_ns:
            raise RowFault(
                "media_changed",
                "The file was changed after the job was submitted.",
                fix="restore it, or submit the new content as a new job",
                field=field,
                value=seen(where),
            )
        self.newest_ns = max(self.newest_ns, changed_ns)

    def _file(self, path: str, most: int) -> tuple[bytes, int, int]:
        assert self._roots is not None
        descriptor = self._roots.open(path)
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise ValueError("it is not a regular file")
            data = (
                b""
                if status.st_size > most
                else _whole(lambda left: os.read(descriptor, left), most)
            )
            return data, max(status.st_size, len(data)), status.st_mtime_ns
        finally:
            os.close(descriptor)

    def _object(self, uri: str, most: int) -> tuple[bytes, int, int]:
        if self._s3 is None:
            self._s3 = S3Files(self._s3_endpoint_url)
        return self._s3.read(uri, most)


def places_of(uri: str, settings: ProducerSettings, newest_ns: int | None) -> MediaPlaces:
    """Return the places for the rows of the file at ``uri``, a path or `s3://bucket/key`.

    Rows of other sources may name addresses only.
    """
    if "://" in uri and not uri.startswith(S3):
        return MediaPlaces()
    if uri.startswith(S3):
        folders = [uri.rpartition("/")[0]]
    else:
        folder = os.path.dirname(uri)
        folders = list(dict.fromkeys((os.path.abspath(folder), os.path.realpath(folder))))
    return MediaPlaces(
        folders,
        settings.source_roots,
        private=settings.readable.private,
        s3_endpoint_url=settings.s3_endpoint_url,
        newest_ns=newest_ns,
    )


def _whole(read: Callable[[int], bytes], most: int) -> bytes:
    """Read up to one byte more than ``most``: a file that grows meanwhile is too large then."""
    parts, left = [], most + 1
    while left and (part := read(left)):
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def _forbidden(field: str, where: str, why: str) -> RowFault:
    return RowFault(
        "media_forbidden",
        why,
        fix="put the file beside the source, name its plain path, or extend the setting "
        "source_roots (PENSTOCK_SOURCE_ROOTS)",
        field=field,
        value=seen(where),
    )


def _unavailable(field: str, where: str, why: str) -> RowFault:
    return RowFault(
        "media_unavailable",
        f"The file cannot be read: {why}.",
        fix="check its path and its rights",
        field=field,
        value=seen(where),
    )
