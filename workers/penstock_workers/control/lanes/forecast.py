"""Says before the submit of a job which lane it would go to, and if it can meet its deadline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from penstock_ledger.texts import SetOption, Text
from penstock_producer.accepting.estimates import Estimate
from penstock_producer.job.lanes import AUTO, LANES, can_answer, has_own_model, packs
from penstock_producer.job.spec import JobSpec
from penstock_producer.settings import ProviderFacts
from penstock_ratelimit.for_penstock import QuotaView
from penstock_workers.control.lanes import speeds
from penstock_workers.control.lanes.choice import Choice, choose
from penstock_workers.control.lanes.explain import clock, dollars, lasting
from penstock_workers.control.lanes.seen import JobNow, LaneNow
from penstock_workers.control.lanes.speeds import Tokens, usd_each, with_flex
from penstock_workers.control.lanes.troubles import of_size
from penstock_workers.lane_changes import LaneChangeSettings

__all__ = ["HISTORY", "Known", "forecast", "late"]

HISTORY: Final = speeds.HISTORY
WINDOW_S: Final = 24 * 3_600.0
"""In which every provider ends a batch, or lets it expire."""


class Known(NamedTuple):
    """The facts at hand before a job runs; all of them may be unknown."""

    provider: ProviderFacts
    limits: Mapping[str, float] = {}  # that are declared, units per minute
    batch_cap: int | None = None  # tokens in batches at once
    lasted: Sequence[float] = ()  # seconds of the provider's last batches here
    view: QuotaView | None = None


def forecast(
    spec: JobSpec,
    guess: Estimate,
    documents: int,
    known: Known,
    rules: LaneChangeSettings,
    now: float,
) -> Choice:
    """Return what control would choose first, as far as that is known now."""
    deadline_at = None if spec.deadline_s is None else now + spec.deadline_s
    begins = None if spec.lane == AUTO else spec.first_lane
    job = JobNow(
        begins, documents, deadline_at, by_order=spec.lane != AUTO, usd_left=spec.budget_usd
    )
    lanes = list[LaneNow]()
    for lane in spec.permitted_lanes:
        own = _lane(lane, spec, guess, documents, known, rules, now)
        model = spec.model or guess.model
        lanes += with_flex(own, spec, known.provider.prices_of(model), _tokens(guess, documents))
    return choose(job, lanes, now, rules)


def late(
    spec: JobSpec,
    guess: Estimate,
    documents: int,
    known: Known,
    rules: LaneChangeSettings,
    now: float,
) -> str | None:
    """Say that no permitted lane is expected to meet the deadline, and what would meet it.

    None where one is, or where there is no deadline."""
    if spec.deadline_s is None or not documents:
        return None
    choice = forecast(spec, guess, documents, known, rules, now)
    if choice.meets:
        return None
    seen = [
        _lane(lane, spec, guess, documents, known, rules, now)
        for lane in LANES
        if can_answer(lane, spec.endpoint)
    ]
    ours = [one for one in seen if one.lane in spec.permitted_lanes]
    if any(
        one.pace is None and (not packs(one.lane) or spec.deadline_s >= WINDOW_S) for one in ours
    ):
        return None  # that lane's speed is not known, and may well be enough
    said = [_ends(one, documents, spec.deadline_s, now) for one in ours]
    fixes = [
        _in_time(one, documents, spec)
        for one in seen
        if one not in ours and _meets(one, documents, spec, rules)
    ]
    ends_s = [
        rules.margin * one.pace.seconds_for(documents) for one in ours if one.pace is not None
    ]
    if ends_s:
        fixes.append(f"a deadline of {lasting(min(ends_s))} or more")
    meets = ("; what would meet it: ", Text(", or ").join(fixes)) if fixes else ()
    at = clock(now + spec.deadline_s, now)
    return Text(
        f"no lane of this job is expected to meet its deadline at {at}: {'; '.join(said)}", *meets
    )


def _lane(
    lane: str,
    spec: JobSpec,
    guess: Estimate,
    documents: int,
    known: Known,
    rules: LaneChangeSettings,
    now: float,
) -> LaneNow:
    tokens = _tokens(guess, documents)
    if packs(lane):
        speed = speeds.of_batches(known.lasted, None, known.batch_cap, tokens, rules.margin, now)
    else:
        limits = {} if has_own_model(lane) else speeds.limits_of(known.view, known.limits)
        speed = speeds.one_by_one(None, None, limits, tokens, 0)
    if speed.pace is None and LANES[lane].is_real_time and spec.deadline_s is not None:
        speed = speeds.half_of(spec.deadline_s, documents)
    prices = known.provider.prices_of(spec.model or guess.model, tier=spec.tier_in(lane))
    usd = usd_each(lane, tokens, prices)
    trouble = of_size(lane, known.provider, documents)
    return LaneNow(lane, usd, speed.pace, speed.by, LANES[lane].is_real_time, trouble)


def _tokens(guess: Estimate, documents: int) -> Tokens:
    many = max(1, documents)
    return Tokens(guess.tokens_in / many, guess.tokens_out / many, guess.factors)


def _ends(one: LaneNow, documents: int, deadline_s: float, now: float) -> str:
    if one.pace is None:
        return f"when {one.lane} ends is not known ({one.pace_by})"
    over_s = one.pace.seconds_for(documents) - deadline_s
    words = f"{lasting(over_s)} after it" if over_s > 0 else f"only {lasting(-over_s)} before it"
    return f"{one.lane} ends about {clock(now + deadline_s + over_s, now)}, {words} ({one.pace_by})"


def _meets(one: LaneNow, documents: int, spec: JobSpec, rules: LaneChangeSettings) -> bool:
    assert spec.deadline_s is not None
    return (
        one.pace is not None and rules.margin * one.pace.seconds_for(documents) <= spec.deadline_s
    )


def _in_time(one: LaneNow, documents: int, spec: JobSpec) -> str:
    cost = (
        "" if one.usd_each is None else f", which costs about {dollars(one.usd_each * documents)}"
    )
    lanes = ",".join((*spec.permitted_lanes, one.lane))
    return Text(SetOption("lane", AUTO), " ", SetOption("lanes", lanes), cost)
