"""The nouns of batches at the HTTP doors: states, a batch as it is asked for, its row, and one that
a process leads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from penstock_ledger.door_stores.whose import Whose

__all__ = [
    "LIVE",
    "BatchPage",
    "BatchesAsked",
    "DoorBatch",
    "DoorBatchState",
    "LeasedBatch",
    "NewDoorBatch",
]


class DoorBatchState(StrEnum):
    """OpenAI's words. The first four are live."""

    VALIDATING = "validating"
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"
    CANCELLING = "cancelling"
    COMPLETED = "completed"
    FAILED = "failed"
    EXPIRED = "expired"
    CANCELLED = "cancelled"

    @property
    def final(self) -> bool:
        return self not in LIVE


LIVE: Final = (
    DoorBatchState.VALIDATING,
    DoorBatchState.IN_PROGRESS,
    DoorBatchState.FINALIZING,
    DoorBatchState.CANCELLING,
)


@dataclass(frozen=True, slots=True)
class NewDoorBatch:
    """A batch as its caller asks for it."""

    batch_id: str
    kind: str  # 'openai' or 'anthropic'
    tenant: str | None
    endpoint: str
    input_file_id: str
    window_s: float  # from its creation to its end
    metadata: Mapping[str, str] | None = None
    output_expires_s: float | None = None
    counts: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DoorBatch:
    """A row, as it is."""

    batch_id: str
    kind: str
    tenant: str | None
    job_id: str | None
    endpoint: str
    input_file_id: str
    window_s: float
    output_expires_s: float | None
    metadata: dict[str, str] | None
    state: DoorBatchState
    errors: list[dict[str, Any]] | None
    counts: dict[str, int]  # shown last: they never go back
    usage: dict[str, Any] | None
    model: str | None
    output_file_id: str | None  # of a batch that has not ended: the id that its file will have
    error_file_id: str | None
    created_at: float
    expires_at: float
    times: Mapping[DoorBatchState, float]  # when it came into each state; none for `validating`

    @property
    def of_anthropic(self) -> bool:
        return self.kind == "anthropic"


@dataclass(frozen=True, slots=True)
class LeasedBatch:
    """A batch that one process brings forward."""

    batch: DoorBatch
    fence: int


@dataclass(frozen=True, slots=True)
class BatchesAsked:
    """Whose batches are shown, and from where on, the newest first."""

    kind: str
    limit: int
    whose: Whose
    after: str | None = None  # the id before the first one
    before: str | None = None  # the id behind the last one


@dataclass(frozen=True, slots=True)
class BatchPage:
    batches: Sequence[DoorBatch]
    has_more: bool
