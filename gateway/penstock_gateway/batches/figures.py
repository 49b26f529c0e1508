"""Requests of a batch are counted by how they ended.

The job's tallies say it while it runs; it is frozen when the batch ends."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from sqlalchemy.exc import DBAPIError

from penstock_ledger import (
    BatchesAsked,
    DoorBatch,
    DoorBatchState,
    DoorBatchStore,
    PenstockError,
    Whose,
    in_words,
)
from penstock_ledger.model import Counts, Job, JobState

__all__ = [
    "CANCELLED",
    "DEADLINE",
    "ended_by_deadline",
    "final_counts",
    "stats_of",
    "with_live_counts",
]

log = logging.getLogger("penstock.gateway")

CANCELLED: Final = "cancelled"  # reasons of dead letters
DEADLINE: Final = "deadline_exceeded"
_RESULT: Final = "result"
_ENDS: Final[tuple[str, ...]] = ("succeeded", "errored", "canceled", "expired")


def ended_by_deadline(job: Job) -> bool:
    """Return whether what was not done by then is why it was ended."""
    return job.why is not None and job.why.code == DEADLINE


def with_live_counts(store: DoorBatchStore, batches: Sequence[DoorBatch]) -> list[dict[str, int]]:
    """Return the counts to show of each, those of live ones as they are now.

    What is shown once never goes back."""
    running = {
        batch.job_id for batch in batches if batch.job_id is not None and not _is_frozen(batch)
    }
    tallied = store.tallied(running) if running else {}
    shown = []
    for batch in batches:
        if batch.job_id is None or _is_frozen(batch):
            shown.append(batch.counts)
            continue
        counts = _at_least(
            batch.counts,
            _sorted_out(tallied[batch.job_id], late=batch.state is not DoorBatchState.CANCELLING),
        )
        if counts != batch.counts:
            _note(store, batch, counts)
        shown.append(counts)
    return shown


STATS_OF: Final = 1_000  # batches of each kind, the newest: all of an hour, and one look into SQL


def stats_of(store: DoorBatchStore, whose: Whose) -> dict[str, Any]:
    """Add up the newest batches of a caller: their states, their requests, what they used."""
    batches = [
        batch
        for kind in ("openai", "anthropic")
        if (page := store.page(BatchesAsked(kind, STATS_OF, whose))) is not None
        for batch in page.batches
    ]
    requests, usage = Counter[str](), Counter[str]()
    for batch, counts in zip(batches, with_live_counts(store, batches), strict=True):
        ended = sum(counts.get(name, 0) for name in _ENDS)
        requests["completed"] += counts.get("succeeded", 0)
        requests["failed"] += ended - counts.get("succeeded", 0)
        requests["total"] += counts.get("total", 0)
        if not batch.state.final:
            requests["open"] += max(0, counts.get("total", 0) - ended)
        for name in ("input_tokens", "output_tokens"):
            usage[name] += int((batch.usage or {}).get(name, 0))
    states = Counter(str(batch.state) for batch in batches)
    return {
        "object": "batch.stats",
        "of": len(batches),
        "batches": {str(state): states[str(state)] for state in DoorBatchState},
        "requests": {name: requests[name] for name in ("total", "completed", "failed", "open")},
        "usage": {name: usage[name] for name in ("input_tokens", "output_tokens")},
    }


def _note(store: DoorBatchStore, batch: DoorBatch, counts: Mapping[str, int]) -> None:
    """Keep what is shown, so that it never goes back.

    That is no reason to show nothing while nothing can be written."""
    try:
        store.note_counts(batch, counts)
    except (PenstockError, DBAPIError) as error:
        log.info(
            "the counts of batch %s are shown and not kept: %s", batch.batch_id, in_words(error)
        )


def final_counts(batch: DoorBatch, job: Job, counts: Counts) -> dict[str, int]:
    """Return the counts of a job that has ended: they add up to all of its requests."""
    by_reason = Counter(
        {("dead", reason): number for reason, number in counts.dead_by_reason.items()}
    )
    by_reason[_RESULT, ""] = counts.succeeded
    late = batch.state is not DoorBatchState.CANCELLING and ended_by_deadline(job)
    found = _sorted_out(by_reason, late=late)
    ended = sum(found.values())
    total = max(ended, job.total or 0)
    found["expired" if late else "errored" if job.state is JobState.FAILED else "canceled"] += (
        total - ended
    )
    return {"total": total, **found, "generation": job.generation}


def _is_frozen(batch: DoorBatch) -> bool:
    return batch.state.final or batch.state is DoorBatchState.FINALIZING


def _sorted_out(tallied: Mapping[tuple[str, str], int], *, late: bool) -> dict[str, int]:
    found = {str(name): 0 for name in _ENDS}
    for (kind, reason), number in tallied.items():
        if kind == _RESULT:
            found["succeeded"] += number
        elif reason in (CANCELLED, DEADLINE):
            found["expired" if late else "canceled"] += number
        else:
            found["errored"] += number
    return found


def _at_least(before: Mapping[str, int], now: Mapping[str, int]) -> dict[str, int]:
    """Return ``now``, where it is not less than ``before``.

    Together the counts are no more than there are requests.
    """
    total = before.get("total", 0)
    merged, room = {"total": total}, total
    for name in _ENDS:
        merged[name] = min(room, max(before.get(name, 0), now[name]))
        room -= merged[name]
    return merged
