"""You declare a provider's limits, and how close to them to go."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

from penstock_ratelimit.errors import BadQuota
from penstock_ratelimit.provider.profiles import PROFILES
from penstock_ratelimit.rates import (
    DEFAULT_MARGIN,
    DEFAULT_SLOPE,
    MAX_BURST_S,
    MAX_HORIZON_S,
    MAX_RESERVE,
    PerMinute,
    PerSecond,
    Rate,
    Slope,
    Terms,
    check_number,
)

_ID = re.compile(r"[A-Za-z0-9_.:@/+-]{1,200}")
_DIMENSION = re.compile(r"[a-z][a-z0-9_]{0,31}")


class InteractiveTarget(NamedTuple):
    """The latency of others that batch work stays under."""

    ttft_s: float
    ours_last: bool = False
    """The server puts our requests behind all others."""


@dataclass(frozen=True, slots=True, init=False)
class Quota:
    """One shared budget of a provider.

    No limits at all means: never wait, unless the provider says so.

    ``burst_s`` and ``horizon_s`` are seconds of rate: what may start at once, and how far ahead
    start times are given. Keep ``burst_s + horizon_s + network jitter`` below the depth of the
    provider's own bucket; the defaults hold for every provider with a bucket of a few seconds (0.4
    s of horizon is safer for one that enforces whole seconds). ``margin`` keeps the rate just below
    the limit, against rounding on the provider's side; the fleet moves it with what the provider
    says (``store/scripts/reserve.lua``).
    ``caps`` are the most units one request can ever cost; by default one whole minute's (or
    second's) worth. ``profile`` names what the provider charges when; ``burst_s``, ``horizon_s``
    and ``slope`` come from it when left out. ``concurrency`` is the most one process has in flight
    (None = not controlled), and ``start`` what it begins with (None = 8). ``discover`` takes limits
    from the provider's answers, never above the declared ones. ``probe`` sends one request per
    process until one of the fleet was answered well. These need tickets that are ended with
    ``answered`` or ``failed``. ``account`` is a fingerprint of the key: another one lifts a hold.
    ``reserve`` is the part of every limit that is left to others who use the same key, declared
    limits and those from headers alike. ``interactive`` is the latency of others at the same server
    that requests here stay under, by the figures that ``Limiter.gauge`` is given.
    """

    id: str
    limits: Mapping[str, Rate]
    burst_s: float
    horizon_s: float
    margin: float
    caps: Mapping[str, float]
    profile: str
    concurrency: int | None
    start: int | None
    discover: bool
    probe: bool
    account: str
    slope: Slope
    reserve: float
    interactive: InteractiveTarget | None

    def __init__(
        self,
        id: str,
        limits: Mapping[str, Rate] | None = None,
        burst_s: float | None = None,
        horizon_s: float | None = None,
        margin: float = DEFAULT_MARGIN,
        caps: Mapping[str, float] | None = None,
        profile: str = "generic",
        concurrency: int | None = None,
        start: int | None = None,
        discover: bool = False,
        probe: bool = False,
        account: str = "",
        slope: Slope | None = None,
        reserve: float = 0.0,
        interactive: InteractiveTarget | None = None,
    ) -> None:
        if profile not in PROFILES:
            raise BadQuota("Quota.profile", profile, f"choose one of {', '.join(sorted(PROFILES))}")
        metering = PROFILES[profile]
        self._set(
            id=id,
            limits=MappingProxyType(dict(limits or {})),
            burst_s=metering.burst_s if burst_s is None else burst_s,
            horizon_s=metering.horizon_s if horizon_s is None else horizon_s,
            margin=margin,
            caps=MappingProxyType(dict(caps or {})),
            profile=profile,
            concurrency=concurrency,
            start=start,
            discover=discover,
            probe=probe,
            account=account,
            slope=slope or metering.slope or DEFAULT_SLOPE,
            reserve=reserve,
            interactive=interactive,
        )
        if not _ID.fullmatch(id):
            raise BadQuota("Quota.id", id, "use 1 to 200 of letters, digits and _.:@/+-")
        self._check_numbers()
        self._check_dimensions()

    def _set(self, **values: object) -> None:
        """Write the fields of a frozen quota, this one time."""
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def _check_numbers(self) -> None:
        check_number("Quota.burst_s", self.burst_s, up_to=MAX_BURST_S, unit="seconds")
        check_number("Quota.horizon_s", self.horizon_s, up_to=MAX_HORIZON_S, unit="seconds")
        check_number("Quota.margin", self.margin, up_to=1, unit="parts of the limit")
        if self.reserve != 0:
            check_number(
                "Quota.reserve", self.reserve, up_to=MAX_RESERVE, unit="parts of the limit"
            )
        if self.interactive is not None:
            check_number(
                "Quota.interactive.ttft_s", self.interactive.ttft_s, up_to=600, unit="seconds"
            )
        for name, value in (("concurrency", self.concurrency), ("start", self.start)):
            if value is not None:
                check_number(f"Quota.{name}", value, up_to=math.inf, unit="requests in flight")

    def _check_dimensions(self) -> None:
        for name, rate in self.limits.items():
            if not _DIMENSION.fullmatch(name):
                raise BadQuota(
                    "Quota.limits",
                    name,
                    "name dimensions in lower case, like requests or input_tokens",
                )
            if not isinstance(rate, PerMinute | PerSecond):
                raise BadQuota(f"Quota.limits[{name!r}]", rate, "give PerMinute(n) or PerSecond(n)")
        for name, cap in self.caps.items():
            if name not in self.limits and not self.discover:
                raise BadQuota(
                    "Quota.caps",
                    name,
                    f"cap only limited dimensions ({', '.join(self.limits) or 'none'})",
                )
            check_number(f"Quota.caps[{name!r}]", cap, up_to=1e15, unit="units per request")

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
            reserve=self.reserve,
        )


def by_id(quotas: Iterable[Quota]) -> dict[str, Quota]:
    """Return quotas by their id; the same id twice is an error."""
    found: dict[str, Quota] = {}
    for quota in quotas:
        if quota.id in found:
            raise BadQuota("Quota.id", quota.id, "declare each quota once")
        found[quota.id] = quota
    return found
