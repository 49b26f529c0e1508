"""Each decision on a planned time of a schedule goes out as a Celery event."""

from __future__ import annotations

from collections import deque

from penstock_ledger import Decision, Schedule

KEPT_MAX = 1_000  # that wait to be shown: the oldest go first

DecidedTimes = deque[tuple[Schedule, Decision]]
"""Each with the schedule as it was then; filled by the control thread, emptied by another."""


def decided_times() -> DecidedTimes:
    return deque(maxlen=KEPT_MAX)
