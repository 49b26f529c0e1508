"""The feeder: moves documents from a source into the queue, a bounded step at a time.

A step reads rows, encodes them as messages, publishes them, and then moves the durable cursor
behind them. Where a feeder dies in between, the next one publishes the same documents again, and
the ledger drops those that are in the window already.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, TypedDict

from penstock_ledger import JobStore, OutcomeStore, Publish, PublishReport, RedisLedger, buckets_for
from penstock_ledger.model import Feed, FeedKind, ItemKey, Job
from penstock_producer.feed.feeder_plan import in_prefix_order
from penstock_producer.feed.routes import Routes
from penstock_producer.feed.tracing import SendSpans
from penstock_producer.feed.wire import MAX_INLINE_BODY_BYTES, encode_item, fed_now
from penstock_producer.refusals import changed_since, refused
from penstock_producer.rows import BadRow, BoundedReader, Document, Source

__all__ = ["FeedStep", "Feeder"]

# takes documents; how many were published, how many skipped
Handler = Callable[[Sequence[Document]], tuple[int, int]]


@dataclass(frozen=True, slots=True)
class FeedStep:
    """The doings of one step."""

    read: int = 0  # rows, good and bad
    published: int = 0  # new in the queue
    skipped: int = 0  # finished or in the window already
    refused: int = 0  # rows that are no documents
    exhausted: bool = False

    def plus(self, later: FeedStep) -> FeedStep:
        return FeedStep(
            self.read + later.read,
            self.published + later.published,
            self.skipped + later.skipped,
            self.refused + later.refused,
            later.exhausted,
        )


class TriedBefore(TypedDict, total=False):
    """The use of earlier attempts at a document, as ``encode_item`` takes it."""

    retries: int
    calls: int
    spent: tuple[int, ...]


Tried = Mapping[str, TriedBefore]  # by document id
NEVER_TRIED: Final = TriedBefore()
UNTRIED: Final[Tried] = {}


class FeedStores(NamedTuple):
    """The parts of the ledger that a feeder works with."""

    jobs: JobStore
    outcomes: OutcomeStore
    hot: RedisLedger


class Feeder:
    """Feeds one generation of one job, as long as ``owner`` leads its feed.

    Not thread-safe; no thread of its own."""

    def __init__(
        self,
        job: Job,
        feed: Feed,
        source: Source,
        stores: FeedStores,
        *,
        routes: Routes,
        owner: str,
        refused_lines: frozenset[int] = frozenset(),
        ordered_for: str | None = None,
        spans: SendSpans | None = None,
    ) -> None:
        self.feed = feed
        # set by the control loop: whether documents go to the consuming end of the queue
        self.urgent = False
        self.source = source
        self.stores = stores
        self.buckets = buckets_for(job)
        self._routes = routes
        self._owner = owner
        # the survey's: rows there are read less strictly than by the survey
        self._refused_lines = refused_lines
        # the endpoint whose bodies are put into prefix order; None keeps the source's
        self._ordered_for = ordered_for
        self._spans = spans  # None: no item is traced
        self._reader = BoundedReader(source, feed.cursor)
        self._tried: Tried = UNTRIED  # of those that are published now

    @property
    def ordered(self) -> bool:
        """Return whether its steps are put into prefix order, which pays more for large ones."""
        return self._ordered_for is not None

    def lead(self, feed: Feed) -> None:
        """Take over the feed as the renewed lease returned it.

        A cursor that was moved meanwhile is followed.
        """
        if feed.cursor != self._reader.cursor or feed.fence != self.feed.fence:
            self._reader.go_to(feed.cursor)
        self.feed = feed

    def step(self, limit: int) -> FeedStep:
        """Publish up to ``limit`` rows and move the durable cursor behind them.

        Raises SourceChanged, SourceUnavailable, FeedLost, RedisForgot and errors of the servers,
        and then the cursor stays."""
        return self.advance(limit, self._publish_new)

    def advance(self, limit: int, handle: Handler) -> FeedStep:
        """Give up to ``limit`` rows to ``handle`` and move the durable cursor behind them.

        Raises as ``step`` does."""
        if self.feed.exhausted:
            return FeedStep(exhausted=True)
        try:
            total = FeedStep()
            while total.read < limit and not total.exhausted:
                rows, exhausted = self._reader.read(limit - total.read)
                total = total.plus(self._handle(rows, handle, exhausted))
                if not rows:
                    break
            if total.read or total.exhausted:
                self._move_cursor(total.exhausted)
            return total
        except Exception:
            self._reader.go_to(self.feed.cursor)
            raise

    def publish(
        self, documents: Iterable[Document], *, again: bool = False, tried: Tried = UNTRIED
    ) -> PublishReport:
        """Queue documents that are not finished and not in the window of the queue.

        With ``again``, for lost messages, those in the window are queued, too. ``tried`` says by id
        how often they were tried before.
        """
        self._tried = tried
        reports = [
            self._publish_to(queue, some, again) for queue, some in self._routes.sorted(documents)
        ]
        return PublishReport(*map(sum, zip((0, 0, 0), *reports, strict=True)))

    def _publish_to(self, queue: str, documents: Iterable[Document], again: bool) -> PublishReport:
        began_ns, fed, keys = time.time_ns(), fed_now(), list[ItemKey]()
        items = (self._encode(document, queue, fed, keys) for document in documents)
        report = self.stores.hot.publish(
            queue, items, self.buckets, urgent=self.urgent, again=again
        )
        if self._spans is not None and report.published:
            self._spans.sent(keys, queue, began_ns, again=again)
        return report

    def key(self, doc_id: str) -> ItemKey:
        return ItemKey(self.feed.job_id, self.feed.generation, doc_id)

    def _handle(
        self, rows: Sequence[Document | BadRow], handle: Handler, exhausted: bool
    ) -> FeedStep:
        if not rows:
            return FeedStep(exhausted=exhausted)
        documents = [
            row for row in rows if isinstance(row, Document) and row.line not in self._refused_lines
        ]
        if bad := [row for row in rows if isinstance(row, BadRow)]:
            self._settle_bad(bad)
        published, skipped = handle(documents) if documents else (0, 0)
        self.source.mark_published(documents)
        self._reader.cursor = rows[-1].cursor
        return FeedStep(len(rows), published, skipped, len(rows) - len(documents), exhausted)

    def _publish_new(self, documents: Sequence[Document]) -> tuple[int, int]:
        if self._ordered_for is not None:
            documents = in_prefix_order(documents, self._ordered_for)
        report = self.publish(documents)
        return report.published, report.done + report.in_window

    def _encode(self, document: Document, queue: str, fed: int, keys: list[ItemKey]) -> Publish:
        key = self.key(document.doc_id)
        keys.append(key)
        inline = len(document.body) <= MAX_INLINE_BODY_BYTES
        body, ref = (document.body, None) if inline else (None, document.position)
        trace = None if self._spans is None else self._spans.header(key)
        tried = self._tried.get(document.doc_id, NEVER_TRIED)
        raw = encode_item(
            key,
            queue=queue,
            body=body,
            ref=ref,
            urgent=self.urgent,
            fed=fed,
            trace=trace,
            endpoint=document.endpoint,
            **tried,
        )
        return Publish(key, document.position, raw)

    def _settle_bad(self, rows: Sequence[BadRow]) -> None:
        """Settle rows that cannot become requests, or the job never ends.

        Those of a file were settled at submit; left are those of a replay, and rows that changed
        since.
        """
        if self.feed.kind is FeedKind.SOURCE:
            rows = changed_since(rows, self._refused_lines)
        if letters := [
            refused(row, self.key(row.doc_id)) for row in rows if row.doc_id is not None
        ]:
            self.stores.outcomes.settle([], letters)

    def _move_cursor(self, exhausted: bool) -> None:
        cursor = dict(self._reader.cursor)
        self.stores.jobs.advance_feed(self.feed, self._owner, cursor=cursor, exhausted=exhausted)
        self.feed = replace(self.feed, cursor=cursor, exhausted=exhausted)
