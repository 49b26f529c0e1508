"""What a choice between lanes is made of: the job, each lane that it permits, and what can be done.

None is unknown."""

from __future__ import annotations

from typing import NamedTuple

from penstock_workers.control.lanes.paces import Pace

__all__ = ["JobNow", "LaneNow", "Plan", "Trouble"]


class Trouble(NamedTuple):
    """Why a lane is no choice now."""

    reason: str  # of the ledger's MOVE_REASONS
    words: str  # the end of a sentence that begins with the lane


class LaneNow(NamedTuple):
    lane: str
    usd_each: float | None  # of a document
    pace: Pace | None
    pace_by: str  # in words: how the pace is known, or why it is not
    is_real_time: bool  # a provider's full price, for answers at once
    trouble: Trouble | None = None


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
