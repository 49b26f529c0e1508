"""Documents of an open job that go into the queue at once, beside the job's feeder.

For callers who wait: the way over the spool and a feeder costs them a round of a control loop. The
documents are in the spool all the same. The feeder finds them in the window, or finished, and goes
on; a document whose process died before it was queued here, it queues.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from penstock_ledger import Publish, RedisLedger, buckets_for
from penstock_ledger.model import Feed, FeedKind, ItemKey, Job
from penstock_producer.feed.routes import Routes
from penstock_producer.feed.wire import MAX_INLINE_BODY_BYTES, encode_item, fed_now
from penstock_producer.job.spec import JobSpec
from penstock_producer.rows import Document

__all__ = ["GENERATION", "FeedBeside", "Spooled"]

GENERATION = 1  # an open job's spool is its first


class Spooled(NamedTuple):
    """A document that is in the spool."""

    doc_id: str
    body: bytes
    number: int  # of its row


class FeedBeside:
    """Of one job. Not thread-safe."""

    def __init__(self, job: Job, spec: JobSpec, hot: RedisLedger) -> None:
        self._job_id = job.job_id
        self._buckets = buckets_for(job)
        self._hot = hot
        feed = Feed(job.job_id, GENERATION, FeedKind.SPOOL, {}, exhausted=False, fence=0)
        self._routes = Routes(spec, job.lane, feed, hot)

    def publish(self, documents: Sequence[Spooled]) -> None:
        """Queue them, as urgent ones, unless they are in the window or finished.

        Raises RedisForgot and redis.RedisError."""
        rows = [
            Document(one.doc_id, one.body, str(one.number), one.number, {}) for one in documents
        ]
        for queue, some in self._routes.sorted(rows):
            self._hot.publish(
                queue, [self._encoded(row, queue) for row in some], self._buckets, urgent=True
            )

    def _encoded(self, row: Document, queue: str) -> Publish:
        key = ItemKey(self._job_id, GENERATION, row.doc_id)
        is_inline = len(row.body) <= MAX_INLINE_BODY_BYTES
        body, ref = (row.body, None) if is_inline else (None, row.position)
        return Publish(
            key,
            row.position,
            encode_item(key, queue=queue, body=body, ref=ref, urgent=True, fed=fed_now()),
        )
