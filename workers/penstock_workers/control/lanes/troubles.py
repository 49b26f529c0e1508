"""Says why a lane is no choice now.

It has no workers or no quota, the provider has paused it, or its batches stand still."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from penstock_ledger import BatchesOpen, WorkerSeen
from penstock_ledger.reasons import Reason, explain
from penstock_ledger.redaction import redact
from penstock_producer.feed.queues import missing_model, serving_of
from penstock_producer.job.lanes import has_own_model, packs
from penstock_producer.reporting.reasons import wait_for_model
from penstock_producer.settings import ProviderFacts
from penstock_ratelimit.for_penstock import Breaker, QuotaView
from penstock_workers.control.lanes.explain import lasting
from penstock_workers.control.lanes.seen import TOO_FEW, Trouble
from penstock_workers.heartbeat import ALIVE_S

__all__ = ["NO_WORKERS", "of_batches", "of_pause", "of_provider", "of_size", "of_workers"]

NO_WORKERS: Final = "no_workers"
PAUSE_S: Final = 300.0
"""A shorter pause that a provider asks for is waited for."""
STUCK_S: Final = 26 * 3_600.0
"""Since a batch was created: every provider ends one within a day."""
WAITS_S: Final = 1_800.0
"""Since a batch was packed, where none runs that it could wait for."""
SHOWN_CHARS: Final = 200


def of_workers(lane: str, model: str | None, workers: Collection[WorkerSeen]) -> Trouble | None:
    """Return what is wrong with a lane by the heartbeats of its workers."""
    if not any(seen.info.get("lane") == lane and seen.seconds_ago < ALIVE_S for seen in workers):
        return Trouble(NO_WORKERS, "has no worker")
    if not has_own_model(lane):
        return None
    missing = missing_model(serving_of(workers, lane), model)
    return (
        None
        if missing is None
        else Trouble(NO_WORKERS, f"has none for the model ({_shown(wait_for_model(missing).said)})")
    )


def of_provider(lane: str, view: QuotaView | None) -> Trouble | None:
    """Return what the fleet's quota says is wrong with a lane's provider.

    None in lanes that ask no provider, and where nothing is known."""
    if view is None or has_own_model(lane):
        return None
    if view.hold:
        return Trouble("no_quota", f"has no quota ({_shown(view.hold)})")
    if packs(lane):
        return None
    if view.pause_left_s > PAUSE_S:
        return Trouble("paused", f"is paused by the provider for {lasting(view.pause_left_s)}")
    if view.breaker is not Breaker.CLOSED:
        ago = (
            ""
            if view.answered_ago_s is None
            else f", the last good answer was {lasting(view.answered_ago_s)} ago"
        )
        return Trouble("paused", f"gets no good answers from the provider{ago}")
    return None


def of_size(lane: str, provider: ProviderFacts | None, documents: int) -> Trouble | None:
    """Return that so many documents make no batch, of a lane that packs."""
    too_few = None if provider is None or not packs(lane) else provider.too_few(documents)
    return None if too_few is None else Trouble(TOO_FEW, f"takes no such job ({too_few})")


def of_batches(batches: BatchesOpen, now: float) -> Trouble | None:
    """Return what is wrong with a lane by the job's own batches."""
    if batches.created_at is not None:
        age_s = now - batches.created_at
        return (
            Trouble("stuck", f"stands still: a batch runs for {lasting(age_s)}")
            if age_s > STUCK_S
            else None
        )
    if batches.waits_since is None or (waits_s := now - batches.waits_since) <= WAITS_S:
        return None
    why = f" ({_shown(batches.why)})" if batches.why else ""
    return Trouble(
        "stuck", f"stands still: a batch waits for {lasting(waits_s)} to be created{why}"
    )


def of_pause(pause: Reason) -> Trouble:
    """Return the trouble of the lane that has paused the job for this."""
    return Trouble("stuck", f"stands still ({_shown(explain(pause))})")


def _shown(text: str) -> str:
    return redact(" ".join(text.split()))[:SHOWN_CHARS]
