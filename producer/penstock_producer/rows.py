"""Sources of documents yield these rows, none larger than a row may be."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple, Protocol, Self

from penstock_ledger.texts import Text
from penstock_producer.pins import PREPARED

__all__ = ["ROW_ID", "BadRow", "Column", "Document", "Kind", "Record", "Source", "Tally"]

ROW_ID: Final = "@row"
"""The id field of a source whose rows have no id: each is named by its number, from 1 on."""

Kind = Literal[
    "text",
    "integer",
    "number",
    "boolean",
    "decimal",
    "date",
    "timestamp",
    "instant",  # a timestamp with a time zone
    "vector",
    "vectors",
]


class Column(NamedTuple):
    """One column of a table: of a source, or of what is made of it."""

    name: str
    kind: Kind
    type: Any = None  # of Arrow, where the source has such a type


Kinds = Literal["known", "by_value", "by_text"]
"""How the kinds of a source's columns are found: given, by the types of values, or, where all
values are texts as in CSV, by what these say."""


class Record(NamedTuple):
    """One row of a source with all of its columns, before anything is made of it."""

    line: int  # as a document of it has
    values: Mapping[str, Any]  # nothing, where the row cannot be read


@dataclass(slots=True)
class Tally:
    """Counts rows, and characters."""

    cut: dict[str, int] = field(default_factory=dict)  # rows by the column whose text was cut
    saved_chars: int = 0  # blanks that compression took out
    # columns that the rules of routes look at and that some row has; not kept with the job
    met: set[str] = field(default_factory=set)
    refused: dict[int, int] = field(default_factory=dict)  # rows that a rule refused, likewise

    def note(self, cut: Sequence[str], saved_chars: int) -> None:
        """Note what was changed in one row."""
        for name in cut:
            self.cut[name] = self.cut.get(name, 0) + 1
        self.saved_chars += saved_chars

    def plus(self, other: Self) -> Self:
        names = dict.fromkeys((*self.cut, *other.cut))
        cut = {name: self.cut.get(name, 0) + other.cut.get(name, 0) for name in names}
        return type(self)(cut, self.saved_chars + other.saved_chars)

    def to_json(self) -> dict[str, Any]:
        return {"cut": dict(self.cut), "saved_chars": self.saved_chars}

    @classmethod
    def of_pin(cls, pin: Mapping[str, Any]) -> Self:
        """Return what the survey of a job counted; nothing for a job of an earlier release."""
        stored = pin.get(PREPARED)
        if not isinstance(stored, Mapping):
            return cls()
        return cls(dict(stored["cut"]), int(stored["saved_chars"]))


MAX_DOC_ID_BYTES = 512  # an index entry in every database, a header, a terminal line
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]")
_SURROGATE = re.compile("[\ud800-\udfff]")


def id_fault(value: str) -> tuple[str, str] | None:
    """Return what is wrong with ``value`` as a document id, and the fix; None where it is one.

    The fix is "" where it is up to the caller.

    An id is text of 1 to 512 bytes without control characters and lone surrogates.
    """
    is_plain = value.isascii()
    if not (is_plain and value.isprintable()):
        if _CONTROL.search(value) is not None:
            return "The id holds control characters.", "remove them"
        if _SURROGATE.search(value) is not None:
            return "The id holds half a surrogate pair.", "write the whole character, or remove it"
    size = len(value) if is_plain else len(value.encode())
    if not 0 < size <= MAX_DOC_ID_BYTES:
        return f"The id has {size} bytes; 1 to {MAX_DOC_ID_BYTES} are allowed.", ""
    return None


# above any model's context, below what hurts a small machine
DEFAULT_MAX_LINE_BYTES: Final = 8 * 1024 * 1024
# A template may name a column twice; named more often, a short row would fill any memory.
DEFAULT_MAX_BODY_BYTES: Final = 16 * 1024 * 1024


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
        """Return where people find it in ``uri``."""
        return self.named or f"{self.unit} {self.shown_line}"

    def __str__(self) -> str:
        return str(self.text)

    @property
    def text(self) -> Text:
        """Return what is wrong with it, and what to do."""
        is_placed = self.named or (self.line and self.unit != FILE)
        where = f"{self.uri} {self.place}" if is_placed else self.uri
        field = f" field {self.field}:" if self.field else ""
        saw = f" Seen: {self.seen}." if self.seen else ""
        return Text(f"{where}: {self.code}:{field} ", self.message, f"{saw} Fix: ", self.fix)


class Place(NamedTuple):
    """The place of a row."""

    uri: str
    line: int  # in that file
    unit: str = LINE  # what ``line`` counts


class Source(Protocol):
    """Documents that can be read again from any cursor, in the same order."""

    def pin(self) -> dict[str, Any]:
        """Return what identifies the content.

        A later reader can tell by it that it reads the same.
        """
        ...

    def documents(self, cursor: Mapping[str, Any]) -> Iterator[Document | BadRow]:
        """Yield everything after ``cursor`` ({} is the start).

        Raises SourceChanged and SourceUnavailable.
        """
        ...

    def fetch(self, position: str) -> Document:
        """Return one document by its position. Raises SourceChanged and SourceUnavailable."""
        ...

    def ended(self) -> bool:
        """Return whether documents that ran out have ended for good.

        An open job's spool may get more.
        """
        ...

    def mark_published(self, documents: Sequence[Document]) -> None:
        """Note that these documents are in the queue's window; the cursor has not moved yet."""
        ...


