"""Typed stubs of the Lua scripts: one method per atomic step on the keys.

The keys are documented in ``scripts/reserve.lua``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from importlib.resources import files
from math import ceil, isinf
from typing import Any, Final, NamedTuple, Protocol

from penstock_ratelimit.rates import Terms
from penstock_ratelimit.store.messages import (
    NOTHING,
    Breaker,
    Health,
    InForce,
    Reserve,
    Reserved,
    ReserveStatus,
)

US: Final = 1_000_000


class Arguments(NamedTuple):
    """The first arguments of the script, each ``arg.<name>`` there. Times are in microseconds."""

    now_us: int | str
    """The time, in tests; "" = Redis's own clock."""
    version: str
    """Of the terms that the caller believes to be in force."""
    max_ahead_us: int
    """No start further ahead than this."""
    share_us: int
    """Time of the quota that one call may take; 0 = any."""
    pause_us: int
    """A pause to tell; 0 = none."""
    slope_start: float
    slope_doubling_us: int
    slope_after_idle_us: int
    """0 = never."""
    started: int
    """Tickets that the process gave by itself since its last call."""
    reports: int
    """1 when the next nine say something."""
    throttled: int
    ramp: int
    wins: int
    losses: int
    generation: int
    retries: int
    hold: str
    strays: int
    unused: int
    dims: int
    """How many dimensions follow, each as: name, settlement (+ charge, - refund)."""
    remaining: int
    """How many levels follow them, each as: number of the dimension, remaining, counter, age in
    us."""
    items: int
    """How many items follow these: their costs, row by row, in the order of the dimensions."""


class ScriptReply(NamedTuple):
    """The first parts of what the script returns.

    The counters of the dimensions follow, then the waits of the items granted."""

    granted: int
    retry_us: int
    pause_left_us: int
    pause_at_us: int
    pace_us: int
    """Per item; 0 = unknown."""
    processes: int
    breaker: int
    generation: int
    breaker_left_us: int
    hold: bytes | str
    proven: int
    retry_budget: bytes
    share: bytes


def _prelude() -> str:
    arguments_by_name = ", ".join(
        f"{name} = ARGV[{place}]" for place, name in enumerate(Arguments._fields, start=1)
    )
    reply_in_order = ", ".join(f"'{name}'" for name in ScriptReply._fields)
    return (
        f"local arg = {{{arguments_by_name}}}\n"
        f"local LISTS_AT = {len(Arguments._fields) + 1}\n"
        f"local REPLY = {{{reply_in_order}}}\n"
    )


PRELUDE: Final = _prelude()
"""Names for the script: ``arg``, the place of the first list (``LISTS_AT``), and the order of the
reply (``REPLY``)."""


def arguments(ask: Reserve, now_us: int | str) -> list[Any]:
    """Return all arguments, the lists included."""
    slope, seen = ask.terms.slope, ask.report
    args: list[Any] = list(
        Arguments(
            now_us=now_us,
            version=ask.version,
            max_ahead_us=int(ask.max_ahead_s * US),
            share_us=int(ask.share_s * US),
            pause_us=ceil(ask.pause_s * US),
            slope_start=slope.start,
            slope_doubling_us=int(slope.doubling_s * US),
            slope_after_idle_us=0 if isinf(slope.after_idle_s) else ceil(slope.after_idle_s * US),
            started=ask.started,
            reports=int(seen != NOTHING),
            throttled=seen.throttled,
            ramp=seen.ramp,
            wins=seen.wins,
            losses=seen.losses,
            generation=seen.generation,
            retries=seen.retries,
            hold=seen.hold,
            strays=seen.strays,
            unused=seen.unused,
            dims=len(ask.terms.dims),
            remaining=len(ask.remaining),
            items=len(ask.items),
        )
    )
    for dim in ask.terms.dims:
        args += (dim, ask.settlements.get(dim, 0))
    for dim, level in ask.remaining.items():
        args += (
            ask.terms.dims.index(dim) + 1,
            level.remaining,
            level.counter,
            int(level.age_s * US),
        )
    for item in ask.items:
        args += item
    return args


def reserved(reply: Sequence[Any], quota_id: str, *, dims: int) -> Reserved:
    """Return what the script returned, in seconds."""
    if reply[0] == -1:
        return Reserved(ReserveStatus.MISSING)
    if reply[0] == -3:
        return Reserved(
            ReserveStatus.CHANGED,
            in_force=InForce(text(reply[1]), Terms.from_json(quota_id, reply[2])),
        )
    lists_at = len(ScriptReply._fields)
    found, first_wait = ScriptReply(*reply[:lists_at]), lists_at + dims
    return Reserved(
        ReserveStatus.OK,
        waits_s=[wait / US for wait in reply[first_wait:]],
        retry_s=found.retry_us / US,
        pause_left_s=found.pause_left_us / US,
        pause_id=found.pause_at_us,
        pace_s=found.pace_us / US,
        processes=found.processes,
        counters=tuple(float(counter) for counter in reply[lists_at:first_wait]),
        health=Health(
            breaker=Breaker(found.breaker),
            generation=found.generation,
            left_s=found.breaker_left_us / US,
            hold=text(found.hold),
            proven=bool(found.proven),
            retry_budget=float(found.retry_budget),
            share=float(found.share),
        ),
    )


def text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value


CALL_TIMEOUT_S = 1.0
"""A Redis that does not answer for so long counts as away. A script takes 0.1 ms; the rest is
network or busy loop."""

_US = 1_000_000


