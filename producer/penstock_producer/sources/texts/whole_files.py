"""A folder, a prefix or a pattern whose files are one document each.

A document's id is the file's name below the folder; what else its row has is said by those who read
texts (text_files.py), and images and sounds (media_files.py). A position says size, tag and name,
so that a worker reads nothing but the content that was submitted.
"""

from __future__ import annotations

import hashlib
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final
from urllib.parse import quote, unquote

from penstock_producer.doc_ids import id_fault
from penstock_producer.errors import BadReference, SourceChanged, seen
from penstock_producer.job.spec import JobSpec
from penstock_producer.pins import FILES
from penstock_producer.rows import FILE, BadRow, Cursor, Document, Place
from penstock_producer.sources.blobs.blob import Deadline
from penstock_producer.sources.forms.columns import check_columns
from penstock_producer.sources.forms.row_forms import RowForm
from penstock_producer.sources.forms.strict_json import RowFault
from penstock_producer.sources.listings.chosen import Chosen
from penstock_producer.sources.listings.listed_files import ListedFiles
from penstock_producer.sources.listings.listing import Entry, quoted, shown, unquoted
from penstock_producer.sources.texts.read_ahead import contents
from penstock_producer.sources.texts.segments import PinnedSegments, SegmentNotes
from penstock_producer.tally import Tally

# before the kind of a pin that names its files: those of a watched folder that were new
SOME: Final = "some_"
_POSITION: Final = re.compile(r"(\d{1,18}):([^:]*):(.+)", re.ASCII | re.DOTALL)
_MAX_POSITION_CHARS: Final = 1_000  # what a message carries


def unchanged(pin: Mapping[str, Any], chosen: Chosen) -> bool:
    """Whether all files have the names, sizes and times of the pin, and none was added.

    Reads no content."""
    notes = SegmentNotes()
    for _ in notes.groups(chosen.uri, chosen.entries()):
        pass
    return chosen.uri == pin["uri"] and notes.pin().items() <= pin.items()


class WholeFiles(ABC):
    """``pin``: what ``pin()`` returned at submit; None for what is submitted now."""

    kind: ClassVar[str]  # of its pin
    columns: ClassVar[tuple[str, ...]]
    unit = FILE

    def __init__(
        self,
        chosen: Chosen,
        spec: JobSpec,
        form: RowForm,
        *,
        max_file_bytes: int,
        max_body_bytes: int,
        pin: Mapping[str, Any] | None = None,
        timeout_s: float | None = None,
    ) -> None:
        self.uri = chosen.uri
        self.id_field = spec.id_field
        self._chosen = chosen
        self._listing = chosen.listing
        self._form = form
        check_columns(chosen.uri, form, self.columns, nested=False)
        self._max_file_bytes, self._max_body_bytes = max_file_bytes, max_body_bytes
        self._deadline = None if timeout_s is None else Deadline(chosen.uri, timeout_s)
        self._pin = None if pin is None else dict(pin)

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
        """Raises BadReference for a position that the survey cannot have given, and SourceChanged
        for another content."""
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

    @property
    def tally(self) -> Tally:
        return self._form.tally

    def ended(self) -> bool:
        return True

    def mark_published(self, documents: Sequence[Document]) -> None:  # noqa: B027 - there is nothing to do
        """Nothing to remember: the cursor is the memory of files."""

    def _first_pass(self, done: int) -> Iterator[Document | BadRow]:
        notes, content = SegmentNotes(), hashlib.sha256()
        for group in notes.groups(self.uri, self._chosen.entries()):
            for number, entry, data in self._contents(group.before, group.entries):
                self._expect(entry)
                inner = None if data is None else hashlib.sha256(data).hexdigest()
                content.update(repr((quoted(entry.name), inner or entry.size)).encode())
                if number > done:
                    yield self._read(number, entry, data)
        some = {FILES: self._listing.pins()} if isinstance(self._listing, ListedFiles) else {}
        self._pin = {
            "kind": f"{SOME if some else ''}{self.kind}",
            **some,
            "uri": self.uri,
            "sha256": content.hexdigest(),
            **notes.pin(),
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
    def _expect(self, entry: Entry) -> None:
        """Raises SourceError where a file shows that the folder is not what it was taken for."""

    @abstractmethod
    def _row(self, entry: Entry, data: bytes) -> dict[str, Any]:
        """The columns of a file that could be read. Raises RowFault."""

    @abstractmethod
    def _too_large(self, entry: Entry) -> RowFault: ...

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
            return BadRow(
                shown(self._listing.uri, entry.name),
                number,
                fault.code,
                fault.field,
                fault.message,
                fault.value,
                fault.fix,
                entry.name if is_id else fault.doc_id,
                cursor,
                unit=FILE,
            )
        return Document(doc_id, body, position, number, cursor, endpoint)

    def _record(self, entry: Entry, data: bytes | None) -> dict[str, Any]:
        if entry.fault is not None:
            raise RowFault(entry.fault.code, entry.fault.message, fix=entry.fault.fix)
        if data is None:
            raise self._too_large(entry)
        return {"id": entry.name, **self._row(entry, data), "name": entry.name.rpartition("/")[2]}
