"""Errors of accepting and feeding jobs stand in one tree.

Every message names the field, the value seen and the fix.

PenstockError, of the ledger
└── ProducerError
    ├── SpecError               the job spec is unusable; ``problems`` lists each field
    │   └── TemplateError       the prompt template is unusable
    ├── SettingsError           a setting is unusable
    ├── ScheduleError           a schedule is unusable: its times, its zone, its name
    ├── ContentError            what was given to work on is unusable; ``code`` is stable
    │   ├── SourceError         the source, as a whole
    │   │   ├── SourceUnavailable   it cannot be reached now (pause and try again)
    │   │   │   └── SourceForbidden it lies outside of what remote doors may read
    │   │   ├── SourceChanged       it is not the content that was pinned
    │   │   │   ├── BadReference    a message names a place in it where its document is not
    │   │   │   └── RowChanged      one row of a table is gone or is no document any more; the others go on
    │   │   └── TooManyBadRows      more rows are refused than the spec allows
    │   └── InvalidDocument     one document pushed by a service
    ├── SinkError               outputs cannot be written there
    │   ├── SinkUnfit               and never will be as it is: something has to be changed first
    │   └── SinkTaken               another process writes there at this moment
    ├── JobCancelled            a document was pushed into a job that was cancelled or has failed
    ├── JobRefused              an operation does not fit its job as it is now; ``code`` is stable
    └── WireError               a queue message is unusable
        ├── BadMessage          not an item message, or a damaged one
        └── UnknownMessageVersion   written by a release that this one does not understand
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from penstock_ledger.errors import EXIT_USAGE, PenstockError, shown_ids
from penstock_ledger.texts import SetOption, Text

__all__ = [
    "MAX_SEEN_CHARS",
    "BadMessage",
    "BadReference",
    "ContentError",
    "InvalidDocument",
    "JobCancelled",
    "JobRefused",
    "Problem",
    "ProducerError",
    "Refusal",
    "RowChanged",
    "ScheduleError",
    "SettingsError",
    "SinkError",
    "SinkTaken",
    "SinkUnfit",
    "SourceChanged",
    "SourceError",
    "SourceForbidden",
    "SourceUnavailable",
    "SpecError",
    "TemplateError",
    "TooManyBadRows",
    "UnknownMessageVersion",
    "WireError",
    "listed",
    "pointer_to",
    "seen",
]

if TYPE_CHECKING:
    from penstock_producer.rows import BadRow

MAX_ROWS_KEPT = 20  # of a refused source, in the exception
MAX_FAULTS_SHOWN = 10  # kinds of faults of a refused source, each with its first row
MAX_LINES_SHOWN = 8  # further lines of one kind
# enough to recognise a value, too little to flood a terminal or leak a document
MAX_SEEN_CHARS = 80


def seen(value: Any) -> str:
    """Return ``value`` as error messages show it: its repr, cut to 80 characters.

    No more of it is written than is shown.
    """
    text = ""
    for piece in _repr_of(value):
        text += piece
        if len(text) > MAX_SEEN_CHARS:
            return text[: MAX_SEEN_CHARS - 1] + "…"
    return text


def _repr_of(value: Any) -> Iterator[str]:
    """Yield a value's repr piece by piece.

    That of a 100 MB line, or of a million objects, would cost more than reading them.
    """
    if isinstance(value, (str, bytes)):
        yield repr(value[: MAX_SEEN_CHARS + 1])
    elif type(value) is dict:
        yield "{"
        for number, (name, inner) in enumerate(value.items()):
            yield ", " if number else ""
            yield from _repr_of(name)
            yield ": "
            yield from _repr_of(inner)
        yield "}"
    elif type(value) is list:
        yield "["
        for number, inner in enumerate(value):
            yield ", " if number else ""
            yield from _repr_of(inner)
        yield "]"
    else:
        yield repr(value)


def pointer_to(*names: object) -> str:
    """Return the JSON pointer to a field.

    Each name in it is cut to 80 characters: a caller may have chosen it.
    """
    return "".join(f"/{str(name)[:MAX_SEEN_CHARS]}" for name in names)


# Fields of a spec that hold content, as parts of a pointer; none is the whole spec.
_CONFIDENTIAL: tuple[list[str], ...] = (
    [],
    ["prompt"],
    ["system"],
    ["params"],
    ["response_schema"],
    ["examples"],
)


class ProducerError(PenstockError):
    """Root of everything that the producer raises on purpose."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One field of a spec that cannot be used."""

    code: str  # `unknown_field`, `missing_field`, `invalid_type`, `invalid_value`
    pointer: str  # JSON pointer to the field, such as `/params/max_tokens`
    message: str
    fix: str
    place: str = ""  # "night.yaml line 7", where the field was read from a file

    def __str__(self) -> str:
        return str(self.text)

    @property
    def text(self) -> Text:
        """Return the problem in words."""
        at = self.pointer or "/"
        if self.place:
            field = f", field {'.'.join(self.pointer.split('/')[1:])}" if self.pointer else ""
            at = f"{self.place}{field}"
        return Text(f"{at}: ", self.message, *(("; ", self.fix) if self.fix else ()))

    @property
    def is_public(self) -> bool:
        """Return whether its message shows no prompt and no part of a document."""
        return self.pointer.split("/")[1:2] not in _CONFIDENTIAL and self.code != "unknown_field"

    @property
    def public_message(self) -> Text:
        """Without the value seen, where that may be a prompt or a part of a document."""
        if self.is_public:
            return self.text
        return Text(f"{self.pointer[:MAX_SEEN_CHARS]}: {self.code}; ", self.fix)


