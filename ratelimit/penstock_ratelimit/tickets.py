"""Tickets: the right to start one request now, and the duty to say how it went."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple, Protocol, TypedDict, Unpack

from penstock_ratelimit.errors import BadCost
from penstock_ratelimit.provider.profiles import Profile, Usage
from penstock_ratelimit.provider.refusals import HOLDS, OK, THROTTLES, WINS, Signal

THROTTLED_BASE_S = 1.0
"""After a 429 or an overloaded server: a second is the shortest window that providers enforce."""
TRANSIENT_BASE_S = 0.5
"""After a broken connection or a 5xx: often over by then."""
CAP_S = 60.0
"""Limits are per minute: after one, waiting longer buys nothing."""

_MAX_DOUBLINGS = 60  # 2.0**60 seconds are above any cap, and never overflow


def full_jitter(
    attempt: int,
    base_s: float = TRANSIENT_BASE_S,
    cap_s: float = CAP_S,
    rng: random.Random | None = None,
) -> float:
    """Return the seconds before retry ``attempt`` (0 is the first retry).

    They are between 0 and ``min(cap_s, base_s * 2**attempt)``."""
    if attempt < 0 or not base_s >= 0 or not cap_s >= 0:
        raise ValueError(
            f"full_jitter({attempt=}, {base_s=}, {cap_s=}): none of them can be negative"
        )
    ceiling = min(cap_s, base_s * 2.0 ** min(attempt, _MAX_DOUBLINGS))
    return (rng or random).uniform(0.0, ceiling)


@dataclass(frozen=True, slots=True)
class QuotaStats:
    """One quota as seen by this process since it started."""

    allowed: Mapping[str, float]
    """Units per second that the whole fleet may start, margin and slope applied."""
    used: Mapping[str, float]
    """Units that this process was charged, after settlements and refunds."""
    waiting: int
    """Callers without a ticket or before their start time."""
    granted: int
    """Tickets handed to a caller."""
    refunded: int
    """Tickets given back before anything was sent."""
    throttled: int
    """How often the provider answered 429, or ``not_before`` was called."""
    in_flight: int = 0
    """Tickets handed out, or on their way to a caller, that have not ended."""
    concurrency: int | None = None
    """Requests that this process may have in flight now; None = not controlled."""
    concurrency_most: int | None = None
    """The largest that ``concurrency`` may become."""
    climbing: bool = False
    """``concurrency`` still doubles, as after a start."""
    calls: int = 0
    """Round trips to Redis (reservations, settlements, installs)."""
    degraded: bool = False
    """True while Redis is away and this process uses its local share."""
    breaker: str = "closed"
    """State of the breaker that the fleet shares: closed, open or half_open."""
    held: str = ""
    """Why nothing may be sent (out of credit, a refused key); empty when all is well."""

    def summary(self) -> str:
        """Write as JSON what `penstock limits` shows of one process."""
        return json.dumps({name: getattr(self, name) for name in _SUMMARY})


_SUMMARY: Final = (
    *("waiting", "in_flight", "concurrency", "concurrency_most", "climbing"),
    *("granted", "throttled", "degraded"),
)


@dataclass(slots=True)
class Tally:
    """Counters of one quota, written by its limiter and its tickets, read by ``stats``."""

    used: dict[str, float] = field(default_factory=dict)
    granted: int = 0
    refunded: int = 0
    throttled: int = 0
    calls: int = 0

    def charge(self, dims: tuple[str, ...], amounts: tuple[float, ...], sign: int = 1) -> None:
        for dim, amount in zip(dims, amounts, strict=True):
            self.used[dim] = self.used.get(dim, 0.0) + sign * amount


class FailureDetails(TypedDict, total=False):
    """A caller's words on a failed request; the fields are explained at ``Feedback``."""

    retry_after_s: float | None
    reason: str
    headers: Mapping[str, str] | None


class Feedback(NamedTuple):
    """The result of one request, as far as pacing cares."""

    signal: Signal
    retry_after_s: float | None = None
    """What the provider asked for, seconds."""
    reason: str = ""
    """Words for a person; of a hold they say why."""
    headers: Mapping[str, str] | None = None
    output_tokens: float = 0.0

    @property
    def pause_s(self) -> float | None:
        """Return how long no process that shares the quota may start a request.

        That is what the provider asked for, or its shortest window."""
        if self.signal not in THROTTLES:
            return None
        return THROTTLED_BASE_S if self.retry_after_s is None else self.retry_after_s

    @property
    def hold(self) -> str:
        """Return why no request can succeed before a person acts; empty where that is not so."""
        if self.signal not in HOLDS:
            return ""
        return self.reason or self.signal.value


