"""The `batch` lane asks this of a provider's batch API, whatever its dialect.

The core (journal, leases, outcomes) knows only this file; a dialect knows HTTP and nothing of jobs.
A *tag* is the id that the journal gave a provider batch: it goes to the provider with it, and finds
it again after a crash.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Final, NamedTuple, Protocol, Self


class BatchLimits(NamedTuple):
    """The limits of one batch of a dialect. Bytes are those of the packed file."""

    requests: int
    total_bytes: int
    line_bytes: int
    id_chars: int = 64  # the longest custom_id that `line` takes: Anthropic's carry a tag besides


class Counts(NamedTuple):
    total: int
    succeeded: int
    failed: int  # also those that were cancelled or ran out of time


TOKEN_CAP_CODES: Final = frozenset({"token_limit_exceeded", "enqueued_token_limit_exceeded"})
"""More tokens in batches than the account may have: at once, or as the reason of a batch that
failed its validation."""


class LineProblem(NamedTuple):
    """The reason why a provider's validation refused a whole batch."""

    # one of TOKEN_CAP_CODES: the batch is good, and may be created again when others have ended
    code: str
    message: str
    line: int | None  # from 1; None: the file as a whole


class BatchSeen(NamedTuple):
    """A batch as the provider shows it."""

    batch_id: str
    status: str  # the provider's own word, shown to people
    ended: bool
    counts: Counts | None  # None: the provider does not tell (Anthropic, while it runs)
    expired: bool = False
    cancelled: bool = False
    # not empty: the whole batch was refused by its validation
    problems: tuple[LineProblem, ...] = ()
    outputs: tuple[str, ...] = ()  # file ids or addresses of answers, for `answers`
    file_id: str | None = None  # its input, where the provider keeps and shows one


class BatchAnswer(NamedTuple):
    """The answer to one request. Either it has a status, or an error."""

    custom_id: str
    status: int | None  # None: it got no HTTP answer
    body: bytes  # as the api lane would have received it in this dialect
    request_id: str | None = None
    # batch_expired | batch_cancelled | request_timeout | the provider's code
    error: str | None = None
    message: str = ""


class UnreadableLine(NamedTuple):
    """A line of an output that is no answer. The lines beside it are answers all the same."""

    output: str
    line: int  # from 1
    why: str
    # of an answer that is too long to be read, as far as it can be seen
    custom_id: str | None = None


class NewBatch(NamedTuple):
    """A packed batch on its way to the provider."""

    tag: str
    path: Path  # lines that `line` made, each with its line feed
    endpoint: str  # "/v1/chat/completions"
    model: str | None  # None: the lines name it
    requests: int
    file_id: str | None  # what `upload` returned


class BatchProvider(Protocol):
    """One account at one provider.

    Every call raises the errors below, and no others but OSError of the packed file."""

    limits: BatchLimits

    def line(self, custom_id: str, endpoint: str, body: bytes) -> bytes:
        """Return one request as a line of the packed file, with its line feed.

        Raises BadLine."""
        ...

    async def upload(self, batch: NewBatch) -> str | None:
        """Upload the file and return its id; None: the dialect has no files."""
        ...

    async def find_upload(self, tag: str) -> str | None:
        """Return the file of an upload whose answer was lost."""
        ...

    async def create(self, batch: NewBatch) -> BatchSeen: ...

    async def find(self, tag: str, since: float) -> BatchSeen | None:
        """Return the batch of a create whose answer was lost.

        `since` is the unix time before that create.

        None: it is certainly not there. Raises Unclear where the provider cannot tell yet."""
        ...

    async def look(self, batch_id: str) -> BatchSeen:
        """Return the batch; raise BatchGone when the provider does not know it (any more)."""
        ...

    def answers(self, seen: BatchSeen) -> AsyncGenerator[BatchAnswer | UnreadableLine, None]:
        """Yield every line of a batch's outputs, streamed, in any order.

        After a lost connection it goes on where it was; where that cannot be, from the beginning,
        so that an answer may come twice. Close it (contextlib.aclosing) if you stop early.
        """
        ...

    async def cancel(self, batch_id: str) -> BatchSeen:
        """Ask for its end. What was answered until then stays, and is paid for."""
        ...

    async def delete(self, seen: BatchSeen) -> None:
        """Take its files (or itself) from the provider.

        What is gone already is no error. Gemini does not show the input of a batch: put the file id
        of its upload into `seen`.
        """
        ...

    async def close(self) -> None: ...


class BatchError(Exception):
    """A call to a provider's batch API came to nothing."""

    name = "unexpected_error"  # of the failure, as in the table of fates
    status: int | None = None  # of HTTP

    def named(self, name: str, status: int | None = None) -> Self:
        """Return itself, with the name of the failure."""
        self.name, self.status = name, status
        return self


class BadLine(BatchError):
    """This request cannot be a line of a batch of this dialect or endpoint."""


class LineTooLong(BadLine):
    """The line has more bytes than a provider takes."""


def within(line: bytes, most_bytes: int) -> bytes:
    """Return the line. Raises LineTooLong."""
    if len(line) > most_bytes:
        raise LineTooLong(
            f"the request has {len(line)} bytes, and a line of a batch may have {most_bytes}"
        )
    return line


class BatchRefused(BatchError):
    """The provider will never take this batch."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(f"{status} {code}: {message}")
        self.status, self.code, self.message = status, code, message


class BatchGone(BatchRefused):
    """The provider knows no such batch or file (404).

    It was deleted, its time there is over, or the provider errs."""

    name = "not_found"


class AnswersMissing(BatchError):
    """The batch has ended, and its outputs are not all that the provider has counted."""

    def __init__(self, message: str, why: str, *, is_short: bool) -> None:
        super().__init__(message)
        self.why = why  # what becomes of documents without an answer: the name of a failure
        self.is_short = is_short  # some answers are there
        self.name = "answers_short" if is_short else "answers_missing"


class AccountStopped(BatchError):
    """A refused key or an empty wallet: no batch of this account goes on before a person acts."""

    name = "unauthorized"


class TokenCapReached(BatchError):
    """The account has as many tokens in batches as it may: later, when others have ended."""

    name = "rate_limited"


class TryLater(BatchError):
    """Nothing happened at the provider: the call may be made again after so long."""

    name = "server_error"

    def __init__(self, after_s: float | None, message: str) -> None:
        super().__init__(message)
        self.after_s = after_s  # None: the provider did not say


class Astray(TryLater):
    """A redirect, a 403, a page, or no such route.

    The address, a proxy or the key's rights may be at fault, or it passes."""

    name = "not_found"

    def __init__(self, message: str) -> None:
        super().__init__(None, message)


class Unclear(BatchError):
    """The call may have worked, and its answer was lost.

    Look with `find` (or `find_upload`) before anything else."""

    name = "server_error"
