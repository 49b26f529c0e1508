"""What a provider allows: ``Quota`` is what you declare, ``Terms`` are the numbers that limiters work with."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

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
class Quota:
    """One shared budget of a provider. No limits at all means: never wait.

    ``burst_s`` and ``horizon_s`` are seconds of rate: what may start at once, and how far ahead start times are given.
    Keep ``burst_s + horizon_s + network jitter`` below the depth of the provider's own bucket; the defaults hold for
    every provider with a bucket of a few seconds (0.4 s of horizon is safer for one that enforces whole seconds).
    ``margin`` keeps the rate just below the limit, against rounding on the provider's side.
    ``caps`` are the most units one request can ever cost; by default one whole minute's (or second's) worth.
    """

    id: str
    limits: Mapping[str, Rate] = field(default_factory=dict)
    burst_s: float = 0.5
    horizon_s: float = 1.0
    margin: float = 0.995
    caps: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not _ID.fullmatch(self.id):
            raise BadQuota("Quota.id", self.id, "use 1 to 200 of letters, digits and _.:@/+-")
        _number("Quota.burst_s", self.burst_s, above=0, up_to=MAX_BURST_S, unit="seconds")
        _number("Quota.horizon_s", self.horizon_s, above=0, up_to=MAX_HORIZON_S, unit="seconds")
        _number("Quota.margin", self.margin, above=0, up_to=1, unit="parts of the limit")
        for name, rate in self.limits.items():
            if not _DIMENSION.fullmatch(name):
                raise BadQuota("Quota.limits", name, "name dimensions in lower case, like requests or input_tokens")
            if not isinstance(rate, PerMinute | PerSecond):
                raise BadQuota(f"Quota.limits[{name!r}]", rate, "give PerMinute(n) or PerSecond(n)")
        for name, cap in self.caps.items():
            if name not in self.limits:
                raise BadQuota("Quota.caps", name, f"cap only limited dimensions ({', '.join(self.limits) or 'none'})")
            _number(f"Quota.caps[{name!r}]", cap, above=0, up_to=1e15, unit="units per request")
        object.__setattr__(self, "limits", MappingProxyType(dict(self.limits)))
        object.__setattr__(self, "caps", MappingProxyType(dict(self.caps)))

    def terms(self) -> Terms:
        dims = tuple(sorted(self.limits))
        rates = tuple(self.limits[dim].per_second * self.margin for dim in dims)
        return Terms(
            quota_id=self.id,
            dims=dims,
            rates=rates,
            bursts=tuple(rate * self.burst_s for rate in rates),
            caps=tuple(float(self.caps.get(dim, self.limits[dim].amount)) for dim in dims),
        )


@dataclass(frozen=True, slots=True)
class Terms:
    """The numbers in force, in the order of ``dims``: units per second, units at once, units per request."""

    quota_id: str
    dims: tuple[str, ...]
    rates: tuple[float, ...]
    bursts: tuple[float, ...]
    caps: tuple[float, ...]

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
        """Raise ``NeverFits`` where a cost that is known for sure is above the cap (estimates are clipped instead)."""
        for dim, cap in zip(self.dims, self.caps, strict=True):
            if certain.get(dim, 0.0) > cap:
                raise NeverFits(self.quota_id, dim, certain[dim], cap)

    def scaled(self, part: float) -> Terms:
        """The same limits for one of several who share them; what fits at all stays the same."""
        return Terms(
            self.quota_id,
            self.dims,
            rates=tuple(rate * part for rate in self.rates),
            bursts=tuple(burst * part for burst in self.bursts),
            caps=self.caps,
        )

    def to_json(self) -> str:
        """One canonical text, so that equal terms are equal strings."""
        rows = zip(self.dims, self.rates, self.bursts, self.caps, strict=True)
        return json.dumps({dim: [rate, burst, cap] for dim, rate, burst, cap in rows}, sort_keys=True)

    @classmethod
    def from_json(cls, quota_id: str, text: str | bytes) -> Terms:
        rows: dict[str, list[float]] = json.loads(text)
        dims = tuple(sorted(rows))
        rates, bursts, caps = (tuple(rows[dim][column] for dim in dims) for column in range(3))
        return cls(quota_id, dims, rates, bursts, caps)


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
