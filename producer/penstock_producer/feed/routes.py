"""Each document of a feed belongs to the queue of the model which its request names."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

import orjson

from penstock_ledger import Publish, RedisLedger, buckets_for
from penstock_ledger.model import Feed, FeedKind, ItemKey, Job
from penstock_producer.feed.queues import queue_name
from penstock_producer.feed.wire import MAX_INLINE_BODY_BYTES, encode_item, fed_now
from penstock_producer.job.lanes import has_own_model
from penstock_producer.job.spec import JobSpec
from penstock_producer.rows import Document

__all__ = ["GENERATION", "FeedBeside", "Routes", "Spooled", "model_of"]

NOTE_EACH_S: Final = 15.0
"""A queue is noted again in Redis after this: Redis may have lost it, and forgets it an hour after
its last use."""
GROUP_MAX: Final = 5_000
"""Documents that are sorted together."""
GROUP_BYTES: Final = 16 * 1024 * 1024
"""Of their request bodies: lost documents are read again one by one, and may be large."""


class Routes:
    """Of one feed.

    Only documents whose models may differ are parsed: batch lines, and replays that change the
    request."""

    def __init__(
        self,
        spec: JobSpec,
        lane: str,
        feed: Feed,
        hot: RedisLedger,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``lane``: where the job is now."""
        self._lane = lane
        self._own = queue_name(lane)
        self._hot = hot
        self._clock = clock
        self._job_id = feed.job_id
        self._is_split = has_own_model(lane)
        self._is_one_model = spec.asks_one_model and feed.kind is not FeedKind.REPLAY
        self._model = spec.model
        self._noted = set[str]()  # forgotten together, as is the next
        # queues for which the lane had no room at the last look
        self._full: frozenset[str] = frozenset()
        self._note_again_at = 0.0

    def sorted(self, documents: Iterable[Document]) -> Iterator[tuple[str, Iterable[Document]]]:
        """Yield the documents by their queues, each in its order.

        Many documents come in bounded groups, one after the other. Raises redis.RedisError.
        """
        if not self._is_split:
            yield self._own, documents
            return
        group, size = list[Document](), 0
        for document in documents:
            group.append(document)
            size += len(document.body)
            if len(group) >= GROUP_MAX or size >= GROUP_BYTES:
                yield from self._by_queue(group)
                group, size = [], 0
        yield from self._by_queue(group)

    def _by_queue(self, group: Iterable[Document]) -> Iterator[tuple[str, Iterable[Document]]]:
        found: dict[str | None, list[Document]] = {}
        for document in group:
            found.setdefault(
                self._model if self._is_one_model else model_of(document.body), []
            ).append(document)
        queues: dict[str, list[Document]] = {}
        for model, some in found.items():
            queues.setdefault(self._queue(model), []).extend(some)
        yield from queues.items()

    def _queue(self, model: str | None) -> str:
        """Return the queue of a document by its model.

        Documents without a model follow the one that the job is bound to; those without room wait
        in the lane's queue.
        """
        queue = queue_name(self._lane, model)
        if model is None:
            bound = self._hot.bound(self._job_id)
            queue = (
                bound
                if bound is not None and self._hot.queues.is_of(self._own, bound)
                else self._own
            )
        return self._own if queue in self._without_room(queue) else queue

    def _without_room(self, queue: str) -> frozenset[str]:
        now = self._clock()
        if now >= self._note_again_at:
            self._noted, self._full, self._note_again_at = set(), frozenset(), now + NOTE_EACH_S
        if queue != self._own and queue not in self._noted and queue not in self._full:
            refused = self._hot.queues.note(self._own, [queue])
            self._full |= refused
            if not refused:
                self._noted.add(queue)
        return self._full


def model_of(body: bytes) -> str | None:
    """Return the model that a request names; None for one that names none."""
    try:
        request = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    model = request.get("model") if isinstance(request, dict) else None
    return model if isinstance(model, str) and model else None


GENERATION = 1  # an open job's spool is its first


class Spooled(NamedTuple):
    """A document that is in the spool."""

    doc_id: str
    body: bytes
    number: int  # of its row
    stream: str | None = None  # the door whose caller reads the answer as it comes


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
        doors = {one.doc_id: one.stream for one in documents}
        for queue, some in self._routes.sorted(rows):
            encoded = [self._encoded(row, queue, doors[row.doc_id]) for row in some]
            self._hot.publish(queue, encoded, self._buckets, urgent=True)

    def _encoded(self, row: Document, queue: str, stream: str | None) -> Publish:
        key = ItemKey(self._job_id, GENERATION, row.doc_id)
        is_inline = len(row.body) <= MAX_INLINE_BODY_BYTES
        body, ref = (row.body, None) if is_inline else (None, row.position)
        return Publish(
            key,
            row.position,
            encode_item(
                key, queue=queue, body=body, ref=ref, urgent=True, fed=fed_now(), stream=stream
            ),
        )
