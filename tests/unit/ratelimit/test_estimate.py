"""Estimates: what a request will cost, from what such requests did cost."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_ratelimit import Estimator
from penstock_ratelimit.estimates import (
    DEFAULT_OUTPUT_TOKENS,
    MAX_KEYS,
    MAX_RATIO,
    MEMORY,
    Sketch,
)


def test_the_first_estimate_is_four_characters_a_token() -> None:
    """Before anything was observed, 4,000 characters are 1,000 tokens, and nothing is ever free."""
    estimator = Estimator()
    assert estimator.estimate_prompt("job", 4000) == 1000
    assert estimator.estimate_prompt("job", 0) == 1


def test_the_first_observation_replaces_the_guess_and_later_ones_average() -> None:
    """The ratio is the plain mean at first, and an average of about the last twenty later."""
    estimator = Estimator()
    estimator.observe("job", 4000, 2000)
    assert estimator.estimate_prompt("job", 4000) == pytest.approx(2000)
    estimator.observe("job", 4000, 4000)
    assert estimator.estimate_prompt("job", 4000) == pytest.approx(3000)
    for _ in range(200):
        estimator.observe("job", 4000, 500)
    assert estimator.estimate_prompt("job", 4000) == pytest.approx(500, rel=0.01)
    assert estimator.estimate_prompt("another", 4000) == 1000


@pytest.mark.parametrize("factor", [0.2, 5.0])
def test_an_estimate_that_is_five_times_off_is_right_after_three_answers(factor: float) -> None:
    """A language or an output length that was not expected costs a few requests, not a job: prompt
    and output alike."""
    estimator, rng = Estimator(), random.Random(4)
    for _ in range(3):
        spread = rng.uniform(0.9, 1.1)
        estimator.observe(
            "job", 4000, 1000 * factor * spread, DEFAULT_OUTPUT_TOKENS * factor * spread
        )
    assert estimator.estimate_prompt("job", 4000) == pytest.approx(1000 * factor, rel=0.1)
    assert estimator.expected_output("job", None) == pytest.approx(
        DEFAULT_OUTPUT_TOKENS * factor, rel=0.2
    )


def test_outputs_that_become_five_times_longer_are_followed_within_seven_answers() -> None:
    """A job whose documents change is followed: what was learned early does not weigh for ever."""
    estimator = Estimator()
    for _ in range(1000):
        estimator.observe("job", 4000, 1000, 200)
    for _ in range(7):
        estimator.observe("job", 4000, 1000, 1000)
    assert estimator.expected_output("job", None) == pytest.approx(1000, rel=0.1)


def test_the_output_before_any_answer_is_a_named_guess_within_what_was_asked_for() -> None:
    """Nothing is known: a paragraph or two, but no more than max_tokens, and never nothing."""
    estimator = Estimator()
    assert estimator.expected_output("job", None) == DEFAULT_OUTPUT_TOKENS
    assert estimator.expected_output("job", 4096) == DEFAULT_OUTPUT_TOKENS
    assert estimator.expected_output("job", 10) == 10
    assert estimator.expected_output("job", 0) == 1


@pytest.mark.parametrize("sigma", [0.0, 0.5, 1.0])
def test_the_expected_output_is_what_three_of_four_answers_do_not_exceed(sigma: float) -> None:
    """Averaged over its noise the estimate is the 75th percentile, whatever the spread of the
    lengths."""
    rng, estimator = random.Random(7), Estimator()
    lengths = [rng.lognormvariate(6.0, sigma) for _ in range(4000)]
    within = 0
    for length in lengths:
        # a bin reaches 9 % to either side
        within += length <= estimator.expected_output("job", None) * 1.1
        estimator.observe("job", 4000, 1000, length)
    assert within / len(lengths) >= (0.99 if sigma == 0 else 0.72)
    assert sigma == 0 or within / len(lengths) <= 0.82


@given(
    reports=st.lists(
        st.tuples(
            st.integers(-(10**400), 10**400),
            st.floats() | st.integers(-5, 10**15),
            st.none() | st.floats() | st.integers(-5, 10**15),
        )
    ),
    chars=st.integers(-(10**400), 10**400),
    max_tokens=st.none() | st.integers(),
)
def test_estimates_are_finite_and_at_least_one_whatever_was_reported(
    reports: list[tuple[int, float, float | None]], chars: int, max_tokens: int | None
) -> None:
    """A provider's nonsense neither stops nor poisons a quota."""
    estimator = Estimator()
    for report in reports:
        estimator.observe("job", *report)
    assert 1 <= estimator.estimate_prompt("job", chars) < float("inf")
    assert (
        1
        <= estimator.expected_output("job", max_tokens)
        <= max(1, 1.2e7 if max_tokens is None else max_tokens)
    )


