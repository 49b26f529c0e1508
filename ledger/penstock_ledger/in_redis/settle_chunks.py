"""Cutting a settlement into calls of bounded size, in its order: finished, retried, released.

The rest is only counted."""

from __future__ import annotations

from collections.abc import Iterator

from penstock_ledger.in_redis.batches import SettleBatch


def settle_chunks(batch: SettleBatch, size: int) -> Iterator[SettleBatch]:
    """``batch`` in parts of at most ``size`` items."""
    parts = (batch.done, batch.dead, batch.retries, batch.released)
    total = sum(map(len, parts))
    if total <= size:
        if total:
            yield batch
        return
    for start in range(0, len(batch.done), size):
        yield SettleBatch(done=batch.done[start : start + size])
    for start in range(0, len(batch.dead), size):
        yield SettleBatch(dead=batch.dead[start : start + size])
    for start in range(0, len(batch.retries), size):
        yield SettleBatch(retries=batch.retries[start : start + size])
    for start in range(0, len(batch.released), size):
        yield SettleBatch(released=batch.released[start : start + size], paid=batch.paid)
