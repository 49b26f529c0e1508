"""The nouns of the ledger: what is stored, in the words of the design.

Everything here is a plain frozen value. Stores take and return these; nothing else of the ledger
leaks out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, NamedTuple

from msgspec import Struct

from penstock_ledger.job_state import JobState as JobState
from penstock_ledger.lone_surrogates import parse_json
from penstock_ledger.reasons import Accepted, Reason

__all__ = [
    "COUNT_MAX",
    "RULE",
    "SHARDS",
    "Counts",
    "DeadLetter",
    "Feed",
    "FeedKind",
    "ItemKey",
    "Job",
    "JobState",
    "LaneCounts",
    "NewJob",
    "Paid",
    "PaidBeside",
    "Result",
    "Saving",
    "Shard",
    "Spent",
    "TakenFiles",
]

FIRST_LANE: Final = "api"  # of jobs from before there were others
COUNT_MAX: Final = 2**31 - 1  # of generations, tries and calls: their columns have 32 bits
SHARDS: Final = "shards"  # of the selection of a feed that is split: into how many parts


class ItemKey(NamedTuple):
    """Names one execution history of one document.

    Replaying a document makes a new generation, never an overwrite."""

    job_id: str
    generation: int
    doc_id: str


class FeedKind(StrEnum):
    """A feed's source: the pinned one, an open job's spool, or replayed dead letters."""

    SOURCE = "source"
    SPOOL = "spool"
    REPLAY = "replay"


class Shard(NamedTuple):
    """A part of a source, between two cursors of it.

    An empty one is its start, and None its end."""

    starts_at: dict[str, Any]
    ends_at: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class TakenFiles:
    """The files that a job takes of a watched folder: no later job of its schedule has them."""

    schedule_id: str
    files: Sequence[bytes]  # a key for the place and version of each


@dataclass(frozen=True, slots=True)
class NewJob:
    """A job as it is submitted, before the ledger has accepted it."""

    job_id: str
    job_key: str  # the caller's idempotency key; equals job_id when the caller gave none
    spec: dict[str, Any]  # penstock_producer.job.spec.JobSpec as JSON
    # The pinned source: kind, uri, size, etag or sha256 ({"kind": "spool"} for an open job); with
    # it travels the `traceparent` of the span in which the job was submitted, where there was one.
    source: dict[str, Any]
    digest: str  # sha256 over spec and source pin: the same key with another digest is a conflict
    # documents in the source, bad rows included; None while an open job is not closed
    total: int | None
    feed_kind: FeedKind = FeedKind.SOURCE
    # of its first feed, in the source's order; none: one leader reads all of it
    shards: tuple[Shard, ...] = ()
    taken: TakenFiles | None = None
    lane: str | None = None  # where its documents go first; None: as its spec says


@dataclass(frozen=True, slots=True)
class Job:
    """One batch of documents with one spec, as the ledger holds it."""

    job_id: str
    job_key: str
    spec: dict[str, Any]
    source: dict[str, Any]
    digest: str
    state: JobState
    # ``why`` as a sentence, for people and for processes of an earlier release
    reason: str | None
    generation: int  # the highest generation there is
    total: int | None
    created_at: float  # Unix seconds
    finished_at: float | None
    # Unix seconds; a paused job goes on by itself then, None = a person has to say so
    resume_at: float | None = None
    lane_now: str | None = None  # None: as its spec says
    # how often its lane was chosen or changed: with 0 it is where it was submitted to
    moves: int = 0
    # why it is paused, is being cancelled or has ended so
    why: Reason | None = None
    # of what a stop-loss had paused it for, when a person let it go on
    accepted: Accepted | None = None
    # the service tier that control has chosen for it; None: as its spec says
    tier_now: str | None = None

    def __repr__(self) -> str:
        """Return one short line: its fields are fifty."""
        of = "" if self.total is None else f", {self.total:,} documents"
        return f"<Job {self.job_key} ({self.job_id}): {self.state}{of}>"

    @property
    def lane(self) -> str:
        """Return where its documents go now. What a lane makes of requests is the spec's."""
        return self.lane_now or str(self.spec.get("lane", FIRST_LANE))

    @property
    def pause(self) -> Reason | None:
        """Return why it is paused; None where it is not, or nothing was noted."""
        return self.why if self.state is JobState.PAUSED else None


