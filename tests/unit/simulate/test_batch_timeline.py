"""Where a simulated batch stands at a time."""

from __future__ import annotations

import pytest

from penstock_simulate.batches.timeline import Plan, Status, Timeline

PLAN = Plan(runs_s=100.0, step_s=10.0, window_s=1000.0)


def timeline(
    plan: Plan = PLAN, ready_at: float | None = 10.0, cancel_at: float | None = None
) -> Timeline:
    return Timeline(plan, 0.0, ready_at, cancel_at=cancel_at)


@pytest.mark.parametrize(
    ("now", "status", "done"),
    [
        (0, Status.VALIDATING, 0),
        (9, Status.VALIDATING, 0),
        (10, Status.IN_PROGRESS, 0),
        (60, Status.IN_PROGRESS, 500),
        (109, Status.IN_PROGRESS, 990),
        (110, Status.FINALIZING, 1000),
        (120, Status.COMPLETED, 1000),
        (9999, Status.COMPLETED, 1000),
    ],
)
def test_a_batch_goes_by_the_clock(now: float, status: Status, done: int) -> None:
    """Each status has its time, and requests are done evenly while it runs."""
    assert (timeline().status(now), timeline().done(1000, now)) == (status, done)


def test_every_request_of_a_finished_batch_is_done() -> None:
    """Rounding of times as large as today's leaves none out, however short the batch."""
    start = 1_795_000_000.123
    short = Timeline(Plan(0.001, 0.0, 86_400.0), start, start)
    assert short.done(50_000, start + 1) == 50_000


def test_a_window_that_ends_first_expires_the_batch() -> None:
    """What was done by then stays done, and nothing more is."""
    late = timeline(PLAN._replace(window_s=60.0))
    assert late.status(59) is Status.IN_PROGRESS
    assert (late.status(60), late.done(1000, 60), late.done(1000, 5000)) == (
        Status.EXPIRED,
        500,
        500,
    )


def test_a_batch_may_expire_half_way() -> None:
    """It gets to half of its requests and expires when it would have ended."""
    half = timeline(PLAN._replace(most=0.5))
    assert (half.status(109), half.done(1000, 109)) == (Status.IN_PROGRESS, 500)
    assert (half.status(110), half.done(1000, 110)) == (Status.EXPIRED, 500)


def test_a_stalled_batch_stands_still_until_its_window_ends() -> None:
    """Nothing but the missing progress tells it from one that runs."""
    stalled = timeline(PLAN._replace(most=0.5, ends=False))
    assert [(stalled.status(now), stalled.done(1000, now)) for now in (500, 999)] == [
        (Status.IN_PROGRESS, 500)
    ] * 2
    assert stalled.status(1000) is Status.EXPIRED


def test_a_cancelled_batch_keeps_what_was_done() -> None:
    """It is cancelling for a while, and then cancelled; nothing is done after it was asked to
    stop."""
    cancelled = timeline(cancel_at=40.0)
    assert cancelled.status(39) is Status.IN_PROGRESS
    assert cancelled.status(49) is Status.CANCELLING
    assert (cancelled.status(50), cancelled.done(1000, 5000)) == (Status.CANCELLED, 300)
    assert [moment.status for moment in cancelled.moments(5000)] == [
        Status.VALIDATING,
        Status.IN_PROGRESS,
        Status.CANCELLING,
        Status.CANCELLED,
    ]


def test_a_batch_cancelled_while_it_is_checked_never_starts() -> None:
    """None of its requests is done, also where its validation ends later."""
    assert timeline(ready_at=None, cancel_at=5.0).status(100) is Status.CANCELLING
    early = timeline(cancel_at=5.0)
    assert (early.status(19), early.status(20), early.done(1000, 100)) == (
        Status.CANCELLING,
        Status.CANCELLED,
        0,
    )


def test_a_batch_that_is_refused_has_done_nothing() -> None:
    """Its time of failure is the end of its validation."""
    refused = timeline()
    refused.failed = True
    assert (refused.status(9), refused.status(10), refused.done(1000, 500)) == (
        Status.VALIDATING,
        Status.FAILED,
        0,
    )
