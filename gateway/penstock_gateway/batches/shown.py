"""A batch as OpenAI's clients know it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock_gateway.for_tenants import pause_shown
from penstock_ledger import DoorBatch, DoorBatchState
from penstock_ledger.model import Job

__all__ = ["shown", "window_in_words"]

_UNITS = (("d", 86_400), ("h", 3_600), ("m", 60))


def shown(batch: DoorBatch, counts: Mapping[str, int], job: Job | None = None) -> dict[str, Any]:
    """The object.

    Times that have not come are null; what OpenAI has no field for is under `penstock`."""
    final = batch.state.final
    failed = sum(counts.get(name, 0) for name in ("errored", "canceled", "expired"))
    return {
        "id": batch.batch_id,
        "object": "batch",
        "endpoint": batch.endpoint,
        "model": batch.model,
        "errors": {"object": "list", "data": batch.errors} if batch.errors else None,
        "input_file_id": batch.input_file_id,
        "completion_window": window_in_words(batch.window_s),
        "status": str(batch.state),
        "output_file_id": batch.output_file_id if final else None,
        "error_file_id": batch.error_file_id if final else None,
        "created_at": int(batch.created_at),
        "in_progress_at": _at(batch, DoorBatchState.IN_PROGRESS),
        "expires_at": int(batch.expires_at),
        "finalizing_at": _at(batch, DoorBatchState.FINALIZING),
        "completed_at": _at(batch, DoorBatchState.COMPLETED),
        "failed_at": _at(batch, DoorBatchState.FAILED),
        "expired_at": _at(batch, DoorBatchState.EXPIRED),
        "cancelling_at": _at(batch, DoorBatchState.CANCELLING),
        "cancelled_at": _at(batch, DoorBatchState.CANCELLED),
        "request_counts": {
            "total": counts.get("total", 0),
            "completed": counts.get("succeeded", 0),
            "failed": failed,
        },
        "usage": batch.usage,
        "metadata": batch.metadata,
        "penstock": _ours(batch, job),
    }


def window_in_words(seconds: float) -> str:
    """As it was given, or in a larger unit: 24h stays 24h."""
    whole = round(seconds)
    for unit, size in _UNITS:
        if whole % size == 0 and (unit != "d" or whole > size):
            return f"{whole // size}{unit}"
    return f"{whole}s"


def _at(batch: DoorBatch, state: DoorBatchState) -> int | None:
    at = batch.times.get(state)
    return None if at is None else int(at)


def _ours(batch: DoorBatch, job: Job | None) -> dict[str, Any]:
    ours: dict[str, Any] = {"job_id": batch.job_id}
    if job is not None:  # as where its budget has paused it
        ours |= {"state": str(job.state), "reason": job.reason, "pause": pause_shown(job)}
    return ours
