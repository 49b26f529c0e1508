"""What people read of a pause: its cause, its end, and the command that ends it now."""

from __future__ import annotations

import time

from penstock_ledger.model import Job, JobState
from penstock_producer.reporting.pauses import ends_by_itself, pause_lines

NOW = 1_790_000_000.0


def job(state: JobState = JobState.PAUSED, resume_at: float | None = None) -> Job:
    return Job(
        "id1", "my reviews", {"lane": "api"}, {}, "", state, "why", 1, 10, 1000.0, None, resume_at
    )


def test_a_pause_with_an_end_says_when_and_how_to_end_it_now() -> None:
    """The screen names the clock time, what is left, and the command (A2)."""
    (told,) = pause_lines(job(resume_at=NOW + 1000), " --state /x", NOW)
    at = time.strftime("%H:%M:%S", time.localtime(NOW + 1000))
    expected = (
        f"goes on by itself at {at} (in 16 min 40 s); to go on now:  penstock resume 'my reviews' "
        "--state /x"
    )
    assert expected in told
    assert ends_by_itself(job(resume_at=NOW + 1000))


def test_a_pause_without_an_end_says_that_it_waits_for_a_person() -> None:
    """A pause without an end is not waited for (A2)."""
    (told,) = pause_lines(job(), "", NOW)
    assert "waits for a person" in told
    assert "penstock resume 'my reviews'" in told
    assert not ends_by_itself(job())


def test_what_is_not_paused_says_nothing() -> None:
    """Only a paused job has a pause to tell of (A2)."""
    assert pause_lines(job(JobState.RUNNING), "", NOW) == []
    assert not ends_by_itself(job(JobState.RUNNING, NOW))
