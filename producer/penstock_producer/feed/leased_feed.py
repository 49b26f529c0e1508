"""Besides its steps, a feed is opened under its lease, repaired, and written off."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from operator import attrgetter, itemgetter
from typing import Final, TypeVar

from penstock_ledger import Database, JobStore, OutcomeStore, RedisLedger, Remainder
from penstock_ledger.model import DeadLetter, Feed, FeedKind, Job
from penstock_producer.errors import RowChanged
from penstock_producer.feed.feeder import Feeder, FeedStep, FeedStores, TriedBefore
from penstock_producer.feed.feeder_plan import wants_order
from penstock_producer.feed.routes import Routes
from penstock_producer.feed.tracing import SendSpans
from penstock_producer.job.spec import JobSpec
from penstock_producer.refusals import lost, lost_of, written_off
from penstock_producer.rows import Document, Source
from penstock_producer.settings import ProducerSettings
from penstock_producer.sources.of_feed import source_of

__all__ = ["open_feeder", "publish_waiting", "republish", "write_off"]


def open_feeder(
    database: Database,
    redis_ledger: RedisLedger,
    job: Job,
    feed: Feed,
    *,
    owner: str,
    settings: ProducerSettings | None = None,
    spans: SendSpans | None = None,
    spec: JobSpec | None = None,
) -> Feeder:
    """Return a feeder for a feed that ``owner`` has leased. Nothing of the source is read yet.

    ``spec``: the job's, where the caller has parsed it.
    """
    outcomes = OutcomeStore(database)
    spec = spec or JobSpec.accepted(job.spec)
    return Feeder(
        job,
        feed,
        source_of(database, job, feed, settings, spec),
        FeedStores(JobStore(database), outcomes, redis_ledger),
        routes=Routes(spec, job.lane, feed, redis_ledger),
        owner=owner,
        refused_lines=outcomes.refused_lines(job.job_id)
        if feed.kind is FeedKind.SOURCE
        else frozenset(),
        ordered_for=spec.endpoint if wants_order(spec) else None,
        spans=spans,
    )


T = TypeVar("T")


FETCHES_AT_ONCE: Final = 8
"""Documents that are read again side by side: each may be a request to a bucket."""


def republish(feeder: Feeder, missing: Sequence[tuple[str, str]]) -> int:
    """Publish (document id, position) pairs again that are in the window and have no message.

    Returns how many.

    Rows of a table that have changed meanwhile become dead letters.
    """
    changed: list[DeadLetter] = []

    def found() -> Iterator[Document]:
        for (doc_id, _), row in _read_again(feeder.source, missing, itemgetter(1)):
            if isinstance(row, RowChanged):
                changed.append(lost(feeder.key(doc_id), str(row)))
            else:
                yield row

    published = feeder.publish(found(), again=True).published
    if changed:
        _settle(feeder, changed)
    return published


def publish_waiting(
    feeder: Feeder, waiting: Sequence[Remainder], *, within_s: float
) -> tuple[int, Sequence[Remainder]]:
    """Publish documents that another lane of their job has left without an outcome.

    Returns how many, and which were looked at: as many as could be read in ``within_s`` seconds,
    ``FETCHES_AT_ONCE`` side by side, and those at least.

    Those that have an outcome by now, or are in the window, are left alone. Rows of a table that
    have changed become dead letters. A message says how often its document was tried; what that has
    cost is the caller's to note.
    """
    changed: list[DeadLetter] = []
    looked: list[Remainder] = []
    until = time.monotonic() + within_s

    def found() -> Iterator[Document]:
        for one, row in _read_again(feeder.source, waiting, attrgetter("position"), until):
            looked.append(one)
            if isinstance(row, RowChanged):
                changed.append(lost_of(one, str(row)))
            else:
                yield row

    tried = {one.key.doc_id: _tried(one) for one in waiting if one.calls or one.attempts}
    published = feeder.publish(found(), tried=tried).published
    if changed:
        _settle(feeder, changed)
    return published, looked


def _tried(one: Remainder) -> TriedBefore:
    """Return what the message of a document says of its batches, but for their cost."""
    tried = TriedBefore(retries=one.attempts, calls=one.calls)
    if one.escalations:  # the last of what a message counts; see Spent of the workers
        tried["spent"] = (0, 0, 0, 0, 0, 0, one.escalations)
    return tried


def write_off(feeder: Feeder, limit: int) -> FeedStep:
    """Do as ``Feeder.step`` for a job that is being cancelled.

    Documents become dead letters `cancelled`, not messages. An open job is closed first, or its end
    would never come.
    """
    feed, stores = feeder.feed, feeder.stores

    def settle(documents: Sequence[Document]) -> tuple[int, int]:
        _settle(
            feeder, [written_off(document, feeder.key(document.doc_id)) for document in documents]
        )
        return 0, 0

    if feed.kind is FeedKind.SPOOL:
        stores.jobs.close(feed.job_id)
    return feeder.advance(limit, settle)


def _read_again(
    source: Source, places: Sequence[T], position_of: Callable[[T], str], until: float = math.inf
) -> Iterator[tuple[T, Document | RowChanged]]:
    """Yield each of ``places`` with its document, in their order.

    It ends at the monotonic time ``until``.

    A row of a table that has changed comes as its error; other errors of the source are raised.
    """

    def read(place: T) -> Document | RowChanged:
        try:
            return source.fetch(position_of(place))
        except RowChanged as error:
            return error

    with ThreadPoolExecutor(FETCHES_AT_ONCE, thread_name_prefix="penstock-read-again") as pool:
        for start in range(0, len(places), FETCHES_AT_ONCE):
            if start and time.monotonic() >= until:
                return
            some = places[start : start + FETCHES_AT_ONCE]
            yield from zip(some, pool.map(read, some), strict=True)


def _settle(feeder: Feeder, letters: Sequence[DeadLetter]) -> None:
    feed, stores = feeder.feed, feeder.stores
    finished = stores.outcomes.settle([], letters)
    marks = [(letter.key.doc_id, letter.key not in finished) for letter in letters]
    # this takes them out of the window, too
    stores.hot.rehydrate(feed.job_id, feed.generation, marks, feeder.buckets)
