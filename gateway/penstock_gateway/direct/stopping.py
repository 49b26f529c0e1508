"""What becomes of a call whose caller waits no longer: a document that no worker has begun ends
there, unpaid.

One that is begun may be paid for by now. It runs to its end, and its answer is kept in its job.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Mapping
from typing import Final

from redis import RedisError

from penstock_gateway.direct.answers import Outcome
from penstock_gateway.direct.open_jobs import CallJob
from penstock_ledger import (
    DoorCallStore,
    ItemKey,
    OutcomeStore,
    RedisLedger,
    SettleBatch,
    SettledDead,
    buckets_for,
)
from penstock_ledger.model import DeadLetter
from penstock_producer.feed.beside import GENERATION

__all__ = ["CALLER_GONE", "TIMED_OUT", "stop"]

TIMED_OUT: Final = "timed_out"
CALLER_GONE: Final = "caller_gone"
_WORDS: Final[Mapping[str, str]] = {
    TIMED_OUT: "no worker had begun it when the time of its caller was over",
    CALLER_GONE: "its caller hung up, or got another answer, before a worker had begun it",
}


def stop(
    outcomes: OutcomeStore,
    store: DoorCallStore,
    hot: RedisLedger,
    job: CallJob,
    bodies: Mapping[str, bytes],
    reason: str,
) -> tuple[dict[str, Outcome], set[str]]:
    """End those documents that no worker has begun; returns the outcomes that there are now, and
    which documents were begun.

    A worker that begins one in the same moment makes its call: the second of both outcomes is
    counted as such.
    """
    items = [ItemKey(job.job_id, GENERATION, doc_id) for doc_id in bodies]
    try:
        begun = {
            key.doc_id for key, is_begun in zip(items, hot.begun(items), strict=True) if is_begun
        }
    except RedisError:  # unknown: they are left to run
        return store.outcomes(job.job_id, list(bodies)), set(bodies)
    ended = [key for key in items if key.doc_id not in begun]
    _end(outcomes, hot, job, ended, bodies, reason)
    return store.outcomes(job.job_id, list(bodies)), begun


def _end(
    outcomes: OutcomeStore,
    hot: RedisLedger,
    job: CallJob,
    ended: Collection[ItemKey],
    bodies: Mapping[str, bytes],
    reason: str,
) -> None:
    if not ended:
        return
    now = time.time()
    letters = [
        DeadLetter(
            key=key,
            reason=reason,
            attempts=0,
            calls=0,
            last_error=_WORDS[reason],
            status_code=None,
            request=bodies[key.doc_id],
            response=None,
            created_at=now,
        )
        for key in ended
    ]
    lost = outcomes.settle([], letters)
    buckets = buckets_for(job.job)
    with contextlib.suppress(
        RedisError
    ):  # SQL has it: a message of it that is claimed again is dropped
        hot.settle(
            SettleBatch(
                dead=[SettledDead(key, buckets, reason) for key in ended if key not in lost]
            )
        )
