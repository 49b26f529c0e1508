"""The messages between a process and Redis about one quota.

They are reservations, reports and the provider's health."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from penstock_ratelimit.rates import Terms


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
    """What one process saw of the provider since its last call."""

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


NOTHING: Final = ProviderReport()


@dataclass(frozen=True, slots=True)
class Remaining:
    """What remained by the provider's headers, and what the fleet had charged then.

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