def listed(problems: Iterable[str]) -> Text:
    """Return one problem as it is, several below one another, with their number before them."""
    told = list(problems)
    return Text("\n  ").join(told if len(told) == 1 else [f"{len(told)} mistakes:", *told])


class SpecError(ProducerError):
    """The job spec cannot be used."""

    exit_status = EXIT_USAGE

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__(Text("job spec: ", listed(problem.text for problem in self.problems)))

    @property
    def public_message(self) -> str:
        told = (problem.public_message for problem in self.problems)
        return Text("job spec: ", Text("; ").join(told))


class TemplateError(SpecError):
    """The prompt template cannot be used."""

    def __init__(self, message: str, fix: str, *, pointer: str = "/prompt") -> None:
        super().__init__([Problem("invalid_value", pointer, message, fix)])


class SettingsError(ProducerError):
    """A setting from `penstock.toml`, the environment or a flag cannot be used."""

    exit_status = EXIT_USAGE


class ScheduleError(ProducerError):
    """A schedule cannot be used as it is written."""

    exit_status = EXIT_USAGE


class ContentError(ProducerError):
    """The content to work on cannot be used; ``code`` is stable."""

    exit_status = EXIT_USAGE

    def __init__(self, code: str, message: str, *, public: str | None = None) -> None:
        """``public`` is the message without content of documents, where ``message`` shows some."""
        self.code, self.message = code, message
        self.public = message if public is None else public
        super().__init__(Text(f"{code}: ", message))

    @property
    def public_message(self) -> str:
        return Text(f"{self.code}: ", self.public)


class SourceError(ContentError):
    """The source cannot be used as a whole."""


class SourceUnavailable(SourceError):
    """The source cannot be read now; what was fed stays fed and reading resumes once it is back."""

    def __init__(
        self, message: str, *, code: str = "source_unavailable", public: str | None = None
    ) -> None:
        super().__init__(code, message, public=public)


class SourceForbidden(SourceUnavailable):
    """A remote door, or a job that came through one, may not read there.

    Says the same of what exists and what does not, and names the folders that are allowed to the
    operator only."""

    def __init__(self, where: str, roots: Sequence[str]) -> None:
        allowed = ", ".join(roots) or "nothing"
        what = f"{seen(where)} is not a file or object inside the setting source_roots"
        fix = (
            "put it there and name it by its plain path, or have the operator extend source_roots "
            "(PENSTOCK_SOURCE_ROOTS)"
        )
        super().__init__(
            f"{what}, which allows {allowed}; {fix}",
            code="source_forbidden",
            public=f"{what} of the operator; {fix}",
        )


class SourceChanged(SourceError):
    """The source is not the content that was validated and pinned at submit."""

    def __init__(self, message: str, *, code: str = "source_changed") -> None:
        super().__init__(code, message)


