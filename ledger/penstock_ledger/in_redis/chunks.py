"""Cut long batches into calls of bounded size, so that Redis serves others in between."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Final, TypeVar

from penstock_ledger.in_redis.batches import Publish, SettleBatch
from penstock_ledger.in_redis.redis_scripts import BATCH_MAX

# of messages per call: Redis copies them while all other clients wait
PUBLISH_BYTES_MAX: Final = 4 * 1024 * 1024

T = TypeVar("T")


def chunks(items: Iterable[T], size: int = BATCH_MAX) -> Iterator[list[T]]:
    rest = iter(items)
    while chunk := list(islice(rest, size)):
        yield chunk


def feed_chunks(docs: Iterable[Publish]) -> Iterator[tuple[tuple[str, int], list[Publish]]]:
    """Yield runs of one feed, at most BATCH_MAX documents and about PUBLISH_BYTES_MAX bytes."""
    feed, chunk, size = ("", 0), list[Publish](), 0
    for doc in docs:
        its_feed = (doc.key.job_id, doc.key.generation)
        if chunk and (
            its_feed != feed or len(chunk) == BATCH_MAX or size + len(doc.raw) > PUBLISH_BYTES_MAX
        ):
            yield feed, chunk
            chunk, size = [], 0
        feed = its_feed
        chunk.append(doc)
        size += len(doc.raw)
    if chunk:
        yield feed, chunk


def until_short(limit: int, step: Callable[[int], int]) -> int:
    """Repeat ``step`` until ``limit`` is reached, or less was moved than asked for.

    It gets at most BATCH_MAX."""
    moved = 0
    while moved < limit:
        asked = min(BATCH_MAX, limit - moved)
        now_moved = step(asked)
        moved += now_moved
        if now_moved < asked:
            break
    return moved


def settle_chunks(batch: SettleBatch, size: int) -> Iterator[SettleBatch]:
    """Yield ``batch`` in parts of at most ``size`` items."""
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
