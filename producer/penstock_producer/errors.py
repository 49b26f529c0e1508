"""What can go wrong on the enqueuing side. Every message names the field, the value seen and the fix.

PenstockError, of the ledger
└── ProducerError
    ├── SpecError               the job spec is unusable; ``problems`` lists each field
    │   └── TemplateError       the prompt template is unusable
    ├── SettingsError           a setting is unusable
    ├── SourceError             the source is unusable as a whole; ``code`` is stable
    │   ├── SourceUnavailable   it cannot be reached now (pause and try again)
    │   ├── SourceChanged       it is not the content that was pinned
    │   └── TooManyBadRows      more rows are refused than the spec allows
    ├── SinkError               outputs cannot be written there
    ├── InvalidDocument         one document pushed by a service is unusable
    ├── JobCancelled            a document was pushed into a job that was cancelled or has failed
    └── WireError               a queue message is unusable
        ├── BadMessage          not a message of ours, or a damaged one
        └── UnknownMessageVersion   written by a release that this one does not understand
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock_ledger.errors import EXIT_USAGE, PenstockError, shown_ids

if TYPE_CHECKING:
    from penstock_producer.sources.base import BadRow

MAX_SEEN_CHARS = 80  # enough to recognise a value, too little to flood a terminal or leak a document


def seen(value: Any) -> str:
    """``value`` as shown in an error message: its repr, cut to 80 characters."""
    if isinstance(value, (str, bytes)):
        value = value[: MAX_SEEN_CHARS + 1]  # repr of a 100 MB line would cost more than the line
    text = repr(value)
    return text if len(text) <= MAX_SEEN_CHARS else text[: MAX_SEEN_CHARS - 1] + "…"


class ProducerError(PenstockError):
    """Root of everything that the producer raises on purpose."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One field of a spec that cannot be used."""

    code: str  # `unknown_field`, `missing_field`, `invalid_type`, `invalid_value`
    pointer: str  # JSON pointer to the field, such as `/params/max_tokens`
    message: str
    fix: str

    def __str__(self) -> str:
        return f"{self.pointer or '/'}: {self.message}; {self.fix}" if self.fix else f"{self.pointer}: {self.message}"


class SpecError(ProducerError):
    """The job spec cannot be used."""

    exit_status = EXIT_USAGE

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("job spec: " + "\n          ".join(str(problem) for problem in self.problems))


class TemplateError(SpecError):
    """The prompt template cannot be used."""

    def __init__(self, message: str, fix: str, *, pointer: str = "/prompt") -> None:
        super().__init__([Problem("invalid_value", pointer, message, fix)])


class SettingsError(ProducerError):
    """A setting from `penstock.toml`, the environment or a flag cannot be used."""

    exit_status = EXIT_USAGE


class SourceError(ProducerError):
    """The source cannot be used as a whole."""

    exit_status = EXIT_USAGE

    def __init__(self, code: str, message: str) -> None:
        self.code = code
        super().__init__(f"{code}: {message}")


class SourceUnavailable(SourceError):
    """The source cannot be read now; what was fed stays fed and reading resumes once it is back."""

    def __init__(self, message: str) -> None:
        super().__init__("source_unavailable", message)


class SourceChanged(SourceError):
    """The source is not the content that was validated and pinned at submit."""

    def __init__(self, message: str) -> None:
        super().__init__("source_changed", message)


class TooManyBadRows(SourceError):
    """More rows are refused than ``max_bad_rows`` allows; nothing was enqueued."""

    def __init__(self, uri: str, limit: int, rows: Sequence[BadRow], *, counted: int, whole: bool) -> None:
        self.rows = tuple(rows)
        self.limit = limit
        lines = "".join(f"\n  {row}" for row in self.rows)
        more = f"\n  … and {counted - len(self.rows)} more" if counted > len(self.rows) else ""
        found = f"{counted} rows" if whole else f"at least {counted} rows"
        super().__init__(
            "too_many_bad_rows",
            f"{found} of {uri} are unusable and max_bad_rows allows {limit}; mend them, or raise max_bad_rows to make "
            f"them dead letters:{lines}{more}",
        )


class SinkError(ProducerError):
    """A destination for output files cannot be written. What was there before is untouched."""

    exit_status = EXIT_USAGE


class InvalidDocument(ProducerError):
    """A document pushed by a service cannot be accepted; ``code`` is one of the row error codes."""

    exit_status = EXIT_USAGE

    def __init__(self, code: str, message: str) -> None:
        self.code = code
        super().__init__(f"{code}: {message}")


class JobCancelled(ProducerError):
    """The job was cancelled or failed and takes no more documents."""

    exit_status = EXIT_USAGE

    def __init__(self, job_id: str, state: str, doc_ids: Sequence[str]) -> None:
        self.job_id, self.state, self.doc_ids = job_id, state, tuple(doc_ids)
        super().__init__(
            f"job {job_id} is {state}: {len(self.doc_ids)} documents were not accepted ({shown_ids(self.doc_ids)}); "
            "push them into another job"
        )


class WireError(ProducerError):
    """A queue message cannot be understood."""


class BadMessage(WireError):
    """The message is not one of ours, or it is damaged."""


class UnknownMessageVersion(WireError):
    """The message was written by a release that this one does not understand: park it, never drop it."""

    def __init__(self, version: Any) -> None:
        self.version = version
        super().__init__(
            f"message version v={seen(version)} is unknown (this release reads v=1); upgrade the workers, "
            "the message stays parked until then"
        )
