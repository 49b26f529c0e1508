"""What is done to a feed besides its steps: lost messages are published again, and a cancelled job's rest is written off."""

from __future__ import annotations

from collections.abc import Sequence

from penstock_ledger.model import FeedKind
from penstock_producer.feed.feed_step import FeedStep
from penstock_producer.feed.feeder import Feeder
from penstock_producer.refusals import written_off
from penstock_producer.rows import Document

__all__ = ["republish", "write_off"]


def republish(feeder: Feeder, missing: Sequence[tuple[str, str]]) -> int:
    """Publish (document id, position) pairs again that are in the window and have no message. Returns how many."""
    return feeder.publish((feeder.source.fetch(position) for _, position in missing), again=True).published


def write_off(feeder: Feeder, limit: int) -> FeedStep:
    """As ``Feeder.step``, for a job that is being cancelled: documents become dead letters `cancelled`, not messages.

    An open job is closed first, or its end would never come.
    """
    feed, stores = feeder.feed, feeder.stores

    def settle(documents: Sequence[Document]) -> tuple[int, int]:
        letters = [written_off(document, feeder.key(document.doc_id)) for document in documents]
        finished = stores.outcomes.settle([], letters)
        marks = [(letter.key.doc_id, letter.key not in finished) for letter in letters]
        stores.hot.rehydrate(
            feed.job_id, feed.generation, marks, feeder.buckets
        )  # this takes them out of the window, too
        return 0, 0

    if feed.kind is FeedKind.SPOOL:
        stores.jobs.close(feed.job_id)
    return feeder.advance(limit, settle)
