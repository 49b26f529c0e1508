"""What orchestrators learn of a job that has ended."""

from __future__ import annotations

from typing import Any

import pytest

from penstock_producer.integrations import failure_of

ENDED: dict[str, Any] = {
    "job_key": "label",
    "state": "completed",
    "reason": None,
    "succeeded": 8,
    "dead": 2,
    "dead_by_reason": {"context_overflow": 2},
}


@pytest.mark.parametrize(
    ("changes", "max_dead", "why"),
    [
        ({}, 1.0, None),
        ({}, 0.2, None),
        ({}, 0.1, "2 of 10 documents are dead letters (2 context_overflow)"),
        ({"succeeded": 0, "dead": 0}, 0.0, None),
        ({"state": "cancelled"}, 1.0, "job label is cancelled: no reason was given"),
        (
            {"state": "failed", "reason": "the source changed"},
            1.0,
            "job label is failed: the source changed",
        ),
    ],
)
def test_a_step_fails_with_its_job_or_with_too_many_dead_letters(
    changes: dict[str, Any], max_dead: float, why: str | None
) -> None:
    """The share that may be dead is the caller's; a job that did not complete fails its step, with
    the reason."""
    told = failure_of(ENDED | changes, max_dead)
    assert (why is None and told is None) or (why is not None and why in str(told))
