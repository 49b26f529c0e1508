"""Adaptive concurrency against servers that are played in virtual time: what moves the limit, and
what must not."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from penstock_ratelimit.provider.refusals import Signal
from penstock_ratelimit.shared.concurrency import AdaptiveConcurrency
from penstock_ratelimit.strays import GOOD_PER_STRAY


@dataclass
class Bench:
    """A control with a clock of its own, and a way to answer many requests at once."""

    now: float = 0.0
    maximum: int = 256

    def __post_init__(self) -> None:
        self.control = AdaptiveConcurrency(maximum=self.maximum, clock=lambda: self.now)

    def round(
        self, latency_s: float = 1.0, *, in_flight: int | None = None, tokens: float = 100.0
    ) -> None:
        """As many requests as may be in flight are sent together and answered well."""
        count = self.control.limit if in_flight is None else in_flight
        for _ in range(count):
            self.control.started()
        self.now += latency_s
        for _ in range(count):
            self.control.finished(Signal.OK, latency_s, tokens)

    def fail(self, signal: Signal, latency_s: float = 0.5, times: int = 1) -> None:
        for _ in range(times):
            self.control.started()
            self.control.finished(signal, latency_s, 0.0)


def grown(bench: Bench, rounds: int = 12) -> int:
    for _ in range(rounds):
        bench.round()
    return bench.control.limit


def test_it_starts_small_and_doubles_while_more_brings_more() -> None:
    """A server that answers any number in the same time is used up to the maximum within some
    windows."""
    bench = Bench(maximum=200)
    assert bench.control.limit == 8
    assert grown(bench) >= 64
    assert grown(bench, 20) == 200


@pytest.mark.parametrize(("start", "first", "then"), [(32, 32, 64), (1, 1, 2), (900, 64, 64)])
def test_it_starts_with_what_it_is_given(start: int, first: int, then: int) -> None:
    """Never above the maximum; and it doubles from there."""
    bench = Bench(maximum=64)
    bench.control = AdaptiveConcurrency(maximum=64, clock=lambda: bench.now, start=start)
    assert bench.control.limit == first
    assert grown(bench, 1) == then


def test_a_saturated_server_stops_the_growth() -> None:
    """When twice as many take twice as long, the limit stays near where goodput stopped rising."""
    bench = Bench()
    for _ in range(40):
        bench.round(latency_s=max(1.0, bench.control.limit / 32))
    assert 32 <= bench.control.limit <= 110


def test_a_worker_that_is_slower_than_its_server_is_not_held_back() -> None:
    """Each item costs the worker more time than the server: that goodput does not rise says nothing
    of the server."""
    bench = Bench()
    for turn in range(2_000):
        for _ in range(bench.control.limit):
            bench.control.started()
        bench.now += bench.control.limit * (0.0010 + 0.0002 * (turn % 3))
        for _ in range(bench.control.limit):
            bench.control.finished(Signal.OK, 0.0001, 100.0)
    assert bench.control.limit == bench.maximum


@pytest.mark.parametrize("signal", [Signal.OVERLOADED, Signal.THROTTLED])
def test_an_episode_of_refusals_cuts_once(signal: Signal) -> None:
    """A hundred refusals of requests that were sent together take off 30 %, not all of it."""
    bench = Bench()
    before = grown(bench)
    bench.now += 1.0
    bench.fail(signal, times=100)
    assert bench.control.limit == int(before * 0.7)


def test_refusals_of_what_was_sent_after_the_cut_cut_again() -> None:
    """The next episode is of requests that knew the lower limit."""
    bench = Bench()
    before = grown(bench)
    for _ in range(2):
        bench.now += 1.0
        bench.fail(Signal.OVERLOADED, times=before // GOOD_PER_STRAY + 1)
    assert bench.control.limit == pytest.approx(before * 0.49, abs=1.5)


@pytest.mark.parametrize("signal", [Signal.OVERLOADED, Signal.THROTTLED])
def test_a_stray_refusal_neither_cuts_nor_slows_the_growth(signal: Signal) -> None:
    """One refusal in twenty answers leaves a limit that doubles to double; the second of the same
    flight cuts it."""
    bench = Bench(maximum=1000)
    for _ in range(2):
        bench.round()
    assert (bench.control.limit, bench.control.climbing) == (32, True)
    bench.fail(signal)
    bench.round()
    assert (bench.control.limit, bench.control.climbing) == (64, True)
    bench.now += 1.0
    bench.fail(signal, times=2)
    # 0.7 of 64: 32 answers were good, so the first was stray and the second was not
    assert bench.control.limit == 44
    assert not bench.control.climbing


def test_a_demand_to_grow_more_gently_is_never_stray() -> None:
    """`slow_down` cuts at once, however many good answers came before it."""
    bench = Bench()
    before = grown(bench)
    bench.now += 1.0
    bench.fail(Signal.RAMP)
    assert bench.control.limit == int(before * 0.7)


def test_256_slots_are_filled_in_five_round_trips() -> None:
    """The ramp follows the answers: at 200 ms per call 8 in flight are 256 after one second, not
    after five."""
    bench = Bench(maximum=256)
    limits = []
    for _ in range(5):
        bench.round(latency_s=0.2)
        limits.append(bench.control.limit)
    assert limits == [16, 32, 64, 128, 256]
    assert bench.now == pytest.approx(1.0)


def test_one_round_trip_without_a_gain_does_not_end_the_climb() -> None:
    """A window as short as a round trip wavers: only when doubling did not pay twice in a row does
    the limit stop doubling."""
    bench = Bench()
    bench.round()
    bench.round(latency_s=2.0)
    assert (bench.control.limit, bench.control.climbing) == (16, True)
    bench.round()
    assert (bench.control.limit, bench.control.climbing) == (32, True)
    bench.round(latency_s=2.0)
    bench.round(latency_s=2.0)
    assert (bench.control.limit, bench.control.climbing) == (32, False)


def test_a_lone_failure_says_nothing_and_a_run_of_them_halves() -> None:
    """One 500 among good answers leaves the limit; three in a row do not."""
    bench = Bench()
    before = grown(bench)
    bench.fail(Signal.TRANSIENT)
    bench.control.started()
    bench.control.finished(Signal.OK, 1.0, 100.0)
    bench.fail(Signal.TRANSIENT, times=2)
    assert bench.control.limit >= before
    bench.fail(Signal.TRANSIENT)
    assert bench.control.limit <= before / 2 + 1


def test_nothing_grows_while_little_is_in_flight() -> None:
    """Three requests at a time prove nothing about a limit of eight."""
    bench = Bench()
    for _ in range(200):
        bench.round(in_flight=3)
    assert bench.control.limit == 8


def test_a_queue_at_the_server_takes_some_off() -> None:
    """vLLM's own gauges: 20 waiting behind 100 are too many, five are not; asked again too soon
    says nothing new."""
    bench = Bench()
    before = grown(bench)
    bench.control.gauge(running=100, waiting=5)
    assert bench.control.limit == before
    for _ in range(3):
        bench.control.gauge(running=100, waiting=20)
    assert bench.control.limit == int(before * 0.85)


def test_answers_that_take_three_times_as_long_per_token_show_a_queue() -> None:
    """Others at the same server filled its queue: this process gives way, without any refusal."""
    bench = Bench()
    before = grown(bench)
    for _ in range(4):
        bench.round(latency_s=8.0)
    assert bench.control.limit < before


def test_answers_within_a_quarter_of_a_second_are_no_queue() -> None:
    """A lane that answers in microseconds wavers by the worker's own steps: cut for them, a fleet
    went on one by one."""
    bench = Bench()
    for latency_s in [0.002] * 40 + [0.2, 0.002] * 40:
        bench.round(latency_s)
    assert bench.control.limit == bench.maximum


def test_longer_answers_are_not_a_queue() -> None:
    """Ten times the tokens in ten times the time is the same pace."""
    bench = Bench()
    before = grown(bench)
    for _ in range(4):
        bench.round(latency_s=10.0, tokens=1000.0)
    assert bench.control.limit >= before


def test_it_never_leaves_its_bounds() -> None:
    """However bad it gets, one request may be in flight; however good, no more than the maximum."""
    bench = Bench(maximum=10)
    assert grown(bench, 30) == 10
    for _ in range(50):
        bench.now += 10.0
        bench.fail(Signal.OVERLOADED)
    assert bench.control.limit == 1
    assert grown(bench, 60) > 1
