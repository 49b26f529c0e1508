"""The nouns of the `batch` lane's journal: a batch at a provider, and what such a batch left without an outcome."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from penstock_ledger.model import ItemKey

__all__ = [
    "BatchState",
    "BatchSum",
    "BatchesOpen",
    "NewProviderBatch",
    "NoRoom",
    "ProviderBatch",
    "Remainder",
    "Waiting",
]


class BatchState(StrEnum):
    """How far a provider batch is. Each is written once the step that leads to it is done."""

    PACKED = "packed"  # its documents are chosen; nothing of it is at the provider
    UPLOADED = "uploaded"  # its file is there, where the provider has files
    CREATED = "created"  # the provider works on it
    ENDED = "ended"  # the provider has finished with it
    COLLECTED = "collected"  # every answer that it gave is an outcome, or waits for another batch
    SETTLED = "settled"  # and so is every document that got none


@dataclass(frozen=True, slots=True)
class NewProviderBatch:
    """A provider batch as it was packed."""

    tag: str
    job_id: str
    generation: int
    provider: str
    kind: str  # of the provider: the API that it speaks
    model: str | None
    endpoint: str
    cursor_before: dict[str, Any] | None  # None: of remainders
    cursor_behind: dict[str, Any] | None
    requests: int
    size: int
    tokens: int
    may_cost_microusd: int  # as estimated; 0 where no price is known


@dataclass(frozen=True, slots=True)
class ProviderBatch(NewProviderBatch):
    """A provider batch as the journal holds it. Times are Unix seconds."""

    state: BatchState
    file_id: str | None
    remote_id: str | None
    status: str | None
    succeeded: int | None
    failed: int | None
    why: str | None
    packed_at: float
    uploading_at: float | None
    uploaded_at: float | None
    creating_at: float | None
    created_at: float | None
    ended_at: float | None
    settled_at: float | None
    fence: int
    handed_at: float | None

    @property
    def is_of_source(self) -> bool:
        """Whether its documents lie between two cursors; they are remainders of other batches otherwise."""
        return self.cursor_behind is not None


class Remainder(NamedTuple):
    """A document that a provider batch left without an outcome, and what earlier batches used up on it."""

    key: ItemKey
    position: str
    attempts: int  # that counted
    calls: int
    prompt_tokens: int
    completion_tokens: int
    cost_microusd: int
    reason: str


class Waiting(NamedTuple):
    """Remainders of one feed that are in no batch."""

    job_id: str
    generation: int
    documents: int
    since: float  # of the one that has waited longest


class NoRoom(NamedTuple):
    """Why a batch is not created now."""

    is_budget: bool  # the job's budget; else the tokens that the account may have in batches
    held: int  # by other batches: tokens, or millionths of a dollar that they may cost
    spent: int = 0  # millionths of a dollar


class BatchesOpen(NamedTuple):
    """The provider batches of a job that have not ended. Times are Unix seconds; None: there is none."""

    created_at: float | None  # when the provider took the oldest one that it works on
    waits_since: float | None  # when the oldest one was packed that it has not taken
    why: str | None  # what that one waits for, where it is said
    answered: int  # requests of those that run, as far as the provider tells


class BatchSum(NamedTuple):
    """The provider batches of a job that are alike in their state and the provider's word for it."""

    state: BatchState
    status: str | None
    batches: int
    requests: int
    succeeded: int | None  # None: for some of them the provider does not tell
    failed: int | None
    why: str | None  # of one of them
