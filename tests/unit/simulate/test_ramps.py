"""The simulated provider's ramp detector, with the clock in the test's hands."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock_simulate.capacity import RampDetector


def refused(
    detector: RampDetector, per_s: Callable[[float], float], seconds: float, start: float = 100.0
) -> int:
    """Send evenly at a rate that may change; how many calls were refused.

    A refused one is not sent again."""
    now, turned_away = start, 0
    while now < start + seconds:
        if detector.wait_s(now) > 0:
            turned_away += 1
        else:
            detector.accepted()
        now += 1 / per_s(now - start)
    return turned_away


def test_growth_below_the_allowed_one_passes() -> None:
    """Doubling every 10 s passes a detector that allows a bit more than that, over eight
    doublings."""
    detector = RampDetector(percent=115, within_s=10, free_rpm=600)
    assert refused(detector, lambda t: 10 * 2 ** (t / 10), 80) == 0


def test_growth_above_the_allowed_one_is_refused() -> None:
    """Doubling every 4 s does not pass where 10 s are asked for."""
    detector = RampDetector(percent=115, within_s=10, free_rpm=600)
    assert refused(detector, lambda t: 10 * 2 ** (t / 4), 20) > 50


def test_a_jump_is_refused_until_the_accepted_rate_has_grown() -> None:
    """From 10/s to 100/s: in the first span only twice the old rate passes, each span twice as
    much, then all of it."""
    detector = RampDetector(percent=100, within_s=10, free_rpm=60)
    assert refused(detector, lambda _: 10, 60, start=0) > 0  # its own start is a jump, too
    first = refused(detector, lambda _: 100, 10, start=60)
    assert first == pytest.approx(800, abs=15)
    assert refused(detector, lambda _: 100, 40, start=70) < 1_500
    assert refused(detector, lambda _: 100, 20, start=110) == 0


def test_below_the_free_rate_nothing_is_too_steep() -> None:
    """A start from nothing may use the free rate at once."""
    detector = RampDetector(percent=50, within_s=60, free_rpm=600)
    assert refused(detector, lambda _: 10, 120) == 0


def test_after_a_long_pause_the_ramp_starts_over() -> None:
    """A gap of half a span changes nothing; after two spans without traffic the old rate counts for
    nothing."""
    detector = RampDetector(percent=200, within_s=10, free_rpm=60)
    assert refused(detector, lambda t: 2 ** (t / 10), 50, start=0) == 0
    assert refused(detector, lambda _: 30, 20, start=55) == 0
    assert refused(detector, lambda _: 30, 5, start=96) > 100


def test_the_wait_leads_to_the_next_slot() -> None:
    """A client that comes back after the wait is measured anew; a little earlier is too early."""
    detector = RampDetector(percent=100, within_s=10, free_rpm=60)
    for _ in range(2):
        assert detector.wait_s(100.25) == 0
        detector.accepted()
    wait_s = detector.wait_s(100.25)
    assert wait_s == pytest.approx(0.75)
    assert detector.wait_s(100.25 + wait_s - 0.01) > 0
    assert detector.wait_s(100.25 + wait_s) == 0
