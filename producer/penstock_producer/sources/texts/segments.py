"""What identifies 500,000 files in a pin of bounded size: a digest for each thousand of them, in
the order of their names.

A reader lists a thousand files, compares their digest, and only then reads one of them. So a feeder
can begin at any thousand, and needs no list of all files. Files that are newer than every one in
the pin are left out of the comparison, so files that come later change nothing. Where a digest
differs all the same, it is not known which of the thousand files was changed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from penstock_producer.errors import SourceChanged, SourceError, SourceUnavailable
from penstock_producer.pins import NEWEST, SEGMENTS
from penstock_producer.sources.listings.listing import Entry, order, quoted, shown, unquoted

SEGMENT: Final = 1_000  # files
MAX_FILES: Final = 500_000
_LATE_SHOWN: Final = 3


class Group(NamedTuple):
    """Up to a thousand files."""

    before: int  # number of the files before them
    entries: Sequence[Entry]


class SegmentNotes:
    """Taken while all files are listed for the first time."""

    def __init__(self) -> None:
        self.files = 0
        self.bytes = 0
        self._newest_ns = 0
        self._segments: list[list[str]] = []
        self._last = ""

    def groups(self, uri: str, entries: Iterable[Entry]) -> Iterator[Group]:
        """The files by thousands. Raises SourceError for more than MAX_FILES of them."""
        for some in _thousands(uri, entries):
            if self.files + len(some) > MAX_FILES:
                raise SourceError(
                    "too_many_files",
                    f"{uri} stands for more than {MAX_FILES:,} files; make several jobs of it",
                )
            self._segments.append([quoted(self._last), _digest(some)])
            before, self._last = self.files, some[-1].name
            self.files += len(some)
            self.bytes += sum(entry.size for entry in some)
            self._newest_ns = max(self._newest_ns, *(entry.changed_ns for entry in some))
            yield Group(before, some)

    def pin(self) -> dict[str, Any]:
        return {
            "count": self.files,
            "size": self.bytes,
            NEWEST: self._newest_ns,
            SEGMENTS: self._segments,
        }


class PinnedSegments:
    """Of a pin that ``SegmentNotes`` made."""

    def __init__(self, uri: str, pin: Mapping[str, Any]) -> None:
        self._uri = uri
        self._count = int(pin["count"])
        self._newest_ns = int(pin[NEWEST])
        self._segments: Sequence[Sequence[str]] = pin[SEGMENTS]

    def start(self, number: int) -> tuple[int, str]:
        """The segment that the file after ``number`` files lies in, and the name before it."""
        segment = min(number // SEGMENT, len(self._segments) - 1)
        return segment, unquoted(self._segments[segment][0])

    def groups(self, segment: int, entries: Iterable[Entry]) -> Iterator[Group]:
        """From a segment on.

        Raises SourceChanged for files that are not those of the pin, SourceUnavailable for none."""
        late: list[str] = []
        known = _thousands(self._uri, self._listed(entries, late))
        for number in range(segment, len(self._segments)):
            before = number * SEGMENT
            some = next(known, [])[: self._count - before]
            if not some:
                raise SourceUnavailable(
                    f"{self._uri} holds {before} of its {self._count} files; restore the others "
                    "(is the disk mounted?), and resume the job"
                )
            if _digest(some) != self._segments[number][1]:
                raise self._changed(some, before, late)
            yield Group(before, some)

    def _listed(self, entries: Iterable[Entry], late: list[str]) -> Iterator[Entry]:
        for entry in entries:
            if entry.changed_ns <= self._newest_ns:
                yield entry
            elif len(late) < _LATE_SHOWN:
                late.append(entry.name)

    def _changed(self, some: Sequence[Entry], before: int, late: Sequence[str]) -> SourceChanged:
        between = f" ({shown('', some[0].name)} to {shown('', some[-1].name)})" if some else ""
        newer = (
            "; newer than the job are " + ", ".join(shown("", name) for name in late)
            if late
            else ""
        )
        return SourceChanged(
            f"of the files {before + 1} to {min(before + SEGMENT, self._count)} of "
            f"{self._uri}{between}, one was changed, removed or added after it was "
            f"submitted{newer}; restore them, or submit the folder as a new job"
        )


def _thousands(uri: str, entries: Iterable[Entry]) -> Iterator[list[Entry]]:
    some: list[Entry] = []
    last = b""
    for entry in entries:
        key = order(entry.name)
        if key <= last:
            raise SourceError(
                "unordered", f"{uri} is not listed in the order of names ({shown('', entry.name)})"
            )
        last = key
        some.append(entry)
        if len(some) == SEGMENT:
            yield some
            some = []
    if some:
        yield some


def _digest(entries: Sequence[Entry]) -> str:
    hasher = hashlib.sha256()
    for entry in entries:
        hasher.update(entry.identity)
    return hasher.hexdigest()[:32]
