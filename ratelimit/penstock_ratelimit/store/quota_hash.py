"""Typed stubs of the Lua scripts: one method per atomic step on the keys documented in ``scripts/reserve.lua``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from importlib.resources import files
from math import ceil, isinf
from typing import Any, Final, Protocol

from penstock_ratelimit.terms import Terms

CALL_TIMEOUT_S = 1.0
"""A Redis that does not answer for so long counts as away. A script takes 0.1 ms; the rest is network or busy loop."""

_US = 1_000_000


class ScriptClient(Protocol):
    """The one thing needed of ``redis.asyncio.Redis`` (and of ``redis.Redis``, for code that blocks)."""

    def register_script(self, script: str) -> Any: ...


class ReserveStatus(Enum):
    """What came of a reservation."""

    OK = "ok"
    MISSING = "missing"
    """Redis forgot the quota: install it. Nothing was done."""
    CHANGED = "changed"
    """Other terms are in force: adopt them. Nothing was done."""


@dataclass(frozen=True, slots=True)
class InForce:
    """The terms that Redis holds, and the version that names them."""

    version: str
    terms: Terms


@dataclass(frozen=True, slots=True)
class Report:
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
    """The breaker generation that wins and losses belong to (``Health.generation`` of the call that granted them)."""
    retries: int = 0
    """Retries sent: each costs one of the budget; a win gives back a tenth."""
    hold: str = ""
    """Not empty: hold the account for this reason."""
    strays: int = 0
    """429s that hold back their own item only: counted, and nothing else."""


NOTHING: Final = Report()


@dataclass(frozen=True, slots=True)
class Remaining:
    """The provider said ``remaining`` when it took the request after which we had charged ``counter``, ``age_s`` ago."""

    remaining: float
    counter: float
    """``Reserved.counters`` of its call plus the amounts of its batch up to and including itself."""
    age_s: float
    """Seconds since the request was sent."""


class Breaker(Enum):
    """State of the breaker that the fleet shares."""

    CLOSED = 0
    OPEN = 1
    """The provider fails: nothing is granted until ``left_s`` is over."""
    HALF_OPEN = 2
    """A few probes are let through; what comes of them decides."""


@dataclass(frozen=True, slots=True)
class Health:
    """How the provider does, as the fleet sees it."""

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
    """Answer to a reservation; the first ``len(waits_s)`` items have their start times, seconds from now."""

    verdict: ReserveStatus
    waits_s: Sequence[float] = ()
    retry_s: float = 0.0
    """When the first item left out may be asked for again; 0 = at once."""
    pause_left_s: float = 0.0
    pause_id: int = 0
    """Grows with each new pause."""
    processes: int = 0
    """Those who share the quota, by their heartbeats."""
    pace_s: float = 0.0
    """Seconds per item at which the whole fleet can go, learned from what items cost; 0 = unknown."""
    in_force: InForce | None = None
    """Set when CHANGED."""
    counters: tuple[float, ...] = ()
    """Units charged so far per dimension: after the settlements, before the first item of this batch."""
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
    report: Report = NOTHING
    remaining: Mapping[str, Remaining] = field(default_factory=dict)


_PRELUDES: Final[Mapping[str, tuple[str, ...]]] = {
    "reserve": ("clock", "slope", "margin", "breaker", "remaining"),
    "install": ("clock", "slope", "margin"),
    "heartbeat": ("clock",),
    "lift": ("clock",),
    "confirm": ("clock",),
    "enlist": (),
}
"""What is put before each script: Redis has no modules."""


@cache
def _script(name: str) -> str:
    folder = files("penstock_ratelimit.store") / "scripts"
    return "\n".join((folder / f"{part}.lua").read_text("utf-8") for part in (*_PRELUDES[name], name))


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value


def lift_hold(client: ScriptClient, quota_id: str, *, prefix: str = "penstock:") -> bool:
    """End a hold or a pause from code that blocks; True when there was a hold. The account has to prove itself again."""
    return bool(client.register_script(_script("lift"))(keys=[f"{prefix}{{q:{quota_id}}}"], args=[""]))


class QuotaHash:
    """The shared state of one quota. Raises whatever the client raises, and ``TimeoutError``, when Redis is away."""

    def __init__(
        self,
        client: ScriptClient,
        quota_id: str,
        *,
        prefix: str = "penstock:",
        clock_us: Callable[[], int] | None = None,
    ) -> None:
        self._quota_id = quota_id
        self.key = f"{prefix}{{q:{quota_id}}}"
        self._processes_key, self._stats_key = f"{self.key}:w", f"{self.key}:s"
        self._quotas_key = f"{prefix}quotas"
        self._clock_us = clock_us
        self._reserve = client.register_script(_script("reserve"))
        self._install = client.register_script(_script("install"))
        self._heartbeat = client.register_script(_script("heartbeat"))
        self._lift = client.register_script(_script("lift"))
        self._confirm = client.register_script(_script("confirm"))
        self._enlist = client.register_script(_script("enlist"))

    async def reserve(self, ask: Reserve) -> Reserved:
        args: list[Any] = [self._now(), ask.version, *_limits_of(ask), *_report(ask.report)]
        args += (len(ask.terms.dims), len(ask.remaining), len(ask.items))
        for dim in ask.terms.dims:
            args += (dim, ask.settlements.get(dim, 0))
        for dim, seen in ask.remaining.items():
            args += (ask.terms.dims.index(dim) + 1, seen.remaining, seen.counter, int(seen.age_s * _US))
        for item in ask.items:
            args += item
        async with asyncio.timeout(CALL_TIMEOUT_S):
            reply = await self._reserve(keys=[self.key, self._processes_key], args=args)
        return self._read(reply, len(ask.terms.dims))

    async def install(self, terms: Terms, *, replaces: str = "", empty: bool = False, account: str = "") -> InForce:
        """Fill in what is missing. ``replaces`` is "any", or the version that ``terms`` are to follow; "" is none.

        Another ``account`` (a fingerprint) than the last one known lifts a hold, and so do other terms.
        """
        args: list[Any] = [self._now(), replaces, int(empty), terms.to_json(), account, terms.margin, len(terms.dims)]
        for row in zip(terms.dims, terms.rates, terms.bursts, terms.caps, strict=True):
            args += row
        async with asyncio.timeout(CALL_TIMEOUT_S):
            version, config = await self._install(keys=[self.key], args=args)
        async with asyncio.timeout(CALL_TIMEOUT_S):
            await self._enlist(keys=[self._quotas_key], args=[self._quota_id])
        return InForce(_text(version), Terms.from_json(self._quota_id, config))

    async def heartbeat(self, process: str, ttl_s: float, stats: str = "") -> int:
        """Count the processes that share this quota, and leave ``stats`` (JSON) for readers; ``ttl_s`` 0 leaves."""
        args: list[Any] = [self._now(), process, int(ttl_s * _US), stats]
        async with asyncio.timeout(CALL_TIMEOUT_S):
            return int(await self._heartbeat(keys=[self._processes_key, self._stats_key], args=args))

    async def confirm(self, told: Collection[str], learned: Sequence[str]) -> dict[str, float]:
        """Say of which dimensions headers told the limit just now; hear for how many seconds no process was told."""
        args: list[Any] = [self._now(), len(told), *told, *learned]
        async with asyncio.timeout(CALL_TIMEOUT_S):
            ages = await self._confirm(keys=[self.key], args=args)
        return {dim: age / _US for dim, age in zip(learned, ages, strict=True)}

    async def lift(self) -> bool:
        """End a hold or a pause; True when there was a hold. The account is not proven until its next good answer."""
        async with asyncio.timeout(CALL_TIMEOUT_S):
            return bool(await self._lift(keys=[self.key], args=[self._now()]))

    def _now(self) -> int | str:
        return "" if self._clock_us is None else self._clock_us()

    def _read(self, reply: list[Any], dims: int) -> Reserved:
        if reply[0] == -1:
            return Reserved(ReserveStatus.MISSING)
        if reply[0] == -3:
            return Reserved(
                ReserveStatus.CHANGED, in_force=InForce(_text(reply[1]), Terms.from_json(self._quota_id, reply[2]))
            )
        first_wait = _HEALTH.stop + dims
        return Reserved(
            ReserveStatus.OK,
            waits_s=[wait / _US for wait in reply[first_wait:]],
            retry_s=reply[1] / _US,
            pause_left_s=reply[2] / _US,
            pause_id=reply[3],
            pace_s=reply[4] / _US,
            processes=reply[5],
            counters=tuple(float(counter) for counter in reply[_HEALTH.stop : first_wait]),
            health=_health(*reply[_HEALTH]),
        )


_HEALTH: Final = slice(6, 13)
"""Where a reply to a reservation says how the provider does."""


def _limits_of(ask: Reserve) -> tuple[int | float, ...]:
    """Arguments 3 to 8: how far, how much, and how fast after a restart."""
    slope = ask.terms.slope
    idle_us = 0 if isinf(slope.after_idle_s) else ceil(slope.after_idle_s * _US)
    ahead_us, share_us, pause_us = int(ask.max_ahead_s * _US), int(ask.share_s * _US), ceil(ask.pause_s * _US)
    return ahead_us, share_us, pause_us, slope.start, int(slope.doubling_s * _US), idle_us


def _report(seen: Report) -> tuple[int | str, ...]:
    """Arguments 9 to 17."""
    if seen == NOTHING:
        return ("",) * 9
    return (1, seen.throttled, seen.ramp, seen.wins, seen.losses, seen.generation, seen.retries, seen.hold, seen.strays)


def _health(
    breaker: int, generation: int, left_us: int, hold: bytes | str, proven: int, budget: bytes, share: bytes
) -> Health:
    return Health(Breaker(breaker), generation, left_us / _US, _text(hold), bool(proven), float(budget), float(share))
