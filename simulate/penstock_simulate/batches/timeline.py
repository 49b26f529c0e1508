"""A batch has a fate, drawn from the seed, and stands somewhere at a time.

What each of its requests gets is drawn at intake, with the same luck as a call in real time.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from statistics import NormalDist
from typing import NamedTuple

from penstock_simulate.answers import refusals
from penstock_simulate.answers.calls import Call, misshapen
from penstock_simulate.answers.faults import Fates, Fault, Poison, seed_key, uniforms
from penstock_simulate.answers.refusals import Refusal
from penstock_simulate.answers.replies import declines, poison_of
from penstock_simulate.config import SimulatorConfig


class Fate(IntEnum):
    """One byte per request: its outcome is known beforehand, and shown as the clock allows."""

    GOOD = 0
    REFUSED = 1  # its body cannot be used
    THROTTLED = 2
    FAILED = 3
    OVERLOADED = 4
    TIMED_OUT = 5
    INVALID = 6
    CONTEXT = 7
    FILTERED = 8
    DECLINED = 9  # answered, with a polite no


_BY_FAULT: Mapping[Fault, Fate] = {
    Fault.THROTTLE: Fate.THROTTLED,
    Fault.ERROR: Fate.FAILED,
    Fault.OVERLOAD: Fate.OVERLOADED,
    Fault.HANG: Fate.TIMED_OUT,
}  # the other faults are those of a connection, which a request of a batch does not have
_BY_POISON: Mapping[Poison, Fate] = {
    Poison.INVALID: Fate.INVALID,
    Poison.CONTEXT: Fate.CONTEXT,
    Poison.FILTER: Fate.FILTERED,
}
_POISONS: Mapping[Fate, Poison] = {fate: poison for poison, fate in _BY_POISON.items()}


def lasting_fate(call: Call, fates: Fates, *, usable: bool) -> Fate:
    """Return what the request gets each time that it is submitted; GOOD where that is open."""
    if not usable:
        return Fate.REFUSED
    poison = poison_of(call, fates)
    if declines(call, poison):
        return Fate.DECLINED
    return Fate.GOOD if poison is None else _BY_POISON[poison]


def passing_fate(document: str, number: int, fates: Fates) -> Fate:
    """Return what it gets this time.

    ``number`` is how often batches were given the document, this one included."""
    fault = fates.draw(document, number).fault
    return Fate.GOOD if fault is None else _BY_FAULT.get(fault, Fate.GOOD)


def refusal_of(fate: Fate, call: Call) -> Refusal | None:
    """Return why the model refused the request; None where it answered, or did not get to it."""
    match fate:
        case Fate.REFUSED:
            return misshapen(call, call.body)
        case Fate.THROTTLED:
            return refusals.throttled(None)
        case Fate.FAILED:
            return refusals.failed()
        case Fate.OVERLOADED:
            return refusals.overloaded(None)
        case Fate.INVALID | Fate.CONTEXT | Fate.FILTERED:
            return refusals.poisoned(_POISONS[fate], call.prompt_tokens)
        case Fate.GOOD | Fate.DECLINED | Fate.TIMED_OUT:
            return None


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
    """From when on a batch has a status, in Unix seconds."""

    at: float
    status: Status


class Plan(NamedTuple):
    """The fate of a batch, drawn when it is created."""

    runs_s: float  # from its start until its last answer
    step_s: float  # of validating, finalizing and cancelling, each
    window_s: float  # from its creation until it expires
    most: float = 1.0  # the share of its requests that it gets to
    ends: bool = True  # a stalled one stands still until it expires


@dataclass(slots=True)
class Timeline:
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
        """Return what it has been through by ``now``, the oldest first."""
        return [moment for moment in self._moments() if moment.at <= max(now, self.created_at)]

    def done(self, requests: int, now: float) -> int:
        """Return how many of its requests have been answered by ``now``."""
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
        """Return the moments of a cancelled batch.

        One that is cancelled while it is checked never starts."""
        end = Moment(max(asked_at, ready_at) + self.plan.step_s, Status.CANCELLED)
        started = [Moment(ready_at, Status.IN_PROGRESS)] if ready_at <= asked_at else []
        return [*started, Moment(asked_at, Status.CANCELLING), end]

    def _runs_out(self) -> bool:
        """Return whether it expires: its window ends before its work does, or its plan says so."""
        return self.plan.most < 1 or self._work_ends_at() > self.expires_at

    def _stops_at(self) -> float:
        """Return when the last of its requests is answered."""
        over_at = self._over_at()
        return over_at if self.cancel_at is None else min(over_at, self.cancel_at)

    def _over_at(self) -> float:
        """Return when its work ends unless it is cancelled."""
        return max(min(self._work_ends_at(), self.expires_at), self.ready_at or self.created_at)

    def _work_ends_at(self) -> float:
        start = self.created_at if self.ready_at is None else self.ready_at
        return start + self.plan.runs_s if self.plan.ends else math.inf


HALF = 0.5  # where batches that stall or expire stop
_NORMAL = NormalDist()
_LEAST = 2.0**-53


class BatchLuck:
    """Draws under the settings of the moment, which are passed in."""

    def __init__(self) -> None:
        self._calls: Counter[str] = Counter()

    def plan(self, config: SimulatorConfig, number: int) -> Plan:
        """Draw what befalls a batch; ``number`` is its place among all batches, from 1."""
        luck, spread, _ = uniforms(seed_key(config.seed), f"batch {number}")
        runs_s = config.batch_s * math.exp(
            config.batch_sigma * _NORMAL.inv_cdf(max(spread, _LEAST))
        )
        plan = Plan(runs_s, config.batch_step_s, config.batch_window_s)
        if luck < config.batch_stalled_share:
            return plan._replace(most=HALF, ends=False)
        if luck < config.batch_stalled_share + config.batch_expired_share:
            return plan._replace(most=HALF)
        return plan

    def strikes(self, config: SimulatorConfig, what: str, share: float) -> bool:
        """Return whether the next call of this kind is struck.

        Every call is counted, so shares can change meanwhile."""
        self._calls[what] += 1
        return (
            share > 0 and uniforms(seed_key(config.seed), f"{what} {self._calls[what]}")[0] < share
        )


class LineLuck:
    """The lines of a batch's results that are spoilt, and how."""

    def __init__(self, seed: int, share: float, batch: str) -> None:
        self._key, self._share, self._batch = seed_key(seed), share, batch

    def kind(self, line: int, kinds: int) -> int | None:
        """Return a kind in ``range(kinds)``, or None for a line that is sent as it should be."""
        if not self._share:
            return None
        luck, kind, _ = uniforms(self._key, f"line {line} {self._batch}")
        return int(kind * kinds) if luck < self._share else None
