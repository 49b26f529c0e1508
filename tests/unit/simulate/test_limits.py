"""The simulated provider's limits, with the clock in the test's hands."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest

from penstock_simulate.capacity import ContinuousBucket, FixedWindow, Meter
from penstock_simulate.config import SimulatorConfig
from penstock_simulate.limits import KeyLimits, charge


def limited(**config: Any) -> KeyLimits:
    return KeyLimits(SimulatorConfig(**config))


def admitted(limits: KeyLimits, times: list[float], tokens: int = 1) -> int:
    return sum(limits.admit(charge(1, tokens, 0), now) is None for now in times)


def test_a_bucket_never_admits_more_than_its_rate_and_depth() -> None:
    """In every interval of a random hour, admitted calls stay within rate x time + depth, and the
    rate is reached."""
    rng = random.Random(7)
    limits = limited(rpm=600, depth_s=2, charge_failed=False)
    now, starts = 0.0, []
    for _ in range(20_000):
        now += rng.expovariate(25)
        if limits.admit(charge(1, 1, 0), now) is None:
            starts.append(now)
    assert len(starts) == pytest.approx(10 * now + 20, rel=0.01)
    for first in range(0, len(starts), 37):
        for last in range(first, min(first + 400, len(starts)), 13):
            assert last - first + 1 <= 10 * (starts[last] - starts[first]) + 20 + 1e-6


def test_the_wait_that_is_announced_is_exact() -> None:
    """A client that comes back after the announced wait gets in; one that comes a millisecond
    earlier does not."""
    limits = limited(rpm=60, depth_s=1, charge_failed=False)
    assert limits.admit(charge(1, 0, 0), 100.0) is None
    over = limits.admit(charge(1, 0, 0), 100.25)
    assert over is not None
    assert over.wait_s == pytest.approx(0.75)
    assert limits.admit(charge(1, 0, 0), 100.25 + over.wait_s - 0.001) is not None
    assert limits.admit(charge(1, 0, 0), 100.25 + over.wait_s) is None


def test_refused_calls_use_up_requests() -> None:
    """With failed calls charged, a client that hammers stays locked out; without, it gets its
    rate."""
    hammering = [at / 10 for at in range(600)]
    charged = limited(rpm=60, depth_s=1)
    free = limited(rpm=60, depth_s=1, charge_failed=False)
    assert admitted(charged, hammering) == 1
    assert admitted(free, hammering) == 60


def test_requests_and_tokens_are_taken_together_or_not_at_all() -> None:
    """A call that its tokens turn away leaves the tokens as they were, and says which limit it
    met."""
    limits = limited(rpm=600, tpm=6_000, depth_s=1)
    assert limits.admit(charge(1, 60, 0), 0.0) is None
    over = limits.admit(charge(1, 60, 0), 0.0)
    assert over is not None
    assert (over.dimension, over.wait_s) == pytest.approx(("tokens", 0.2))
    assert [meter.available(0.0) for meter in limits.meters.values()] == [8, 40]


def test_a_request_above_the_limit_never_fits() -> None:
    """More tokens than the bucket can ever hold is refused for good, and not asked to wait."""
    assert ContinuousBucket(1_000, 1).wait_s(1_001, 0.0) == math.inf
    assert FixedWindow(100, 10).wait_s(1_001, 0.0) == math.inf


def test_a_minute_window_is_full_again_at_each_minute() -> None:
    """A fixed window lets a whole minute's budget through at once, then nothing until the minute is
    over."""
    limits = limited(rpm=5, window="minute")
    assert admitted(limits, [30.0] * 7) == 5
    over = limits.admit(charge(1, 1, 0), 50.0)
    assert over is not None
    assert over.wait_s == pytest.approx(40)
    assert admitted(limits, [90.0] * 7) == 5
    assert admitted(limits, [400.0] * 7) == 5


@pytest.mark.parametrize(("depth_s", "at_once"), [(1, 10), (10, 100), (60, 600)])
def test_a_bucket_is_as_deep_as_asked_for(depth_s: float, at_once: int) -> None:
    """A full bucket lets its depth through at once, then its rate."""
    limits = limited(rpm=600, depth_s=depth_s, charge_failed=False)
    assert admitted(limits, [5.0] * 700) == at_once
    assert admitted(limits, [5.5] * 20) == 5


def test_a_ten_second_window_holds_a_sixth_of_the_minute() -> None:
    """Azure's window: the budget of ten seconds, whole again at each tenth second."""
    limits = limited(rpm=60, window="10s", charge_failed=False)
    assert admitted(limits, [100.0 + at / 10 for at in range(100)]) == 10
    assert admitted(limits, [110.0] * 20) == 10


