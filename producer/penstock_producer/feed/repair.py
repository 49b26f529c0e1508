"""What is done to a feed besides its steps: lost messages are published again, what another lane has left over goes into the
queue, and a cancelled job's rest is written off."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from penstock_ledger import Remainder
from penstock_ledger.model import DeadLetter, FeedKind
from penstock_producer.errors import RowChanged
from penstock_producer.feed.feed_step import FeedStep, TriedBefore
from penstock_producer.feed.feeder import Feeder
from penstock_producer.refusals import lost, lost_of, written_off
from penstock_producer.rows import Document

__all__ = ["publish_waiting", "republish", "write_off"]


def republish(feeder: Feeder, missing: Sequence[tuple[str, str]]) -> int:
    """Publish (document id, position) pairs again that are in the window and have no message. Returns how many.

    Rows of a table that have changed meanwhile become dead letters.
    """
    changed: list[DeadLetter] = []

    def found() -> Iterator[Document]:
        for doc_id, position in missing:
            try:
                yield feeder.source.fetch(position)
            except RowChanged as error:
                changed.append(lost(feeder.key(doc_id), str(error)))

    published = feeder.publish(found(), again=True).published
    if changed:
        _settle(feeder, changed)
    return published


def publish_waiting(
    feeder: Feeder, waiting: Sequence[Remainder], *, within_s: float
) -> tuple[int, Sequence[Remainder]]:
    """Publish documents that another lane of their job has left without an outcome; returns how many, and which were looked
    at: as many as could be read ``within_s`` seconds, and one at least, since each may be a request to a bucket.

    Those that have an outcome by now, or are in the window, are left alone. Rows of a table that have changed become dead
    letters. A message says how often its document was tried; what that has cost is the caller's to note.
    """
    changed: list[DeadLetter] = []
    looked: list[Remainder] = []
    until = time.monotonic() + within_s

    def found() -> Iterator[Document]:
        for one in waiting:
            if looked and time.monotonic() >= until:
                return
            looked.append(one)
            try:
                yield feeder.source.fetch(one.position)
            except RowChanged as error:
                changed.append(lost_of(one, str(error)))

    tried = {
        one.key.doc_id: TriedBefore(retries=one.attempts, calls=one.calls)
        for one in waiting
        if one.calls or one.attempts
    }
    published = feeder.publish(found(), tried=tried).published
    if changed:
        _settle(feeder, changed)
    return published, looked


def write_off(feeder: Feeder, limit: int) -> FeedStep:
    """As ``Feeder.step``, for a job that is being cancelled: documents become dead letters `cancelled`, not messages.

    An open job is closed first, or its end would never come.
    """
    feed, stores = feeder.feed, feeder.stores

    def settle(documents: Sequence[Document]) -> tuple[int, int]:
        _settle(feeder, [written_off(document, feeder.key(document.doc_id)) for document in documents])
        return 0, 0

    if feed.kind is FeedKind.SPOOL:
        stores.jobs.close(feed.job_id)
    return feeder.advance(limit, settle)


def _settle(feeder: Feeder, letters: Sequence[DeadLetter]) -> None:
    feed, stores = feeder.feed, feeder.stores
    finished = stores.outcomes.settle([], letters)
    marks = [(letter.key.doc_id, letter.key not in finished) for letter in letters]
    stores.hot.rehydrate(feed.job_id, feed.generation, marks, feeder.buckets)  # this takes them out of the window, too
