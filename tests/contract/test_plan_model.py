"""The model of `penstock plan` against what is known without it: closed forms of queues, windows
and samples."""

from __future__ import annotations

import random
import time

import pytest

from penstock_producer.accepting.sampling import extrapolated, share_of_largest
from penstock_producer.job.lanes import LANES
from penstock_producer.planning.flow import (
    PROVIDER,
    ROOM,
    SLOTS,
    Batches,
    Calls,
    Stage,
    batches_played,
    measured,
    played,
)
from penstock_producer.planning.sizing import (
    FEEDERS,
    MARGIN,
    ONE_CALL,
    READING,
    Fleet,
    Needs,
    Quota,
    sized,
    sized_batches,
)

SECOND = Calls((1.0,))
WIDE = Stage("wide", 1e9)


def test_a_limit_of_r_a_minute_takes_n_over_r_minutes() -> None:
    """A token bucket: 6,000 requests at 600 a minute take ten minutes and one latency."""
    course = played(6_000, 1_000, [Stage("600 requests a minute", 10.0)], SECOND)
    assert course.seconds == pytest.approx(601, abs=1)
    assert course.binding == "600 requests a minute"


def test_slots_are_littles_law() -> None:
    """50 slots of calls that take 2 s on average let 25 through a second, whatever the latencies
    scatter."""
    luck = random.Random(1)
    for latencies in ((2.0,), (1.0, 3.0), tuple(luck.expovariate(0.5) for _ in range(2_000))):
        mean = sum(latencies) / len(latencies)
        course = played(20_000, 50, [WIDE], Calls(latencies))
        assert course.per_second == pytest.approx(50 / mean, rel=0.03)
        assert course.seconds == pytest.approx(20_000 / 50 * mean, rel=0.05)
        assert course.binding == SLOTS


def test_the_narrowest_stage_decides() -> None:
    """Of several stages and the slots, the pace is that of the least."""
    stages = [Stage("a", 100.0), Stage("b", 40.0), Stage("c", 70.0)]
    course = played(8_000, 1_000, stages, SECOND)
    assert course.per_second == pytest.approx(40, rel=0.01)
    assert course.binding == "b"
    assert played(8_000, 30, stages, SECOND).per_second == pytest.approx(30, rel=0.01)


def test_calls_that_are_repeated_use_the_limit_up() -> None:
    """A fifth of the calls again: each document takes 1.25 calls of the limit, and few of four
    attempts fail."""
    course = played(8_000, 1_000, [Stage("limit", 100.0)], Calls((0.1,), again=0.2))
    assert course.calls == pytest.approx(8_000 * 1.248, rel=0.02)
    assert course.seconds == pytest.approx(8_000 * 1.248 / 100, rel=0.03)
    assert course.unanswered == pytest.approx(8_000 * 0.2**4, abs=12)


def test_the_slowest_answers_end_a_small_job() -> None:
    """Ten documents at once take as long as the longest of their calls, not as long as the mean."""
    course = played(10, 10, [WIDE], Calls((1.0, 1.0, 1.0, 1.0, 30.0)), seed=3)
    assert course.seconds == pytest.approx(30, abs=0.1)


def test_a_long_job_goes_on_at_the_pace_of_its_middle() -> None:
    """A hundred million documents are worked out in seconds, and take as long as arithmetic says,
    on small and large fleets."""
    began = time.process_time()
    for slots, rate in ((500, 1_000.0), (50_000, 100_000.0)):
        course = played(100_000_000, slots, [WIDE], Calls((0.5,)))
        assert course.seconds == pytest.approx(100_000_000 / rate, rel=0.02)
    assert time.process_time() - began < 20


def test_a_fleet_that_finds_out_begins_with_eight() -> None:
    """256 slots are open after five round trips; without that a job of one wave takes one
    latency."""
    assert played(256, 256, [WIDE], SECOND).seconds == pytest.approx(1, abs=0.01)
    assert played(256, 256, [WIDE], SECOND, ramps=True).seconds == pytest.approx(6, abs=0.01)


def test_the_same_seed_says_the_same() -> None:
    """And another one says nearly the same of many documents."""
    calls = Calls((0.1, 0.5, 3.0), again=0.1)
    one, same, other = (played(5_000, 40, [WIDE], calls, seed=seed) for seed in (1, 1, 2))
    assert one == same != other
    assert other.seconds == pytest.approx(one.seconds, rel=0.05)


