"""A choice between lanes sees the job, each lane that it permits, and what can be done.

None is unknown."""

from __future__ import annotations

import math
from typing import Final, NamedTuple, Protocol

from penstock_ledger.model import Job

__all__ = [
    "TIER_BEFORE",
    "TOO_FEW",
    "InBatches",
    "JobNow",
    "LaneNow",
    "OneByOne",
    "Pace",
    "Plan",
    "Trouble",
    "name_of",
]


TIER_BEFORE: Final = "tier_before"  # among the figures of a move that left a tier
TOO_FEW: Final = "too_few"  # documents for a batch: the trouble of a lane that never passes


def name_of(job: Job) -> str:
    """Return the name of the choice that a job is with: its service tier, or its lane."""
    return job.tier_now or job.lane


class Pace(Protocol):
    def seconds_for(self, documents: float) -> float: ...

    def done_in(self, seconds: float, documents: float) -> float:
        """Return how many of so many ``documents`` have an answer after so long."""
        ...


class OneByOne(NamedTuple):
    per_s: float  # above 0

    def seconds_for(self, documents: float) -> float:
        return documents / self.per_s

    def done_in(self, seconds: float, documents: float) -> float:
        return min(documents, self.per_s * max(0.0, seconds))


class InBatches(NamedTuple):
    lasts_s: float  # from creating a batch to its end
    at_once: int | None = None  # documents in batches at once; None: all of them
    first_s: float | None = None  # until those that run now end; None: none runs

    def seconds_for(self, documents: float) -> float:
        rounds = 1 if self.at_once is None else max(1, math.ceil(documents / self.at_once))
        return self._first + (rounds - 1) * self.lasts_s

    def done_in(self, seconds: float, documents: float) -> float:
        if seconds < self._first:
            return 0.0
        rounds = 1 + int((seconds - self._first) / self.lasts_s) if self.lasts_s else math.inf
        return documents if self.at_once is None else min(documents, rounds * self.at_once)

    @property
    def _first(self) -> float:
        return self.lasts_s if self.first_s is None else self.first_s


class Trouble(NamedTuple):
    """The reason why a lane is no choice now."""

    reason: str  # of the ledger's MOVE_REASONS
    words: str  # the end of a sentence that begins with the lane


class LaneNow(NamedTuple):
    """A lane, or a service tier of it, which is a choice of its own by its name."""

    lane: str
    usd_each: float | None  # of a document
    pace: Pace | None
    pace_by: str  # in words: how the pace is known, or why it is not
    is_real_time: bool  # a provider's full price, for answers at once
    trouble: Trouble | None = None
    queue: str | None = None  # the lane that has it, of a tier; None: itself
    tier: str | None = None  # in which it is asked for there; None: as the job's spec says


class JobNow(NamedTuple):
    lane: str | None  # where its documents go; None: that was never decided
    left: int  # documents without an outcome
    deadline_at: float | None  # Unix seconds
    # its lanes have an order of preference; else the cheaper one is preferred
    by_order: bool = False
    # Of what is left, as far as a provider tells, what running batches have answered: that is kept
    # when they are cancelled.
    answered: int = 0
    usd_left: float | None = None  # of its budget; None: it has none
    # lanes that it has left because of the deadline, or since they stood still
    left_late: frozenset[str] = frozenset()


class Plan(NamedTuple):
    """The lane to begin with, and the one that does what it leaves."""

    now: LaneNow
    then: LaneNow | None  # None: none
    at_s: float  # from now on, when ``then`` begins
    ends_s: float | None  # from now on, as expected; None: not known
    usd: float | None  # of all that is left
    meets: bool  # the deadline, with the margin
