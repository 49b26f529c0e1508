"""The scripts of the Redis ledger take and return these values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from types import MappingProxyType
from typing import Final, NamedTuple

from penstock_ledger.model import ItemKey


class Publish(NamedTuple):
    """A document on its way into the queue."""

    key: ItemKey
    position: str  # where to read it again
    raw: bytes  # the whole queue message


class PublishReport(NamedTuple):
    """The documents of a call that were published, and those that were not and why, counted."""

    published: int
    done: int  # finished before: not sent
    in_window: int  # fed before and not finished: not sent twice


class MayCost(NamedTuple):
    """The most that an item's next call may cost, in millionths of a dollar.

    It is reserved in the budget of its job before the call is sent."""

    estimate: int = 0  # 0: nothing is sent
    # False where nothing bounds the answer: the costliest call of the job so far says more
    is_most: bool = True
    paid: int = 0  # by earlier calls of this attempt, which are not counted as spent yet
    owner: str = "?"  # who makes it, and says that it lives, see BudgetBook.renew


class Begin(NamedTuple):
    """An item whose attempt is about to begin."""

    key: ItemKey
    buckets: int
    may_cost: MayCost | None = None  # None: its job has no budget, as far as this worker knows


class BeginReply(IntEnum):
    """The answer whether an attempt may begin. The numbers are those of begin.lua."""

    GO = 0
    DONE = 1  # it has its outcome: acknowledge and forget
    PAUSED = 2
    CANCELLED = 3
    UNKNOWN = 4  # no feed has put it into the window: nothing was counted
    # the same, but Redis was rebuilt lately and its windows are not full again yet
    UNKNOWN_SINCE_REBUILT = 5
    ELSEWHERE = 6  # its job goes on in another lane than the worker's: nothing was counted
    NO_ROOM = 7  # the rest of its job's budget does not pay for it beside what is under way
    BUDGET_CHANGED = 8  # the job has a budget by now, or has none any more: look at the job again
    UNSURE = 9  # it may, if SQL has not finished it: ``Begun`` shows this as GO that is not sure
    # Redis was rebuilt since the caller last renewed its leases: nothing was counted
    REBUILT = 10


class Begun(NamedTuple):
    """The answer for one item."""

    reply: BeginReply
    # earlier starts that ended without any conclusion: the worker died, or lost its lease
    crashes: int
    # False: Redis was started again, or forgot, and is not rebuilt yet; SQL may have its outcome
    is_sure: bool = True
    rebuilt: str = ""  # with REBUILT: the name of that rebuild


class Keep(NamedTuple):
    """The place where the result of an item answers equal requests.

    It takes the place of the claim that let it be sent, if that is there."""

    book: str
    digest: str
    keep_s: float


class SettledDone(NamedTuple):
    """An item that has its result in SQL."""

    key: ItemKey
    buckets: int
    after_retry: bool = False
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost_microusd: int = 0
    # requests sent in this attempt; those of earlier attempts were counted with their retries
    calls: int = 1
    keep: Keep | None = None
    reused: str | None = None  # the result's reason, where no call was made
    # its job has, and this was its call: nothing is reserved for it any more
    has_budget: bool = False


class SettledDead(NamedTuple):
    """An item that has its dead letter in SQL."""

    key: ItemKey
    buckets: int
    reason: str
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost_microusd: int = 0
    calls: int = 0  # requests sent in this attempt
    # the first answer to its document, which was paid for and refused by the job's own checks
    refused_first: bool = False
    has_budget: bool = False


class SettledRetry(NamedTuple):
    """An item that gets another attempt."""

    key: ItemKey
    buckets: int
    queue: str
    tag: str
    raw: bytes  # the message to send, its retries header grown when the attempt counted
    after_s: float  # not before so many seconds from now, on Redis's clock
    rate_limited: bool = False
    reason: str = "unknown"  # why, in a word, by which it is counted; "" where nothing was tried
    prompt_tokens: int = 0  # of an answer that came in this attempt and was refused
    completion_tokens: int = 0
    cost_microusd: int = 0
    calls: int = 1  # requests sent in this attempt
    has_budget: bool = False
    refused_first: bool = False  # as in SettledDead


class SettledCrash(NamedTuple):
    """An item given back because its engine died under it. Its start stays counted."""

    key: ItemKey
    reason: str
    refused_first: bool = False  # as in SettledDead


class AskedAgain(NamedTuple):
    """Requests of one attempt beyond its first."""

    job_id: str
    repairs: int  # with what the job's schema had against the answer
    fallbacks: int  # of the next model
    escalations: int = 0  # of the better model


@dataclass(frozen=True, slots=True)
class SettleBatch:
    """The outcomes of many items: one atomic step for the finished, and one for the others."""

    done: Sequence[SettledDone] = ()
    dead: Sequence[SettledDead] = ()
    retries: Sequence[SettledRetry] = ()
    released: Sequence[ItemKey] = ()  # begun, and given back before a request was sent
    # of those of jobs with a budget: by earlier calls, not yet spent
    paid: Mapping[ItemKey, int] = field(default_factory=dict)
    crashed: Sequence[SettledCrash] = ()
    asked_again: Sequence[AskedAgain] = ()
    # items of which SQL knows that there will be another try
    tried_again: Sequence[SettledCrash] = ()


class Lately(NamedTuple):
    """The fates of the latest 500 to 1,000 documents of a feed.

    Of all of them while there are fewer."""

    ended: int = 0  # documents with an outcome
    dead: int = 0  # of these, dead letters
    answered: int = 0  # first answers to documents, whether they were taken or not
    missed: int = 0  # of these, refused by the job's own checks
    cost_microusd: int = 0
    reasons: Mapping[str, int] = MappingProxyType({})  # of dead letters, and of what was missed


def lately_of(*stretches: Mapping[bytes, bytes]) -> Lately:
    """Add up what lately.lua keeps. What no field is named for is left to other releases."""
    sums: Counter[str] = Counter()
    for stretch in stretches:
        for name, value in stretch.items():
            sums[name.decode()] += int(value)
    reasons = {
        name.removeprefix("why:"): number
        for name, number in sums.items()
        if name.startswith("why:")
    }
    return Lately(
        sums["ended"],
        sums["dead"],
        sums["answered"],
        sums["missed"],
        sums["cost_microusd"],
        reasons,
    )


class SettleReport(NamedTuple):
    """The changes that a settlement made."""

    new: int  # items that entered the completed set now
    delayed: int  # retries that entered the delayed set now
    # of the feeds that have changed, by job and generation
    lately: Mapping[tuple[str, int], Lately]


class Depth(NamedTuple):
    """The numbers of items that wait, by where they do.

    ``unacked`` are with workers, but for ``relayed`` ones of them, which lie in RabbitMQ."""

    queued: int
    unacked: int
    delayed: int
    relayed: int


class Drained(NamedTuple):
    """The end of a worker: what became of the items that it held when it was asked to stop."""

    lane: str
    finished: int
    requeued: int


class Drains(NamedTuple):
    """All drains of a lane so far. One is `finished` when nothing had to go back."""

    items_finished: int
    items_requeued: int
    finished: int
    requeued: int


FED_UP_TO: Final = 0.75
"""Of Redis's maxmemory: above it nothing is fed."""


class Memory(NamedTuple):
    """Bytes that Redis uses and may use (0 = no limit), and what it does when they are used up."""

    used: int
    maxmemory: int
    policy: str

    @property
    def is_tight(self) -> bool:
        """Feeding waits, so that acknowledgements and leases always fit."""
        return bool(self.maxmemory) and self.used > FED_UP_TO * self.maxmemory


class JobSeen(NamedTuple):
    """The state of a live job in Redis."""

    is_current: bool  # workers see the job in the state, and in the lane, that SQL has
    is_paused: bool  # workers see it as paused
    parked: int  # messages that wait for it to be resumed
    # documents that were fed and are not finished, by generation, the first one first
    outstanding: tuple[int, ...]


class WorkerSeen(NamedTuple):
    """A worker by its heartbeats."""

    name: str
    seconds_ago: float
    info: dict[str, str]