class BadReference(SourceChanged):
    """A message names a place in its job's source where its document is not.

    The message is wrong, not the source.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message, code="bad_reference")


class RowChanged(SourceChanged):
    """A row of a source that may change is gone, or cannot be used any more.

    Only its own document is concerned."""


class TooManyBadRows(SourceError):
    """More rows are refused than ``max_bad_rows`` allows; nothing was enqueued.

    ``rows`` are the first of them."""

    def __init__(
        self, uri: str, limit: int, rows: Sequence[BadRow], *, counted: int, whole: bool
    ) -> None:
        self.rows = tuple(rows[:MAX_ROWS_KEPT])
        self.limit = limit
        count = f"{counted} row" if counted == 1 else f"{counted} rows"
        found, are = (count if whole else f"at least {count}"), ("is" if counted == 1 else "are")
        super().__init__(
            "too_many_bad_rows",
            Text(
                f"{found} of {uri} {are} unusable and max_bad_rows allows {limit}; correct the "
                "source, or raise ",
                SetOption("max_bad_rows"),
                " to make dead letters of such rows:\n  ",
                Text("\n  ").join(_alike(rows)),
            ),
            public=Text(
                f"{found} of {uri} {are} unusable, and ",
                SetOption("max_bad_rows"),
                f" allows {limit}: {'; '.join(_alike_in_public(rows))}",
            ),
        )


def _alike(rows: Sequence[BadRow]) -> Iterable[str]:
    """Yield rows with the same fault at the same field once, with their number and first lines."""
    groups = _by_fault(rows)
    for alike in groups[:MAX_FAULTS_SHOWN]:
        yield alike[0].text
        if len(alike) > 1:
            others = ", ".join(_line(row, alike[0]) for row in alike[1 : 1 + MAX_LINES_SHOWN])
            more = ", …" if len(alike) > 1 + MAX_LINES_SHOWN else ""
            unit = "" if alike[0].named else f"{alike[0].unit} "
            yield f"  {len(alike) - 1} more like it, in {unit}{others}{more}"
    if len(groups) > MAX_FAULTS_SHOWN:
        yield f"… and {len(groups) - MAX_FAULTS_SHOWN} other kinds of faults"


def _alike_in_public(rows: Sequence[BadRow]) -> Iterable[str]:
    """Yield the same without what the rows hold."""
    for alike in _by_fault(rows)[:MAX_FAULTS_SHOWN]:
        first = alike[0]
        lines = ", ".join((first.place, *(_line(row, first) for row in alike[1:MAX_LINES_SHOWN])))
        more = f" and {len(alike) - MAX_LINES_SHOWN} more" if len(alike) > MAX_LINES_SHOWN else ""
        yield f"{first.code}{f' ({first.field})' if first.field else ''} in {lines}{more}"


def _by_fault(rows: Sequence[BadRow]) -> list[list[BadRow]]:
    groups: dict[tuple[str, str | None], list[BadRow]] = {}
    for row in rows:
        groups.setdefault((row.code, row.field), []).append(row)
    return list(groups.values())


def _line(row: BadRow, first: BadRow) -> str:
    if row.named:
        return row.named
    return str(row.shown_line) if row.uri == first.uri else f"{row.shown_line} of {row.uri}"


class SinkError(ProducerError):
    """A destination for output files cannot be written. What was there before is untouched."""

    exit_status = EXIT_USAGE


class SinkUnfit(SinkError):
    """The destination cannot be written as it is.

    Trying again helps once the table, the URL or the software was changed.
    """


class SinkTaken(SinkError):
    """Another process writes there at this moment; what it has written stays."""


class InvalidDocument(ContentError):
    """A document pushed by a service cannot be accepted; ``code`` is one of the row error codes."""


class JobCancelled(ProducerError):
    """The job was cancelled or failed and takes no more documents."""

    exit_status = EXIT_USAGE

    def __init__(self, job_id: str, state: str, doc_ids: Sequence[str]) -> None:
        self.job_id, self.state, self.doc_ids = job_id, state, tuple(doc_ids)
        super().__init__(
            f"job {job_id} is {state}: {len(self.doc_ids)} documents were not accepted "
            f"({shown_ids(self.doc_ids)}); push them into another job"
        )


class Refusal(StrEnum):
    """The reason why an operation does not fit its job. Behind each code stand its parameters."""

    STATE = "job_state"  # state operation
    SAME_LANE = "same_lane"  # lane
    SEVERAL_FEEDERS = "several_feeders"  # lane
    CHANGED = "job_changed"  # none: another process was first
    NEEDED = "job_needed"  # by: the id of a job or of a batch of the doors
    OPEN_BATCHES = "open_batches"  # batches providers


_FITS: Final = {
    "pause": "running or paused can be paused",
    "resume": "paused can be resumed",
    "cancel": "running or paused can be cancelled",
    "move": "running can change its lane",
    "limit": "not at its end takes other limits",
    "purge": "at its end can be purged",
}
_REFUSALS: Final = {
    Refusal.STATE: "is {state}: only one that is {fits}",
    Refusal.SAME_LANE: "is in lane {lane} already",
    Refusal.SEVERAL_FEEDERS: (
        "has a source that several feeders read, and one packs the documents of lane {lane}: wait "
        "until all of it is read"
    ),
    Refusal.CHANGED: "was changed by another process meanwhile: look at it, and try again",
    Refusal.NEEDED: ("has outcomes that {by} still reads: wait until that has ended, or cancel it"),
    Refusal.OPEN_BATCHES: (
        "has {batches} batches at {providers} that are not settled: a worker of its lane cancels "
        "them there and ends them"
    ),
}


class JobRefused(ProducerError):
    """An operation does not fit its job as it is now; nothing was changed."""

    exit_status = EXIT_USAGE

    def __init__(self, code: Refusal, job_key: str, **params: str | int) -> None:
        self.code, self.job_key, self.params = code, job_key, params
        super().__init__(self.about(f"job {job_key}"))

    def about(self, name: str) -> str:
        """Return the sentence, in which ``name`` stands for the job."""
        fits = _FITS.get(str(self.params.get("operation")), "")
        return f"{name} {_REFUSALS[self.code].format(fits=fits, **self.params)}"


class WireError(ProducerError):
    """A queue message cannot be understood."""


class BadMessage(WireError):
    """The message is not an item message, or it is damaged."""


class UnknownMessageVersion(WireError):
    """The message was written by a release that this one does not understand.

    Keep it aside, never drop it.
    """

    def __init__(self, version: Any) -> None:
        self.version = version
        super().__init__(
            f"message version v={seen(version)} is unknown (this release reads v=1); upgrade the "
            "workers, the message is kept until then"
        )