def test_requests_and_tokens_may_have_windows_of_their_own() -> None:
    """With tokens by the minute, ten seconds later requests are there again and tokens are not."""
    limits = limited(rpm=60, tpm=300, window="10s", tokens_window="minute", charge_failed=False)
    assert admitted(limits, [0.0] * 9, tokens=40) == 7
    over = limits.admit(charge(1, 40, 0), 10.0)
    assert over is not None
    assert (over.dimension, over.wait_s) == ("tokens", 50)


def test_input_and_output_are_limited_apart() -> None:
    """Each is charged for its own part only, and the refusal names the one that is short."""
    limits = limited(itpm=6_000, otpm=600, depth_s=1)
    assert limits.admit(charge(1, 90, 5), 0.0) is None
    over = limits.admit(charge(1, 5, 6), 0.0)
    assert over is not None
    assert (over.dimension, over.limit, over.cost) == ("output_tokens", 600, 6)
    assert limits.meters["input_tokens"].available(0.0) == 10


def test_a_daily_limit_refills_over_the_day() -> None:
    """A day's requests can go at once; one more is there after its share of the day."""
    limits = limited(rpd=100, charge_failed=False)
    assert admitted(limits, [0.0] * 150) == 100
    over = limits.admit(charge(1, 0, 0), 0.0)
    assert over is not None
    assert over.wait_s == pytest.approx(864)


def test_what_is_given_back_at_the_end_can_be_used_again() -> None:
    """A correction happens when it is due, not before."""
    limits = limited(tpm=6_000, depth_s=10)
    assert limits.admit(charge(1, 0, 1_000), 0.0) is None
    limits.correct(charge(0, 0, -900), 2.0)
    limits.catch_up(1.9)
    assert limits.meters["tokens"].available(1.9) == pytest.approx(190)
    limits.catch_up(2.0)
    # full: what does not fit is lost
    assert limits.meters["tokens"].available(2.0) == pytest.approx(1_000)


@pytest.mark.parametrize("window", ["bucket", "minute"])
def test_output_is_charged_evenly_while_it_is_produced(window: str) -> None:
    """Half of the time, half of the output; two answers at once drain twice as fast; at the end all
    of it is used."""
    limits = limited(otpm=6_000, depth_s=60, window=window)
    meter = limits.meters["output_tokens"]

    def used(now: float) -> float:
        return limits.stats(now)["output_tokens"]["accepted"]

    assert limits.admit(charge(1, 50, 0), 0.0) is None
    limits.produce(3_000, 0.0, 10.0)
    assert used(5.0) == pytest.approx(1_500)
    limits.produce(1_000, 5.0, 10.0)
    assert used(6.0) == pytest.approx(2_000)
    assert (used(10.0), used(20.0)) == pytest.approx((4_000, 4_000))
    assert limits.stats(20.0)["output_tokens"]["peak_1s"] == pytest.approx(300 + 200)
    assert meter.drain == 0


def test_an_output_limit_in_debt_lets_nothing_start() -> None:
    """Answers that run are not stopped by their output; the next call waits until the debt is
    paid."""
    limits = limited(otpm=600, depth_s=1)
    assert limits.admit(charge(1, 5, 0), 0.0) is None
    limits.produce(100, 0.0, 1.0)
    over = limits.admit(charge(1, 5, 0), 1.0)
    assert over is not None
    assert over.wait_s == pytest.approx((100 - 10 - 10) / 10)
    assert limits.admit(charge(1, 5, 0), 1.0 + over.wait_s) is None


