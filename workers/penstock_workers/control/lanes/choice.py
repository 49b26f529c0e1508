"""Chooses the cheapest lane that is expected to meet the deadline, as a function of what is known.

A lane is looked at with what may follow it: a cheap one that is slow, or whose time is not known,
may be tried as long as another lane can still do what is left before the deadline. A batch that
stands still looks like one that works, so no job waits for one beyond the last moment at which
another lane would be in time. What costs more than is left of the job's budget is taken only where
nothing that works costs less: not even for the deadline, since the job would pause half-way.
Without a deadline a real-time price is paid only where the job permits no other, or says the order
of its lanes itself.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from penstock_workers.control.lanes.explain import of_budget, sentence
from penstock_workers.control.lanes.seen import TOO_FEW, InBatches, JobNow, LaneNow, Plan
from penstock_workers.lane_changes import LaneChangeSettings

__all__ = ["Choice", "choose"]

MOMENTS: Final = 400  # of the time that is left, at which going on to another lane is looked at
WORTH: Final = 0.05  # of what is left to pay: a lane that saves less is not worth a move
CENT: Final = 1e-9  # plans whose costs differ by less cost the same


class Choice(NamedTuple):
    name: str  # of what was chosen: a lane, or a service tier
    lane: str  # where the documents go
    reason: str  # of the ledger's MOVE_REASONS
    why: str  # the sentence for people
    figures: Mapping[str, float | str | None]  # what it was decided by
    meets: bool | None  # whether the deadline is expected to be met; None: there is none
    tier: str | None = None  # in which they are asked for there; None: as the spec says


def choose(job: JobNow, lanes: Sequence[LaneNow], now: float, rules: LaneChangeSettings) -> Choice:
    """Choose one of ``lanes``, which are in the job's order.

    Times are Unix seconds."""
    here = next((one for one in lanes if one.lane == job.lane), None)
    best = _best(job, lanes, here, now, rules)
    free = _best(job._replace(usd_left=None), lanes, here, now, rules)
    meets = None if job.deadline_at is None else best.meets
    why = f"{sentence(job, here, best, now)}{of_budget(job, best, free, _passes(job, best))}"
    return Choice(
        best.now.lane,
        best.now.queue or best.now.lane,
        _reason(job, lanes, here, best),
        why,
        _figures(job, lanes, best, now, rules),
        meets,
        best.now.tier,
    )


def _plans(
    job: JobNow, lanes: Sequence[LaneNow], now: float, rules: LaneChangeSettings
) -> list[Plan]:
    """Return for each lane the best plan that begins with it now."""
    horizon_s = math.inf if job.deadline_at is None else job.deadline_at - now
    return [_plan(job, one, lanes, horizon_s, rules) for one in lanes]


def _best(
    job: JobNow,
    lanes: Sequence[LaneNow],
    here: LaneNow | None,
    now: float,
    rules: LaneChangeSettings,
) -> Plan:
    permitted = lanes if job.deadline_at is not None else _without_real_time(job, lanes)
    usable = [one for one in permitted if one.trouble is None]
    if not usable:
        usable = [here] if here is not None and here in permitted else list(permitted)
    paid_for = [plan.now for plan in _plans(job, usable, now, rules) if not _passes(job, plan)]
    usable = paid_for or usable
    usable = [one for one in usable if one.lane not in job.left_late] or usable
    found = _plans(job, usable, now, rules)
    meeting = [plan for plan in found if plan.meets]
    meeting = [
        plan for plan in meeting if not _is_last_moment(job, plan, usable, now, rules)
    ] or meeting
    if not meeting:
        return min(found, key=lambda plan: (_late(plan), *_preference(job, lanes, plan)))
    best = min(meeting, key=lambda plan: _preference(job, lanes, plan))
    stays = next((plan for plan in meeting if plan.now is here), None)
    return best if stays is None or _is_worth_a_move(job, stays, best) else stays


def _passes(job: JobNow, plan: Plan) -> bool:
    """Return whether it would cost more than is left of the budget, as far as that is known.

    What batches have answered is paid, and not paid again elsewhere."""
    if job.usd_left is None or plan.usd is None:
        return False
    again = (
        0.0
        if plan.now.lane == job.lane or not job.left
        else plan.usd * min(job.answered, job.left) / job.left
    )
    return plan.usd - again > job.usd_left + CENT


def _is_last_moment(
    job: JobNow, plan: Plan, lanes: Sequence[LaneNow], now: float, rules: LaneChangeSettings
) -> bool:
    """Return whether this is the last look at which a wait for batches can be given up.

    Another lane could do now what the batches might leave, but not at the next look."""
    if job.deadline_at is None or not isinstance(plan.now.pace, InBatches):
        return False
    left, horizon_s = max(0, job.left - job.answered), job.deadline_at - now
    others = [other.pace for other in lanes if other is not plan.now and other.pace is not None]
    needs_s = min(
        (rules.moving_s + rules.margin * pace.seconds_for(left) for pace in others),
        default=math.inf,
    )
    begins_s = rules.look_s + (rules.moving_s if job.lane not in (None, plan.now.lane) else 0.0)
    return needs_s <= horizon_s < begins_s + needs_s


def _is_worth_a_move(job: JobNow, stays: Plan, best: Plan) -> bool:
    """Return whether the best plan is so much better that the job should move.

    Where the job's order decides, a lane that comes earlier in it is; else one that costs clearly
    less.
    """
    if job.by_order or stays.usd is None or best.usd is None:
        return True
    return best.usd < (1 - WORTH) * stays.usd


def _without_real_time(job: JobNow, lanes: Sequence[LaneNow]) -> Sequence[LaneNow]:
    """Return the lanes that a job without a deadline may be sent to.

    It waits for one that is in trouble, but not for one that never takes it."""
    if job.by_order:
        return lanes
    takes = [one for one in lanes if one.trouble is None or one.trouble.reason != TOO_FEW]
    return [one for one in takes if not one.is_real_time] or lanes


def _preference(
    job: JobNow, lanes: Sequence[LaneNow], plan: Plan
) -> tuple[float, float, bool, bool, bool, int]:
    """Return the key by which plans are sorted; the lowest is the best.

    By the job's order or by price, then with fewer moves. An unknown price loses against a known
    one.
    """
    place = lanes.index(plan.now)
    cost = math.inf if plan.usd is None else round(plan.usd / CENT)
    return (
        place if job.by_order else 0.0,
        cost,
        plan.then is not None,
        plan.now.is_real_time,
        plan.now.lane != job.lane,
        place,
    )


def _late(plan: Plan) -> float:
    """Return in how many seconds a plan ends, to compare plans none of which meets the deadline.

    Plans whose end is not known come last."""
    return math.inf if plan.ends_s is None else plan.ends_s


def _plan(
    job: JobNow, one: LaneNow, lanes: Sequence[LaneNow], horizon_s: float, rules: LaneChangeSettings
) -> Plan:
    """Return the best plan that begins with this lane.

    It is the lane alone where that meets the deadline, else the lane and another that follows."""
    moving_s = rules.moving_s if job.lane not in (None, one.lane) else 0.0
    alone = _alone(job, one, horizon_s, moving_s, rules)
    if alone.meets and not _passes(job, alone):
        return alone
    others = [
        other
        for other in lanes
        if other.lane != one.lane and other.trouble is None and other.pace is not None
    ]
    followed = [_followed(job, one, other, horizon_s, moving_s, rules) for other in others]
    found = [alone, *(plan for plan in followed if plan is not None)]
    found = [plan for plan in found if not _passes(job, plan)] or found
    meeting = [plan for plan in found if plan.meets]
    return (
        min(meeting, key=lambda plan: math.inf if plan.usd is None else plan.usd)
        if meeting
        else min(found, key=_late)
    )


def _alone(
    job: JobNow, one: LaneNow, horizon_s: float, moving_s: float, rules: LaneChangeSettings
) -> Plan:
    usd = None if one.usd_each is None else one.usd_each * job.left
    if one.pace is None:
        return Plan(one, None, 0.0, None, usd, meets=math.isinf(horizon_s))
    need_s = one.pace.seconds_for(job.left)
    return Plan(
        one, None, 0.0, moving_s + need_s, usd, meets=moving_s + rules.margin * need_s <= horizon_s
    )


def _followed(
    job: JobNow,
    one: LaneNow,
    other: LaneNow,
    horizon_s: float,
    moving_s: float,
    rules: LaneChangeSettings,
) -> Plan | None:
    """Return the plan in which ``other`` follows ``one``.

    The job stays in ``one`` for as long as ``other`` can still do the rest in time, or, where it
    cannot, so that both end soonest. None where ``one`` would bring nothing, or where there is no
    time for it.
    """
    assert other.pace is not None
    first_s = moving_s + rules.look_s
    if horizon_s <= first_s or (one.pace is None and not (job.by_order or _is_cheaper(one, other))):
        return None
    last: Plan | None = None
    for moment in range(MOMENTS):
        at_s = first_s + (horizon_s - first_s) * moment / MOMENTS
        plan = _both(job, one, other, at_s, at_s - moving_s, horizon_s, rules)
        if plan is not None and (
            last is None or plan.meets or (not last.meets and _late(plan) < _late(last))
        ):
            last = plan
    return last


def _both(
    job: JobNow,
    one: LaneNow,
    other: LaneNow,
    at_s: float,
    works_s: float,
    horizon_s: float,
    rules: LaneChangeSettings,
) -> Plan | None:
    """Plan that ``one`` works for so long, and ``other`` does what it leaves from ``at_s`` on."""
    assert other.pace is not None
    if one.pace is None:  # it may do all, some or nothing until then
        usd = None if one.usd_each is None else one.usd_each * job.left
        late_s = at_s + rules.moving_s + rules.margin * other.pace.seconds_for(job.left)
        return Plan(one, other, at_s, None, usd, meets=True) if late_s <= horizon_s else None
    done, surely = (
        one.pace.done_in(works_s, job.left),
        one.pace.done_in(works_s / rules.margin, job.left),
    )
    if done <= 0:
        return None
    late_s = at_s + rules.moving_s + rules.margin * other.pace.seconds_for(job.left - surely)
    ends_s = at_s + rules.moving_s + other.pace.seconds_for(job.left - done)
    known = one.usd_each is not None and other.usd_each is not None
    usd = (
        (one.usd_each or 0.0) * done + (other.usd_each or 0.0) * (job.left - done)
        if known
        else None
    )
    return Plan(one, other, at_s, ends_s, usd, meets=late_s <= horizon_s)


def _is_cheaper(one: LaneNow, other: LaneNow) -> bool:
    """Return whether ``one`` is known to be cheaper.

    An unknown price loses against a known one; of two unknown prices the real-time one is the
    higher.
    """
    if one.usd_each is None or other.usd_each is None:
        both = one.usd_each is None and other.usd_each is None
        return other.is_real_time and not one.is_real_time if both else other.usd_each is None
    return one.usd_each < other.usd_each


def _reason(job: JobNow, lanes: Sequence[LaneNow], here: LaneNow | None, best: Plan) -> str:
    if here is None:
        return "chosen"
    if here.trouble is not None:
        return here.trouble.reason
    if job.by_order and lanes.index(best.now) < lanes.index(here):
        return "chosen"  # the lane that comes first works again
    return "cheaper" if job.deadline_at is None or _is_cheaper(best.now, here) else "deadline"


def _figures(
    job: JobNow, lanes: Sequence[LaneNow], best: Plan, now: float, rules: LaneChangeSettings
) -> Mapping[str, float | str | None]:
    """Return the figures of the job and of each lane, flat."""
    figures: dict[str, float | str | None] = {"documents_left": job.left}
    if job.usd_left is not None:
        figures["budget_left_usd"] = round(job.usd_left, 6)
    if job.deadline_at is not None:
        figures |= {
            "deadline_at": round(job.deadline_at),
            "deadline_in_s": round(job.deadline_at - now),
            "margin": rules.margin,
        }
    if best.then is not None:
        figures |= {"then": best.then.lane, "then_at": round(now + best.at_s)}
    for one in lanes:
        seconds = None if one.pace is None else round(one.pace.seconds_for(job.left), 1)
        figures |= {
            f"{one.lane}.usd": None if one.usd_each is None else round(one.usd_each * job.left, 6),
            f"{one.lane}.seconds": seconds,
            f"{one.lane}.seconds_by": one.pace_by,
        }
        if one.trouble is not None:
            figures[f"{one.lane}.no_choice"] = f"{one.trouble.reason}: {one.trouble.words}"
    return figures