class ScriptClient(Protocol):
    """The one thing needed of ``redis.asyncio.Redis``, or of ``redis.Redis`` where code blocks."""

    def register_script(self, script: str) -> Any: ...


_PRELUDES: Final[Mapping[str, tuple[str, ...]]] = {
    "reserve": ("clock", "slope", "margin", "breaker", "remaining"),
    "install": ("clock", "slope", "margin"),
    "heartbeat": ("clock", "breaker"),
    "lift": ("clock",),
    "confirm": ("clock",),
    "enlist": (),
    "interactive": ("clock",),
}
"""What is put before each script: Redis has no modules."""


@cache
def _script(name: str) -> str:
    folder = files("penstock_ratelimit.store") / "scripts"
    names = [PRELUDE] if name == "reserve" else []
    return "\n".join(
        [
            *names,
            *((folder / f"{part}.lua").read_text("utf-8") for part in (*_PRELUDES[name], name)),
        ]
    )


def lift_hold(client: ScriptClient, quota_id: str, *, prefix: str = "penstock:") -> bool:
    """End a hold or a pause from code that blocks; True when there was a hold.

    The account has to prove itself again."""
    return bool(
        client.register_script(_script("lift"))(keys=[f"{prefix}{{q:{quota_id}}}"], args=[""])
    )


class Turn(NamedTuple):
    """A process's part of a ceiling, and whether it is the one to look at the server."""

    looks: bool
    part: int | None
    """Requests that it may have in flight; None = that is not known yet."""
    granted: int = 0
    """Tickets of the fleet so far."""
    decided: str = ""
    """The latest decision, as JSON."""
    said: Mapping[str, str] = {}
    """The words of each process on itself, as JSON."""


class QuotaHash:
    """The shared state of one quota.

    Raises whatever the client raises, and ``TimeoutError``, when Redis is away."""

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
        self._interactive = client.register_script(_script("interactive"))

    async def reserve(self, ask: Reserve) -> Reserved:
        args = arguments(ask, self._now())
        async with asyncio.timeout(CALL_TIMEOUT_S):
            reply = await self._reserve(keys=[self.key, self._processes_key], args=args)
        return reserved(reply, self._quota_id, dims=len(ask.terms.dims))

    async def install(
        self, terms: Terms, *, replaces: str = "", empty: bool = False, account: str = ""
    ) -> InForce:
        """Fill in what is missing.

        ``replaces`` is "any", or the version that ``terms`` are to follow; "" is none.

        Another ``account`` (a fingerprint) than the last one known lifts a hold, and so do other
        terms.
        """
        args: list[Any] = [
            self._now(),
            replaces,
            int(empty),
            terms.to_json(),
            account,
            terms.margin,
            len(terms.dims),
            terms.reserve or 0,
        ]
        for row in zip(terms.dims, terms.rates, terms.bursts, terms.caps, strict=True):
            args += row
        async with asyncio.timeout(CALL_TIMEOUT_S):
            version, config = await self._install(keys=[self.key], args=args)
        async with asyncio.timeout(CALL_TIMEOUT_S):
            await self._enlist(keys=[self._quotas_key], args=[self._quota_id])
        return InForce(text(version), Terms.from_json(self._quota_id, config))

    async def heartbeat(self, process: str, ttl_s: float, stats: str = "") -> int:
        """Count the processes that share this quota, and leave ``stats`` (JSON) for readers.

        ``ttl_s`` 0 leaves."""
        args: list[Any] = [self._now(), process, int(ttl_s * _US), stats]
        async with asyncio.timeout(CALL_TIMEOUT_S):
            return int(
                await self._heartbeat(
                    keys=[self._processes_key, self._stats_key, self.key], args=args
                )
            )

    async def confirm(self, told: Collection[str], learned: Sequence[str]) -> dict[str, float]:
        """Report the dimensions whose limit a header just stated.

        Returns for how many seconds none stated the learned ones."""
        args: list[Any] = [self._now(), len(told), *told, *learned]
        async with asyncio.timeout(CALL_TIMEOUT_S):
            ages = await self._confirm(keys=[self.key], args=args)
        return {dim: age / _US for dim, age in zip(learned, ages, strict=True)}

    async def look(
        self,
        process: str,
        lasts_s: float,
        decided: str = "",
        parts: Mapping[str, int] | None = None,
    ) -> Turn:
        """Ask for this process's part of the ceiling, and whether it is the one to look.

        That one tells what it ``decided``, and the ``parts`` of all."""
        args: list[Any] = [self._now(), process, int(lasts_s * _US), decided]
        for name, part in (parts or {}).items():
            args += (name, part)
        keys = [self.key, self._processes_key, self._stats_key, f"{self.key}:i"]
        async with asyncio.timeout(CALL_TIMEOUT_S):
            looks, part, *rest = await self._interactive(keys=keys, args=args)
        known = None if part < 0 else int(part)
        if not looks:
            return Turn(False, known)
        granted, stored, *said = rest
        words = [text(one) for one in said]
        pairs = dict(zip(words[::2], words[1::2], strict=True))
        return Turn(True, known, int(granted), text(stored), pairs)

    async def lift(self) -> bool:
        """End a hold or a pause; True when there was a hold.

        The account is not proven until its next good answer."""
        async with asyncio.timeout(CALL_TIMEOUT_S):
            return bool(await self._lift(keys=[self.key], args=[self._now()]))

    def _now(self) -> int | str:
        return "" if self._clock_us is None else self._clock_us()