class Account(Protocol):
    """The receiver of a ticket's corrections."""

    tally: Tally
    profile: Profile

    def now(self) -> float:
        """Return the loop's time, seconds."""
        ...

    def adjust(self, dim: str, delta: float) -> None:
        """Charge ``delta`` more units (a refund when negative)."""
        ...

    def ended(self, ticket: Ticket, feedback: Feedback | None) -> None:
        """Note that the ticket's request is over, or was never sent.

        ``feedback`` is None when its caller did not say how it went."""
        ...


class TicketState(Enum):
    """Life of a ticket. Only an UNSTARTED one can be given back."""

    UNSTARTED = "unstarted"
    STARTED = "started"
    ENDED = "ended"
    RELEASED = "released"


# each look at a member of the class would run Python code (3.11)
UNSTARTED, STARTED, ENDED, RELEASED = TicketState


@dataclass(frozen=True, slots=True)
class Grant:
    """The quota's knowledge when it gave the ticket; reported back with the answer."""

    generation: int = 0
    """The breaker's: answers to requests from before it opened say nothing about now."""
    counters: tuple[float, ...] = ()
    """Units that the fleet was charged up to and including this ticket, per dimension."""


UNSHARED: Final = Grant()


class Ticket:
    """The right to send one request from now on. Made by a limiter, used by one task.

    Its end is one of ``answered``, ``failed`` and ``release``; later ones do nothing, so
    ``release`` is safe in a ``finally``. What the request cost may be corrected at any time by
    ``settle``.
    """

    __slots__ = ("_account", "_charged", "_dims", "grant", "since", "state")

    def __init__(
        self,
        account: Account,
        dims: tuple[str, ...],
        amounts: tuple[float, ...],
        grant: Grant = UNSHARED,
    ) -> None:
        self._account = account
        self._dims = dims
        self._charged = amounts
        self.grant = grant
        self.since = account.now()
        """Loop time at which the request was sent, or the ticket was handed out while ``start`` was
        not called."""
        self.state = UNSTARTED

    @property
    def limited(self) -> bool:
        """Return whether its quota had limits when it was handed out.

        Then what the request costs was asked for."""
        return bool(self._dims)

    @property
    def charged(self) -> dict[str, float]:
        """Units charged at this moment, per limited dimension."""
        return dict(zip(self._dims, self._charged, strict=True))

    def start(self) -> None:
        """Say that the request is being sent.

        From here on the ticket is charged, even if the request fails."""
        if self.state is UNSTARTED:
            self.state = STARTED
            self.since = self._account.now()

    def _sent(self) -> None:
        """Count the request as sent; without ``start``, since the ticket was handed out."""
        if self.state is UNSTARTED:
            self.state = STARTED

    def answered(
        self, headers: Mapping[str, str] | None = None, *, usage: Usage | None = None
    ) -> None:
        """Settle ``usage`` of an answer as the profile says, and learn from ``headers``."""
        self._sent()
        if usage is not None and self._dims:
            self.settle(self._account.profile.settle(usage))
        self._end(Feedback(OK, None, "", headers, 0.0 if usage is None else usage.output_tokens))

    def failed(self, signal: Signal, **details: Unpack[FailureDetails]) -> None:
        """Say that the request failed.

        The fleet learns of it: a pause, a gentler slope, a hold, or a failure of the server.

        It stays charged, but for the tokens where the profile says that failed requests cost none.
        """
        self._sent()
        if signal not in WINS and not self._account.profile.charges_failed:
            self.settle({dim: 0.0 for dim in self._dims if not dim.startswith("requests")})
        self._end(Feedback(signal, **details))

    def settle(self, actual: Mapping[str, float]) -> None:
        """Replace the reservation by what was used.

        Dimensions left out stay as reserved; call again to correct."""
        self._sent()
        if self.state is RELEASED or not self._dims:
            return
        charged = tuple(
            actual.get(dim, before) for dim, before in zip(self._dims, self._charged, strict=True)
        )
        for dim, after in zip(self._dims, charged, strict=True):
            if not 0 <= after < math.inf:
                raise BadCost(dim, after)
        for dim, before, after in zip(self._dims, self._charged, charged, strict=True):
            if after != before:
                self._account.adjust(dim, after - before)
        self._charged = charged

    def release(self) -> None:
        """Give the ticket back if nothing was sent; else say that the request is over."""
        if self.state is STARTED:
            self._end(None)
        if self.state is not UNSTARTED:
            return
        self.state = RELEASED
        refund(self._account, self._dims, self._charged)
        self._charged = tuple(0.0 for _ in self._dims)
        self._account.ended(self, None)

    def _end(self, feedback: Feedback | None) -> None:
        if self.state is STARTED:
            self.state = ENDED
            self._account.ended(self, feedback)


def refund(account: Account, dims: tuple[str, ...], amounts: tuple[float, ...]) -> None:
    """Take back what a ticket reserved and never sent."""
    account.tally.refunded += 1
    for dim, amount in zip(dims, amounts, strict=True):
        account.adjust(dim, -amount)
