"""A folder, a prefix or a pattern whose files are one document each.

A document's id is the file's name below the folder; what else its row has is said by those who read
texts, and images and sounds (each_file.py). A position says size, tag and name, so
that a worker reads nothing but the content that was submitted.

What identifies all files in a pin of bounded size is a digest for each thousand of them, in the
order of their names. A reader lists a thousand files, compares their digest, and only then reads
one of them. So a feeder can begin at any thousand, and needs no list of all files. Files that are
newer than every one in the pin are left out of the comparison, so files that come later change
nothing. Where a digest differs all the same, it is not known which of the thousand files was
changed.
"""

from __future__ import annotations

import hashlib
import re
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final, NamedTuple
from urllib.parse import quote, unquote

from penstock_ledger import storable
from penstock_producer.errors import (
    BadReference,
    SourceChanged,
    SourceError,
    SourceUnavailable,
    seen,
)
from penstock_producer.job.spec import JobSpec
from penstock_producer.pins import FILES, NEWEST, SEGMENTS
from penstock_producer.rows import (
    FILE,
    ROW_ID,
    BadRow,
    Column,
    Cursor,
    Document,
    FiniteSource,
    Kinds,
    Place,
    Record,
    Tally,
    id_fault,
)
from penstock_producer.source_formats import FORMATS
from penstock_producer.sources.blobs.blob import Deadline
from penstock_producer.sources.forms.row_forms import RowForm, check_columns
from penstock_producer.sources.forms.strict_json import RowFault
from penstock_producer.sources.listings.chosen import Chosen
from penstock_producer.sources.listings.listing import (
    Entry,
    ListedFiles,
    Listing,
    order,
    quoted,
    shown,
    unquoted,
)

AHEAD_FILES: Final = 64  # that are read before they are asked for
AHEAD_BYTES: Final = 32 * 1024 * 1024


def contents(listing: Listing, entries: Sequence[Entry], most: int) -> Iterator[bytes | None]:
    """Yield the bytes of each entry; None for one that is not read.

    Such has a fault, or more than ``most`` bytes. Raises SourceChanged, SourceUnavailable.
    """
    if listing.at_once == 1:
        return (_content(listing, entry, most) for entry in entries)
    return _read_ahead(listing, entries, most)


