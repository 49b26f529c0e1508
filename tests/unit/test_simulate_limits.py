"""The simulated provider's limits, with the clock in the test's hands."""

from __future__ import annotations

import math
import random

import pytest

from penstock_cli.simulate.limits import ContinuousBucket, Limits, MinuteWindow, go_duration, make_limits


def admitted(limits: Limits, times: list[float], tokens: int = 1) -> int:
    return sum(limits.admit(tokens, now) is None for now in times)


def test_a_bucket_never_admits_more_than_its_rate_and_depth() -> None:
    """In every interval of a random hour, admitted calls stay within rate x time + depth, and the rate is reached."""
    rng = random.Random(7)
    limits = make_limits(600, None, window="bucket", depth_s=2, charge_failed=False)
    now, starts = 0.0, []
    for _ in range(20_000):
        now += rng.expovariate(25)
        if limits.admit(1, now) is None:
            starts.append(now)
    assert len(starts) == pytest.approx(10 * now + 20, rel=0.01)
    for first in range(0, len(starts), 37):
        for last in range(first, min(first + 400, len(starts)), 13):
            assert last - first + 1 <= 10 * (starts[last] - starts[first]) + 20 + 1e-6


def test_the_wait_that_is_announced_is_exact() -> None:
    """A client that comes back after the announced wait gets in; one that comes a millisecond earlier does not."""
    limits = make_limits(60, None, window="bucket", depth_s=1, charge_failed=False)
    assert limits.admit(0, 100.0) is None
    over = limits.admit(0, 100.25)
    assert over is not None
    assert over.wait_s == pytest.approx(0.75)
    assert limits.admit(0, 100.25 + over.wait_s - 0.001) is not None
    assert limits.admit(0, 100.25 + over.wait_s) is None


def test_refused_calls_use_up_requests() -> None:
    """With failed calls charged, a client that hammers stays locked out; without, it gets its rate."""
    hammering = [at / 10 for at in range(600)]
    charged = make_limits(60, None, window="bucket", depth_s=1, charge_failed=True)
    free = make_limits(60, None, window="bucket", depth_s=1, charge_failed=False)
    assert admitted(charged, hammering) == 1
    assert admitted(free, hammering) == 60


def test_requests_and_tokens_are_taken_together_or_not_at_all() -> None:
    """A call that its tokens turn away leaves the tokens as they were, and says which limit it met."""
    limits = make_limits(600, 6_000, window="bucket", depth_s=1)
    assert limits.admit(60, 0.0) is None
    over = limits.admit(60, 0.0)
    assert over is not None
    assert (over.dimension, over.wait_s) == ("tokens", pytest.approx(0.2))
    assert limits.headers(0.0)["x-ratelimit-remaining-tokens"] == "40"
    assert limits.headers(0.0)["x-ratelimit-remaining-requests"] == "8"


def test_a_request_above_the_limit_never_fits() -> None:
    """More tokens than the bucket can ever hold is told apart from a wait."""
    assert ContinuousBucket(60_000, 1).wait_s(1_001, 0.0) == math.inf
    assert MinuteWindow(1_000).wait_s(1_001, 0.0) == math.inf


def test_a_minute_window_is_full_again_at_each_minute() -> None:
    """A fixed window lets a whole minute's budget through at once, then nothing until the minute is over."""
    limits = make_limits(5, None, window="minute", depth_s=1)
    assert admitted(limits, [30.0] * 7) == 5
    over = limits.admit(1, 50.0)
    assert over is not None
    assert over.wait_s == pytest.approx(40)
    assert admitted(limits, [90.0] * 7) == 5
    assert admitted(limits, [400.0] * 7) == 5


def test_headers_follow_the_providers_arithmetic() -> None:
    """A bucket one minute deep shows what OpenAI's posted headers show: limit 5000, one used, 12 ms to full."""
    limits = make_limits(5_000, 160_000, window="bucket", depth_s=60)
    limits.admit(24, 0.0)
    assert limits.headers(0.0) == {
        "x-ratelimit-limit-requests": "5000",
        "x-ratelimit-remaining-requests": "4999",
        "x-ratelimit-reset-requests": "12ms",
        "x-ratelimit-limit-tokens": "160000",
        "x-ratelimit-remaining-tokens": "159976",
        "x-ratelimit-reset-tokens": "9ms",
    }
    assert make_limits(None, None, window="bucket", depth_s=60).headers(0.0) == {}


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0, "0s"),
        (0.0001, "1ms"),
        (0.12, "120ms"),
        (1, "1s"),
        (1.5, "1.5s"),
        (90, "1m30s"),
        (252.172, "4m12.172s"),
        (360, "6m0s"),
        (3602, "1h0m2s"),
    ],
)
def test_durations_are_written_as_go_does(seconds: float, shown: str) -> None:
    """Reset headers read like OpenAI's."""
    assert go_duration(seconds) == shown