@dataclass(frozen=True, slots=True)
class Feed:
    """The durable reading position of one generation of a job.

    ``cursor`` belongs to the source that wrote it (a byte offset for a file); an empty one means
    "from the start". ``fence`` grows with every change of owner, so that a feeder that was frozen
    cannot move its successor's cursor. Where a source is split, each shard is such a position, too;
    the feed's own is exhausted once all of its shards are.
    """

    job_id: str
    generation: int
    kind: FeedKind
    cursor: dict[str, Any]
    exhausted: bool
    fence: int
    # REPLAY: {"reason": …, "from_generation": g}
    selection: dict[str, Any] = field(default_factory=dict)
    # REPLAY: {"set": {"model": …}, "prompt": …}
    overrides: dict[str, Any] = field(default_factory=dict)
    shard: int = 0  # from 1 on: a part of the feed; 0: the feed itself
    # of a shard: the cursor that is its end; None: the end of the source
    ends_at: dict[str, Any] | None = None

    @property
    def shards(self) -> int:
        """Into how many parts it is split; 0 for a feed that its leader reads whole."""
        return int(self.selection.get(SHARDS, 0)) if self.kind is FeedKind.SOURCE else 0


class Result(Struct, frozen=True):
    """A document's successful outcome.

    The first one written for a key stays; later ones are ignored.

    A struct where the others are dataclasses: one is made per item, and a frozen dataclass sets
    each field by a call.
    """

    key: ItemKey
    status_code: int
    # the provider's response body, JSON; a worker may write vectors.py's form, which is read as
    # JSON
    body: bytes
    request_id: str | None
    model: str | None
    finish_reason: str | None
    # of all answers to the document: those that the job refused were paid for, too
    prompt_tokens: int | None
    completion_tokens: int | None
    cost_microusd: int  # millionths of a US dollar, likewise
    latency_ms: int
    attempts: int  # tries that counted, the successful one included
    calls: int  # requests really sent to the provider
    # why none was sent for it: `dedup` (an equal request of its job) or `cache` (of another)
    reason: str | None = None
    endpoint: str | None = None  # the path that was asked, where it is not the job's
    # of its answers those without a known price; None: a release stored it that did not say
    unpriced: int | None = 0

    def json(self) -> Any:
        """Return the response, parsed: ``result.json()["choices"][0]["message"]["content"]``."""
        return parse_json(self.body)


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A document's permanent failure, with what a person needs to try it again."""

    key: ItemKey
    # a short stable word: `http_400`, `retries_exhausted`, `worker_crashed`, `invalid_json`, …
    reason: str
    attempts: int
    calls: int
    last_error: str  # for people: what the provider or the validator said, redacted and cut
    status_code: int | None
    # the request body as it was (or would have been) sent, JSON; b"" when the row never parsed
    request: bytes
    response: bytes | None  # an excerpt of the provider's last answer
    line: int | None = None  # 1-based line of the source for rows that were refused at submit
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cost_microusd: int = 0
    latency_ms: int = 0
    created_at: float | None = None  # Unix seconds; set by the ledger
    endpoint: str | None = None  # the path that ``request`` is for, where it is not the job's
    unpriced: int | None = 0  # as of a result

    @property
    def replayable(self) -> bool:
        """Return whether it can be sent again: a row that never parsed has no request."""
        return bool(self.request)

    def to_json(self) -> dict[str, Any]:
        """Return what it says of the document, without what was sent and answered."""
        return {
            "doc_id": self.key.doc_id,
            "generation": self.key.generation,
            "reason": self.reason,
            "attempts": self.attempts,
            "calls": self.calls,
            "status_code": self.status_code,
            "last_error": self.last_error,
            "line": self.line,
            "created_at": self.created_at,
            "endpoint": self.endpoint,
        }


