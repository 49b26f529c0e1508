"""Which lane `auto` takes: held against an exhaustive comparison, which tries every lane and every
moment of going to another."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pytest

from penstock_workers.control.lanes.choice import choose
from penstock_workers.control.lanes.seen import InBatches, JobNow, LaneNow, OneByOne, Pace, Trouble
from penstock_workers.lane_changes import LaneChangeSettings

NOW = 1_800_000_000.0
H = 3_600.0
RULES = LaneChangeSettings(look_s=30, margin=1.25, moving_s=60)
TICKS = 200  # of the time until the deadline, in the exhaustive comparison


class Given(NamedTuple):
    """One lane of a case: USD per 1,000 documents; documents a minute, or how long a batch takes
    and what fits into it."""

    lane: str
    usd: float | None
    per_minute: float | None = None
    batch_h: float | None = None
    at_once: int | None = None
    trouble: str = ""


class Case(NamedTuple):
    what: str
    left: int
    deadline_h: float | None
    lanes: Sequence[Given]
    here: str | None = None
    budget: float | None = None  # USD that are left of it


API = Given("api", 1.0, per_minute=600)
BATCH = Given("batch", 0.5, batch_h=4)
GPU = Given("gpu", 0.2, per_minute=60)

CASES = [
    Case("no deadline: half the price", 10_000, None, [BATCH, API]),
    Case("no deadline: a card that is cheaper still", 10_000, None, [BATCH, API, GPU]),
    Case(
        "no deadline: real time is first in the order, and is not paid", 10_000, None, [API, BATCH]
    ),
    Case("no deadline: only real time is permitted", 10_000, None, [API]),
    Case(
        "no deadline: batch has no worker, and real time is not paid",
        10,
        None,
        [BATCH._replace(trouble="no_workers"), API],
    ),
    Case(
        "no deadline: batch has no worker, a card works",
        10,
        None,
        [BATCH._replace(trouble="no_workers"), API, GPU],
    ),
    Case("no deadline: in real time since there was one", 10_000, None, [BATCH, API], here="api"),
    Case("a day: batch has all the time", 100_000, 24, [BATCH, API]),
    Case("six hours: batch with its margin", 100_000, 6, [BATCH, API]),
    Case("four and a half hours: batch without its margin", 100_000, 4.5, [BATCH, API]),
    Case("two hours: only real time", 50_000, 2, [BATCH, API]),
    Case("two hours, and batch is where it is", 50_000, 2, [BATCH, API], here="batch"),
    Case("half an hour: none can, real time comes nearest", 100_000, 0.5, [BATCH, API]),
    Case("a quick batch", 100_000, 2, [BATCH._replace(batch_h=0.5), API]),
    Case(
        "batches of half the documents: two rounds fit",
        100_000,
        11,
        [BATCH._replace(at_once=50_000), API],
    ),
    Case(
        "batches of half the documents: one round, then real time",
        100_000,
        8,
        [BATCH._replace(at_once=50_000), API],
    ),
    Case(
        "batches of a tenth: none of two rounds is in time",
        100_000,
        4,
        [BATCH._replace(at_once=10_000), API],
    ),
    Case("a slow card first, real time for the rest", 20_000, 2, [API, GPU]),
    Case("a slow card alone", 20_000, 8, [API, GPU]),
    Case("a slow card is where it is, and real time is due", 60_000, 2.2, [API, GPU], here="gpu"),
    Case("a card that is as fast as real time", 50_000, 2, [API, GPU._replace(per_minute=700)]),
    Case("a card that is dear", 50_000, 24, [BATCH, API, GPU._replace(usd=3.0)]),
    Case("a card whose price is not known loses", 50_000, 24, [GPU._replace(usd=None), BATCH, API]),
    Case(
        "only a card of unknown price is in time",
        50_000,
        1,
        [GPU._replace(usd=None, per_minute=9_000), BATCH, API],
    ),
    Case("real time has no quota", 50_000, 2, [BATCH, API._replace(trouble="no_quota"), GPU]),
    Case("batch has no worker", 10_000, 24, [BATCH._replace(trouble="no_workers"), API]),
    Case(
        "nothing works: it stays",
        10_000,
        24,
        [BATCH._replace(trouble="stuck"), API._replace(trouble="paused")],
        here="batch",
    ),
    Case(
        "real time is slow, and batch is late: the less late",
        100_000,
        2,
        [BATCH, API._replace(per_minute=200)],
    ),
    Case("three lanes: the card does a part, batch is late", 20_000, 3, [BATCH, API, GPU]),
    Case(
        "a saving that is not worth a move",
        10_000,
        24,
        [BATCH, API, GPU._replace(usd=0.49, per_minute=600)],
        here="batch",
    ),
    Case("two hours, and real time would pass the budget", 50_000, 2, [BATCH, API], budget=40),
    Case(
        "two hours, real time would pass, batch is where it is",
        50_000,
        2,
        [BATCH, API],
        here="batch",
        budget=40,
    ),
    Case("a budget that is enough for both", 50_000, 2, [BATCH, API], budget=60),
    Case("a budget that no lane fits: as without one", 50_000, 2, [BATCH, API], budget=10),
    Case(
        "in real time, and what is left of the budget pays for batch",
        50_000,
        24,
        [API, BATCH],
        here="api",
        budget=30,
    ),
    Case("the card does what the budget pays of real time", 20_000, 2, [API, GPU], budget=19),
    Case("the card alone is late, and all that the budget pays", 20_000, 2, [API, GPU], budget=5),
    Case(
        "a budget that only a lane without workers fits",
        10_000,
        2,
        [BATCH._replace(trouble="no_workers"), API],
        budget=6,
    ),
    Case(
        "half the documents in a batch: then real time passes",
        100_000,
        8,
        [BATCH._replace(at_once=50_000), API],
        budget=60,
    ),
]


def seen(given: Given) -> LaneNow:
    pace: Pace | None = None
    if given.per_minute is not None:
        pace = OneByOne(given.per_minute / 60)
    elif given.batch_h is not None:
        pace = InBatches(given.batch_h * H, given.at_once)
    trouble = Trouble(given.trouble, "does not work") if given.trouble else None
    usd = None if given.usd is None else given.usd / 1_000
    return LaneNow(given.lane, usd, pace, "by the case", given.lane == "api", trouble)


class Tried(NamedTuple):
    """One way through the rest of a job, as a small simulation saw it go."""

    lanes: tuple[Given, ...]
    usd: float
    ends_s: float  # as expected
    surely_s: float  # with all lanes slower by the margin


def walked(
    case: Case, first: Given, then: Given | None, at_s: float, slower: float
) -> tuple[float, float]:
    """Tick by tick: when all documents are done, and what they have cost.

    Never done where the first lane does nothing."""
    tick_s = max(60.0, (case.deadline_h or 24) * H / TICKS)
    clock, done, usd = 0.0, 0.0, 0.0
    lane, since = first, RULES.moving_s if case.here not in (None, first.lane) else 0.0
    rounds = 0
    while done < case.left and clock < 60 * H:
        if then is not None and lane is first and clock >= at_s:
            if not done:
                return math.inf, math.inf
            lane, since, rounds = then, clock + RULES.moving_s, 0
        clock += tick_s
        if lane.per_minute is not None:
            more = lane.per_minute / 60 / slower * max(0.0, min(tick_s, clock - since))
        else:
            assert lane.batch_h is not None
            ended = int(max(0.0, clock - since + 1e-6) / (lane.batch_h * H * slower))
            more = (ended - rounds) * (lane.at_once or case.left)
            rounds = ended
        more = min(more, case.left - done)
        done += more
        usd += math.inf if lane.usd is None and more else more * (lane.usd or 0.0) / 1_000
    return clock, usd


def every_way(case: Case) -> Iterator[Tried]:
    """Each lane alone, and each followed by each other one at every moment."""
    usable = [one for one in case.lanes if not one.trouble]
    if case.deadline_h is None:
        usable = [one for one in usable if one.lane != "api"] or (
            usable if len(case.lanes) == 1 else []
        )
    if not usable:
        usable = [one for one in case.lanes if one.lane == (case.here or "batch")]
    span_s = (case.deadline_h or 0.0) * H
    for first in usable:
        ways: list[tuple[Given | None, float]] = [(None, 0.0)]
        ways += [
            (then, at_s)
            for then in usable
            if then is not first
            for at_s in (part * span_s / 40 for part in range(1, 40))
        ]
        for then, at_s in ways:
            surely_s, _ = walked(case, first, then, at_s, RULES.margin)
            ends_s, usd = walked(case, first, then, at_s, 1.0)
            yield Tried((first,) if then is None else (first, then), usd, ends_s, surely_s)


def best_first_lanes(case: Case) -> set[str]:
    """The first lanes of the ways that are as good as the best one."""
    tried = list(every_way(case))
    if case.budget is not None:
        tried = [one for one in tried if one.usd <= case.budget] or tried
    horizon_s = math.inf if case.deadline_h is None else case.deadline_h * H
    tick_s = max(60.0, (case.deadline_h or 24) * H / TICKS)
    meeting = [one for one in tried if one.surely_s <= horizon_s + tick_s]
    if not meeting:
        soonest = min(one.ends_s for one in tried)
        return {one.lanes[0].lane for one in tried if one.ends_s <= soonest + 2 * tick_s}
    least = min(one.usd for one in meeting)
    same = [one for one in meeting if one.usd == least or one.usd <= least * 1.01]
    if case.here is not None:  # the one where it is, unless another is clearly cheaper
        stays = [
            one for one in meeting if one.lanes[0].lane == case.here and one.usd <= least / 0.95
        ]
        same = stays or same
    fewest = min(len(one.lanes) for one in same)
    return {one.lanes[0].lane for one in same if len(one.lanes) == fewest}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.what)
def test_auto_takes_what_an_exhaustive_comparison_takes(case: Case) -> None:
    """Of all ways through a job the choice begins the cheapest that surely meets the deadline, or
    else the soonest one."""
    deadline_at = None if case.deadline_h is None else NOW + case.deadline_h * H
    job = JobNow(case.here, case.left, deadline_at, usd_left=case.budget)
    choice = choose(job, [seen(one) for one in case.lanes], NOW, RULES)
    assert choice.lane in best_first_lanes(case), choice.why


def test_there_are_thirty_cases_and_nine_with_a_budget() -> None:
    """The table is as long as it says."""
    assert len({case.what for case in CASES}) == len(CASES)
    assert [
        sum(case.budget is None for case in CASES),
        sum(case.budget is not None for case in CASES),
    ] == [30, 9]


def test_a_choice_says_what_the_budget_had_to_do_with_it() -> None:
    """The lane that was not taken, what it would cost, and what is left; or that the job will
    pause."""
    lanes, job = [seen(BATCH), seen(API)], JobNow(None, 50_000, NOW + 2 * H, usd_left=40.0)
    choice = choose(job, lanes, NOW, RULES)
    assert choice.lane == "batch"
    assert choice.why.endswith(
        ". api would cost 50.00 USD, more than the 40.00 USD that are left of the budget"
    )
    assert choice.figures["budget_left_usd"] == 40.0
    none = choose(job._replace(usd_left=10.0), lanes, NOW, RULES)
    assert none.lane == "api"
    assert "more than the 10.00 USD that are left of the budget: the job will pause" in none.why
    assert "budget" not in choose(job._replace(usd_left=60.0), lanes, NOW, RULES).why


def test_what_a_batch_has_answered_is_not_paid_again_by_a_rescue() -> None:
    """Of 50,000 documents 20,000 are answered: 30 USD pay for the others in real time."""
    lanes = [seen(BATCH), seen(API)]
    job = JobNow("batch", 50_000, NOW + 2 * H, answered=20_000, usd_left=30.0)
    assert choose(job, lanes, NOW, RULES).lane == "api"
    assert choose(job._replace(answered=19_000), lanes, NOW, RULES).lane == "batch"


@pytest.mark.parametrize("trouble", ["", "no_workers", "stuck", "no_quota"])
@pytest.mark.parametrize("here", [None, "batch", "api"])
def test_without_a_deadline_the_real_time_price_is_never_paid(
    here: str | None, trouble: str
) -> None:
    """Whatever becomes of the batch lane, however dear it is, and wherever the job is."""
    batch = BATCH._replace(trouble=trouble, usd=5.0)
    choice = choose(JobNow(here, 1_000, None), [seen(API), seen(batch)], NOW, RULES)
    assert choice.lane == "batch"
    assert choice.meets is None


def test_a_job_that_names_its_order_may_pay_it() -> None:
    """`--lane batch --lanes batch,api` goes to real time where batch has no worker, and comes back
    to its first lane."""
    troubled = [seen(BATCH._replace(trouble="no_workers")), seen(API)]
    spill = choose(JobNow("batch", 1_000, None, by_order=True), troubled, NOW, RULES)
    assert (spill.lane, spill.reason) == ("api", "no_workers")
    assert spill.why == (
        "batch does not work; api has 600 documents a minute (by the case) and costs 0.50 USD more"
    )
    back = choose(JobNow("api", 1_000, None, by_order=True), [seen(BATCH), seen(API)], NOW, RULES)
    assert (back.lane, back.reason) == ("batch", "chosen")


def test_a_lane_whose_time_is_not_known_is_tried_while_another_can_still_do_all() -> None:
    """No batch has ended here yet: it is tried first, and left in time for the lane in real
    time."""
    lanes = [seen(BATCH._replace(batch_h=None)), seen(API)]
    first = choose(JobNow(None, 36_000, NOW + 4 * H), lanes, NOW, RULES)
    assert (first.lane, first.reason, first.meets) == ("batch", "chosen", True)
    assert "tried first, though how long it takes is not known" in first.why
    later = NOW + 3 * H
    rescue = choose(JobNow("batch", 36_000, NOW + 4 * H), lanes, later, RULES)
    assert (rescue.lane, rescue.reason) == ("api", "deadline")


def test_a_lane_that_was_left_because_of_the_deadline_is_not_tried_again() -> None:
    """A rescue that goes well leaves time again, and the batch that stood still would do so
    again."""
    lanes = [seen(BATCH._replace(batch_h=0.1)), seen(API)]
    job = JobNow("api", 1_000, NOW + 2 * H, left_late=frozenset({"batch"}))
    assert choose(job, lanes, NOW, RULES).lane == "api"
    # which has no margin any more
    assert choose(job._replace(left=75_000), lanes, NOW, RULES).lane == "api"
    assert choose(job._replace(left_late=frozenset()), lanes, NOW, RULES).lane == "batch"


def test_a_rescue_says_when_and_for_how_much() -> None:
    """The sentence names both lanes, the deadline, the speed and the money."""
    lanes = [seen(BATCH._replace(batch_h=7)), seen(API._replace(per_minute=1_900, usd=0.92))]
    choice = choose(JobNow("batch", 9_762, NOW + 5 * H), lanes, NOW, RULES)
    assert (choice.lane, choice.reason) == ("api", "deadline")
    before, after = choice.why.split("; ")
    assert before.startswith("batch ends about ")
    assert before.endswith(", 2 h after the deadline (by the case)")
    assert after == "api has 1,900 documents a minute (by the case) and costs 4.10 USD more"
    assert choice.figures["documents_left"] == 9_762
    assert choice.figures["deadline_in_s"] == 5 * H
    assert choice.figures["api.usd"] == pytest.approx(8.98104)


def test_the_last_moment_for_another_lane_is_said() -> None:
    """The batch that runs should end in time, but only time will show: by the next look real time
    would be late."""
    lanes = [
        LaneNow("batch", 0.0005, InBatches(2 * H, None, H / 2), "by the case", False),
        seen(API),
    ]
    job = JobNow("batch", 36_000, NOW + 1.25 * H + RULES.moving_s + RULES.look_s - 1)
    choice = choose(job, lanes, NOW, RULES)
    assert (choice.lane, choice.reason, choice.meets) == ("api", "deadline", True)
    assert choice.why.startswith(
        "batch has not ended, and api would be late if it began later than now; api has 600 "
        "documents"
    )
    assert choose(job._replace(answered=5_000), lanes, NOW, RULES).lane == "batch"
    waits = choose(job._replace(deadline_at=NOW + 2 * H), lanes, NOW, RULES)
    assert waits.lane == "batch"


def test_a_deadline_that_none_meets_is_said() -> None:
    """The lane that comes nearest is taken, and the sentence does not promise more."""
    choice = choose(JobNow(None, 100_000, NOW + 0.5 * H), [seen(BATCH), seen(API)], NOW, RULES)
    assert (choice.lane, choice.meets) == ("api", False)
    assert "No lane is expected to meet the deadline" in choice.why
    assert choice.why.endswith("api comes nearest")


def in_flex(usd: float, per_s: float) -> LaneNow:
    pace = OneByOne(per_s)
    return LaneNow("flex", usd, pace, "by the case", True, queue="api", tier="flex")


def test_flex_is_a_choice_of_its_own_between_batches_and_real_time() -> None:
    """Where batches would be late, the tier that costs as little and is in time; where it is too
    slow, it does a part first, and real time the rest at the last moment. Without a deadline no
    tier is paid for that may cost the full price, unless nothing else is permitted."""
    api = LaneNow("api", 0.001, OneByOne(50.0), "by the case", True)
    late_batch = LaneNow("batch", 0.0005, InBatches(4 * H), "by the case", False)
    lanes = [late_batch, in_flex(0.0005, 50.0), api]
    job = JobNow(None, 50_000, NOW + 2 * H)
    choice = choose(job, lanes, NOW, RULES)
    assert (choice.name, choice.lane, choice.tier, choice.meets) == ("flex", "api", "flex", True)
    assert "flex ends about" in choice.why
    assert choice.figures["flex.usd"] == 25.0
    early_batch = late_batch._replace(pace=InBatches(H / 2))
    assert choose(job, [early_batch, *lanes[1:]], NOW, RULES).name == "batch"

    slow = [late_batch, in_flex(0.0005, 2.0), api]
    begins = choose(job._replace(left=50_000), slow, NOW, RULES)
    assert (begins.name, begins.figures["then"]) == ("flex", "api")
    in_it = JobNow("flex", 50_000, NOW + RULES.margin * 50_000 / 50.0 + RULES.moving_s)
    ends = choose(in_it, slow, NOW, RULES)
    assert (ends.name, ends.lane, ends.tier, ends.reason) == ("api", "api", None, "deadline")

    tight = choose(job._replace(usd_left=30.0), [in_flex(0.0005, 50.0), api], NOW, RULES)
    assert tight.name == "flex"
    open_end = job._replace(deadline_at=None)
    assert choose(open_end, lanes, NOW, RULES).name == "batch"
    assert choose(open_end, lanes[1:], NOW, RULES).name == "flex"
