"""People read in a sentence why a lane was chosen."""

from __future__ import annotations

import time
from typing import Final

from penstock_workers.control.lanes.seen import InBatches, JobNow, LaneNow, OneByOne, Plan

__all__ = ["clock", "dollars", "lasting", "of_budget", "sentence"]

DAY_S: Final = 86_400.0
CENTS: Final = 0.01


def sentence(job: JobNow, here: LaneNow | None, best: Plan, now: float) -> str:
    """Say why a job goes to a lane, or stays there.

    ``here`` is the lane that the job is in; None before the first choice."""
    if here is None or here.lane == best.now.lane:
        said = _of_choice(job, best, now)
    else:
        said = f"{_why_left(job, here, best, now)}; {_why_taken(job, here, best, now)}"
    if job.deadline_at is None or best.meets:
        return said
    return (
        f"{said}. No lane is expected to meet the deadline at {clock(job.deadline_at, now)}; "
        f"{best.now.lane} comes nearest"
    )


def of_budget(job: JobNow, best: Plan, free: Plan, passes: bool) -> str:
    """Say what the budget has to do with the choice, as the end of the sentence.

    ``free`` is what would be taken without a budget."""
    if job.usd_left is None:
        return ""
    left = f"the {dollars(max(0.0, job.usd_left))} that are left of the budget"
    if passes:
        return f". That is more than {left}: the job will pause when they are spent"
    if free.usd is not None and (free.now.lane != best.now.lane or free.then != best.then):
        return f". {_together(free)} would cost {dollars(free.usd)}, more than {left}"
    return ""


def _together(plan: Plan) -> str:
    return plan.now.lane if plan.then is None else f"{plan.now.lane} and then {plan.then.lane}"


def _of_choice(job: JobNow, best: Plan, now: float) -> str:
    one = best.now
    if one.trouble is not None:
        waits = (
            ""
            if job.deadline_at is not None or job.by_order
            else ": without a deadline no real-time price is paid"
        )
        return f"{one.lane} {one.trouble.words}, and the job waits for it{waits}"
    cost = (
        "what it costs is not known"
        if best.usd is None
        else f"{_paid(best)} about {dollars(best.usd)} in all"
    )
    if best.then is not None:
        return (
            f"{_tried(best)}; {best.then.lane} can do the rest from {clock(now + best.at_s, now)} "
            f"on; {cost}"
        )
    if job.deadline_at is None:
        return f"{cost}; there is no deadline"
    return f"{_when(job, one, best.ends_s, now)}; {cost}"


def _paid(best: Plan) -> str:
    """Name what costs so much: a lane alone, or as far as it comes; or both together."""
    return (
        "both cost"
        if best.then is not None and best.ends_s is not None
        else f"{best.now.lane} costs"
    )


def _tried(best: Plan) -> str:
    one = best.now
    if one.pace is None:
        return f"{one.lane} is tried first, though how long it takes is not known ({one.pace_by})"
    return f"{one.lane} does a part first ({_speed(one)})"


def _why_left(job: JobNow, here: LaneNow, best: Plan, now: float) -> str:
    if here.trouble is not None:
        return f"{here.lane} {here.trouble.words}"
    ends_s = None if here.pace is None else here.pace.seconds_for(job.left)
    in_time = ends_s is not None and job.deadline_at is not None and now + ends_s <= job.deadline_at
    if in_time and isinstance(here.pace, InBatches) and not _is_less(best.now, here):
        return (
            f"{here.lane} has not ended, and {best.now.lane} would be late if it began later than "
            "now"
        )
    return _when(job, here, ends_s, now)


def _is_less(one: LaneNow, other: LaneNow) -> bool:
    return one.usd_each is not None and other.usd_each is not None and one.usd_each < other.usd_each


def _why_taken(job: JobNow, here: LaneNow, best: Plan, now: float) -> str:
    one, cost = best.now, _difference(job, here, best.now)
    if isinstance(one.pace, OneByOne):
        return f"{one.lane} has {_speed(one)} and {cost}"
    ends = "" if best.ends_s is None else f"ends about {clock(now + best.ends_s, now)} and "
    return f"{one.lane} {ends}{cost}"


def _when(job: JobNow, one: LaneNow, ends_s: float | None, now: float) -> str:
    """Say when a lane ends, beside the deadline."""
    if ends_s is None:
        return f"when {one.lane} ends is not known: {one.pace_by}"
    ends = f"{one.lane} ends about {clock(now + ends_s, now)}"
    if job.deadline_at is None:
        return ends
    early_s = job.deadline_at - (now + ends_s)
    if early_s < 0:
        return f"{ends}, {lasting(-early_s)} after the deadline ({one.pace_by})"
    return f"{ends}, {lasting(early_s)} before the deadline ({one.pace_by})"


def _speed(one: LaneNow) -> str:
    """Say how fast a lane is, in documents a minute, or what a batch takes."""
    if not isinstance(one.pace, OneByOne):
        return one.pace_by
    per_minute = one.pace.per_s * 60
    shown = f"{per_minute:,.0f}" if per_minute >= 10 else f"{per_minute:.1f}"
    return f"{shown} documents a minute ({one.pace_by})"


def _difference(job: JobNow, here: LaneNow, one: LaneNow) -> str:
    """Say how much cheaper or dearer what is left of the job is in another lane."""
    if one.usd_each is None:
        return "what it costs is not known"
    if here.usd_each is None:
        return (
            f"costs about {dollars(one.usd_each * job.left)}; what {here.lane} would cost is not "
            "known"
        )
    more = (one.usd_each - here.usd_each) * job.left
    if abs(more) < CENTS / 100:
        return "costs the same"
    return f"costs {dollars(abs(more))} {'more' if more > 0 else 'less'}"


def clock(at: float, now: float) -> str:
    """Say a time of day, such as `07:40`, with the day where that is another one."""
    there, here = time.localtime(at), time.localtime(now)
    same_day = (there.tm_year, there.tm_yday) == (here.tm_year, here.tm_yday)
    return time.strftime("%H:%M" if same_day else "%d %b %H:%M", there)


def lasting(seconds: float) -> str:
    """Say a duration, such as `2 h`, `1 h 30 min` or `40 s`."""
    if seconds < 60:
        return f"{max(0, round(seconds))} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    hours, rest = divmod(minutes, 60)
    if seconds >= DAY_S:
        days, hours = divmod(hours, 24)
        return f"{days} d {hours} h" if hours else f"{days} d"
    return f"{hours} h {rest} min" if rest else f"{hours} h"


def dollars(usd: float) -> str:
    if usd and usd < CENTS:
        return f"{usd:.2g} USD"
    return f"{usd:,.2f} USD"
