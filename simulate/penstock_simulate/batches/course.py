"""Where a batch stands at a time: it follows from when it was created and what befalls it, so
nothing runs meanwhile."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple


class Status(StrEnum):
    """OpenAI's words; other dialects have their own for some of them."""

    VALIDATING = "validating"
    FAILED = "failed"
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"
    COMPLETED = "completed"
    EXPIRED = "expired"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"


OVER = frozenset({Status.FAILED, Status.COMPLETED, Status.EXPIRED, Status.CANCELLED})
CANCELLABLE = frozenset({Status.VALIDATING, Status.IN_PROGRESS})  # cancel_at is set for no other


class Moment(NamedTuple):
    """From when on a batch has a status. Unix seconds."""

    at: float
    status: Status


class Plan(NamedTuple):
    """What befalls a batch, drawn when it is created."""

    runs_s: float  # from its start until its last answer
    step_s: float  # of validating, finalizing and cancelling, each
    window_s: float  # from its creation until it expires
    most: float = 1.0  # the share of its requests that it gets to
    ends: bool = True  # a stalled one stands still until it expires


@dataclass(slots=True)
class Course:
    """The times of one batch, as Unix seconds.

    ``ready_at`` is when its validation ends; None while it is checked."""

    plan: Plan
    created_at: float
    ready_at: float | None = None
    failed: bool = False
    cancel_at: float | None = None

    @property
    def expires_at(self) -> float:
        return self.created_at + self.plan.window_s

    def status(self, now: float) -> Status:
        return self.moments(now)[-1].status

    def is_over(self, now: float) -> bool:
        return self.status(now) in OVER

    def ended_at(self, now: float) -> float | None:
        last = self.moments(now)[-1]
        return last.at if last.status in OVER else None

    def moments(self, now: float) -> Sequence[Moment]:
        """What it has been through by ``now``, the oldest first."""
        return [moment for moment in self._moments() if moment.at <= max(now, self.created_at)]

    def done(self, requests: int, now: float) -> int:
        """How many of its requests have been answered by ``now``."""
        if self.ready_at is None or self.failed:
            return 0
        if self.cancel_at is None and not self._runs_out() and now >= self._over_at():
            return requests
        worked_s = max(0.0, min(now, self._stops_at()) - self.ready_at)
        share = (
            min(self.plan.most, worked_s / self.plan.runs_s) if self.plan.runs_s else self.plan.most
        )
        return math.floor(requests * share)

    def _moments(self) -> list[Moment]:
        found = [Moment(self.created_at, Status.VALIDATING)]
        if self.ready_at is None:
            return (
                found
                if self.cancel_at is None
                else [*found, Moment(self.cancel_at, Status.CANCELLING)]
            )
        if self.failed:
            return [*found, Moment(self.ready_at, Status.FAILED)]
        if self.cancel_at is not None:
            return found + self._cancelled(self.cancel_at, self.ready_at)
        found.append(Moment(self.ready_at, Status.IN_PROGRESS))
        stops_at = self._stops_at()
        if self._runs_out():
            return [*found, Moment(stops_at, Status.EXPIRED)]
        return [
            *found,
            Moment(stops_at, Status.FINALIZING),
            Moment(stops_at + self.plan.step_s, Status.COMPLETED),
        ]

    def _cancelled(self, asked_at: float, ready_at: float) -> list[Moment]:
        """One that is cancelled while it is checked never starts."""
        end = Moment(max(asked_at, ready_at) + self.plan.step_s, Status.CANCELLED)
        started = [Moment(ready_at, Status.IN_PROGRESS)] if ready_at <= asked_at else []
        return [*started, Moment(asked_at, Status.CANCELLING), end]

    def _runs_out(self) -> bool:
        """Whether it expires: its window ends before its work does, or its plan says so."""
        return self.plan.most < 1 or self._work_ends_at() > self.expires_at

    def _stops_at(self) -> float:
        """When the last of its requests is answered."""
        over_at = self._over_at()
        return over_at if self.cancel_at is None else min(over_at, self.cancel_at)

    def _over_at(self) -> float:
        """When its work ends unless it is cancelled."""
        return max(min(self._work_ends_at(), self.expires_at), self.ready_at or self.created_at)

    def _work_ends_at(self) -> float:
        start = self.created_at if self.ready_at is None else self.ready_at
        return start + self.plan.runs_s if self.plan.ends else math.inf
