"""The files that are chosen by a folder, a prefix or a pattern."""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Iterator
from typing import Final

from penstock_producer.errors import SourceError
from penstock_producer.job.formats import TEXT
from penstock_producer.sources.blobs.s3 import S3Prefix
from penstock_producer.sources.blobs.store import SCHEMES, StorePrefix
from penstock_producer.sources.listings.bucket import BucketListing
from penstock_producer.sources.listings.folder import MAX_DEPTH, LocalFolder
from penstock_producer.sources.listings.listing import Entry, Listing
from penstock_producer.sources.readers.file_format import has_text_ending

_PATTERN: Final = frozenset("*?[")


class Chosen:
    """Files below one place. ``pattern`` is empty for all of them."""

    def __init__(self, listing: Listing, pattern: str) -> None:
        self.uri = f"{listing.uri}{pattern}"
        self.listing = listing
        self.pattern = pattern

    def entries(self, after: str = "") -> Iterator[Entry]:
        """In the order of their names, those later than ``after``. Raises SourceError, SourceUnavailable."""
        return (entry for entry in self.listing.entries(after) if self.holds(entry.name))

    def holds(self, name: str) -> bool:
        """Whether a name below the place is one of these."""
        return matches(self.pattern, name)

    def are_texts(self, given: str | None) -> bool:
        """Whether each file is one document: as the job says, else by the first name. Raises SourceError for no file."""
        first = next(self.entries(), None)
        if first is None:
            raise SourceError(
                "no_such_file",
                f"{self.uri} stands for no file; check the path (names with . or _ in front are left out)",
            )
        return given == TEXT or (given is None and has_text_ending(first.name))


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
    """The place that files lie below, and the pattern of their names, empty for all; None where ``where`` names one file."""
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