def test_production_in_a_fixed_window_counts_where_it_falls() -> None:
    """An answer across the border of two windows is charged to each for its part."""
    limits = limited(otpm=600, window="10s")
    limits.admit(charge(1, 0, 0), 0.0)
    limits.produce(80, 6.0, 14.0)
    limits.catch_up(10.0)
    assert limits.meters["output_tokens"].available(9.999) == pytest.approx(60, abs=0.1)
    assert limits.meters["output_tokens"].available(10.0) == pytest.approx(100)
    limits.catch_up(20.0)
    assert limits.stats(14.0)["output_tokens"]["accepted"] == pytest.approx(80)


@pytest.mark.parametrize("make", [lambda: ContinuousBucket(10, 60), lambda: FixedWindow(10, 60)])
def test_another_rate_holds_at_once_and_keeps_what_is_used(make: Any) -> None:
    """Halved, a limit offers half of what it did, less what is used; no client gets a fresh
    budget."""
    meter: Meter = make()
    meter.take(350, 0.0)
    meter.change(5, 0.0)
    assert meter.rate == 5
    assert meter.available(0.0) <= 250
    assert meter.wait_s(301, 0.0) == math.inf
    assert meter.wait_s(300, 0.0) > 0


def test_limits_change_while_calls_are_coming() -> None:
    """Half the rate from the change on, a limit that was not there before, and none where it is
    taken away."""
    limits = limited(rpm=600, depth_s=1, charge_failed=False)
    ticks = [at / 50 for at in range(500)]
    assert admitted(limits, ticks) == pytest.approx(10 + 99, abs=2)
    limits.change(SimulatorConfig(rpm=300, tpm=600, depth_s=1, charge_failed=False), 10.0)
    assert admitted(limits, [10 + at for at in ticks]) == pytest.approx(50, abs=3)
    assert list(limits.meters) == ["requests", "tokens"]
    limits.change(SimulatorConfig(tpm=600, depth_s=1), 20.0)
    assert list(limits.meters) == ["tokens"]


@pytest.mark.parametrize("seed", [1, 2])
def test_foreign_traffic_takes_exactly_its_share(seed: int) -> None:
    """A client that does not wait gets the rest, in every dimension, and the accounts tell the two
    apart."""
    limits = limited(
        rpm=600, tpm=60_000, depth_s=2, foreign_share=0.3, seed=seed, charge_failed=False
    )
    got = admitted(limits, [at / 40 for at in range(40 * 300)], tokens=10)
    assert got == pytest.approx(0.7 * 3_000, rel=0.05)
    stats = limits.stats(300.0)
    assert stats["requests"]["accepted"] == got
    assert stats["requests"]["used_by_foreign"] == pytest.approx(0.3 * 3_000, rel=0.08)
    assert stats["tokens"]["used_by_foreign"] == pytest.approx(0.3 * 300_000, rel=0.08)


def test_foreign_traffic_is_the_same_for_a_seed_and_ends_with_its_share() -> None:
    """Two providers with one seed feel the same load; set to nothing, the load stops."""
    one, two = (limited(rpm=600, foreign_share=0.5, seed=9) for _ in range(2))
    for limits in (one, two):
        limits.catch_up(0.0)
    assert one.stats(60.0) == two.stats(60.0)
    one.change(SimulatorConfig(rpm=600), 60.0)
    before = one.stats(61.0)["requests"]["used_by_foreign"]
    assert before > 200
    assert one.stats(500.0)["requests"]["used_by_foreign"] == before


def test_the_accounts_tell_utilisation_and_the_peak() -> None:
    """Accepted units without those of refused calls, and the most of any second."""
    limits = limited(rpm=60, tpm=6_000, depth_s=10)
    assert admitted(limits, [0.0, 0.5, 0.9, 1.6, 1.7], tokens=100) == 5
    assert admitted(limits, [2.0], tokens=5_000) == 0
    requests, tokens = (limits.stats(2.0)[name] for name in ("requests", "tokens"))
    assert (requests["accepted"], requests["used_by_refused"], requests["peak_1s"]) == (5, 1, 3)
    assert (tokens["accepted"], tokens["per_s"], tokens["peak_1s"]) == (500, 100, 300)
