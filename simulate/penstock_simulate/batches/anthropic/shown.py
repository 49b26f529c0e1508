"""A message batch as Anthropic shows it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from penstock_simulate.batches.batch import Batch
from penstock_simulate.batches.course import OVER, Status

KEPT_S = 29 * 86_400  # results, from the creation of the batch


def is_archived(batch: Batch, now: float) -> bool:
    return now >= batch.course.created_at + KEPT_S


def shown(batch: Batch, now: float, results_url: str) -> dict[str, Any]:
    """All requests are processing until the batch has ended: only then it shows what became of
    them."""
    status, at = (
        batch.course.status(now),
        {moment.status: moment.at for moment in batch.course.moments(now)},
    )
    over, archived = status in OVER, is_archived(batch, now)
    return {
        "id": batch.id,
        "type": "message_batch",
        "processing_status": _word(status),
        "request_counts": _counts(batch, now) if over else _counted(processing=batch.requests),
        "created_at": rfc3339(batch.course.created_at),
        "expires_at": rfc3339(batch.course.expires_at),
        "ended_at": rfc3339(at[status]) if over else None,
        "cancel_initiated_at": rfc3339(at[Status.CANCELLING]) if Status.CANCELLING in at else None,
        "archived_at": rfc3339(batch.course.created_at + KEPT_S) if archived else None,
        "results_url": results_url if over and not archived else None,
    }


def rfc3339(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, UTC).isoformat()


def _word(status: Status) -> str:
    if status in OVER:
        return "ended"
    return "canceling" if status is Status.CANCELLING else "in_progress"


def _counts(batch: Batch, now: float) -> dict[str, int]:
    counts = batch.counts(now)
    undone = "canceled" if batch.course.cancel_at is not None else "expired"
    return _counted(succeeded=counts.good, errored=counts.bad) | {undone: counts.undone}


def _counted(processing: int = 0, succeeded: int = 0, errored: int = 0) -> dict[str, int]:
    return {
        "processing": processing,
        "succeeded": succeeded,
        "errored": errored,
        "canceled": 0,
        "expired": 0,
    }
