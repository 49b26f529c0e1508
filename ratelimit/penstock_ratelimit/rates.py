"""How much a provider allows in how long, and how the rate comes back after a restart."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from penstock_ratelimit.errors import BadQuota

MAX_BURST_S: Final = 60.0
"""No provider is known to hold more than one minute's worth in its bucket."""
MAX_HORIZON_S: Final = 10.0
"""Tickets further ahead than this only delay the moment a pause or a lowered limit takes hold."""

MAX_PAUSE_S: Final = 86_400.0
"""Longest pause taken from a provider: a day. Daily limits say hours; more is a mistake in a
header."""


def check_number(field_name: str, value: object, *, above: float, up_to: float, unit: str) -> None:
    """Refuse what is not a plain finite number in (above, up_to]; ``True`` is not 1 here."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadQuota(field_name, value, f"give a number of {unit}")
    if not above < value <= up_to:
        bound = (
            f"above {above:g}" if math.isinf(up_to) else f"above {above:g} and at most {up_to:g}"
        )
        raise BadQuota(field_name, value, f"give a finite number of {unit} {bound}")


@dataclass(frozen=True, slots=True)
class PerMinute:
    """So many units a minute, refilled continuously.

    Raises ``BadQuota`` for an amount that is not a finite number above 0."""

    amount: float

    def __post_init__(self) -> None:
        check_number("PerMinute", self.amount, above=0, up_to=1e15, unit="units per minute")

    @property
    def per_second(self) -> float:
        """The same rate in units a second."""
        return self.amount / 60.0


@dataclass(frozen=True, slots=True)
class PerSecond:
    """So many units a second, refilled continuously.

    Raises ``BadQuota`` for an amount that is not a finite number above 0."""

    amount: float

    def __post_init__(self) -> None:
        check_number("PerSecond", self.amount, above=0, up_to=1e15, unit="units per second")

    @property
    def per_second(self) -> float:
        """As ``PerMinute`` has it."""
        return self.amount


Rate = PerMinute | PerSecond


@dataclass(frozen=True, slots=True)
class Slope:
    """How the rate comes back after a restart: from a share of it, doubling until whole.

    A restart is a breaker that closed again, a pause longer than 10 s, or ``after_idle_s`` without
    a start. Providers with acceleration limits refuse a fleet that goes from nothing to everything
    at once.
    """

    start: float = 0.25
    """Share of the rate right after the restart; 1 = no slope."""
    doubling_s: float = 5.0
    after_idle_s: float = math.inf

    def __post_init__(self) -> None:
        check_number("Slope.start", self.start, above=0, up_to=1, unit="parts of the rate")
        check_number(
            "Slope.doubling_s", self.doubling_s, above=0, up_to=MAX_PAUSE_S, unit="seconds"
        )
        check_number(
            "Slope.after_idle_s", self.after_idle_s, above=0, up_to=math.inf, unit="seconds"
        )


DEFAULT_SLOPE: Final = Slope()
DEFAULT_BURST_S: Final = 0.5
"""Half a second at once fits every provider that is known, also one that enforces whole seconds."""
DEFAULT_HORIZON_S: Final = 1.0
"""One second of start times ahead hides the round trips to Redis; a pause or a lowered limit takes
hold within it."""
DEFAULT_MARGIN: Final = 0.995


def pause_seconds(seconds: float) -> float:
    """A pause made safe: never negative, never longer than a day; what is not a number pauses for
    nothing."""
    if math.isnan(seconds):
        return 0.0
    return min(max(seconds, 0.0), MAX_PAUSE_S)
