"""An open job: documents are pushed in groups into its spool, where the feeder takes them from.

Each is checked as strictly as a line of a file. It is safe once it was flushed: `enqueue` takes it
into this process's memory only. That happens by `flush` or `close`, at the latest FLUSH_AFTER_S
after it was enqueued, and when the interpreter ends; a process that is killed loses what it took in
that time. Pushing a document again is harmless.

Many documents come at once as lines of JSON, `{"id": "a-1", "document": {…}}`; each line has a fate
of its own.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import logging
import os
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

from penstock_ledger import JobError, JobStore, Spool, SpoolConflict
from penstock_ledger.model import Job, JobState
from penstock_ledger.texts import Text
from penstock_producer.errors import InvalidDocument, JobCancelled, seen
from penstock_producer.job.spec import JobSpec
from penstock_producer.rows import DEFAULT_MAX_BODY_BYTES
from penstock_producer.sources.forms.media import media_of
from penstock_producer.sources.forms.row_forms import check_doc_id, form_of
from penstock_producer.sources.forms.strict_json import RowFault, parse_object

__all__ = ["LINES_MAX", "DocumentChecker", "LineFate", "PushedLine", "PushedLines"]

LINES_MAX: Final = 10_000  # of one call, blank ones included: a request ends within seconds
# of an id that is refused, perhaps for its length: as many as one may have
ID_CHARS_SHOWN: Final = 512
_FIELDS: Final = (b'"id"', b'"document"')  # quoted: neither may occur twice


class LineFate(StrEnum):
    """The fate of one line."""

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


class DocumentChecker:
    """A checker that turns what services push into request bodies.

    Records are pushed where the spec has a prompt, request bodies otherwise.
    """

    def __init__(
        self, spec: JobSpec, max_bytes: int, max_body_bytes: int = DEFAULT_MAX_BODY_BYTES
    ) -> None:
        self._form = form_of(spec, max_body_bytes, media_of(spec, None, max_body_bytes))
        self._max_bytes = max_bytes

    def check(self, doc_id: str | int, given: Mapping[str, Any] | bytes | str) -> tuple[str, bytes]:
        """Return the document id and the request body as JSON. Raises InvalidDocument."""
        try:
            name = check_doc_id(str(doc_id) if type(doc_id) is int else doc_id, "doc_id")
            raw = _as_json(given)
            if len(raw) > self._max_bytes:
                raise InvalidDocument(
                    "line_too_long",
                    f"document {name!r} has {len(raw)} bytes; max_line_bytes allows "
                    f"{self._max_bytes}",
                )
            return name, self._form.request(parse_object(raw, self._form.control_keys))
        except RowFault as fault:
            field = f" field {fault.field}:" if fault.field else ""
            saw = f" Seen: {fault.value}." if fault.value else ""
            raise InvalidDocument(
                fault.code,
                Text(f"document {seen(doc_id)}:{field} {fault.message}{saw} Fix: ", fault.fix),
                public=f"document {seen(doc_id)}{f' ({fault.field})' if fault.field else ''}",
            ) from None


def _as_json(given: Mapping[str, Any] | bytes | str) -> bytes:
    if isinstance(given, bytes):
        return given
    if isinstance(given, str):
        return given.encode(errors="surrogatepass")
    try:
        # json and not orjson: orjson would turn NaN into null in silence.
        return json.dumps(dict(given), allow_nan=False, separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidDocument(
            "invalid_json",
            f"{seen(given)} is not a JSON object ({error}); pass plain values",
            public="it is not a JSON object; pass plain values",
        ) from error


log = logging.getLogger(__name__)

# What waits in memory before it is written: one SQL transaction each.
MAX_BUFFERED_DOCUMENTS = 1_000
MAX_BUFFERED_BYTES = 4 * 1024 * 1024
# from the first unflushed document on: a trickle costs one small transaction a second
FLUSH_AFTER_S: float = 1.0
MAX_CONFLICTS_KEPT: Final = 1_000  # ids of documents that were refused by a flush without a caller
TAKES_NO_MORE: Final = (JobState.CANCELLING, JobState.CANCELLED, JobState.FAILED)


class OpenJob:
    """``enqueue`` gathers, ``flush`` makes durable, ``close`` says that there will be no more.

    Thread-safe.

    As a context manager it flushes at the end, also after an exception, and does not close: other
    processes may go on.
    """

    def __init__(self, job: Job, spec: JobSpec, spool: Spool, jobs: JobStore, *limits: int) -> None:
        """``limits`` are max_line_bytes and max_body_bytes."""
        self.job = job
        self.job_id = job.job_id
        self._checker = DocumentChecker(spec, *limits)
        self._spool = spool
        self._jobs = jobs
        self._begin()
        _OPEN.add(self)

    def _begin(self) -> None:
        """Begin empty, with locks that no other thread holds.

        This happens at first, and in the child of a fork.
        """
        # held while documents are written, so that `flush` returns after all of them
        self._writing = threading.Lock()
        # guards what follows; never held while anything is waited for
        self._lock = threading.Lock()
        self._buffer: list[tuple[str, bytes]] = []
        self._buffered_bytes = 0
        self._timer: threading.Timer | None = None  # one at a time, while anything is unflushed
        self._failing = False  # whether the last flush that no caller asked for failed
        # refused by a flush that no caller asked for; raised by the next one that is called
        self._conflicts: list[str] = []
        self._ended: JobError | JobCancelled | None = None  # found out by such a flush

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.flush()
        else:
            self.flush_quietly()

    def enqueue(self, doc_id: str | int, document: Mapping[str, Any] | bytes | str) -> None:
        """Take one document: a record for the spec's prompt, or a request body without one.

        It is durable after ``flush``, or by itself within FLUSH_AFTER_S. The same ``doc_id`` again
        is ignored when it holds the same; when it does not, the first one counts and a later
        ``flush`` or ``close`` raises SpoolConflict. Raises InvalidDocument for this document,
        JobCancelled and JobClosed for a job that takes no more, and DatabaseUnavailable when the
        buffer is full and cannot be written: this document is not taken then.
        """
        while not self.offer(doc_id, document):
            self.make_room()

    def offer(self, doc_id: str | int, document: Mapping[str, Any] | bytes | str) -> bool:
        """Take one document as ``enqueue`` does, but never wait.

        False when the buffer is full: then ``make_room`` writes it.
        """
        return self._take(self._checker.check(doc_id, document))

    def make_room(self) -> None:
        """Write the buffer. What is wrong with its documents is raised by the next ``flush``."""
        self._write(ask=False)

    def flush(self) -> int:
        """Make everything enqueued so far durable; return how many of the written ones were new.

        Raises SpoolConflict for documents whose id is taken by another body, once each: all others
        are stored then. Raises JobCancelled, JobClosed (the error names the documents that were not
        accepted) and DatabaseUnavailable, after which it can be repeated.
        """
        return self._write(ask=True)

    def close(self) -> int:
        """Flush and close the job: it completes once its documents have.

        Returns how many there are.

        Raises as ``flush`` does, and then the job is not closed yet: call it again to close it
        without those documents.
        """
        self._write(ask=True)
        return self._jobs.close(self.job_id)

    def flush_quietly(self) -> None:
        """Flush without a caller: by time, at exit, beside another exception.

        What fails is logged."""
        try:
            self._write(ask=False)
            self._failing = False
        except Exception as error:
            if not self._failing:  # one line for an outage, not one a second
                log.warning(
                    "job %s: documents wait in memory, tried again each second: %s",
                    self.job_id,
                    error,
                )
            self._failing = True

    def after_fork(self) -> None:
        """Begin anew in a child: what was unflushed is the parent's to write."""
        self._begin()

    def _take(self, entry: tuple[str, bytes]) -> bool:
        """Buffer one document; False when there is no room for it."""
        with self._lock:
            if self._ended is not None:
                raise self._ended
            if (
                len(self._buffer) >= MAX_BUFFERED_DOCUMENTS
                or self._buffered_bytes >= MAX_BUFFERED_BYTES
            ):
                return False
            self._buffer.append(entry)
            self._buffered_bytes += len(entry[1])
        self._flush_later()
        return True

    def _flush_later(self) -> None:
        with self._lock:
            if self._timer is None and self._buffer:
                timer = threading.Timer(FLUSH_AFTER_S, self._time_is_up)
                timer.daemon = True
                timer.name = f"penstock-flush {self.job_id}"
                # the interpreter is ending and starts no more threads
                with contextlib.suppress(RuntimeError):
                    timer.start()
                    self._timer = timer

    def _time_is_up(self) -> None:
        with self._lock:
            self._timer = None
        self.flush_quietly()

    def _write(self, *, ask: bool) -> int:
        """Write the buffer.

        What is wrong with documents is raised when the caller did ``ask``, else kept for who
        does."""
        with self._writing:
            with self._lock:
                taken, self._buffer, self._buffered_bytes = self._buffer, [], 0
            new = 0
            try:
                new = self._store(taken) if taken else 0
            except SpoolConflict as conflict:  # the others are stored
                new = conflict.stored
                self._conflicts = [*self._conflicts, *conflict.doc_ids][:MAX_CONFLICTS_KEPT]
            except (JobError, JobCancelled) as error:  # the job will never take them
                self._ended = error
            except BaseException:
                self._put_back(taken)
                raise
            if ask:
                self._tell(new)
            elif self._conflicts or self._ended:
                log.warning("%s", self._ended or SpoolConflict(self.job_id, self._conflicts, new))
            return new

    def _tell(self, new: int) -> None:
        conflicts, self._conflicts = self._conflicts, []
        if conflicts:
            raise SpoolConflict(self.job_id, conflicts, new)
        ended, self._ended = self._ended, None
        if ended is not None:
            raise ended

    def _put_back(self, taken: list[tuple[str, bytes]]) -> None:
        with self._lock:
            self._buffer = taken + self._buffer
            self._buffered_bytes += sum(len(body) for _, body in taken)
        self._flush_later()

    def _store(self, documents: Sequence[tuple[str, bytes]]) -> int:
        state = self._jobs.get(self.job_id).state
        if state in TAKES_NO_MORE:
            raise JobCancelled(self.job_id, str(state), [doc_id for doc_id, _ in documents])
        return self._spool.append(self.job_id, documents)


_OPEN: Final[weakref.WeakSet[OpenJob]] = weakref.WeakSet()


def _flush_all() -> None:
    for job in list(_OPEN):
        job.flush_quietly()


def _after_fork() -> None:
    for job in list(_OPEN):
        job.after_fork()


atexit.register(_flush_all)
os.register_at_fork(after_in_child=_after_fork)