class PaidBeside(NamedTuple):
    """The use of a document besides what its outcome says.

    That is an attempt in a lane that its job has left, or one that is tried again."""

    key: ItemKey
    calls: int
    prompt_tokens: int
    completion_tokens: int
    cost_microusd: int
    unpriced: int = 0
    escalations: int = 0  # answers that went on to a better model


class Paid(NamedTuple):
    """A sum of what was paid."""

    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost_microusd: int = 0  # of those answers of which a price is known
    unpriced: int = 0  # answers of which none is known

    def plus(self, other: Sequence[int]) -> Paid:
        return Paid(*(one + more for one, more in zip(self, other, strict=True)))

    def beyond(self, other: Sequence[int]) -> Paid:
        """Return what it has more than ``other``, figure by figure, nothing where it has less."""
        return Paid(*(max(0, one - less) for one, less in zip(self, other, strict=True)))


RULE: Final = "rule:"
"""Marks, at its beginning, the cause of a saving that is the cost by a rule of a job: below 0."""


class Saving(NamedTuple):
    """The difference that one cause made to the cost of answers: a service tier, say."""

    cause: str
    answers: int = 1
    tokens: int = 0  # of them that the cause is about
    # how much less they cost than without it, below 0 where they cost more
    saved_microusd: int = 0
    unpriced: int = 0  # answers of which a price is not known: what is saved is that of the others

    def plus(self, other: Saving) -> Saving:
        """Return both together, which have the same cause."""
        figures = zip(self[1:], other[1:], strict=True)
        return Saving(self.cause, *(one + more for one, more in figures))


@dataclass(frozen=True, slots=True)
class Counts:
    """Outcomes of a job counted in SQL: the only figures that decide whether a job is complete.

    Beside them its account: what it has spent over all generations and lanes, which only grows."""

    succeeded: int
    succeeded_after_retry: int
    dead: int
    dead_by_reason: dict[str, int]
    calls: int  # of the account, as the next three
    prompt_tokens: int
    completion_tokens: int
    cost_microusd: int
    # of the succeeded: those without a call, by Result.reason
    reused: dict[str, int] = field(default_factory=dict)
    # of the prompts and completions that they took
    reused_tokens: dict[str, tuple[int, int]] = field(default_factory=dict)
    # documents that were paid for again: both answers are in calls, tokens and cost
    answered_twice: int = 0
    twice_microusd: int = 0  # of it: what the answers cost that came second
    # of the account: answers of which no price is known; the cost is that of the others
    unpriced: int = 0
    visible: Paid = field(default_factory=Paid)  # of the account: what visible outcomes took
    beside: Paid = field(default_factory=Paid)  # of the rest: what is not known to be of a lane
    # the rest, by how it came there; see stores/account.py
    by_kind: dict[str, Paid] = field(default_factory=dict)


class Spent(NamedTuple):
    """The use of one document, without what came of it."""

    doc_id: str
    latency_ms: int
    prompt_tokens: int
    completion_tokens: int
    cost_microusd: int
    calls: int
    answer_bytes: int
    created_at: float  # Unix seconds; when its outcome was stored
    is_dead: bool
    lane: str | None = None  # that answered; None: nothing was asked, or it is not known


class LaneCounts(NamedTuple):
    """Visible outcomes that one lane answered, and what the job has spent there in all."""

    lane: str
    succeeded: int
    dead: int
    calls: int
    prompt_tokens: int  # of calls that were made, as the next two
    completion_tokens: int
    cost_microusd: int
    unpriced: int = 0
