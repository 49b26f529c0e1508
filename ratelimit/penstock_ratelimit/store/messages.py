"""The messages between a process and Redis about one quota, and what a process reports there.

They are reservations, reports and the provider's health. A report has settlements, results of
requests, and levels in headers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final

from penstock_ratelimit.provider.refusals import WINS, Signal
from penstock_ratelimit.rates import Terms
from penstock_ratelimit.tickets import Feedback


class ReserveStatus(Enum):
    """The result of a reservation."""

    OK = "ok"
    MISSING = "missing"
    """Redis has lost the quota: install it. Nothing was done."""
    CHANGED = "changed"
    """Other terms are in force: adopt them. Nothing was done."""


@dataclass(frozen=True, slots=True)
class InForce:
    """The terms that Redis holds, and the version that names them."""

    version: str
    terms: Terms


@dataclass(frozen=True, slots=True)
class ProviderReport:
    """One process's sight of the provider since its last call."""

    throttled: int = 0
    """429s: too much."""
    ramp: int = 0
    """Answers that say: growing too steeply."""
    wins: int = 0
    """Good answers."""
    losses: int = 0
    """Failures of the server: what the breaker is for."""
    generation: int = 0
    """The breaker generation that wins and losses belong to (``Health.generation`` of the call that
    granted them)."""
    retries: int = 0
    """Retries sent: each costs one of the budget; a win gives back a tenth."""
    hold: str = ""
    """Not empty: hold the account for this reason."""
    strays: int = 0
    """429s that hold back their own item only: counted, and nothing else."""
    unused: int = 0
    """Probes of which nothing is known: not sent, or given up. Of ``generation`` as well."""


NOTHING: Final = ProviderReport()


@dataclass(frozen=True, slots=True)
class Remaining:
    """The rest by the provider's headers, and what the fleet had charged then.

    The provider said ``remaining`` when it took the request, when the fleet had charged
    ``counter``, ``age_s`` ago."""

    remaining: float
    counter: float
    """``Reserved.counters`` of its call plus the amounts of its batch up to and including
    itself."""
    age_s: float
    """Seconds since the request was sent."""


class Breaker(Enum):
    """State of the breaker that the fleet shares."""

    CLOSED = 0
    OPEN = 1
    """The provider fails: nothing is granted until ``left_s`` is over."""
    HALF_OPEN = 2
    """A few probes are let through; their results decide."""


@dataclass(frozen=True, slots=True)
class Health:
    """The provider's health, as the fleet sees it."""

    breaker: Breaker = Breaker.CLOSED
    generation: int = 0
    left_s: float = 0.0
    """Until an open breaker lets probes through."""
    hold: str = ""
    """Why the account is held; empty = it is not."""
    proven: bool = False
    """A good answer came within the last hour."""
    retry_budget: float = 100.0
    share: float = 1.0
    """Part of the rate in force: margin times slope."""


@dataclass(frozen=True, slots=True)
class Reserved:
    """The answer to a reservation.

    The first ``len(waits_s)`` items have their start times, seconds from now."""

    status: ReserveStatus
    waits_s: Sequence[float] = ()
    retry_s: float = 0.0
    """When the first item left out may be asked for again; 0 = at once."""
    pause_left_s: float = 0.0
    pause_id: int = 0
    """Grows with each new pause."""
    processes: int = 0
    """Those who share the quota, by their heartbeats."""
    pace_s: float = 0.0
    """Seconds per item at which the whole fleet can go, learned from what items cost; 0 =
    unknown."""
    in_force: InForce | None = None
    """Set when CHANGED."""
    counters: tuple[float, ...] = ()
    """Units charged so far per dimension: after the settlements, before the first item of this
    batch."""
    health: Health = Health()


@dataclass(frozen=True, slots=True)
class Reserve:
    """One reservation: items to start, and what rides along."""

    version: str
    terms: Terms
    items: Sequence[tuple[float, ...]]
    settlements: Mapping[str, float]
    max_ahead_s: float
    share_s: float
    pause_s: float = 0.0
    report: ProviderReport = NOTHING
    started: int = 0
    """Tickets that the process gave without a call since its last one, where nothing limits the
    quota."""
    remaining: Mapping[str, Remaining] = field(default_factory=dict)


IDLE_S: Final = 0.25
"""When no caller waits, settlements travel alone after so long."""
BUSY_S: Final = 1.0
"""The same while callers wait: a reservation is due soon, and calls of their own would double them
at low rates."""
TROUBLE_S: Final = 0.05
"""Failures travel so soon: long enough to gather what failed together, short enough to stop the
fleet."""

_FAILURES = frozenset({Signal.OVERLOADED, Signal.TRANSIENT})


@dataclass(frozen=True, slots=True)
class RemainingHere:
    """A provider's header on one dimension."""

    remaining: float
    counter: float
    """Units that the fleet was charged up to and including the request which the header answers."""
    at: float
    """Loop time at which that request started."""


