"""One quota on a real Redis, driven step by step with a clock to set: what the contract tests of
the scripts share."""

from __future__ import annotations

import asyncio
import atexit
import itertools
from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar

from servers import RedisServer

from penstock_ratelimit import PerSecond, Quota
from penstock_ratelimit.store.messages import NOTHING, Health, ProviderReport, Reserve, Reserved
from penstock_ratelimit.store.quota_hash import QuotaHash
from penstock_ratelimit.testing import BlockingScripts

START_US = 10**15
RATES = {"requests": 10.0, "tokens": 1000.0}
BURST_S = 0.5
SLACK = 1e-3  # start times are whole microseconds

T = TypeVar("T")

_names = itertools.count()


class Clock:
    """Microseconds, as Redis counts them."""

    def __init__(self) -> None:
        self.us = START_US

    def __call__(self) -> int:
        return self.us


class Redis:
    """One quota on the server, with a clock to set."""

    def __init__(self, server: RedisServer, quota: Quota, *, account: str = "") -> None:
        self.clock = Clock()
        self.raw = server.client(decode_responses=True)
        self.quota, self.terms = quota, quota.terms()
        self.hash = QuotaHash(BlockingScripts(self.raw), quota.id, clock_us=self.clock)
        self.version = self.install(account=account)

    def install(
        self,
        quota: Quota | None = None,
        *,
        replaces: str = "any",
        empty: bool = False,
        account: str = "",
    ) -> str:
        terms = (quota or self.quota).terms()
        return run(
            self.hash.install(terms, replaces=replaces, empty=empty, account=account)
        ).version

    def adopt(self, quota: Quota) -> None:
        """Put other limits in force, and work by them."""
        self.version, self.quota, self.terms = self.install(quota), quota, quota.terms()

    def reserve(
        self,
        *items: tuple[float, ...],
        settle: Mapping[str, float] | None = None,
        ahead_s: float = 1e6,
        **more: Any,
    ) -> Reserved:
        ask = Reserve(
            self.version, self.terms, items, settle or {}, ahead_s, more.pop("share_s", 0.0), **more
        )
        return run(self.hash.reserve(ask))

    def report(self, seen: ProviderReport = NOTHING) -> Health:
        """What a process hears that only reports."""
        return self.reserve(report=seen).health

    def sleep(self, seconds: float) -> None:
        self.clock.us += round(seconds * 1e6)

    @property
    def now(self) -> float:
        """Seconds since the quota was made."""
        return (self.clock.us - START_US) / 1e6

    def field(self, name: str) -> float:
        value = self.raw.hget(self.hash.key, name)
        assert isinstance(value, str), f"no field {name}"
        return float(value)


_loop = asyncio.Runner()
atexit.register(_loop.close)


def run(step: Coroutine[Any, Any, T]) -> T:
    """One loop for all: making one takes longer than a script."""
    return _loop.run(step)


def tokens(burst_s: float = BURST_S, rate: float = 1000.0, **more: Any) -> Quota:
    return Quota(
        f"t{next(_names)}",
        {"tokens": PerSecond(rate)},
        burst_s=burst_s,
        margin=more.pop("margin", 1.0),
        **more,
    )


def both(**more: Any) -> Quota:
    limits = {name: PerSecond(rate) for name, rate in RATES.items()}
    return Quota(
        f"b{next(_names)}", limits, burst_s=BURST_S, margin=more.pop("margin", 1.0), **more
    )


def without_limits(**more: Any) -> Quota:
    return Quota(f"n{next(_names)}", **more)
