"""The nouns of the `batch` lane's journal: batches at providers, and what they left undone."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, NamedTuple, Self

import orjson

from penstock_ledger.model import ItemKey
from penstock_ledger.old_reasons import failure_of_batch
from penstock_ledger.stored_values import json_text, storable

__all__ = [
    "CANCEL_WAIT_S",
    "BatchFailure",
    "BatchState",
    "BatchSum",
    "BatchTrouble",
    "BatchesOpen",
    "EqualRequests",
    "KeptDocument",
    "Missing",
    "NewProviderBatch",
    "ProviderBatch",
    "Remainder",
    "Waiting",
    "kept_documents",
]

CANCEL_WAIT_S: Final = 900.0
"""A cancelled job waits so long for its calls and batches under way, before their documents are
written off: longer than any call with its retries in the worker, and than providers take to cancel
a batch (OpenAI: ten minutes)."""


class BatchState(StrEnum):
    """The state of a provider batch. Each is written once the step that leads to it is done."""

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
    # of the job's `degrade`, by which its documents are asked; 0 before the first
    step: int = field(default=0, kw_only=True)


class BatchTrouble(NamedTuple):
    """The trouble that holds up the step of a batch that is due, as its leader saw it last.

    Times are Unix seconds."""

    call: str  # upload | create | look | answers | delete
    # of the failure, as in the workers' table of fates, or `batch_missing`, `answers_missing`,
    # `answers_short`
    name: str
    # the provider's words, without secrets; foreign text, to be escaped where it is shown
    said: str
    status: int | None  # of HTTP
    since: float  # of the first failure of this step in a row
    times: int
    again_at: float  # the next try

    def to_text(self) -> str:
        return json_text(self._asdict())

    @classmethod
    def from_text(cls, text: str | None) -> Self | None:
        """Return None for what a later version may have written in another way."""
        try:
            found = None if text is None else orjson.loads(text)
            return None if found is None else cls(*(found[name] for name in cls._fields))
        except (orjson.JSONDecodeError, KeyError, TypeError):
            return None


class BatchFailure(NamedTuple):
    """The failure of a provider batch without answers: its name, and what was said of it."""

    # as in the workers' table of fates; documents without an answer come to it
    name: str
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.name}: {self.detail}" if self.detail else self.name

    def columns(self) -> dict[str, str]:
        """Return what is written of it.

        The sentence is for processes of a release without the column `failure`, and repeated in
        it: where they differ, such a process has written another one since."""
        why = storable(str(self))
        return {"why": why, "failure": json_text({**self._asdict(), "why": why})}

    @classmethod
    def read(cls, text: str | None, why: str | None) -> Self | None:
        """Return what ``columns`` has written, or what the sentence of a row of before says."""
        try:
            found = orjson.loads(text or "null")
            if found is not None and found["why"] == why:
                return cls(str(found["name"]), str(found["detail"]))
        except (orjson.JSONDecodeError, KeyError, TypeError):
            pass
        known = failure_of_batch(why or "")
        return None if known is None else cls(*known)


class Missing(NamedTuple):
    """Looks in a row that did not find what the provider should have."""

    what: str  # batch | answers
    since: float
    looks: int

    def to_text(self) -> str:
        return orjson.dumps(tuple(self)).decode()

    @classmethod
    def from_text(cls, text: str | None) -> Self | None:
        return None if text is None else cls(*orjson.loads(text))


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
    fence: int
    handed_at: float | None
    trouble: BatchTrouble | None = None
    missing: Missing | None = None
    # good ones, the most that any reading of its outputs has brought; None: never read
    answers_read: int | None = None
    # answers that were paid for, as the provider counted them, and could not be read
    unread: int | None = None
    # what they cost at most, as estimated; None: no price is known
    unread_microusd: int | None = None
    failure: BatchFailure | None = None  # ``why`` as data, where that is one

    @property
    def is_of_source(self) -> bool:
        """Return whether its documents lie between two cursors.

        They are remainders of other batches otherwise."""
        return self.cursor_behind is not None


class Remainder(NamedTuple):
    """A document that a provider batch left without an outcome, and what was used up on it."""

    key: ItemKey
    position: str
    attempts: int  # that counted
    calls: int
    prompt_tokens: int
    completion_tokens: int
    cost_microusd: int
    reason: str
    most: int | None = None  # documents in its next batch; None: as many as in any other
    # answers of which no price is known, in a row that is read; of this batch alone, in one that is
    # written
    unpriced: int = 0
    # the document of its generation whose answer it waits for; None: it goes into a batch
    same_as: str | None = None
    # answers that went on to the better model of the job's `escalate`: 1 from then on
    escalations: int = 0


class EqualRequests(NamedTuple):
    """The equal requests that were found while documents of a feed were packed."""

    job_id: str
    generation: int
    sent: Mapping[str, str]  # documents that are packed, by the digests of their requests
    waiting: Sequence[Remainder]  # for the answers to others


class Waiting(NamedTuple):
    """Remainders of one feed that are in no batch, of those with the same ``most``."""

    job_id: str
    generation: int
    documents: int
    since: float  # of the one that has waited longest
    most: int | None = None  # of them in one batch; None: as many as in any other


class KeptDocument(NamedTuple):
    """A document of a batch, as its packer keeps it in SQL until the batch is settled."""

    doc_id: str
    position: str
    used: tuple[
        int, ...
        # by earlier batches, as a Remainder has it from ``attempts`` on; nothing where that is
        # nothing
    ] = ()

    def to_line(self) -> bytes:
        return orjson.dumps((self.doc_id, self.position, *self.used))


def kept_documents(kept: bytes) -> Iterator[KeptDocument]:
    """Yield the documents in the order of the batch's lines.

    ``kept``: their ``to_line``, one a line, compressed by zlib.
    """
    for line in zlib.decompress(kept).splitlines():
        doc_id, position, *used = orjson.loads(line)
        yield KeptDocument(doc_id, position, tuple(used))


class BatchesOpen(NamedTuple):
    """The provider batches of a job that have not ended.

    Times are Unix seconds; None: there is none."""

    # when the provider took the oldest one that it works on, or whose answers are missing
    created_at: float | None
    waits_since: float | None  # when the oldest one was packed that it has not taken
    why: str | None  # what that one waits for, where it is said
    answered: int  # requests of those that run, as far as the provider tells


class BatchSum(NamedTuple):
    """The provider batches of a job that are alike in their state and the provider's word."""

    state: BatchState
    status: str | None
    batches: int
    requests: int
    succeeded: int | None  # None: for some of them the provider does not tell
    failed: int | None
    why: str | None  # of one of them
    # by workers that live; the others wait for one. None: that was not looked at
    led: int | None = None
    provider: str = ""
    # of how many of them, and that of the one that is tried next
    troubles: tuple[tuple[int, BatchTrouble], ...] = ()
    unread: int = 0  # answers that were paid for and could not be read
    # None: for some of them no price is known, or there are none
    unread_microusd: int | None = None