def _read_ahead(listing: Listing, entries: Sequence[Entry], most: int) -> Iterator[bytes | None]:
    waiting: deque[tuple[int, Future[bytes | None]]] = deque()
    held = 0
    pool = ThreadPoolExecutor(listing.at_once, thread_name_prefix="penstock-read")
    try:
        for entry in entries:
            size = min(entry.size, most)
            while waiting and (len(waiting) >= AHEAD_FILES or held + size > AHEAD_BYTES):
                done, content = waiting.popleft()
                yield content.result()
                held -= done
            waiting.append((size, pool.submit(_content, listing, entry, most)))
            held += size
        while waiting:
            yield waiting.popleft()[1].result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _content(listing: Listing, entry: Entry, most: int) -> bytes | None:
    if entry.fault is not None or entry.size > most:
        return None
    return listing.pinned(entry).read(0, entry.size) if entry.size else b""


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
        """Yield the files by thousands. Raises SourceError for more than MAX_FILES of them."""
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
        """Return the segment of the file after ``number`` files, and the name before it."""
        segment = min(number // SEGMENT, len(self._segments) - 1)
        return segment, unquoted(self._segments[segment][0])

    def groups(self, segment: int, entries: Iterable[Entry]) -> Iterator[Group]:
        """Yield the groups from a segment on.

        Raises SourceChanged for files that are not those of the pin, SourceUnavailable for none.
        """
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


# before the kind of a pin that names its files: those of a watched folder that were new
SOME: Final = "some_"
_POSITION: Final = re.compile(r"(\d{1,18}):([^:]*):(.+)", re.ASCII | re.DOTALL)
_MAX_POSITION_CHARS: Final = 1_000  # what a message carries


def unchanged(pin: Mapping[str, Any], chosen: Chosen) -> bool:
    """Return whether all files have the names, sizes and times of the pin, and none was added.

    Reads no content."""
    notes = SegmentNotes()
    for _ in notes.groups(chosen.uri, chosen.entries()):
        pass
    return chosen.uri == pin["uri"] and notes.pin().items() <= pin.items()


def check_name(name: str) -> None:
    """Raise RowFault for a name that cannot be written as UTF-8."""
    try:
        name.encode()
    except UnicodeEncodeError:
        raise RowFault(
            "invalid_encoding",
            "The name of this file is not UTF-8.",
            fix="rename it (convmv -t utf8)",
            value=seen(name),
        ) from None


@dataclass(frozen=True, slots=True)
class FileOptions:
    """The options of readers whose files are one document each."""

    form: str  # the format's name
    max_file_bytes: int  # both limits travel in the pin, as those of rows do
    max_body_bytes: int
    pin: Mapping[str, Any] | None = None  # as `pin()` returned it; None for a submit
    timeout_s: float | None = None


class WholeFiles(FiniteSource, ABC):
    """Files of a folder, of which each is one document."""

    has: ClassVar[tuple[str, ...]]  # columns that a prompt may use
    bound: ClassVar[str]  # what says how large a file may be, in the refusal of a larger one
    shrink: ClassVar[str]  # what to do about one
    unit = FILE
    kinds: Kinds = "known"

    def __init__(self, chosen: Chosen, spec: JobSpec, form: RowForm, options: FileOptions) -> None:
        self.uri = chosen.uri
        self.id_field = spec.id_field
        self._chosen = chosen
        self._listing = chosen.listing
        self._form = form
        if spec.id_field == ROW_ID:
            raise SourceError(
                "unsupported_source",
                f"each file of {chosen.uri} is named by its place in it; leave the id field out",
            )
        check_columns(chosen.uri, form, self.has, nested=False)
        self._kind = FORMATS[options.form].each_file
        self._max_file_bytes = options.max_file_bytes
        self._max_body_bytes = options.max_body_bytes
        timeout_s = options.timeout_s
        self._deadline = None if timeout_s is None else Deadline(chosen.uri, timeout_s)
        self._pin = None if options.pin is None else dict(options.pin)

    def pin(self) -> dict[str, Any]:
        if self._pin is None:
            for _ in self.documents({}):
                pass
        assert self._pin is not None, "a whole pass makes it"
        return dict(self._pin)

    def documents(self, cursor: Mapping[str, Any]) -> Iterator[Document | BadRow]:
        done = int(cursor.get("number", 0))
        return self._first_pass(done) if self._pin is None else self._again(self._pin, done)

    def fetch(self, position: str) -> Document:
        """Read one document.

        Raises BadReference for a position that the survey cannot have given, and SourceChanged for
        another content.
        """
        found = _POSITION.fullmatch(position)
        name = "" if found is None else unquoted(found[3])
        if found is None or not self._chosen.holds(name) or int(found[1]) > self._max_file_bytes:
            raise BadReference(f"{seen(position)} is not the position of a document in {self.uri}")
        entry = self._listing.named(name, int(found[1]), unquote(found[2]))
        if entry.fault is not None:
            raise SourceChanged(
                f"{shown(self.uri, name)}: {entry.fault.message} It was a file when it was "
                "submitted"
            )
        row = self._read(0, entry, self._listing.pinned(entry).read(0, entry.size))
        if isinstance(row, BadRow):
            raise BadReference(f"{row.uri} is no document ({row.code})")
        return row._replace(cursor={})

    def place(self, line: int) -> Place:
        return Place(self.uri, line, FILE)

    def columns(self) -> Sequence[Column]:
        """Return the columns that a table keeps: what a file holds stays in the file."""
        return [Column("id", "text"), Column("name", "text")]

    def records(self) -> Iterator[Record]:
        assert self._pin is not None, "a job that was accepted has its pin"
        pinned = PinnedSegments(self.uri, self._pin)
        for group in pinned.groups(0, self._chosen.entries(pinned.start(0)[1])):
            for number, entry in enumerate(group.entries, group.before + 1):
                name = storable(entry.name)
                yield Record(number, {"id": name, "name": name.rpartition("/")[2]})

    @property
    def tally(self) -> Tally:
        return self._form.tally

    def _first_pass(self, done: int) -> Iterator[Document | BadRow]:
        notes, content = SegmentNotes(), hashlib.sha256()
        for group in notes.groups(self.uri, self._chosen.entries()):
            for number, entry, data in self._contents(group.before, group.entries):
                inner = None if data is None else hashlib.sha256(data).hexdigest()
                content.update(repr((quoted(entry.name), inner or entry.size)).encode())
                if number > done:
                    yield self._read(number, entry, data)
        some = {FILES: self._listing.pins()} if isinstance(self._listing, ListedFiles) else {}
        self._pin = {
            "kind": f"{SOME if some else ''}{self._kind}",
            **some,
            "uri": self.uri,
            "sha256": content.hexdigest(),
            **notes.pin(),
            **self._chosen.skipped.pin(),
            "max_line_bytes": self._max_file_bytes,
            "max_body_bytes": self._max_body_bytes,
        }

    def _again(self, pin: Mapping[str, Any], done: int) -> Iterator[Document | BadRow]:
        pinned = PinnedSegments(self.uri, pin)
        segment, after = pinned.start(done)
        for group in pinned.groups(segment, self._chosen.entries(after)):
            skipped = min(max(0, done - group.before), len(group.entries))
            for number, entry, data in self._contents(
                group.before + skipped, group.entries[skipped:]
            ):
                yield self._read(number, entry, data)

    def _contents(
        self, before: int, entries: Sequence[Entry]
    ) -> Iterator[tuple[int, Entry, bytes | None]]:
        read = contents(self._listing, entries, self._max_file_bytes)
        for number, (entry, data) in enumerate(zip(entries, read, strict=True), before + 1):
            if self._deadline is not None:
                self._deadline.check()
            yield number, entry, data

    @abstractmethod
    def _row(self, entry: Entry, data: bytes) -> dict[str, Any]:
        """Return the columns of a file that could be read. Raises RowFault."""

    def _read(self, number: int, entry: Entry, data: bytes | None) -> Document | BadRow:
        cursor: Cursor = {"number": number}
        try:
            record = self._record(entry, data)
            doc_id, body, endpoint = self._form.read(record)
            position = f"{entry.size}:{quote(entry.tag, safe='')}:{quoted(entry.name)}"
            if len(position) > _MAX_POSITION_CHARS:
                raise RowFault(
                    "name_too_long",
                    f"The file's name has {len(entry.name)} characters.",
                    fix="give it a shorter one",
                )
        except RowFault as fault:
            is_id = self.id_field == "id" and id_fault(entry.name) is None
            row = fault.row(shown(self._listing.uri, entry.name), number, cursor)
            return replace(row, doc_id=entry.name if is_id else fault.doc_id, unit=FILE)
        return Document(doc_id, body, position, number, cursor, endpoint)

    def _record(self, entry: Entry, data: bytes | None) -> dict[str, Any]:
        if entry.fault is not None:
            raise RowFault(entry.fault.code, entry.fault.message, fix=entry.fault.fix)
        if data is None:
            raise RowFault(
                "file_too_large",
                f"The file has {entry.size} bytes, and {self.bound} {self._max_file_bytes}.",
                fix=self.shrink,
            )
        return {"id": entry.name, **self._row(entry, data), "name": entry.name.rpartition("/")[2]}
