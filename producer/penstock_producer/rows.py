"""What every source of documents yields, and what it must be able to do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from penstock_producer.tally import Tally

__all__ = ["BadRow", "Document", "Source"]

Cursor = dict[str, Any]

MISSING_FIELD = "missing_field"  # the code of a row that lacks a column of the prompt

# What a source counts: lines of a text, rows of a table, or files that are a document each.
LINE = "line"
ROW = "row"
FILE = "file"


class Document(NamedTuple):
    """One document, ready to be sent."""

    doc_id: str
    body: bytes  # the provider's request body, JSON
    position: str  # what ``Source.fetch`` needs to read this document again
    line: int  # 1-based line of the file; the row's number for a spool; 0 where there are no lines
    cursor: Cursor  # continues after this document
    endpoint: str | None = None  # the path that its line names, where that is not the job's


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that cannot become a document, as a value: one bad row never stops a source."""

    uri: str
    line: int
    # stable, as in the catalogue of bad inputs: `invalid_json_line`, `missing_required_parameter`,
    # …
    code: str
    field: str | None  # the field at fault, such as `body.model`
    message: str
    seen: str  # the value seen, cut to 80 characters
    fix: str
    doc_id: str | None  # the row's own id, where it has a valid one
    cursor: Cursor
    request: bytes = b""  # the request body, where the row got that far
    line_in_file: int = 0  # where ``line`` counts through several files
    unit: str = LINE  # what ``line`` counts
    named: str = ""  # the row in words, where people do not find it by a line: its key in a table
    is_new: bool = False  # the survey did not refuse it: the row has changed since
    endpoint: str | None = None  # of ``request``, where it is not the job's

    @property
    def shown_line(self) -> int:
        """The line of ``uri``."""
        return self.line_in_file or self.line

    @property
    def place(self) -> str:
        """Where people find it in ``uri``."""
        return self.named or f"{self.unit} {self.shown_line}"

    def __str__(self) -> str:
        is_placed = self.named or (self.line and self.unit != FILE)
        where = f"{self.uri} {self.place}" if is_placed else self.uri
        field = f" field {self.field}:" if self.field else ""
        saw = f" Seen: {self.seen}." if self.seen else ""
        return f"{where}: {self.code}:{field} {self.message}{saw} Fix: {self.fix}"


class Place(NamedTuple):
    """Where a row lies."""

    uri: str
    line: int  # in that file
    unit: str = LINE  # what ``line`` counts


class Source(Protocol):
    """Documents that can be read again from any cursor, in the same order."""

    def pin(self) -> dict[str, Any]:
        """What identifies the content, so that a later reader can tell that it reads the same."""
        ...

    def documents(self, cursor: Mapping[str, Any]) -> Iterator[Document | BadRow]:
        """Everything after ``cursor`` ({} is the start).

        Raises SourceChanged and SourceUnavailable."""
        ...

    def fetch(self, position: str) -> Document:
        """One document by its position. Raises SourceChanged and SourceUnavailable."""
        ...

    def ended(self) -> bool:
        """Whether documents that ran out have ended for good; an open job's spool may get more."""
        ...

    def mark_published(self, documents: Sequence[Document]) -> None:
        """Called once these documents are in the queue's window and before the cursor moves."""
        ...


class FileSource(Source, Protocol):
    """A source that can be surveyed: its rows have lines, and their ids a field."""

    uri: str
    id_field: str

    @property
    def tally(self) -> Tally:
        """What the job's options changed in the rows that were read so far."""
        ...

    def place(self, line: int) -> Place:
        """The file that a row lies in, and its line there."""
        ...
