"""How a reservation travels to ``reserve.lua`` and back: every argument and every part of the reply
has a name, given here.

Redis passes lists only. The order in them is that of the fields below, and the script gets its
names from the same fields, as a prelude (``PRELUDE``): neither side counts positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, isinf
from typing import Any, Final, NamedTuple

from penstock_ratelimit.store.messages import (
    NOTHING,
    Breaker,
    Health,
    InForce,
    Reserve,
    Reserved,
    ReserveStatus,
)
from penstock_ratelimit.terms import Terms

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
    """1 when the next eight say something."""
    throttled: int
    ramp: int
    wins: int
    losses: int
    generation: int
    retries: int
    hold: str
    strays: int
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
    """All arguments, the lists included."""
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
    """What the script returned, in seconds."""
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
