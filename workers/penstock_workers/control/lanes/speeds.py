"""A lane's speed and price for a job are found here, with words for how they are known.

The speed is measured over the last minutes, and the latest of each lane is kept. What a document
costs is known by the answers that the job has, else by what was estimated when it was submitted.
Unknown stays unknown.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from penstock_ledger import BatchesOpen
from penstock_ledger.model import Counts
from penstock_producer.accepting.estimates import Estimate
from penstock_producer.job.lanes import has_own_model, packs
from penstock_producer.job.spec import JobSpec
from penstock_producer.job.tiers import FLEX
from penstock_producer.pins import ESTIMATE
from penstock_producer.prices import ModelPrices
from penstock_ratelimit.for_penstock import QuotaView
from penstock_workers.control.lanes.explain import lasting
from penstock_workers.control.lanes.seen import InBatches, LaneNow, OneByOne, Pace

__all__ = [
    "HISTORY",
    "Measured",
    "Rate",
    "Speed",
    "Tokens",
    "half_of",
    "limits_of",
    "model_of",
    "of_batches",
    "one_by_one",
    "tokens_each",
    "usd_each",
    "with_flex",
]

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


MEASURED_FROM: Final = 20
"""Answers that say more than an estimate."""


class Tokens(NamedTuple):
    """The tokens of a document."""

    into: float
    out: float
    factors: Mapping[str, float] = {}  # see Estimate


def tokens_each(source: Mapping[str, Any], counts: Counts) -> Tokens | None:
    """Return the tokens of a document; None while nothing is known of the job's documents."""
    asked = counts.succeeded + counts.dead - sum(counts.reused.values())
    guess = source.get(ESTIMATE)
    factors = (guess.get("factors") if isinstance(guess, dict) else None) or {}
    if asked >= MEASURED_FROM and counts.prompt_tokens:
        return Tokens(counts.prompt_tokens / asked, counts.completion_tokens / asked, factors)
    if not isinstance(guess, dict) or not (documents := guess.get("documents")):
        return None
    return Tokens(guess["tokens_in"] / documents, guess["tokens_out"] / documents, factors)


def model_of(source: Mapping[str, Any]) -> str | None:
    """Return the model of a job that names none itself.

    It is that of its first request, as noted when the job was submitted."""
    guess = source.get(ESTIMATE)
    model = guess.get("model") if isinstance(guess, dict) else None
    return model if isinstance(model, str) else None


def usd_each(
    lane: str, tokens: Tokens | None, prices: ModelPrices | None, tier: str | None = None
) -> float | None:
    """Return the cost of a document at a provider's prices, in USD.

    ``tier``: which control may choose in the lane. Rules and the prompt cache of the job count as
    estimated. None for lanes that ask no provider, and where tokens or prices are not known."""
    if tokens is None or has_own_model(lane):
        return None
    many = 1_000  # tokens are counted whole
    guess = Estimate(round(tokens.into * many), round(tokens.out * many), True)
    cost = guess.usd(prices, in_batch=packs(lane))
    return None if cost is None else cost / many * tokens.factors.get(tier or lane, 1.0)


def with_flex(
    one: LaneNow, spec: JobSpec, ordinary: ModelPrices | None, tokens: Tokens | None
) -> list[LaneNow]:
    """Return a lane, and before it its flex tier where that is a choice: it costs less.

    It is as fast by the limits of the provider, until it was measured."""
    if not one.is_real_time or not spec.lets_choose_flex or ordinary is None:
        return [one]
    usd = usd_each(one.lane, tokens, ordinary.of_tier(FLEX), FLEX)
    full_usd = usd_each(one.lane, tokens, ordinary)
    if usd is None or full_usd is None or usd >= full_usd:
        return [one]
    return [one._replace(lane=FLEX, usd_each=usd, queue=one.lane, tier=FLEX), one]


WINDOW_S: Final = 300.0
LEAST_S: Final = 20.0
"""Of a measure: shorter ones say how answers come in bursts."""
FRESH_S: Final = 3_600.0
"""What another job of the lane was measured at says something for so long."""
KEPT: Final = 1_000
"""Jobs and lanes whose measures are kept, each some hundred bytes."""

LaneOf = tuple[str, str, str | None]
"""Lane, provider and model."""


class Rate(NamedTuple):
    per_s: float
    usd_each: float | None  # None: nothing was paid for
    seconds: float  # that it was measured over
    at: float


class _Look(NamedTuple):
    at: float
    finished: int
    cost_usd: float


class Measured:
    """The measured pace of jobs and lanes, on the control thread. Times are those of one clock."""

    def __init__(self) -> None:
        self._looks: OrderedDict[tuple[str, str], deque[_Look]] = OrderedDict()  # by job and lane
        self._lanes: OrderedDict[LaneOf, Rate] = OrderedDict()

    def note(self, job_id: str, of: LaneOf, finished: int, cost_usd: float, now: float) -> None:
        """Note that so many documents of a job have an outcome; it is in this lane now."""
        looks = self._looks.setdefault((job_id, of[0]), deque())
        if looks and (finished < looks[-1].finished or now - looks[-1].at > WINDOW_S):
            looks.clear()  # a replay, or it was elsewhere in between
        looks.append(_Look(now, finished, cost_usd))
        while len(looks) > 2 and now - looks[1].at >= WINDOW_S:
            looks.popleft()
        rate = self.of_job(job_id, of[0])
        if rate is not None and rate.per_s > 0:
            self._lanes[of] = rate
            self._lanes.move_to_end(of)
        self._looks.move_to_end((job_id, of[0]))
        for book in (self._looks, self._lanes):
            if len(book) > KEPT:
                book.popitem(last=False)

    def of_job(self, job_id: str, lane: str) -> Rate | None:
        """Return the job's rate in this lane; None before it was there long enough."""
        looks = self._looks.get((job_id, lane))
        if not looks or (seconds := looks[-1].at - looks[0].at) < LEAST_S:
            return None
        done, paid = looks[-1].finished - looks[0].finished, looks[-1].cost_usd - looks[0].cost_usd
        return Rate(
            done / seconds, paid / done if done and paid > 0 else None, seconds, looks[-1].at
        )

    def of_lane(self, of: LaneOf, now: float) -> Rate | None:
        """Return the latest rate of any job in a lane; None where it is too long ago."""
        rate = self._lanes.get(of)
        return rate if rate is not None and now - rate.at <= FRESH_S else None

    def forget(self, job_id: str, lane: str) -> None:
        """Forget a job that leaves this lane: if it comes back it is measured anew."""
        self._looks.pop((job_id, lane), None)
