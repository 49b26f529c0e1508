"""The feeder: moves documents from a source into the queue, a bounded step at a time.

Crash by crash: documents are published first and the cursor moves after, so a death in between publishes the same
documents again, and the ledger drops what is already in the window. Nothing is skipped, nothing is queued twice.
Rows are taken in piles. In a job that wants prefix order a pile is thousands of rows, published in another order than the
source's; the cursor moves behind the whole pile or not at all, so the order within it needs no memory.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from penstock_ledger import Database, JobStore, OutcomeStore, Publish, PublishReport, RedisLedger, buckets_for
from penstock_ledger.model import DeadLetter, Feed, FeedKind, ItemKey, Job
from penstock_producer.prefix_order import BYTES_ORDERED, ROWS_ORDERED, in_prefix_order, wants_order
from penstock_producer.refusals import DUPLICATE, refused, written_off
from penstock_producer.settings import ProducerSettings
from penstock_producer.sources.base import BadRow, Cursor, Document, Source
from penstock_producer.sources.of_feed import open_feed_source, source_of
from penstock_producer.spec import JobSpec
from penstock_producer.tracing import SendSpans
from penstock_producer.wire import MAX_INLINE_BODY_BYTES, encode_item, fed_now, item_tag, queue_name

__all__ = ["FeedStep", "Feeder", "open_feed_source", "open_feeder"]

DOCUMENTS_PER_PUBLISH = 500  # one Lua call: a few milliseconds in which Redis serves nobody else
BYTES_PER_PUBLISH = 4 * 1024 * 1024  # of request bodies held while a call is prepared


@dataclass(frozen=True, slots=True)
class FeedStep:
    """What one step did."""

    read: int = 0  # rows, good and bad
    published: int = 0  # new in the queue
    skipped: int = 0  # finished or in the window already
    refused: int = 0  # rows that are no documents
    exhausted: bool = False


class _Bounds(NamedTuple):
    """How much is taken from the source at once: the rows, and the bytes of their request bodies."""

    rows: int
    size: int


_GROUP = _Bounds(DOCUMENTS_PER_PUBLISH, BYTES_PER_PUBLISH)
_PILE = _Bounds(ROWS_ORDERED, BYTES_ORDERED)

# Takes documents, returns how many were published and how many were skipped.
_Handler = Callable[[Sequence[Document]], tuple[int, int]]


class Feeder:
    """Feeds one generation of one job, as long as ``owner`` leads its feed. Not thread-safe; no thread of its own."""

    def __init__(
        self,
        job: Job,
        feed: Feed,
        source: Source,
        *,
        queue: str,
        owner: str,
        jobs: JobStore,
        outcomes: OutcomeStore,
        redis_ledger: RedisLedger,
        refused_lines: frozenset[int] = frozenset(),
        ordered_for: str | None = None,
        spans: SendSpans | None = None,
    ) -> None:
        self.feed = feed
        self.urgent = False  # set by who leads: whether documents go to the consuming end of the queue
        self._job = job
        self._source = source
        self._queue = queue
        self._owner = owner
        self._jobs = jobs
        self._outcomes = outcomes
        self._redis = redis_ledger
        self._buckets = buckets_for(job)
        self._refused_lines = refused_lines
        self._ordered_for = ordered_for  # the endpoint whose bodies are put into prefix order; None keeps the source's
        self._spans = spans  # None: nothing is traced
        self._rows: Iterator[Document | BadRow] | None = None
        self._cursor: Cursor = dict(feed.cursor)

    @property
    def ordered(self) -> bool:
        """Whether its steps are put into prefix order, which pays the more the larger they are."""
        return self._ordered_for is not None

    def lead(self, feed: Feed) -> None:
        """Take over the feed as the renewed lease returned it; a cursor that was moved meanwhile is followed."""
        if feed.cursor != self._cursor or feed.fence != self.feed.fence:
            self._forget_position(feed.cursor)
        self.feed = feed

    def step(self, limit: int) -> FeedStep:
        """Publish up to ``limit`` rows and move the durable cursor behind them.

        Raises SourceChanged, SourceUnavailable, FeedLost, RedisForgot and errors of the servers. All of them leave the
        durable cursor where it was; the next step starts from there.
        """
        if not self.ordered:
            return self._run(limit, self._publish, _GROUP)
        return self._run(limit, self._publish_ordered, _PILE)

    def write_off(self, limit: int) -> FeedStep:
        """As ``step``, for a job that is being cancelled: documents become dead letters `cancelled`, not messages.

        An open job is closed first, or its end would never come.
        """
        if self.feed.kind is FeedKind.SPOOL:
            self._jobs.close(self.feed.job_id)
        return self._run(limit, self._write_off, _GROUP)

    def republish(self, missing: Sequence[tuple[str, str]]) -> int:
        """Publish (document id, position) pairs again that are in the window and nowhere else. Returns how many."""
        published = 0
        for start in range(0, len(missing), DOCUMENTS_PER_PUBLISH):
            group = missing[start : start + DOCUMENTS_PER_PUBLISH]
            items = [self._item(self._source.fetch(position)) for _, position in group]
            published += self._send(items, again=True).published
        return published

    def _run(self, limit: int, handle: _Handler, bounds: _Bounds) -> FeedStep:
        if self.feed.exhausted:
            return FeedStep(exhausted=True)
        try:
            return self._advance(limit, handle, bounds)
        except Exception:
            self._forget_position(self.feed.cursor)
            raise

    def _advance(self, limit: int, handle: _Handler, bounds: _Bounds) -> FeedStep:
        total = FeedStep()
        while total.read < limit and not total.exhausted:
            rows, exhausted = self._take(min(bounds.rows, limit - total.read), bounds.size)
            total = _add(total, self._handle(rows, handle), exhausted)
            if not rows:
                break
        if total.read or total.exhausted:
            self._jobs.advance_feed(self.feed, self._owner, cursor=self._cursor, exhausted=total.exhausted)
            self.feed = replace(self.feed, cursor=dict(self._cursor), exhausted=total.exhausted)
        return total

    def _take(self, limit: int, max_bytes: int) -> tuple[list[Document | BadRow], bool]:
        """Up to ``limit`` rows of bounded size, and whether the source has ended with them."""
        fresh = self._rows is None
        if self._rows is None:
            self._rows = iter(self._source.documents(self._cursor))
        rows: list[Document | BadRow] = []
        size = 0
        for row in self._rows:
            rows.append(row)
            size += len(row.body) if isinstance(row, Document) else len(row.request)
            if len(rows) >= limit or size >= max_bytes:
                return rows, False
        self._rows = None
        ended = self._source.ended()
        return (rows, ended) if rows or ended or fresh else self._take(limit, max_bytes)

    def _handle(self, rows: Sequence[Document | BadRow], handle: _Handler) -> FeedStep:
        if not rows:
            return FeedStep()
        documents = [row for row in rows if isinstance(row, Document) and row.line not in self._refused_lines]
        self._bury([row for row in rows if isinstance(row, BadRow)])
        published, skipped = handle(documents) if documents else (0, 0)
        self._source.mark_published(documents)
        self._cursor = rows[-1].cursor
        return FeedStep(len(rows), published, skipped, len(rows) - len(documents))

    def _publish(self, documents: Sequence[Document]) -> tuple[int, int]:
        report = self._send([self._item(document) for document in documents])
        return report.published, report.done + report.in_window

    def _send(self, items: Sequence[Publish], *, again: bool = False) -> PublishReport:
        began_ns = time.time_ns()
        report = self._redis.publish(self._queue, items, self._buckets, urgent=self.urgent, again=again)
        if self._spans is not None and report.published:
            self._spans.sent([item.key for item in items], self._queue, began_ns, again=again)
        return report

    def _publish_ordered(self, documents: Sequence[Document]) -> tuple[int, int]:
        assert self._ordered_for is not None, "only jobs in prefix order come here"
        done = [self._publish(group) for group in _groups(in_prefix_order(documents, self._ordered_for))]
        return sum(published for published, _ in done), sum(skipped for _, skipped in done)

    def _write_off(self, documents: Sequence[Document]) -> tuple[int, int]:
        letters = [written_off(document, self._key(document.doc_id)) for document in documents]
        finished = self._outcomes.settle([], letters)
        marks = [(letter.key.doc_id, letter.key not in finished) for letter in letters]
        self._redis.rehydrate(self.feed.job_id, self.feed.generation, marks, self._buckets)  # out of the window, too
        return 0, 0

    def _bury(self, rows: Sequence[BadRow]) -> None:
        """Refused rows of a file were settled at submit; those of a replay are settled here, or the job never ends."""
        if self.feed.kind is FeedKind.SOURCE or not rows:
            return
        letters: list[DeadLetter] = [refused(row, self._key(row.doc_id)) for row in rows if row.doc_id is not None]
        self._outcomes.settle([], letters)

    def _item(self, document: Document) -> Publish:
        key = self._key(document.doc_id)
        inline = len(document.body) <= MAX_INLINE_BODY_BYTES
        body, ref = (document.body, None) if inline else (None, document.position)
        trace = None if self._spans is None else self._spans.header(key)
        raw = encode_item(key, queue=self._queue, body=body, ref=ref, urgent=self.urgent, fed=fed_now(), trace=trace)
        return Publish(key, document.position, item_tag(key), raw)

    def _key(self, doc_id: str) -> ItemKey:
        return ItemKey(self.feed.job_id, self.feed.generation, doc_id)

    def _forget_position(self, cursor: Cursor) -> None:
        self._rows = None
        self._cursor = dict(cursor)


def open_feeder(
    database: Database,
    redis_ledger: RedisLedger,
    job: Job,
    feed: Feed,
    *,
    owner: str,
    settings: ProducerSettings | None = None,
    spans: SendSpans | None = None,
) -> Feeder:
    """A feeder for a feed that ``owner`` has leased. Nothing of the source is read yet."""
    outcomes = OutcomeStore(database)
    spec = JobSpec.accepted(job.spec)
    return Feeder(
        job,
        feed,
        source_of(database, job, feed, settings),
        queue=queue_name(spec.lane),
        owner=owner,
        jobs=JobStore(database),
        outcomes=outcomes,
        redis_ledger=redis_ledger,
        refused_lines=_duplicate_lines(job, feed, outcomes),
        ordered_for=spec.endpoint if wants_order(spec) else None,
        spans=spans,
    )


def _duplicate_lines(job: Job, feed: Feed, outcomes: OutcomeStore) -> frozenset[int]:
    """Lines refused at submit for an id that an earlier line has: the row itself does not show it."""
    if feed.kind is not FeedKind.SOURCE:
        return frozenset()
    letters = outcomes.dead_letters(job.job_id, reason=DUPLICATE, include_superseded=True)
    return frozenset(letter.line for letter in letters if letter.key.generation == 1 and letter.line is not None)


def _groups(documents: Sequence[Document]) -> Iterator[Sequence[Document]]:
    """In their order, as many at a time as one Lua call takes."""
    start = size = 0
    for end, document in enumerate(documents, 1):
        size += len(document.body)
        if end - start >= _GROUP.rows or size >= _GROUP.size or end == len(documents):
            yield documents[start:end]
            start, size = end, 0


def _add(total: FeedStep, step: FeedStep, exhausted: bool) -> FeedStep:
    return FeedStep(
        total.read + step.read,
        total.published + step.published,
        total.skipped + step.skipped,
        total.refused + step.refused,
        exhausted,
    )