def test_nonsense_does_not_poison_the_ratio() -> None:
    """Reports of nothing or of the impossible are ignored or bounded."""
    estimator = Estimator()
    for chars, tokens in [(0, 10), (-4, 10), (4, -1), (4, float("nan"))]:
        estimator.observe("job", chars, tokens)
    assert estimator.estimate_prompt("job", 4000) == 1000
    estimator.observe("job", 4, 10**12)
    assert estimator.estimate_prompt("job", 4000) == 1000 * MAX_RATIO


def test_the_estimator_forgets_the_oldest_key() -> None:
    """However many jobs pass by, memory stays bounded."""
    estimator = Estimator()
    for job in range(MAX_KEYS + 1):
        estimator.observe(job, 4000, 2000, 100)
    assert estimator.estimate_prompt(0, 4000) == 1000
    assert estimator.estimate_prompt(1, 4000) == 2000


def test_what_is_taken_is_what_was_observed_or_asked_for_in_vain() -> None:
    """Only new observations travel, each once, with the names of keys that this process does not
    know."""
    estimator = Estimator()
    estimator.estimate_prompt("asked", 400)
    estimator.observe("seen", 4000, 2000, 100)
    taken = estimator.take(10)
    assert {key: sketch.weight for key, sketch in taken.items()} == {"asked": 0, "seen": 1}
    assert estimator.take(10) == {}
    estimator.put_back(taken)
    assert estimator.take(1).keys() == {"asked"}
    assert estimator.take(10).keys() == {"seen"}


def test_an_adopted_sketch_does_not_undo_what_was_observed_meanwhile() -> None:
    """While the others' knowledge is fetched, answers go on arriving: both count."""
    estimator = Estimator()
    estimator.observe("job", 4000, 1000)
    estimator.adopt("job", Sketch(ratio=3.0, weight=1.0))
    assert estimator.estimate_prompt("job", 4000) == pytest.approx(2000)


@given(
    st.lists(st.floats(1, 1e6), min_size=1, max_size=int(MEMORY) // 2),
    st.lists(st.floats(1, 1e6), max_size=10),
)
def test_two_sketches_added_are_what_one_observer_had_seen(
    mine: list[float], yours: list[float]
) -> None:
    """Merging loses nothing and needs no order, as long as nothing has faded yet."""
    together, one, other = Estimator(), Estimator(), Estimator()
    for estimators, lengths in (((together, one), mine), ((together, other), yours)):
        for length in lengths:
            for estimator in estimators:
                estimator.observe("job", 4000, length, length)
    one.put_back(other.take(1))
    merged, expected = one.take(1)["job"], together.take(1)["job"]
    assert (merged.weight, merged.bins) == (expected.weight, expected.bins)
    assert merged.ratio == pytest.approx(expected.ratio)


def test_a_sketch_stays_small_however_long_it_learns() -> None:
    """Constant memory: bins that nothing falls into any more fade away."""
    estimator, rng = Estimator(), random.Random(2)
    for _ in range(5000):
        estimator.observe("job", 4000, 1000, rng.lognormvariate(6.0, 2.0))
    sketch = estimator.take(1)["job"]
    assert len(sketch.bins) <= 89  # a bin for each fifth more, up to ten million tokens
    assert sketch.outputs == pytest.approx(MEMORY, rel=0.05)
