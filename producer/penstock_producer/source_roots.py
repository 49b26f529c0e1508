"""Sources that remote clients name lie below the setting `source_roots`.

Roots are folders and bucket prefixes.

A file is checked by name, then resolved, then opened from its root one name at a time without
following any link: what is exchanged between the check and the opening is refused, not read. A path
outside is refused before anything there is touched, in the same words whether it exists or not.

Uploads, results and the ledger belong to all tenants, so no root may hold them: processes refuse to
start where settings say so (``overlap``), and what comes to lie inside later, by a mount or a link,
is known by its device and inode when it is opened.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from penstock_producer.errors import SourceForbidden, seen

_BUCKETS: Final = ("s3://", "gs://", "az://")
_KERNEL: Final = ("/proc", "/sys", "/dev")  # regular by their type, and full of secrets
_FOLDER = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | getattr(os, "O_PATH", os.O_RDONLY)
# O_NONBLOCK: opening a FIFO that nothing writes to must fail later, not hang here.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def check_root(root: str) -> str:
    """Return one entry of `source_roots`, without a slash at its end.

    Raises ValueError, which says what to write instead.
    """
    if root.startswith(_BUCKETS):
        bucket, key = _object(root)
        if not bucket or not _is_plain(key.strip("/"), may_be_empty=True):
            raise ValueError(
                f"{seen(root)}: write s3://bucket or s3://bucket/prefix, without . and .. in it"
            )
        return root.rstrip("/")
    if (
        "://" in root
        or not root.startswith("/")
        or not _is_plain(root.strip("/"))
        or _is_kernels(root)
    ):
        raise ValueError(
            f"{seen(root)}: write the absolute path of a folder of data, or s3://bucket/prefix"
        )
    return root.rstrip("/")


@dataclass(frozen=True, slots=True)
class SourceRoots:
    """The places that `source_roots` allows; without an entry none.

    ``private`` places stay shut, wherever they lie."""

    entries: Sequence[str]
    private: Sequence[str] = ()  # folders, files, and prefixes of buckets

    def admit(self, where: str) -> None:
        """Raise SourceForbidden for what is not plainly a file or object inside.

        Only the name is looked at.
        """
        if where.startswith(_BUCKETS):
            inside = self._has_object(where)
        else:
            inside = _is_plain(where[1:]) and any(
                where.startswith(f"{root}/") for root in self._folders()
            )
        if not inside or any(_names_inside(where, place) for place in self.private):
            raise self._refused(where)

    def open(self, path: str) -> int:
        """Return a descriptor of the file, opened for reading.

        Raises SourceForbidden, and OSError for a file inside.
        """
        self.admit(path)
        real = os.path.realpath(path)
        for root in self._folders():
            real_root = os.path.realpath(root)
            if real.startswith(f"{real_root}/") and not _is_kernels(real_root):
                return self._open_beneath(real_root, Path(real).relative_to(real_root).parts, path)
        raise self._refused(path)

    def _open_beneath(self, root: str, names: Sequence[str], path: str) -> int:
        private = {found for place in self.private if (found := _identity(place)) is not None}
        opened = os.open(root, _FOLDER)
        try:
            for name, flags in [*((name, _FOLDER) for name in names[:-1]), (names[-1], _FILE)]:
                self._refuse_private(opened, private, path)
                folder, opened = opened, os.open(name, flags, dir_fd=opened)
                os.close(folder)
            self._refuse_private(opened, private, path)
        except OSError as error:
            os.close(opened)
            # a link where there was none when the path was resolved
            if error.errno in (errno.ELOOP, errno.ENOTDIR):
                raise self._refused(path) from None
            raise
        except SourceForbidden:
            os.close(opened)
            raise
        return opened

    def _refuse_private(self, opened: int, private: Collection[tuple[int, int]], path: str) -> None:
        status = os.fstat(opened)
        if (status.st_dev, status.st_ino) in private:
            raise self._refused(path)

    def _folders(self) -> list[str]:
        return [entry for entry in self.entries if entry.startswith("/")]

    def _has_object(self, uri: str) -> bool:
        bucket, key = _object(uri)
        if not bucket or not _is_plain(key):
            return False
        for entry in self.entries:
            root_bucket, prefix = _object(entry)
            if root_bucket == bucket and (not prefix or key.startswith(f"{prefix}/")):
                return True
        return False

    def _refused(self, where: str) -> SourceForbidden:
        return SourceForbidden(where, self.entries)


def overlap(root: str, place: str) -> bool:
    """Return whether one of both holds the other, by whatever name.

    It may be held through links, `..`, mounts, or another case.
    """
    if root.startswith(_BUCKETS) or place.startswith(_BUCKETS):
        return _names_inside(root, place) or _names_inside(place, root)
    return _is_within(place, root) or _is_within(root, place)


def _is_within(inner: str, outer: str) -> bool:
    """Return whether ``outer`` is ``inner`` or one of its parents. Neither has to exist yet."""
    real, wanted = Path(os.path.realpath(inner)), Path(os.path.realpath(outer))
    identity = _identity(outer)
    return any(
        parent == wanted or (identity is not None and _identity(str(parent)) == identity)
        for parent in (real, *real.parents)
    )


def _identity(path: str) -> tuple[int, int] | None:
    """Return what the file system knows it by: device and inode, None where there is nothing."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    return status.st_dev, status.st_ino


def _names_inside(where: str, place: str) -> bool:
    """Return whether ``where`` is at or below ``place``, by the names alone.

    In buckets names are compared as keys are.
    """
    if where.startswith(_BUCKETS) != place.startswith(_BUCKETS):
        return False
    if not place.startswith(_BUCKETS):
        return f"{where}/".startswith(f"{place.rstrip('/')}/")
    asked, held = urlsplit(where), urlsplit(place)
    keys = [f"{unquote(parts.path).strip('/')}/".lstrip("/") for parts in (asked, held)]
    return (asked.scheme, asked.netloc) == (held.scheme, held.netloc) and keys[0].startswith(
        keys[1]
    )


def _object(uri: str) -> tuple[str, str]:
    """Return `s3://bucket` and key of `s3://bucket/key`.

    Two empty texts stand for what is not exactly that.
    """
    if not uri.startswith(_BUCKETS):
        return "", ""
    try:
        parts = urlsplit(uri)
    except ValueError:  # brackets that are not an address
        return "", ""
    if (
        parts.query
        or parts.fragment
        or not parts.netloc.replace("-", "").replace(".", "").replace("_", "").isalnum()
    ):
        return "", ""
    return f"{parts.scheme}://{parts.netloc}", unquote(parts.path.removeprefix("/"))


def _is_plain(path: str, *, may_be_empty: bool = False) -> bool:
    """Return whether a path has names between single slashes, none of which means another place.

    Text that cannot be a path at all is none.
    """
    if not path:
        return may_be_empty
    return path.isprintable() and all(name not in ("", ".", "..") for name in path.split("/"))


def _is_kernels(path: str) -> bool:
    return any(path == place or path.startswith(f"{place}/") for place in _KERNEL)
