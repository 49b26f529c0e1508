"""Several files as one source: their documents one file after the other, numbered through.

A position is "file/position in it", a cursor the file's number, the lines before it, and the file's
own cursor."""

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
from penstock_producer.rows import BadRow, Cursor, Document, FileSource, Place, Tally
from penstock_producer.sources.blobs.unpacked import PACKED

__all__ = ["entries"]

KIND: Final = "files"

_POSITION = re.compile(r"(\d{1,9})/(.+)", re.ASCII | re.DOTALL)


class SeveralFiles:
    """What a folder, a prefix or a pattern stands for, as one source."""

    def __init__(self, uri: str, files: Sequence[FileSource]) -> None:
        self.uri = uri
        self._files = files
        self._before = [0]  # lines before each file, as far as it is known
        self.id_field = files[0].id_field

    def pin(self) -> dict[str, Any]:
        pins = [file.pin() for file in self._files]
        content = orjson.dumps([content_of(pin) for pin in pins], option=orjson.OPT_SORT_KEYS)
        digest = hashlib.sha256(content).hexdigest()
        return {"kind": KIND, "uri": self.uri, "sha256": digest, FILES: pins}

    def documents(self, cursor: Mapping[str, Any]) -> Iterator[Document | BadRow]:
        begin, before, last = (
            int(cursor.get("file", 0)),
            int(cursor.get("before", 0)),
            int(cursor.get("last", 0)),
        )
        inner: Cursor = dict(cursor.get("in", {}))
        for number in range(begin, len(self._files)):
            for row in self._files[number].documents(inner):
                last = row.line
                yield _numbered(row, number, before)
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
        return self._files[int(found[1])].fetch(found[2])._replace(position=position)

    def place(self, line: int) -> Place:
        """Return the file that a row lies in, and its line there. Known once the file was read."""
        number = min(bisect.bisect_left(self._before, line), len(self._files)) - 1
        return self._files[number].place(line - self._before[number])

    @property
    def tally(self) -> Tally:
        return functools.reduce(Tally.plus, (file.tally for file in self._files))

    def ended(self) -> bool:
        return True

    def mark_published(self, documents: Sequence[Document]) -> None:
        """Remember nothing: the cursor is the memory of files."""


def _numbered(row: Document | BadRow, number: int, before: int) -> Document | BadRow:
    """Return a row of one file as one of all, with ``before`` lines in the files before it."""
    cursor: Cursor = {"file": number, "before": before, "last": row.line, "in": row.cursor}
    if isinstance(row, Document):
        return row._replace(
            position=f"{number}/{row.position}", line=before + row.line, cursor=cursor
        )
    return replace(row, line=before + row.line, line_in_file=row.line, cursor=cursor)


def entries(pin: Mapping[str, Any]) -> int | None:
    """Return how many places a pinned source can be entered at; None: anywhere.

    A compressed file is entered where a member (gzip) or frame (zstd) begins.
    """
    if pin.get("kind") == KIND:
        of_files = [entries(file) for file in pin[FILES]]
        known = [number for number in of_files if number is not None]
        return sum(known) if len(known) == len(of_files) else None
    return len(pin[MEMBERS]) if PACKED in pin else None
