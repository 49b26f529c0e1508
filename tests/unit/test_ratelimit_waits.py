"""Backoff, Retry-After and estimates: pure functions of what is passed in."""

from __future__ import annotations

import random
from email.utils import formatdate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_ratelimit import Estimator, full_jitter, parse_retry_after
from penstock_ratelimit.estimate import MAX_KEYS, MAX_RATIO
from penstock_ratelimit.limits import MAX_PAUSE_S

NOW = 1_800_000_000.0


@given(attempt=st.integers(0, 10_000), seed=st.integers())
def test_jitter_stays_between_zero_and_the_doubled_base(attempt: int, seed: int) -> None:
    """Retry n waits at most base * 2**n, and never more than the cap, however large n is."""
    wait_s = full_jitter(attempt, base_s=0.5, cap_s=60.0, rng=random.Random(seed))
    assert 0 <= wait_s <= min(60.0, 0.5 * 2.0 ** min(attempt, 50))


def test_jitter_uses_the_whole_range() -> None:
    """Waits run evenly from nothing to everything: a fleet that failed together does not come back together."""
    rng = random.Random(1)
    waits = [full_jitter(3, base_s=1.0, rng=rng) for _ in range(10_000)]
    assert min(waits) < 0.01
    assert max(waits) > 7.99
    assert sum(waits) / len(waits) == pytest.approx(4.0, abs=0.1)


@pytest.mark.parametrize(("attempt", "base_s", "cap_s"), [(-1, 1, 1), (0, -1, 1), (0, 1, -1), (0, float("nan"), 1)])
def test_jitter_refuses_what_makes_no_sense(attempt: int, base_s: float, cap_s: float) -> None:
    """A negative attempt, base or cap is a mistake of the caller."""
    with pytest.raises(ValueError, match="none of them can be negative"):
        full_jitter(attempt, base_s, cap_s)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "2"}, 2.0),
        ({"Retry-After": " 2 "}, 2.0),
        ({"RETRY-AFTER": "0.25"}, 0.25),
        ({"retry-after-ms": "125", "retry-after": "60"}, 0.125),
        ({"retry-after-ms": "soon", "retry-after": "60"}, 60.0),
        ({"retry-after": "0"}, 0.0),
        ({"retry-after": "-5"}, 0.0),
        ({"retry-after": formatdate(NOW + 30, usegmt=True)}, 30.0),
        ({"retry-after": formatdate(NOW - 30, usegmt=True)}, 0.0),
        ({"retry-after": "Fri, 15 Jan 2027 08:00:30"}, 30.0),
        ({"retry-after": "Fri, 15 Jan 9999 08:00:30 GMT"}, MAX_PAUSE_S),
        ({"retry-after": "36000"}, 36_000.0),
        ({"retry-after": "1e300"}, MAX_PAUSE_S),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": ""}, None),
        ({"retry-after": "please wait"}, None),
        ({"retry-after": "99 Foo 99999 99:99:99"}, None),
    ],
)
def test_retry_after_in_all_its_forms(headers: dict[str, str], seconds: float | None) -> None:
    """Milliseconds, seconds and dates are read; the past is now, the absurd is a day, garbage says nothing."""
    assert parse_retry_after(headers, NOW) == (seconds if seconds is None else pytest.approx(seconds))


@given(value=st.text(), name=st.sampled_from(["retry-after", "retry-after-ms"]))
def test_no_header_breaks_the_reader(value: str, name: str) -> None:
    """Whatever a provider sends, the answer is a bounded wait or nothing."""
    seconds = parse_retry_after({name: value}, NOW)
    assert seconds is None or 0 <= seconds <= MAX_PAUSE_S


def test_the_first_estimate_is_four_characters_a_token() -> None:
    """Before anything was observed, 4,000 characters are 1,000 tokens, and nothing is ever free."""
    estimator = Estimator()
    assert estimator.estimate("job", 4000) == 1000
    assert estimator.estimate("job", 0) == 1


def test_the_first_observation_replaces_the_guess_and_later_ones_average() -> None:
    """The ratio is the plain mean at first, and an average of about the last twenty later."""
    estimator = Estimator()
    estimator.observe("job", 4000, 2000)
    assert estimator.estimate("job", 4000) == pytest.approx(2000)
    estimator.observe("job", 4000, 4000)
    assert estimator.estimate("job", 4000) == pytest.approx(3000)
    for _ in range(200):
        estimator.observe("job", 4000, 500)
    assert estimator.estimate("job", 4000) == pytest.approx(500, rel=0.01)
    assert estimator.estimate("another", 4000) == 1000


def test_nonsense_does_not_poison_the_ratio() -> None:
    """Reports of nothing or of the impossible are ignored or bounded."""
    estimator = Estimator()
    for chars, tokens in [(0, 10), (-4, 10), (4, -1), (4, float("nan"))]:
        estimator.observe("job", chars, tokens)
    assert estimator.estimate("job", 4000) == 1000
    estimator.observe("job", 4, 10**12)
    assert estimator.estimate("job", 4000) == 1000 * MAX_RATIO


def test_the_estimator_forgets_the_oldest_key() -> None:
    """However many jobs pass by, memory stays bounded."""
    estimator = Estimator()
    for job in range(MAX_KEYS + 1):
        estimator.observe(job, 4000, 2000)
    assert estimator.estimate(0, 4000) == 1000
    assert estimator.estimate(1, 4000) == 2000
