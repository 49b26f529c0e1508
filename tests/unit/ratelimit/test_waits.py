"""Backoff: a pure function of what is passed in."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_ratelimit import full_jitter


@given(attempt=st.integers(0, 10_000), seed=st.integers())
def test_jitter_stays_between_zero_and_the_doubled_base(attempt: int, seed: int) -> None:
    """Retry n waits at most base * 2**n, and never more than the cap, however large n is."""
    wait_s = full_jitter(attempt, base_s=0.5, cap_s=60.0, rng=random.Random(seed))
    assert 0 <= wait_s <= min(60.0, 0.5 * 2.0 ** min(attempt, 50))


def test_jitter_uses_the_whole_range() -> None:
    """Waits run evenly from nothing to everything: a fleet that failed together does not come back
    together."""
    rng = random.Random(1)
    waits = [full_jitter(3, base_s=1.0, rng=rng) for _ in range(10_000)]
    assert min(waits) < 0.01
    assert max(waits) > 7.99
    assert sum(waits) / len(waits) == pytest.approx(4.0, abs=0.1)


@pytest.mark.parametrize(
    ("attempt", "base_s", "cap_s"), [(-1, 1, 1), (0, -1, 1), (0, 1, -1), (0, float("nan"), 1)]
)
def test_jitter_refuses_what_makes_no_sense(attempt: int, base_s: float, cap_s: float) -> None:
    """A negative attempt, base or cap is a mistake of the caller."""
    with pytest.raises(ValueError, match="none of them can be negative"):
        full_jitter(attempt, base_s, cap_s)
