"""The files that are chosen by a folder, a prefix or a pattern.

A local folder is read all levels deep. Links inside it are followed to files that lie inside it,
never to folders.
"""

from __future__ import annotations

import fnmatch
import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum, auto
from itertools import islice
from pathlib import Path
from typing import Any, Final

from penstock_producer.errors import BadReference, SourceError, SourceUnavailable, seen
from penstock_producer.pins import SKIPPED
from penstock_producer.source_formats import FORMATS
from penstock_producer.sources.blobs.detect import document_by_name, rows_by_name
from penstock_producer.sources.blobs.local import LocalFile
from penstock_producer.sources.blobs.s3 import S3Prefix
from penstock_producer.sources.blobs.store import SCHEMES, StorePrefix
from penstock_producer.sources.forms.media import LOOKED_AT
from penstock_producer.sources.listings.listing import (
    BucketListing,
    Entry,
    Fault,
    Listing,
    is_data,
    order,
    quoted,
)

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
        """Return the file of a name that the survey gave, with its bytes and its tag of then.

        Raises BadReference.
        """
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
            # not wholly before it
            elif depth < self._depth and not (after > key and not after.startswith(key)):
                yield from self._below(name, after, depth + 1)
            elif depth == MAX_DEPTH:
                raise SourceError(
                    "too_deep",
                    f"{self.uri} has folders in folders, more than {MAX_DEPTH}; move them up",
                )

    def _sorted(self, prefix: str) -> list[tuple[str, _Kind]]:
        """Return the names of one folder, sorted.

        Those of folders end in a slash, and sort as the names below them do.
        """
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


ROWS: Final = "rows"
_PATTERN: Final = frozenset("*?[")
_SKIPPED_SHOWN: Final = 5
_FIRST_FILES: Final = 10  # whose names, or first bytes, say what a folder holds


@dataclass(slots=True)
class Skipped:
    """Files of a folder that are not read, since their names say that they hold something else."""

    count: int = 0
    names: list[str] = field(default_factory=list)  # the first of them

    def note(self, name: str) -> None:
        self.count += 1
        if len(self.names) < _SKIPPED_SHOWN:
            self.names.append(quoted(name))

    def pin(self) -> dict[str, Any]:
        """Return what a job keeps of them: nothing, where there are none."""
        return {SKIPPED: {"count": self.count, "names": self.names}} if self.count else {}


class Chosen:
    """Files below one place. ``pattern`` is empty for all of them."""

    def __init__(
        self, listing: Listing, pattern: str, takes: Callable[[str], bool] | None = None
    ) -> None:
        """Take in what to list; ``takes`` says whether a file of this name is read."""
        self.uri = f"{listing.uri}{pattern}"
        self.listing = listing
        self.pattern = pattern
        self.skipped = Skipped()
        self._takes = takes

    def only(self, takes: Callable[[str], bool]) -> Chosen:
        """Return those of the files that are read; the others are counted when they are listed."""
        return Chosen(self.listing, self.pattern, takes)

    def entries(self, after: str = "") -> Iterator[Entry]:
        """Yield the files later than ``after``, in the order of their names.

        Raises SourceError, SourceUnavailable.
        """
        if not after:
            self.skipped = Skipped()
        for entry in self.listing.entries(after):
            if not matches(self.pattern, entry.name):
                continue
            if self._takes is None or self._takes(entry.name):
                yield entry
            else:
                self.skipped.note(entry.name)

    def holds(self, name: str) -> bool:
        """Return whether a name below the place is one of these."""
        return matches(self.pattern, name) and (self._takes is None or self._takes(name))

    def form(self, given: str | None) -> str:
        """Return what its files are: the name of a format where each is a document, else ROWS.

        As the job says, else by the first of them whose name tells, or whose first bytes are those
        of an image or a sound. Raises SourceError for no file."""
        first = list(islice(self.entries(), _FIRST_FILES))
        if not first:
            raise SourceError(
                "no_such_file",
                f"{self.uri} stands for no file; check the path (names with . or _ in front are "
                "left out)",
            )
        if given is not None:
            return ROWS if given not in FORMATS or FORMATS[given].of_rows else given
        told = list(filter(None, map(self._told_by, first)))
        # where both are there, that of which there is more: a README lies beside rows, too
        return max(dict.fromkeys(told), key=told.count, default=ROWS)

    def _told_by(self, entry: Entry) -> str | None:
        document = document_by_name(entry.name)
        if document is not None:
            return document.name
        if rows_by_name(entry.name) is not None:
            return ROWS
        if entry.fault is not None or not entry.size:
            return None
        start = self.listing.pinned(entry).read(0, min(entry.size, LOOKED_AT))
        whole = entry.size <= LOOKED_AT
        documents = (one for one in FORMATS.values() if not one.of_rows)
        return next((one.name for one in documents if one.is_like(start, whole=whole)), None)


def matches(pattern: str, name: str) -> bool:
    """Return whether a name matches as in a shell.

    A star stays between two slashes, and two of them do not.
    """
    if not pattern:
        return True
    if "**" not in pattern:
        return name.count("/") == pattern.count("/") and fnmatch.fnmatchcase(name, pattern)
    return any(fnmatch.fnmatchcase(name, one) for one in (pattern, pattern.replace("**/", "")))


def choose(where: str, s3_endpoint_url: str | None = None) -> Chosen | None:
    """Return what ``where`` stands for; None where it names one file. Nothing is listed yet."""
    parts = folder_and_pattern(where)
    if parts is None:
        return None
    head, pattern = parts
    scheme = _scheme(where)
    if scheme == "s3":
        return Chosen(BucketListing(S3Prefix(head, endpoint_url=s3_endpoint_url)), pattern)
    if scheme:
        return Chosen(BucketListing(StorePrefix(head)), pattern)
    depth = pattern.count("/") if pattern and "**" not in pattern else MAX_DEPTH
    return Chosen(LocalFolder(head, depth=depth, follow=bool(pattern)), pattern)


def folder_and_pattern(where: str) -> tuple[str, str] | None:
    """Return the place that files lie below, and the pattern of their names, empty for all.

    None where ``where`` names one file.
    """
    scheme = _scheme(where)
    if scheme not in ("", "s3", *SCHEMES):
        return None
    if where.endswith("/") and not where.endswith("://"):
        return where, ""
    if not _is_pattern(where, scheme):
        return None
    start = min(where.index(sign) for sign in _signs(scheme) & set(where))
    head, slash, _ = where[:start].rpartition("/")
    return head + slash, where[len(head + slash) :]


def _scheme(where: str) -> str:
    return where.partition("://")[0] if "://" in where else ""


def _signs(scheme: str) -> frozenset[str]:
    return _PATTERN - {"?"} if scheme else _PATTERN  # keys hold question marks


def _is_pattern(where: str, scheme: str) -> bool:
    return bool(_signs(scheme) & set(where)) and (bool(scheme) or not os.path.lexists(where))
