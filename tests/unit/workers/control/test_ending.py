"""Promises of how often a control loop looks while a job ends, on a clock of our own."""

from __future__ import annotations

from penstock_workers.control.closing import (
    ENDING_DOCUMENTS,
    ENDING_FOR_S,
    ENDING_INTERVAL_S,
    JobEnding,
)

USUAL_S = 0.2


def test_the_last_outcomes_are_looked_for_more_often() -> None:
    """With few documents under way and outcomes that keep coming, ticks are short; with many, or
    none to end, as usual."""
    now = 100.0
    ending = JobEnding(lambda: now)
    assert ending.interval_s(USUAL_S) == USUAL_S
    ending.note("job", ENDING_DOCUMENTS + 1)
    assert ending.interval_s(USUAL_S) == USUAL_S
    ending.note("job", ENDING_DOCUMENTS)
    assert ending.interval_s(USUAL_S) == ENDING_INTERVAL_S
    assert ending.interval_s(ENDING_INTERVAL_S / 2) == ENDING_INTERVAL_S / 2, (
        "never slower than it was asked to be"
    )
    ending.keep_only([])
    assert ending.interval_s(USUAL_S) == USUAL_S


def test_a_slow_tail_is_not_polled() -> None:
    """Where no outcome came for a while, ticks are as usual until the next one does."""
    now = 100.0
    ending = JobEnding(lambda: now)
    ending.note("job", 3)
    now += ENDING_FOR_S
    ending.note("job", 3)
    assert ending.interval_s(USUAL_S) == USUAL_S
    ending.note("job", 2)
    assert ending.interval_s(USUAL_S) == ENDING_INTERVAL_S