class FiniteSource:
    """The answers of sources that have an end, and whose cursor is all that they remember."""

    def ended(self) -> bool:
        return True

    def mark_published(self, documents: Sequence[Document]) -> None:
        """Remember nothing: the cursor is enough."""


class FileSource(Source, Protocol):
    """A source that can be surveyed: its rows have lines, and their ids a field."""

    uri: str
    id_field: str

    @property
    def tally(self) -> Tally:
        """Return what the job's options changed in the rows that were read so far."""
        ...

    def place(self, line: int) -> Place:
        """Return the file that a row lies in, and its line there."""
        ...


class RowSource(FileSource, Protocol):
    """A source whose rows can be had with all of their columns: what tables of results keep."""

    kinds: Kinds

    def columns(self) -> Sequence[Column] | None:
        """Return the columns of its rows, in their order; None where only the rows say them."""
        ...

    def records(self) -> Iterator[Record]:
        """Yield each row that ``documents`` reads, in the same order, with all of its columns."""
        ...


# held in memory, and sorted together in prefix order; the ledger cuts them into calls
ROWS_READ: Final = 5_000
# of request bodies; the sort keys of a job in prefix order are as much again
BYTES_READ: Final = 16 * 1024 * 1024


class BoundedReader:
    """Reads a source in steps of bounded size."""

    def __init__(self, source: Source, cursor: Cursor) -> None:
        self._source = source
        self.go_to(cursor)

    def go_to(self, cursor: Cursor) -> None:
        """Go on behind ``cursor``, whatever was read."""
        self.cursor: Cursor = dict(cursor)
        self._rows: Iterator[Document | BadRow] | None = None
        self._ahead: Document | BadRow | None = None  # read already; the next step begins with it

    def read(self, limit: int) -> tuple[list[Document | BadRow], bool]:
        """Read up to ``limit`` rows; say whether the source has ended with them."""
        fresh = self._rows is None
        if self._rows is None:
            self._rows = iter(self._source.documents(self.cursor))
        rows: list[Document | BadRow] = []
        size = 0
        while (row := self._next()) is not None:
            rows.append(row)
            size += len(row.body) if isinstance(row, Document) else len(row.request)
            if len(rows) >= min(limit, ROWS_READ) or size >= BYTES_READ:
                self._ahead = self._next()  # so that the last step knows that it is the last
                if self._ahead is not None:
                    return rows, False
                break
        self._rows = None
        ended = self._source.ended()
        return (rows, ended) if rows or ended or fresh else self.read(limit)

    def _next(self) -> Document | BadRow | None:
        """Return the next row; None at the end of what the source has now."""
        assert self._rows is not None, "the source is being read"
        ahead, self._ahead = self._ahead, None
        return ahead or next(self._rows, None)
