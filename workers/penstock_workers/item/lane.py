"""A lane is the part of a worker that does the inference, one item at a time.

Admit: whose turn it is.

Each lane brings its own: a provider's requests wait for the shared quota, an engine's for a place.

Waiting here costs no attempt. While it waits an item holds a slot but the ledger has not counted
its start, so a crash is never blamed on items that were only waiting.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from msgspec import Struct

from penstock_producer.job.spec import Overflow, Priority
from penstock_workers.item.answer import Answer, Tried
from penstock_workers.item.attempt import Attempt
from penstock_workers.item.failures import Failure, Reply
from penstock_workers.item.passing import Passing


class Request(Struct, frozen=True):
    """One call to be made.

    ``tag`` names the item to the provider, so that its logs and Penstock's can be matched."""

    tag: str
    provider: str
    endpoint: str  # path such as /v1/chat/completions
    body: bytes  # JSON
    timeout_s: float
    # Not sent to a provider, but used by an engine in the worker:
    # the job's JSON schema for answers, unless its requests are to say nothing of it
    schema: Mapping[str, Any] | None = None
    priority: Priority = "normal"
    # what to do with a prompt that is longer than the model's context
    on_overflow: Overflow = "fail"
    passing: Passing | None = None  # a caller reads the answer as it comes


class Prepared(Struct, eq=False):
    """A request, ready to be inferred at once: all that could be done on the CPU before is done.

    ``tokens`` is what it may occupy in the engine's memory, prompt and longest output together; 0
    where it is not counted. ``sequences`` are the answers (or parts) that an engine computes for it
    at the same time.
    ``refused`` is the answer to a request that can never be inferred: it gets its name like any
    other, and nothing is sent.
    """

    request: Request
    tokens: int = 0
    refused: Answer | None = None
    input: Any = None  # the lane's own; None where the body is sent as it is
    sequences: int = 1


def request_of(attempt: Attempt) -> Request:
    spec = attempt.job.spec
    return Request(
        attempt.tag,
        spec.provider,
        spec.endpoint,
        attempt.body,
        spec.timeout_s,
        schema=spec.enforced_schema,
        priority=spec.priority,
        on_overflow=spec.on_overflow,
        passing=attempt.passing,
    )


class Lane(Protocol):
    """Infers one item at a time, hundreds of times at once, on the worker's event loop."""

    async def start(self) -> None:
        """Open what the lane needs.

        Raises WorkerError with the fix when the settings cannot work."""

    async def prepare(self, request: Request) -> Prepared:
        """Do what needs no engine: templates, tokens, checks.

        Must not block the loop; nothing is counted yet."""
        ...

    async def infer(self, prepared: Prepared) -> Tried:
        """Make exactly one call.

        Every failure of the outside world comes back as a value; only a defect raises."""
        ...

    def gauges(self) -> Mapping[str, float | str]:
        """Return what the engine does now, for `penstock status`; {} for a lane without one.

        Cheap; any thread."""
        ...

    def drain(self) -> None:
        """Begin nothing that takes long: the worker is about to end.

        What is in flight goes on."""

    async def close(self) -> None: ...


class Turn(Protocol):
    """The right of one item to start.

    Ended by ``conclude`` or ``release``; what comes after the first does nothing."""

    def start(self) -> None:
        """Note that the request goes out now: what it costs is spent."""

    def conclude(self, tried: Tried, happened: Failure | Reply) -> None:
        """Note how it went."""

    def release(self) -> None:
        """Give back what was never started; safe in a ``finally``."""


class Admission(Protocol):
    """The runner's requests for what there is too little of."""

    def at_once(self, attempt: Attempt) -> Turn | None:
        """Return the turn of an attempt that need not wait; None: ask ``turn``.

        So it is nearly always where nothing is limited."""
        ...

    async def turn(self, attempt: Attempt, prepared: Prepared) -> Turn:
        """Wait for the turn of this attempt.

        Raises NeverFits when the request is larger than is ever allowed, QuotaHeld while the
        account is held.
        """
        ...

    def is_down(self, provider: str) -> bool:
        """Return whether nothing is sent to this provider now, because its breaker is open."""
        ...

    def may_retry(self, attempt: Attempt) -> bool:
        """Return False while the fleet sends too many retries: this one is put off."""
        ...

    async def close(self) -> None: ...
