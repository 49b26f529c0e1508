"""Many documents of an open job at once, as lines of JSON: `{"id": "a-1", "document": {…}}`.

Each line has a fate of its own."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Any, Final, NamedTuple

from penstock_ledger import Spool, SpoolConflict
from penstock_producer.errors import InvalidDocument, seen
from penstock_producer.open_job import MAX_BUFFERED_BYTES, MAX_BUFFERED_DOCUMENTS, DocumentChecker
from penstock_producer.sources.forms.strict_json import RowFault, parse_object

__all__ = ["LINES_MAX", "LineFate", "PushedLine", "PushedLines"]

LINES_MAX: Final = 10_000  # of one call, blank ones included: a request ends within seconds
# of an id that is refused, perhaps for its length: as many as one may have
ID_CHARS_SHOWN: Final = 512
_FIELDS: Final = (b'"id"', b'"document"')  # quoted: neither may occur twice


class LineFate(StrEnum):
    """What became of one line."""

    ACCEPTED = "accepted"
    DUPLICATE = "duplicate"  # the same document is there already
    REFUSED = "refused"


class PushedLine(NamedTuple):
    line: int  # from 1 on
    id: str | None  # None where the line does not say it
    outcome: LineFate
    code: str | None = None  # of a refusal
    message: str | None = None


class PushedLines:
    """For one job."""

    def __init__(
        self, job_id: str, checker: DocumentChecker, spool: Spool, max_line_bytes: int
    ) -> None:
        self._job_id = job_id
        self._checker = checker
        self._spool = spool
        self._max_line_bytes = max_line_bytes

    def push(self, lines: bytes) -> list[PushedLine]:
        """Store the lines and return what became of each.

        Raises InvalidDocument for too many lines, JobNotFound and JobClosed.
        """
        numbered = list(enumerate(lines.split(b"\n", LINES_MAX), 1))
        if len(numbered) > LINES_MAX and numbered[-1][1].strip():
            raise InvalidDocument(
                "too_many_lines",
                f"more than {LINES_MAX} lines came at once; send the rest in another call",
            )
        fates = list[PushedLine]()
        for group in self._groups(
            [(number, line) for number, line in numbered[:LINES_MAX] if line.strip()], fates
        ):
            fates += self._store(group)
        return sorted(fates)

    def _groups(
        self, lines: list[tuple[int, bytes]], fates: list[PushedLine]
    ) -> Iterator[list[tuple[int, str, bytes]]]:
        """Yield documents that can be stored, one transaction's at a time.

        What cannot be stored goes to ``fates``.
        """
        group, size = list[tuple[int, str, bytes]](), 0
        for number, line in lines:
            checked = self._checked(number, line)
            if isinstance(checked, PushedLine):
                fates.append(checked)
                continue
            group.append((number, *checked))
            size += len(checked[1])
            if len(group) >= MAX_BUFFERED_DOCUMENTS or size >= MAX_BUFFERED_BYTES:
                yield group
                group, size = [], 0
        if group:
            yield group

    def _checked(self, number: int, line: bytes) -> tuple[str, bytes] | PushedLine:
        doc_id: Any = None
        try:
            if len(line) > self._max_line_bytes:
                message = f"it has {len(line)} bytes; max_line_bytes allows {self._max_line_bytes}"
                raise InvalidDocument("line_too_long", message)
            given = parse_object(line, _FIELDS)
            doc_id, document = given.get("id"), given.get("document")
            extra = sorted(given.keys() - {"id", "document"})
            if extra or not isinstance(document, dict):
                wrong = (
                    f"there is no field {seen(extra[0])}"
                    if extra
                    else f"document is {seen(document)}"
                )
                raise InvalidDocument(
                    "invalid_item", f'{wrong}; write {{"id": "a-1", "document": {{…}}}}'
                )
            return self._checker.check(doc_id, document)
        except RowFault as fault:
            code, message = fault.code, f"{fault.message} Fix: {fault.fix}"
        except InvalidDocument as error:
            code, message = error.code, str(error).removeprefix(f"{error.code}: ")
        name = doc_id[:ID_CHARS_SHOWN] if isinstance(doc_id, str) else None
        return PushedLine(number, name, LineFate.REFUSED, code, message)

    def _store(self, group: list[tuple[int, str, bytes]]) -> Iterator[PushedLine]:
        ids = list(dict.fromkeys(doc_id for _, doc_id, _ in group))
        there = self._spool.known(self._job_id, ids)
        conflicts = list[str]()
        try:
            self._spool.append(self._job_id, [(doc_id, body) for _, doc_id, body in group])
        except SpoolConflict as conflict:
            conflicts = list(conflict.doc_ids)
        stored = self._spool.bodies(self._job_id, conflicts)
        for number, doc_id, body in group:
            if stored.get(doc_id, body) != body:
                message = "another document with this id is there already; the first one stays"
                yield PushedLine(number, doc_id, LineFate.REFUSED, "document_conflict", message)
            else:
                yield PushedLine(
                    number, doc_id, LineFate.DUPLICATE if doc_id in there else LineFate.ACCEPTED
                )
                there.add(doc_id)
