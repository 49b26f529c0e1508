"""What a provider allows: ``Quota`` is what you declare, ``Terms`` are the numbers that limiters work with."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final

from penstock_ratelimit.errors import BadCost, BadQuota, NeverFits

_ID = re.compile(r"[A-Za-z0-9_.:@/+-]{1,200}")
_DIMENSION = re.compile(r"[a-z][a-z0-9_]{0,31}")

MAX_BURST_S = 60.0
"""No provider is known to hold more than one minute's worth in its bucket."""
MAX_HORIZON_S = 10.0
"""Tickets further ahead than this only delay the moment a pause or a lowered limit takes hold."""

MAX_PAUSE_S = 86_400.0
"""Longest pause taken from a provider: a day. Daily limits say hours; more is a mistake in a header."""


def _number(field_name: str, value: object, *, above: float, up_to: float, unit: str) -> None:
    """Refuse what is not a plain finite number in (above, up_to]; ``True`` is not 1 here."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadQuota(field_name, value, f"give a number of {unit}")
    if not above < value <= up_to:
        bound = f"above {above:g}" if math.isinf(up_to) else f"above {above:g} and at most {up_to:g}"
        raise BadQuota(field_name, value, f"give a finite number of {unit} {bound}")


@dataclass(frozen=True, slots=True)
class PerMinute:
    """So many units a minute, refilled continuously."""

    amount: float

    def __post_init__(self) -> None:
        _number("PerMinute", self.amount, above=0, up_to=1e15, unit="units per minute")

    @property
    def per_second(self) -> float:
        return self.amount / 60.0


@dataclass(frozen=True, slots=True)
class PerSecond:
    """So many units a second, refilled continuously."""

    amount: float

    def __post_init__(self) -> None:
        _number("PerSecond", self.amount, above=0, up_to=1e15, unit="units per second")

    @property
    def per_second(self) -> float:
        return self.amount


Rate = PerMinute | PerSecond


@dataclass(frozen=True, slots=True)
class Slope:
    """How the rate comes back after a restart: from a share of it, doubling until whole.

    A restart is a breaker that closed again, a pause longer than 10 s, or ``after_idle_s`` without a start.
    Providers with acceleration limits refuse a fleet that goes from nothing to everything at once.
    """

    start: float = 0.25
    """Share of the rate right after the restart; 1 = no slope."""
    doubling_s: float = 5.0
    after_idle_s: float = math.inf

    def __post_init__(self) -> None:
        _number("Slope.start", self.start, above=0, up_to=1, unit="parts of the rate")
        _number("Slope.doubling_s", self.doubling_s, above=0, up_to=MAX_PAUSE_S, unit="seconds")
        _number("Slope.after_idle_s", self.after_idle_s, above=0, up_to=math.inf, unit="seconds")


DEFAULT_SLOPE: Final = Slope()
DEFAULT_BURST_S: Final = 0.5
"""Half a second at once fits every provider that is known, also one that enforces whole seconds."""
DEFAULT_HORIZON_S: Final = 1.0
"""One second of start times ahead hides the round trips to Redis; a pause or a lowered limit takes hold within it."""
DEFAULT_MARGIN: Final = 0.995

_PROFILES: Final[Any] = None
"""Left out: taken from the metering profile when the quota is declared."""


@dataclass(frozen=True, slots=True)
class Quota:
    """One shared budget of a provider. No limits at all means: never wait, unless the provider says so.

    ``burst_s`` and ``horizon_s`` are seconds of rate: what may start at once, and how far ahead start times are given.
    Keep ``burst_s + horizon_s + network jitter`` below the depth of the provider's own bucket; the defaults hold for
    every provider with a bucket of a few seconds (0.4 s of horizon is safer for one that enforces whole seconds).
    ``margin`` keeps the rate just below the limit, against rounding on the provider's side; the fleet moves it with
    what the provider says (``scripts/reserve.lua``).
    ``caps`` are the most units one request can ever cost; by default one whole minute's (or second's) worth.
    ``profile`` names what the provider charges when; ``burst_s``, ``horizon_s`` and ``slope`` come from it when left
    out. ``concurrency`` is the most one process has in flight (None = not controlled). ``discover`` takes limits from
    the provider's answers, never above the declared ones. ``probe`` sends one request per process until one of the
    fleet was answered well. These need tickets that are ended with ``answered`` or ``failed``. ``account`` is a
    fingerprint of the key: another one lifts a hold.
    """

    id: str
    limits: Mapping[str, Rate] = field(default_factory=dict)
    burst_s: float = _PROFILES
    horizon_s: float = _PROFILES
    margin: float = DEFAULT_MARGIN
    caps: Mapping[str, float] = field(default_factory=dict)
    profile: str = "generic"
    concurrency: int | None = None
    discover: bool = False
    probe: bool = False
    account: str = ""
    slope: Slope = _PROFILES

    def __post_init__(self) -> None:
        if not _ID.fullmatch(self.id):
            raise BadQuota("Quota.id", self.id, "use 1 to 200 of letters, digits and _.:@/+-")
        self._fill_in()
        self._check_numbers()
        self._check_dimensions()
        object.__setattr__(self, "limits", MappingProxyType(dict(self.limits)))
        object.__setattr__(self, "caps", MappingProxyType(dict(self.caps)))

    def _fill_in(self) -> None:
        """Take from the profile what was left out."""
        from penstock_ratelimit.provider.profiles import PROFILES  # profiles have slopes, which are defined here

        profile = PROFILES.get(self.profile)
        if profile is None and PROFILES:
            raise BadQuota("Quota.profile", self.profile, f"choose one of {', '.join(sorted(PROFILES))}")
        defaults = {
            "burst_s": profile.burst_s if profile else DEFAULT_BURST_S,
            "horizon_s": profile.horizon_s if profile else DEFAULT_HORIZON_S,
            "slope": (profile.slope if profile else None) or DEFAULT_SLOPE,
        }
        for name, value in defaults.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)

    def _check_numbers(self) -> None:
        _number("Quota.burst_s", self.burst_s, above=0, up_to=MAX_BURST_S, unit="seconds")
        _number("Quota.horizon_s", self.horizon_s, above=0, up_to=MAX_HORIZON_S, unit="seconds")
        _number("Quota.margin", self.margin, above=0, up_to=1, unit="parts of the limit")
        if self.concurrency is not None:
            _number("Quota.concurrency", self.concurrency, above=0, up_to=math.inf, unit="requests in flight")

    def _check_dimensions(self) -> None:
        for name, rate in self.limits.items():
            if not _DIMENSION.fullmatch(name):
                raise BadQuota("Quota.limits", name, "name dimensions in lower case, like requests or input_tokens")
            if not isinstance(rate, PerMinute | PerSecond):
                raise BadQuota(f"Quota.limits[{name!r}]", rate, "give PerMinute(n) or PerSecond(n)")
        for name, cap in self.caps.items():
            if name not in self.limits and not self.discover:
                raise BadQuota("Quota.caps", name, f"cap only limited dimensions ({', '.join(self.limits) or 'none'})")
            _number(f"Quota.caps[{name!r}]", cap, above=0, up_to=1e15, unit="units per request")

    def terms(self) -> Terms:
        dims = tuple(sorted(self.limits))
        rates = tuple(self.limits[dim].per_second for dim in dims)
        return Terms(
            quota_id=self.id,
            dims=dims,
            rates=rates,
            bursts=tuple(rate * self.burst_s for rate in rates),
            caps=tuple(float(self.caps.get(dim, self.limits[dim].amount)) for dim in dims),
            ceilings=rates,
            margin=self.margin,
            slope=self.slope,
        )


@dataclass(frozen=True, slots=True)
class Terms:
    """The numbers in force, in the order of ``dims``: units per second, units at once, units per request."""

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

    @property
    def allowed(self) -> tuple[float, ...]:
        """Units per second to pace by where no shared margin is known: the rates with the declared margin."""
        return tuple(rate * self.margin for rate in self.rates)

    def amounts(self, costs: Mapping[str, float]) -> tuple[float, ...]:
        """Costs in the order of ``dims``, clipped to what can ever fit. Dimensions without a limit cost nothing."""
        amounts = []
        for dim, cap in zip(self.dims, self.caps, strict=True):
            cost = costs.get(dim, 0.0)
            if not cost >= 0:
                raise BadCost(dim, cost)
            amounts.append(cap if cost > cap else cost)
        return tuple(amounts)

    def check_fits(self, certain: Mapping[str, float]) -> None:
        """Raise ``NeverFits`` where a cost that is known for sure is above a declared cap; estimates are clipped instead.

        What headers told kills no request: they may be wrong, and a provider says itself what is too large.
        """
        for dim, cap, ceiling in zip(self.dims, self.caps, self.ceilings, strict=True):
            if ceiling > 0 and certain.get(dim, 0.0) > cap:
                raise NeverFits(self.quota_id, dim, certain[dim], cap)

    def scaled(self, part: float) -> Terms:
        """The same limits for one of several who share them; what fits at all stays the same."""
        return replace(
            self,
            rates=tuple(rate * part for rate in self.rates),
            bursts=tuple(burst * part for burst in self.bursts),
        )

    def to_json(self) -> str:
        """One canonical text, so that equal terms are equal strings."""
        rows = zip(self.dims, self.rates, self.bursts, self.caps, self.ceilings, strict=True)
        idle_s = None if math.isinf(self.slope.after_idle_s) else self.slope.after_idle_s
        slope = [self.slope.start, self.slope.doubling_s, idle_s]
        dims = {dim: row for dim, *row in rows}
        return json.dumps({"dims": dims, "margin": self.margin, "slope": slope}, sort_keys=True)

    @classmethod
    def from_json(cls, quota_id: str, text: str | bytes) -> Terms:
        stored = json.loads(text)
        rows: dict[str, list[float]] = stored["dims"]
        dims = tuple(sorted(rows))
        rates, bursts, caps, ceilings = (tuple(rows[dim][column] for dim in dims) for column in range(4))
        start, doubling_s, idle_s = stored["slope"]
        slope = Slope(start, doubling_s, math.inf if idle_s is None else idle_s)
        return cls(quota_id, dims, rates, bursts, caps, ceilings, stored["margin"], slope)


def by_id(quotas: Iterable[Quota]) -> dict[str, Quota]:
    """Quotas by their id; the same id twice is an error."""
    found: dict[str, Quota] = {}
    for quota in quotas:
        if quota.id in found:
            raise BadQuota("Quota.id", quota.id, "declare each quota once")
        found[quota.id] = quota
    return found


def pause_seconds(seconds: float) -> float:
    """A pause made safe: never negative, never longer than a day; what is not a number pauses for nothing."""
    if math.isnan(seconds):
        return 0.0
    return min(max(seconds, 0.0), MAX_PAUSE_S)
