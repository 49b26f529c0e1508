"""The state of a job, apart from all else: the command line names it before it loads the ledger."""

from __future__ import annotations

from enum import StrEnum

__all__ = ["JobState"]


class JobState(StrEnum):
    """The state of a job.

    ``RUNNING`` and ``PAUSED`` are the two live states; the last three are final.

    A replay moves ``COMPLETED`` back to ``RUNNING``; nothing leaves ``CANCELLED`` or ``FAILED``.
    """

    RUNNING = "running"
    PAUSED = "paused"
    # undispatched documents are being written off as dead letters `cancelled`
    CANCELLING = "cancelling"
    COMPLETED = "completed"
    CANCELLED = "cancelled"
    FAILED = "failed"

    @property
    def final(self) -> bool:
        return self in (JobState.COMPLETED, JobState.CANCELLED, JobState.FAILED)
