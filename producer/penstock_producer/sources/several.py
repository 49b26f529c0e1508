"""Several files as one source: their documents one file after the other, numbered through.

A position is "file/position in it", a cursor the file's number, the lines before it, and the file's
own cursor. Where rows have numbers as ids, both have the rows of the files before as well: these
are numbered through, too."""

from __future__ import annotations

import bisect
import functools
import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import orjson

from penstock_producer.errors import BadReference, seen
from penstock_producer.pins import FILES, MEMBERS, content_of
from penstock_producer.rows import (
    ROW_ID,
    BadRow,
    Column,
    Cursor,
    Document,
    FiniteSource,
    Kinds,
    Place,
    Record,
    RowSource,
    Tally,
)
from penstock_producer.sources.blobs.unpacked import PACKED

__all__ = ["entries"]

KIND: Final = "files"
ROWS: Final = "rows"  # of a file's cursor, too

_POSITION = re.compile(r"(\d{1,9})(?:\+(\d{1,12}))?/(.+)", re.ASCII | re.DOTALL)


class SeveralFiles(FiniteSource):
    """The files of a folder, a prefix or a pattern, as one source."""

    kinds: Kinds

    def __init__(
        self, uri: str, files: Sequence[RowSource], skipped: Mapping[str, Any] | None = None
    ) -> None:
        """``skipped``: what the pin says of other files in the folder."""
        self.uri = uri
        self._skipped = dict(skipped or {})
        self._files = files
        self._before = [0]  # lines before each file, as far as it is known
        self.id_field = files[0].id_field
        kinds: set[Kinds] = {file.kinds for file in files}
        self.kinds = kinds.pop() if len(kinds) == 1 else "by_value"
        self._numbers_rows = self.id_field == ROW_ID

    def pin(self) -> dict[str, Any]:
        pins = [file.pin() for file in self._files]
        content = orjson.dumps([content_of(pin) for pin in pins], option=orjson.OPT_SORT_KEYS)
        digest = hashlib.sha256(content).hexdigest()
        return {"kind": KIND, "uri": self.uri, "sha256": digest, FILES: pins, **self._skipped}

    def documents(self, cursor: Mapping[str, Any]) -> Iterator[Document | BadRow]:
        begin, before, last = (
            int(cursor.get("file", 0)),
            int(cursor.get("before", 0)),
            int(cursor.get("last", 0)),
        )
        inner: Cursor = dict(cursor.get("in", {}))
        rows = int(cursor.get("rows", 0)) if self._numbers_rows else None
        for number in range(begin, len(self._files)):
            for row in self._files[number].documents(inner):
                last, inner = row.line, row.cursor
                yield _numbered(row, number, before, rows)
            rows = None if rows is None else rows + int(inner.get(ROWS, 0))
            before, last, inner = before + last, 0, {}
            if len(self._before) == number + 1:
                self._before.append(before)

    def fetch(self, position: str) -> Document:
        """Read one document.

        Raises BadReference for a position that the survey cannot have given: the pinned files have
        not changed.
        """
        found = _POSITION.fullmatch(position)
        if found is None or int(found[1]) >= len(self._files):
            raise BadReference(f"{seen(position)} is not the position of a document in {self.uri}")
        document = self._files[int(found[1])].fetch(found[3])
        doc_id = document.doc_id if found[2] is None else _through(document.doc_id, int(found[2]))
        return document._replace(doc_id=doc_id, position=position)

    def columns(self) -> Sequence[Column] | None:
        """Return the columns of all files; one that has two types among them is text."""
        found: dict[str, Column] = {}
        for file in self._files:
            of_file = file.columns()
            if of_file is None:
                return None
            for column in of_file:
                known = found.setdefault(column.name, column)
                if known != column:
                    kind = known.kind if known.kind == column.kind else "text"
                    found[column.name] = Column(column.name, kind)
        return list(found.values())

    def records(self) -> Iterator[Record]:
        before = 0
        for file in self._files:
            last = 0
            for last, values in file.records():
                yield Record(before + last, values)
            before += last

    def place(self, line: int) -> Place:
        """Return the file that a row lies in, and its line there. Known once the file was read."""
        number = min(bisect.bisect_left(self._before, line), len(self._files)) - 1
        return self._files[number].place(line - self._before[number])

    @property
    def tally(self) -> Tally:
        return functools.reduce(Tally.plus, (file.tally for file in self._files))


def _numbered(
    row: Document | BadRow, number: int, before: int, rows: int | None
) -> Document | BadRow:
    """Return a row of one file as one of all, with ``before`` lines in the files before it.

    ``rows`` are in those files, where ids are numbers of rows.
    """
    cursor: Cursor = {"file": number, "before": before, "last": row.line, "in": row.cursor}
    place, doc_id = f"{number}", row.doc_id
    if rows is not None:
        cursor[ROWS], place = rows, f"{number}+{rows}"
        doc_id = None if doc_id is None else _through(doc_id, rows)
    if isinstance(row, Document):
        position = f"{place}/{row.position}"
        return row._replace(
            doc_id=doc_id or "", position=position, line=before + row.line, cursor=cursor
        )
    return replace(row, doc_id=doc_id, line=before + row.line, line_in_file=row.line, cursor=cursor)


def _through(doc_id: str, rows: int) -> str:
    """Return the number of a row in its file as one among all files."""
    return str(int(doc_id) + rows)


def entries(pin: Mapping[str, Any]) -> int | None:
    """Return how many places a pinned source can be entered at; None: anywhere.

    A compressed file is entered where a member (gzip) or frame (zstd) begins.
    """
    if pin.get("kind") == KIND:
        of_files = [entries(file) for file in pin[FILES]]
        known = [number for number in of_files if number is not None]
        return sum(known) if len(known) == len(of_files) else None
    return len(pin[MEMBERS]) if PACKED in pin else None