@pytest.mark.parametrize(
    "wrong", [(0, 1, SECOND), (1, 0, SECOND), (1, 1, Calls(())), (1, 1, Calls((1.0,), again=1.0))]
)
def test_what_nothing_passes_through_is_refused(wrong: tuple[int, int, Calls]) -> None:
    """And not played for ever."""
    documents, slots, calls = wrong
    with pytest.raises(ValueError, match="needs"):
        played(documents, slots, [WIDE], calls)
    with pytest.raises(ValueError, match="stage 'shut'"):
        played(1, 1, [Stage("shut", 0.0)], SECOND)


# -- batches ---------------------------------------------------------------------------------------


def test_enqueued_tokens_make_rounds() -> None:
    """Room for two batches at once: ten of them take five times the provider's time, and one more
    look each."""
    given = Batches(1_000, 100, (600.0,), tokens_max=200_000, look_first_s=1.0, look_cap_s=1.0)
    course = batches_played(10_000, given)
    assert (course.batches, course.at_once, course.binding) == (10, 2, ROOM)
    assert course.seconds == pytest.approx(5 * 600, abs=10)
    free = batches_played(10_000, given._replace(tokens_max=None))
    assert free.seconds == pytest.approx(600, abs=2)
    assert (free.at_once, free.binding) == (10, PROVIDER)


def test_what_had_no_answer_is_a_round_more() -> None:
    """A tenth comes back each time: four attempts are four times the provider's time, and one in
    ten thousand is left."""
    course = batches_played(
        100_000, Batches(50_000, 1, (100.0,), again=0.1, look_first_s=1.0, look_cap_s=1.0)
    )
    assert (course.rounds, course.batches) == (4, 2 + 1 + 1 + 1)
    assert course.seconds == pytest.approx(4 * 100, abs=12)
    assert course.unanswered == pytest.approx(10, abs=12)


def test_a_batch_is_noticed_at_the_next_look() -> None:
    """With looks after 5, 12.5, 23.75 s and so on, a batch of 10 s is seen after 12.5 s."""
    assert batches_played(10, Batches(10, 1, (10.0,))).seconds == pytest.approx(12.5)


def test_a_batch_that_never_fits_is_refused() -> None:
    """One of more tokens than the account may have would wait for ever."""
    with pytest.raises(ValueError, match="more than the 500"):
        batches_played(100, Batches(10, 100, (1.0,), tokens_max=500))


def test_very_many_batches_are_not_held_in_memory() -> None:
    """A million million documents one by one, which one batch after another takes as long as they
    are many."""
    given = Batches(1, 1, (10.0,), tokens_max=1, look_first_s=10.0, look_cap_s=10.0)
    course = batches_played(10**12, given)
    assert course.batches == 10**12
    assert course.seconds == pytest.approx(10**13, rel=0.01)


# -- the size of a fleet ---------------------------------------------------------------------------


def test_a_fleet_is_made_for_the_time() -> None:
    """Ten million documents in ten hours with calls of 2 s: by Little's law some 600 slots, and all
    of it is in time."""
    needs = Needs(10_000_000, Calls((1.0, 3.0)), (Quota("requests", 1.0, None),), within_s=36_000.0)
    plan = sized(needs, Fleet(64), measured("api"))
    left = 36_000 - 2.5 - 10_000_000 * (19 + 17) / 1e6
    slots = 10_000_000 / left * 2
    assert slots <= plan.workers * 64 <= slots * 1.4
    assert plan.in_time is True
    assert sum(plan.phases.values()) == pytest.approx(plan.seconds)
    assert plan.quota_needed["requests"] == pytest.approx(10_000_000 / left * 60 / MARGIN, rel=0.01)


def test_a_limit_that_is_too_low_is_named_with_what_it_would_have_to_be() -> None:
    """More workers change nothing then, so there are not more of them than the limit feeds."""
    needs = Needs(1_000_000, SECOND, (Quota("requests", 1.0, 6_000.0),), within_s=3_600.0)
    plan = sized(needs, Fleet(256), measured("api"))
    assert (plan.in_time, plan.binding, plan.workers) == (False, "6,000 requests a minute", 1)
    assert plan.seconds == pytest.approx(1_000_000 / (100 * MARGIN) + 2.5 + 36, rel=0.01)
    assert plan.quota_needed["requests"] > 16_000
    assert "would bind" in plan.relief


def test_a_small_job_is_bound_by_the_time_of_a_call() -> None:
    """Twenty documents that are all asked at once wait for the model, not for the workers' CPU."""
    plan = sized(Needs(20, Calls((3.0,))), Fleet(256), measured("api"))
    assert (plan.binding, plan.per_second < 20) == (ONE_CALL, True)
    many = sized(Needs(100_000, Calls((3.0,))), Fleet(256, workers=1), measured("api"))
    assert many.binding == SLOTS


