"""A lane has a speed for a job, and words for how that is known. Unknown stays unknown."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from penstock_ledger import BatchesOpen
from penstock_ratelimit.for_penstock import QuotaView
from penstock_workers.control.lanes.explain import lasting
from penstock_workers.control.lanes.measured import Rate
from penstock_workers.control.lanes.prices import Tokens
from penstock_workers.control.lanes.seen import InBatches, OneByOne, Pace

__all__ = ["HISTORY", "Speed", "half_of", "limits_of", "of_batches", "one_by_one"]

HISTORY: Final = 20
"""Batches of a provider that say how long one takes."""
SILENT_S: Final = 120.0
"""Without an answer for so long, a lane's speed is not known any more."""
TYPICAL: Final = 0.8
"""Of the batches seen that took no longer than what is expected of the next one."""
UNKNOWN_PART: Final = 0.5
"""Of the job's time that is left for a lane in real time whose speed is not known."""


class Speed(NamedTuple):
    pace: Pace | None
    by: str


def one_by_one(
    own: Rate | None,
    of_lane: Rate | None,
    limits: Mapping[str, float],
    tokens: Tokens | None,
    sharing: int,
) -> Speed:
    """Return the speed of a lane that answers each document by itself.

    ``limits`` are units a second, by their words; ``sharing`` is how many other jobs have a part of
    them.
    """
    if own is not None and own.per_s > 0:
        return Speed(OneByOne(own.per_s), f"measured over {lasting(own.seconds)}")
    if own is not None and own.seconds >= SILENT_S:
        return Speed(None, f"it has answered nothing for {lasting(own.seconds)}")
    found = (
        {of_lane.per_s: "measured with other jobs lately"}
        if of_lane is not None and of_lane.per_s > 0
        else {}
    )
    for words, units in limits.items():
        each = _units_each(words, tokens)
        if each:
            shared = f", shared with {sharing} more" if sharing else ""
            found[units / each / (1 + sharing)] = (
                f"by the limit of {units * 60:,.0f} {words} a minute{shared}"
            )
    if not found:
        return Speed(None, "no limit is declared, and no job was measured there yet")
    slowest = min(found)
    return Speed(OneByOne(slowest), found[slowest])


def half_of(span_s: float, documents: int) -> Speed:
    """Return the speed that is assumed of a real-time lane whose speed is not known.

    A part of the job's time is left for it."""
    return Speed(
        OneByOne(max(1, documents) / (UNKNOWN_PART * span_s)),
        f"how fast it is, is not known: {UNKNOWN_PART:.0%} of the job's time is left for it",
    )


def of_batches(
    lasted: Sequence[float],
    now_open: BatchesOpen | None,
    cap_tokens: int | None,
    tokens: Tokens | None,
    margin: float,
    now: float,
) -> Speed:
    """Return the speed of a provider's batches.

    ``lasted`` holds the seconds of the last ones, ``now_open`` those of the job, where it is in the
    lane.
    """
    seconds = typical(lasted)
    age_s = None if now_open is None or now_open.created_at is None else now - now_open.created_at
    if seconds is None:
        runs = "" if age_s is None else f", and its own runs for {lasting(age_s)}"
        return Speed(
            None, f"no batch of this provider has ended here yet, and they may take 24 h{runs}"
        )
    by = f"as {len(lasted)} batches took" if len(lasted) > 1 else "as one batch took"
    if age_s is not None and age_s > margin * seconds:
        return Speed(None, f"a batch runs for {lasting(age_s)}, and others took {lasting(seconds)}")
    at_once = (
        None
        if cap_tokens is None or not tokens or not tokens.into
        else max(1, int(cap_tokens / tokens.into))
    )
    first_s = None if age_s is None else max(0.0, seconds - age_s)
    return Speed(InBatches(seconds, at_once, first_s), by)


def typical(lasted: Sequence[float]) -> float | None:
    """Return how long a batch takes, as four of five did; None where none has ended."""
    if not lasted:
        return None
    return max(1.0, sorted(lasted)[math.ceil(TYPICAL * len(lasted)) - 1])


def limits_of(view: QuotaView | None, declared: Mapping[str, float]) -> dict[str, float]:
    """Return the limits in units a second, by what they count.

    They are those that the fleet's quota has now, else those ``declared`` per minute."""
    if view is not None and view.dimensions:
        return {_words(one.name): one.allowed for one in view.dimensions if one.allowed > 0}
    return {_words(name): limit / 60 for name, limit in declared.items()}


def _words(dimension: str) -> str:
    return dimension.replace("_", " ")


def _units_each(words: str, tokens: Tokens | None) -> float | None:
    """Return how many units of a limit a document takes; None where that is not known."""
    if words == "requests":
        return 1.0
    if tokens is None:
        return None
    return {
        "tokens": tokens.into + tokens.out,
        "input tokens": tokens.into,
        "output tokens": tokens.out,
    }.get(words)
