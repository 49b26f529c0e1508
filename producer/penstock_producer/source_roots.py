"""Where sources may lie that a remote door names: the setting `source_roots`, folders and bucket prefixes.

A file is checked by name, then resolved, then opened from its root one name at a time without following any link: what
is exchanged between the check and the opening is refused, not read. A path outside is refused before anything there is
touched, in the same words whether it exists or not.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
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
    """One entry of `source_roots`, without a slash at its end. Raises ValueError, which says what to write instead."""
    if root.startswith(_BUCKETS):
        bucket, key = _object(root)
        if not bucket or not _is_plain(key.strip("/"), may_be_empty=True):
            raise ValueError(f"{seen(root)}: write s3://bucket or s3://bucket/prefix, without . and .. in it")
        return root.rstrip("/")
    if "://" in root or not root.startswith("/") or not _is_plain(root.strip("/")) or _is_kernels(root):
        raise ValueError(f"{seen(root)}: write the absolute path of a folder of data, or s3://bucket/prefix")
    return root.rstrip("/")


@dataclass(frozen=True, slots=True)
class SourceRoots:
    """What `source_roots` allows; without an entry nothing."""

    entries: Sequence[str]

    def admit(self, where: str) -> None:
        """Raises SourceForbidden for what is not plainly a file or object inside; looks at the name only."""
        if where.startswith(_BUCKETS):
            inside = self._has_object(where)
        else:
            inside = _is_plain(where[1:]) and any(where.startswith(f"{root}/") for root in self._folders())
        if not inside:
            raise self._refused(where)

    def open(self, path: str) -> int:
        """A descriptor of the file, opened for reading. Raises SourceForbidden, and OSError for a file inside."""
        self.admit(path)
        real = os.path.realpath(path)
        for root in self._folders():
            real_root = os.path.realpath(root)
            if real.startswith(f"{real_root}/") and not _is_kernels(real_root):
                return self._open_beneath(real_root, Path(real).relative_to(real_root).parts, path)
        raise self._refused(path)

    def _open_beneath(self, root: str, names: Sequence[str], path: str) -> int:
        folder = os.open(root, _FOLDER)
        try:
            for name in names[:-1]:
                inner = os.open(name, _FOLDER, dir_fd=folder)
                os.close(folder)
                folder = inner
            return os.open(names[-1], _FILE, dir_fd=folder)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENOTDIR):  # a link where there was none when the path was resolved
                raise self._refused(path) from None
            raise
        finally:
            os.close(folder)

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


def _object(uri: str) -> tuple[str, str]:
    """`s3://bucket` and key of `s3://bucket/key`; two empty texts for what is not exactly that."""
    if not uri.startswith(_BUCKETS):
        return "", ""
    try:
        parts = urlsplit(uri)
    except ValueError:  # brackets that are not an address
        return "", ""
    if parts.query or parts.fragment or not parts.netloc.replace("-", "").replace(".", "").replace("_", "").isalnum():
        return "", ""
    return f"{parts.scheme}://{parts.netloc}", unquote(parts.path.removeprefix("/"))


def _is_plain(path: str, *, may_be_empty: bool = False) -> bool:
    """Names between single slashes, none of which means another place, and text that can be a path at all."""
    if not path:
        return may_be_empty
    return path.isprintable() and all(name not in ("", ".", "..") for name in path.split("/"))


def _is_kernels(path: str) -> bool:
    return any(path == place or path.startswith(f"{place}/") for place in _KERNEL)