def test_reading_a_source_can_be_what_binds() -> None:
    """Where nothing is left of the time, the answer is several jobs, and not a million workers."""
    needs = Needs(100_000_000, Calls((0.01,)), within_s=1_800.0)
    plan = sized(needs, Fleet(1_000, workers=50, feeders=50), measured("api"))
    assert plan.in_time is False
    assert plan.binding != FEEDERS
    assert (
        sized(
            needs._replace(within_s=None), Fleet(1_000, workers=50, feeders=50), measured("api")
        ).workers
        == 50
    )
    assert READING


def test_engines_scale_with_workers() -> None:
    """20 documents a second in one worker, a thousand documents a second wanted: some fifty of
    them."""
    needs = Needs(3_600_000, SECOND, (), 20.0, within_s=3_900.0)
    plan = sized(needs, Fleet(256), measured("gpu"))
    assert 48 <= plan.workers <= 62
    assert (plan.in_time, plan.binding) == (True, "engines")


def test_batches_of_a_day_say_what_room_a_day_needs() -> None:
    """Where the account has too little room, the plan says how much a day would take."""
    needs = Needs(1_000_000, SECOND, within_s=2 * 86_400.0 + 600)
    given = Batches(10_000, 100, (86_400.0,), tokens_max=10_000_000)
    plan = sized_batches(needs, given, measured("batch"))
    assert (plan.in_time, plan.batches) == (False, 100)
    assert plan.seconds > 9 * 86_400
    assert plan.quota_needed["enqueued tokens"] == 50_000_000


def test_every_lane_has_its_figures_with_their_sources() -> None:
    """What a plan takes for granted names its unit, its day and where it is written down."""
    for lane in LANES:
        figures = measured(lane)
        assert {"survey_us", "feeder_us", "redis_us", "worker_us", "write_us", "start_s"} <= set(
            figures
        )
        for figure in figures.values():
            assert figure.value > 0
            assert figure.unit
            assert "measured on 20" in figure.source


# -- samples ---------------------------------------------------------------------------------------


def test_intervals_hold_the_sum_as_often_as_they_say() -> None:
    """30 samples of 100 from documents whose answers have a heavy tail: nine in ten intervals hold
    the sum, or nearly so."""
    luck = random.Random(7)
    all_of_it = [luck.lognormvariate(5, 0.8) for _ in range(20_000)]
    held = 0
    for seed in range(30):
        sample = random.Random(seed).sample(all_of_it, 100)
        found = extrapolated(
            [1.0] * 100, {"out": sample}, len(all_of_it), float(len(all_of_it)), seed=seed
        )["out"]
        assert found.low <= found.middle <= found.high
        held += found.low <= sum(all_of_it) <= found.high
    assert 24 <= held <= 29


def test_sizes_of_all_requests_sharpen_what_goes_with_them() -> None:
    """Prompt tokens go with bytes: their interval is a small part of what the sample's scatter
    alone would leave."""
    luck = random.Random(8)
    sizes = [luck.lognormvariate(6, 1.0) for _ in range(10_000)]
    tokens = [size / 4 * luck.uniform(0.95, 1.05) for size in sizes]
    drawn = luck.sample(range(10_000), 200)
    sample = {"in": [tokens[one] for one in drawn]}
    with_sizes = extrapolated([sizes[one] for one in drawn], sample, 10_000, sum(sizes))["in"]
    without = extrapolated([1.0] * 200, sample, 10_000, 10_000.0)["in"]
    assert with_sizes.low <= sum(tokens) <= with_sizes.high
    assert with_sizes.high - with_sizes.low < (without.high - without.low) / 5


def test_a_sample_of_all_leaves_nothing_open() -> None:
    """And one of no document says nothing."""
    found = extrapolated([1.0, 2.0, 3.0], {"cost": [1.0, 5.0, 9.0]}, 3, 6.0)["cost"]
    assert found == (15.0, 15.0, 15.0)
    assert extrapolated([], {"cost": []}, 10, 1.0) == {}


def test_heavy_tails_are_seen() -> None:
    """One document in a hundred that makes half of the sum, and a hundred alike."""
    assert share_of_largest([1.0] * 99 + [99.0]) == pytest.approx(0.5)
    assert share_of_largest([1.0] * 100) == pytest.approx(0.01)
    assert share_of_largest([0.0]) == 0.0
