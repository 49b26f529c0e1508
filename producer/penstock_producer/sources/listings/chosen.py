"""The files that are chosen by a folder, a prefix or a pattern."""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Iterator
from itertools import islice
from typing import Final

from penstock_producer.errors import SourceError
from penstock_producer.job.formats import MEDIA, TEXT
from penstock_producer.sources.blobs.s3 import S3Prefix
from penstock_producer.sources.blobs.store import SCHEMES, StorePrefix
from penstock_producer.sources.listings.bucket import BucketListing
from penstock_producer.sources.listings.folder import MAX_DEPTH, LocalFolder
from penstock_producer.sources.listings.listing import Entry, Listing
from penstock_producer.sources.media.kinds import LOOKED_AT, kind_of
from penstock_producer.sources.readers.file_format import has_known_ending, has_text_ending

ROWS: Final = "rows"
_PATTERN: Final = frozenset("*?[")
_FIRST_FILES: Final = 10  # whose names, or first bytes, say what a folder holds


class Chosen:
    """Files below one place. ``pattern`` is empty for all of them."""

    def __init__(self, listing: Listing, pattern: str) -> None:
        self.uri = f"{listing.uri}{pattern}"
        self.listing = listing
        self.pattern = pattern

    def entries(self, after: str = "") -> Iterator[Entry]:
        """In the order of their names, those later than ``after``.

        Raises SourceError, SourceUnavailable."""
        return (entry for entry in self.listing.entries(after) if self.holds(entry.name))

    def holds(self, name: str) -> bool:
        """Whether a name below the place is one of these."""
        return matches(self.pattern, name)

    def form(self, given: str | None) -> str:
        """What its files are: TEXT or MEDIA where each is a document, else ROWS.

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
            return given if given in (TEXT, MEDIA) else ROWS
        return next(filter(None, map(self._told_by, first)), ROWS)

    def _told_by(self, entry: Entry) -> str | None:
        if has_text_ending(entry.name):
            return TEXT
        if has_known_ending(entry.name):
            return ROWS
        if entry.fault is not None or not entry.size:
            return None
        start = self.listing.pinned(entry).read(0, min(entry.size, LOOKED_AT))
        return None if kind_of(start) is None else MEDIA


def matches(pattern: str, name: str) -> bool:
    """As a shell has it: a star stays between two slashes, and two of them do not."""
    if not pattern:
        return True
    if "**" not in pattern:
        return name.count("/") == pattern.count("/") and fnmatch.fnmatchcase(name, pattern)
    return any(fnmatch.fnmatchcase(name, one) for one in (pattern, pattern.replace("**/", "")))


def choose(where: str, s3_endpoint_url: str | None = None) -> Chosen | None:
    """None where ``where`` names one file. Nothing is listed yet."""
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
    """The place that files lie below, and the pattern of their names, empty for all; None where
    ``where`` names one file."""
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
