"""A local folder, all levels deep.

Links inside it are followed to files that lie inside it, never to folders."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from enum import Enum, auto
from pathlib import Path
from typing import Final

from penstock_producer.errors import BadReference, SourceError, SourceUnavailable, seen
from penstock_producer.sources.blobs.local import LocalFile
from penstock_producer.sources.listings.listing import Entry, Fault, is_data, order

MAX_ENTRIES: Final = 2_000_000  # that one listing looks at
MAX_DEPTH: Final = 64  # of folders


class LocalFolder:
    """``depth``: levels of folders that are read, all without it.

    ``follow``: links may lead out of the folder."""

    at_once = 1

    def __init__(self, path: str, *, depth: int = MAX_DEPTH, follow: bool = False) -> None:
        self._path = str(Path(path).absolute())
        self._depth = depth
        self._follow = follow
        self._left = MAX_ENTRIES
        self.uri = f"{self._path.rstrip('/')}/"

    def entries(self, after: str) -> Iterator[Entry]:
        self._left = MAX_ENTRIES
        return self._below("", order(after), 0)

    def named(self, name: str, size: int, tag: str) -> Entry:
        """The file of a name that the survey gave, in bytes and with its tag of then.

        Raises BadReference."""
        parts = name.split("/")
        if not all(parts) or {".", ".."} & set(parts) or "\0" in name or not is_data(name):
            raise BadReference(f"{seen(name)} is no name of a file in {self.uri}")
        return Entry(name, size, tag, 0, self._look(name, is_link=True).fault)

    def pinned(self, entry: Entry) -> LocalFile:
        pin = {
            "size": entry.size,
            "mtime_ns": int(entry.tag) if entry.tag.isdecimal() else -1,
            "sha256": "",
        }
        return LocalFile(f"{self.uri}{entry.name}", pin)

    def fresh(self, entry: Entry) -> LocalFile:
        return LocalFile(f"{self.uri}{entry.name}")

    def _below(self, prefix: str, after: bytes, depth: int) -> Iterator[Entry]:
        for name, kind in self._sorted(prefix):
            key = order(name)
            if kind is not _Kind.FOLDER:
                if key > after:
                    yield self._look(name, is_link=kind is _Kind.LINK)
            elif depth < self._depth and not (
                after > key and not after.startswith(key)
            ):  # not wholly before it
                yield from self._below(name, after, depth + 1)
            elif depth == MAX_DEPTH:
                raise SourceError(
                    "too_deep",
                    f"{self.uri} has folders in folders, more than {MAX_DEPTH}; move them up",
                )

    def _sorted(self, prefix: str) -> list[tuple[str, _Kind]]:
        """The names of one folder; those of folders end in a slash, and sort as the names below
        them do."""
        found: list[tuple[str, _Kind]] = []
        try:
            with os.scandir(f"{self._path}/{prefix}") as entries:
                for entry in entries:
                    self._left -= 1
                    if self._left < 0:
                        raise SourceError(
                            "too_many_files",
                            f"{self.uri} holds more than {MAX_ENTRIES:,} files; name a smaller "
                            "folder",
                        )
                    if is_data(entry.name):
                        kind = _kind(entry)
                        found.append(
                            (f"{prefix}{entry.name}{'/' if kind is _Kind.FOLDER else ''}", kind)
                        )
        except ValueError:  # a NUL, or half a surrogate pair
            raise SourceError(
                "invalid_path", f"{seen(self._path)} cannot be a path; check its characters"
            ) from None
        except OSError as error:
            raise SourceUnavailable(
                f"{self.uri}{prefix} cannot be listed ({error.strerror}); check the path and its "
                "rights"
            ) from error
        return sorted(found, key=lambda one: order(one[0]))

    def _look(self, name: str, *, is_link: bool) -> Entry:
        path = f"{self.uri}{name}"
        try:
            status = os.stat(path)
        except OSError as error:
            words = (
                "a link that leads nowhere" if is_link else f"not to be opened ({error.strerror})"
            )
            return Entry(name, 0, "", 0, _irregular(words))
        fault = self._fault(path, status.st_mode, is_link=is_link)
        return Entry(name, status.st_size, str(status.st_mtime_ns), status.st_mtime_ns, fault)

    def _fault(self, path: str, mode: int, *, is_link: bool) -> Fault | None:
        if not stat.S_ISREG(mode):
            return _irregular(_KINDS.get(stat.S_IFMT(mode), "a device or socket"))
        if is_link and not self._follow and not self._is_inside(path):
            return _irregular("a link out of the folder")
        if not os.access(path, os.R_OK):
            return Fault(
                "no_right_to_read",
                "This user has no right to read the file.",
                "change its rights (chmod a+r)",
            )
        return None

    def _is_inside(self, path: str) -> bool:
        return os.path.realpath(path).startswith(f"{os.path.realpath(self._path).rstrip('/')}/")


class _Kind(Enum):
    FILE = auto()
    FOLDER = auto()
    LINK = auto()


def _kind(entry: os.DirEntry[str]) -> _Kind:
    if entry.is_dir(follow_symlinks=False):
        return _Kind.FOLDER
    return _Kind.LINK if entry.is_symlink() else _Kind.FILE


_KINDS: Final = {stat.S_IFDIR: "a link to a folder", stat.S_IFIFO: "a pipe"}


def _irregular(words: str) -> Fault:
    return Fault(
        "not_a_regular_file",
        f"This is {words}.",
        "put the file itself there, or name the files to read by a pattern",
    )
