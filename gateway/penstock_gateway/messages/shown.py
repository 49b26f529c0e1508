"""A message batch as Anthropic's clients know it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from penstock_ledger import DoorBatch, DoorBatchState

__all__ = ["shown"]

PATH: Final = "/v1/messages/batches"
_ENDS: Final = ("succeeded", "errored", "canceled", "expired")


def shown(batch: DoorBatch, counts: Mapping[str, int], origin: str) -> dict[str, Any]:
    """The object; ``origin`` is this server as its caller has addressed it."""
    over = [batch.times[state] for state in DoorBatchState if state.final and state in batch.times]
    ended = {name: counts.get(name, 0) for name in _ENDS}
    cancelled_at = batch.times.get(DoorBatchState.CANCELLING)
    return {
        "id": batch.batch_id,
        "type": "message_batch",
        "processing_status": _status(batch),
        "request_counts": {
            "processing": max(0, counts.get("total", 0) - sum(ended.values())),
            **ended,
        },
        "created_at": _rfc3339(batch.created_at),
        "expires_at": _rfc3339(batch.expires_at),
        "ended_at": _rfc3339(over[0]) if over else None,
        "cancel_initiated_at": None if cancelled_at is None else _rfc3339(cancelled_at),
        "archived_at": None,
        "results_url": f"{origin}{PATH}/{batch.batch_id}/results" if over else None,
    }


def _status(batch: DoorBatch) -> str:
    if batch.state.final:
        return "ended"
    return "canceling" if batch.state is DoorBatchState.CANCELLING else "in_progress"


def _rfc3339(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, UTC).isoformat()
