"""A provider allows so much in so long, and the rate comes back slowly after a restart."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from penstock_ratelimit.errors import BadCost, BadQuota, NeverFits

MAX_BURST_S: Final = 60.0
"""No provider is known to hold more than one minute's worth in its bucket."""
MAX_HORIZON_S: Final = 10.0
"""Tickets further ahead than this only delay the moment a pause or a lowered limit takes hold."""

MAX_RESERVE: Final = 0.99
"""What is left to others is not all of it: a quota that may start nothing is a mistake."""

MAX_PAUSE_S: Final = 86_400.0
"""Longest pause taken from a provider: a day. Daily limits say hours; more is a mistake in a
header."""


def check_number(field_name: str, value: object, *, up_to: float, unit: str) -> None:
    """Refuse what is not a plain finite number in (0, up_to]; ``True`` is not 1 here."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadQuota(field_name, value, f"give a number of {unit}")
    if not 0 < value <= up_to:
        bound = "above 0" if math.isinf(up_to) else f"above 0 and at most {up_to:g}"
        raise BadQuota(field_name, value, f"give a finite number of {unit} {bound}")


@dataclass(frozen=True, slots=True)
class PerMinute:
    """So many units a minute, refilled continuously.

    Raises ``BadQuota`` for an amount that is not a finite number above 0."""

    amount: float

    def __post_init__(self) -> None:
        check_number("PerMinute", self.amount, up_to=1e15, unit="units per minute")

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
        check_number("PerSecond", self.amount, up_to=1e15, unit="units per second")

    @property
    def per_second(self) -> float:
        """The rate in units per second, as ``PerMinute`` has it."""
        return self.amount


Rate = PerMinute | PerSecond


@dataclass(frozen=True, slots=True)
class Slope:
    """The return of the rate after a restart: from a share of it, doubling until whole.

    A restart is a breaker that closed again, a pause longer than 10 s, or ``after_idle_s`` without
    a start. Providers with acceleration limits refuse a fleet that goes from nothing to everything
    at once.
    """

    start: float = 0.25
    """Share of the rate right after the restart; 1 = no slope."""
    doubling_s: float = 5.0
    after_idle_s: float = math.inf

    def __post_init__(self) -> None:
        check_number("Slope.start", self.start, up_to=1, unit="parts of the rate")
        check_number("Slope.doubling_s", self.doubling_s, up_to=MAX_PAUSE_S, unit="seconds")
        check_number("Slope.after_idle_s", self.after_idle_s, up_to=math.inf, unit="seconds")


DEFAULT_SLOPE: Final = Slope()
DEFAULT_MARGIN: Final = 0.995


def pause_seconds(seconds: float) -> float:
    """Return a pause made safe: never negative, never longer than a day.

    What is not a number pauses for nothing."""
    if math.isnan(seconds):
        return 0.0
    return min(max(seconds, 0.0), MAX_PAUSE_S)


@dataclass(frozen=True, slots=True)
class Terms:
    """The numbers in force, in the order of ``dims``: per second, at once, and per request."""

    quota_id: str
    dims: tuple[str, ...] = ()
    rates: tuple[float, ...] = ()
    """Limits of the provider in units per second, without the margin."""
    bursts: tuple[float, ...] = ()
    caps: tuple[float, ...] = ()
    ceilings: tuple[float, ...] = ()
    """Declared units per second, which nothing discovered exceeds; 0 = only discovered."""
    margin: float = 1.0
    slope: Slope = DEFAULT_SLOPE
    reserve: float = 0.0
    """Part of every limit that is left to others who use the same key."""

    @property
    def allowed(self) -> tuple[float, ...]:
        """Return the units per second to pace by where no shared margin is known.

        They are the rates with the declared margin, without what is left to others."""
        return tuple(rate * self.margin * (1 - self.reserve) for rate in self.rates)

    def amounts(self, costs: Mapping[str, float]) -> tuple[float, ...]:
        """Return costs in the order of ``dims``, clipped to what can ever fit.

        Dimensions without a limit cost nothing."""
        if not self.dims:
            return ()
        amounts = []
        for dim, cap in zip(self.dims, self.caps, strict=True):
            cost = costs.get(dim, 0.0)
            if not cost >= 0:
                raise BadCost(dim, cost)
            amounts.append(cap if cost > cap else cost)
        return tuple(amounts)

    def check_fits(self, certain: Mapping[str, float]) -> None:
        """Raise ``NeverFits`` where a cost that is known for sure is above a declared cap.

        Estimates are clipped instead.

        Limits from headers refuse no request: they may be wrong, and a provider itself refuses what
        is too large.
        """
        for dim, cap, ceiling in zip(self.dims, self.caps, self.ceilings, strict=True):
            if ceiling > 0 and certain.get(dim, 0.0) > cap:
                raise NeverFits(self.quota_id, dim, certain[dim], cap)

    def scaled(self, part: float) -> Terms:
        """Return the same limits for one of several who share them.

        What fits at all stays the same.
        """
        return replace(
            self,
            rates=tuple(rate * part for rate in self.rates),
            bursts=tuple(burst * part for burst in self.bursts),
        )

    def to_json(self) -> str:
        """Write one canonical text, so that equal terms are equal strings."""
        rows = zip(self.dims, self.rates, self.bursts, self.caps, self.ceilings, strict=True)
        idle_s = None if math.isinf(self.slope.after_idle_s) else self.slope.after_idle_s
        slope = [self.slope.start, self.slope.doubling_s, idle_s]
        dims = {dim: row for dim, *row in rows}
        said: dict[str, object] = {"dims": dims, "margin": self.margin, "slope": slope}
        if self.reserve:  # without one it is the text that releases before this one write
            said["reserve"] = self.reserve
        return json.dumps(said, sort_keys=True)

    @classmethod
    def from_json(cls, quota_id: str, text: str | bytes) -> Terms:
        stored = json.loads(text)
        rows: dict[str, list[float]] = stored["dims"]
        dims = tuple(sorted(rows))
        rates, bursts, caps, ceilings = (
            tuple(rows[dim][column] for dim in dims) for column in range(4)
        )
        start, doubling_s, idle_s = stored["slope"]
        slope = Slope(start, doubling_s, math.inf if idle_s is None else idle_s)
        reserve = stored.get("reserve", 0.0)
        return cls(quota_id, dims, rates, bursts, caps, ceilings, stored["margin"], slope, reserve)