@dataclass(slots=True)
class Pending:
    """The reports of one call."""

    settlements: dict[str, float] = field(default_factory=dict)
    report: ProviderReport = NOTHING
    seen: dict[str, RemainingHere] = field(default_factory=dict)
    started: int = 0
    """Tickets that this process gave without a call."""

    def remaining(self, now: float) -> dict[str, Remaining]:
        return {
            dim: Remaining(seen.remaining, seen.counter, now - seen.at)
            for dim, seen in self.seen.items()
        }


class ReportBuffer:
    """Gathers until a call takes it; what a failed call did not deliver is put back."""

    def __init__(self) -> None:
        self._load = Pending()
        self._wins = 0
        """Good answers since ``_load`` was begun, apart from its report: a new report for each
        costs more than the rest."""
        self.started = 0
        """Tickets given without a call since ``_load`` was begun, for the count that people
        read."""
        self._probing = False
        """The breaker lets a few through, and waits for what they say."""
        self.due_at: float | None = None
        """Loop time at which it travels alone; None when there is none."""

    def add_settlement(self, dim: str, delta: float, *, now: float, busy: bool) -> bool:
        """Add units to charge, or to refund when negative; return True when the due time moved."""
        self._load.settlements[dim] = self._load.settlements.get(dim, 0.0) + delta
        return self._due(now + (BUSY_S if busy else IDLE_S))

    def add_feedback(
        self, feedback: Feedback, generation: int, *, now: float, stray: bool = False
    ) -> bool:
        """Add how a request went that was granted in ``generation`` of the breaker.

        Returns True when the due time moved. ``stray``: a refusal that is counted and stops
        nothing.
        """
        report, signal = self._load.report, feedback.signal
        current = generation == report.generation
        if signal in WINS:
            if current:
                self._wins += 1
            return self._due(now + BUSY_S)
        if feedback.hold:
            self._load.report = replace(report, hold=feedback.hold)
            return self._due(now)
        if stray:
            self._load.report = replace(report, strays=report.strays + 1)
            return self._due(now + BUSY_S)
        if signal in _FAILURES:
            if current:
                self._load.report = replace(report, losses=report.losses + 1)
        elif signal is Signal.RAMP:
            self._load.report = replace(report, ramp=report.ramp + 1)
        else:
            self._load.report = replace(report, throttled=report.throttled + 1)
        return self._due(now + TROUBLE_S)

    def add_retry(self) -> None:
        """Count a request that is sent again; it rides on the call that reserves for it."""
        self._load.report = replace(self._load.report, retries=self._load.report.retries + 1)

    def add_unused(self, generation: int, *, now: float) -> bool:
        """Note that nothing will be known of a ticket; returns True when the due time moved.

        Only of a probe Redis has to know it: another may go in its place."""
        report = self._load.report
        if not self._probing or generation != report.generation:
            return False
        self._load.report = replace(report, unused=report.unused + 1)
        return self._due(now + TROUBLE_S)

    def add_remaining(self, dim: str, seen: RemainingHere, *, now: float) -> None:
        """Keep the latest reading of a dimension."""
        self._load.seen[dim] = seen
        self._due(now + BUSY_S)

    def ask_again(self, *, now: float) -> bool:
        """Check with Redis soon, since tickets were given without a call.

        Returns True when the due time moved."""
        return self._due(now + BUSY_S)

    def enter(self, health: Health) -> None:
        """Note the state of the breaker: results from before a new one no longer count."""
        self._probing = health.breaker is Breaker.HALF_OPEN
        if health.generation != self._load.report.generation:
            self._load.report = replace(
                self._load.report, generation=health.generation, wins=0, losses=0, unused=0
            )
            self._wins = 0

    def take(self) -> Pending:
        load = self._load
        load.report = replace(load.report, wins=load.report.wins + self._wins)
        load.started += self.started
        self._load, self._wins = (
            Pending(report=ProviderReport(generation=load.report.generation)),
            0,
        )
        self.started = 0
        self.due_at = None
        return load

    def put_back(self, load: Pending, *, now: float) -> None:
        """Join an undelivered load with what came since."""
        for dim, delta in load.settlements.items():
            self._load.settlements[dim] = self._load.settlements.get(dim, 0.0) + delta
        self._load.seen = {**load.seen, **self._load.seen}
        self._load.report = _sum(load.report, self._load.report)
        self._load.started += load.started
        self._due(now + BUSY_S)

    def drop_refunds(self) -> None:
        """Drop refunds and levels seen, void once the bucket is empty again."""
        self._load.settlements = {
            dim: delta for dim, delta in self._load.settlements.items() if delta > 0
        }
        self._load.seen = {}

    def _due(self, at: float) -> bool:
        if self.due_at is not None and self.due_at <= at:
            return False
        self.due_at = at
        return True


def _sum(before: ProviderReport, since: ProviderReport) -> ProviderReport:
    # results from before the breaker changed its state do not
    counts = before.generation == since.generation
    return ProviderReport(
        throttled=before.throttled + since.throttled,
        ramp=before.ramp + since.ramp,
        wins=since.wins + (before.wins if counts else 0),
        losses=since.losses + (before.losses if counts else 0),
        unused=since.unused + (before.unused if counts else 0),
        generation=since.generation,
        retries=before.retries + since.retries,
        strays=before.strays + since.strays,
        hold=since.hold or before.hold,
    )
