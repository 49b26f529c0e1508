"""Outcomes of items, for tests of what Celery and the broker make of them."""

from __future__ import annotations

from penstock_ledger.model import DeadLetter, ItemKey, Result
from penstock_workers.item.outcome import Dead, Done

KEY = ItemKey("job", 1, "doc")


def done(latency_ms: int = 100) -> Done:
    return Done(Result(KEY, 200, b"{}", None, "m", "stop", 1, 1, 0, latency_ms, 1, 1))


def dead(error: str, reason: str = "bad_request") -> Dead:
    return Dead(DeadLetter(KEY, reason, 1, 1, error, 400, b"{}", None))
