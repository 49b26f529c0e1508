"""The numbers that limiters work with: what a quota declares, corrected by what the provider's
headers tell."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from penstock_ratelimit.errors import BadCost, NeverFits
from penstock_ratelimit.rates import DEFAULT_SLOPE, Slope


@dataclass(frozen=True, slots=True)
class Terms:
    """The numbers in force, in the order of ``dims``: units per second, units at once, units per
    request."""

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
        """Units per second to pace by where no shared margin is known: the rates with the declared
        margin."""
        return tuple(rate * self.margin for rate in self.rates)

    def amounts(self, costs: Mapping[str, float]) -> tuple[float, ...]:
        """Costs in the order of ``dims``, clipped to what can ever fit.

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
        """Raise ``NeverFits`` where a cost that is known for sure is above a declared cap;
        estimates are clipped instead.

        Limits from headers refuse no request: they may be wrong, and a provider itself refuses what
        is too large.
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
        rates, bursts, caps, ceilings = (
            tuple(rows[dim][column] for dim in dims) for column in range(4)
        )
        start, doubling_s, idle_s = stored["slope"]
        slope = Slope(start, doubling_s, math.inf if idle_s is None else idle_s)
        return cls(quota_id, dims, rates, bursts, caps, ceilings, stored["margin"], slope)
