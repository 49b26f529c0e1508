"""Equal requests of a job are packed once: the others wait for the answer, or take it at once.

What was sent stands in SQL, by the digests of requests, so that no worker sends one again. A
document takes an answer of its own job, and with `cache` one of its tenant's earlier jobs, which
the book in Redis finds. Where the one that was sent has failed, or its answer is too large to
share, the others are packed as well: each tries by itself.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

import redis

from penstock_ledger import (
    AnswerBook,
    Asked,
    Database,
    EqualRequests,
    EqualRequestStore,
    Keep,
    OutcomeStore,
    Remainder,
    SentRequest,
)
from penstock_ledger.model import Feed, ItemKey, Job
from penstock_producer.job.spec import JobSpec
from penstock_producer.rows import Document
from penstock_workers.errors import EndpointRefused
from penstock_workers.failure_log import FailureLog
from penstock_workers.item.attempt import Settled
from penstock_workers.item.job_view import JobView
from penstock_workers.item.outcome import Done
from penstock_workers.item.run.reading import Reader
from penstock_workers.item.run.reuse import ANSWER_BYTES_MAX, taken
from penstock_workers.item.same_request import SAME_REQUEST
from penstock_workers.lanes.batch.records import BatchAttempt, attempt_of

log = logging.getLogger(__name__)

TOGETHER: Final = 50  # answers that are taken together: as many, of 1 MiB at most, are in memory
ROWS_LOOKED_AT: Final = 500  # documents that wait, in one look
WAITING_MAX: Final = 100_000  # that one window of packing adds: all are written in one transaction

Take = Callable[[Sequence[Settled]], None]


class Alone:
    """The request is sent for each document by itself."""


class _Answered(NamedTuple):
    """The result that answers a request."""

    key: ItemKey


# a document that was sent for it and has no outcome yet, by its id; or what is known of it
_Known = str | _Answered | type[Alone]


class EqualAnswers:
    """Lets documents take the answers to equal requests. Called in the thread that packs."""

    def __init__(self, database: Database, views: Reader, book: AnswerBook, take: Take) -> None:
        self.store, self.outcomes = EqualRequestStore(database), OutcomeStore(database)
        self.views, self.book, self._take = views, book, take
        self.failures = FailureLog(log)

    def window(self, job: Job, spec: JobSpec, feed: Feed) -> EqualWindow:
        return EqualWindow(self, job, spec, feed)

    def answer(self, job: Job, generation: int) -> int:
        """Give documents that wait the answers that have come; return how many were looked at."""
        looked_at, rows = 0, self.store.answered(job.job_id, generation, ROWS_LOOKED_AT)
        while rows:
            looked_at += len(rows)
            on_their_own = [one.key for one, sent in rows if not _may_serve(sent)]
            if on_their_own:
                self.store.let_go(on_their_own)
            pairs = [(one, sent.key) for one, sent in rows if _may_serve(sent)]
            view = self.views(job.job_id, None)
            if gone := self.settle([(one, key, view) for one, key in pairs]):
                self.store.let_go([one.key for one in gone])
            if len(rows) < ROWS_LOOKED_AT:
                break
            rows = self.store.answered(job.job_id, generation, ROWS_LOOKED_AT)
        return looked_at

    def settle(self, found: Sequence[tuple[Remainder, ItemKey, JobView]]) -> list[Remainder]:
        """Settle documents with the results of others; return those whose result is gone."""
        gone = list[Remainder]()
        for start in range(0, len(found), TOGETHER):
            some = found[start : start + TOGETHER]
            results = self.outcomes.stored_results({key for _, key, _ in some})
            settled = list[Settled]()
            for one, key, view in some:
                if (result := results.get(key)) is None:
                    gone.append(one)
                else:
                    attempt = attempt_of(one, view)
                    settled.append(Settled(attempt, Done(taken(attempt, result))))
            if settled:
                self._take(settled)
        return gone


class EqualWindow:
    """The equal requests of one window of packing: what it sends, and what waits for that."""

    def __init__(self, answers: EqualAnswers, job: Job, spec: JobSpec, feed: Feed) -> None:
        self._answers, self._job, self._spec, self._feed = answers, job, spec, feed
        self._views = dict[str | None, JobView | None]()
        self._known = dict[str, _Known]()  # by digest; bounded by what a window holds
        self._names = dict[str, tuple[str, JobView]]()  # digests of the documents looked at last
        self._sent = dict[str, str]()
        self._waiting = list[Remainder]()
        self._taken = list[tuple[Remainder, ItemKey, JobView]]()

    @property
    def found(self) -> EqualRequests:
        return EqualRequests(self._job.job_id, self._feed.generation, self._sent, self._waiting)

    @property
    def is_full(self) -> bool:
        return len(self._waiting) >= WAITING_MAX

    def look(self, documents: Iterable[Document]) -> None:
        """Look up the requests of documents that come next."""
        self._names.clear()
        if not self._spec.reuses_answers:
            return
        asked = dict[str, Asked]()
        for document in documents:
            view = self._view(document.endpoint)
            policy = None if view is None else view.reuse
            found = None if policy is None else policy.asked(document.body)
            if found is not None and view is not None:
                self._names[document.doc_id] = (found.name.digest, view)
                if found.name.digest not in self._known:
                    asked[found.name.digest] = found
        for digest, sent in self._answers.store.sent(self._job.job_id, list(asked)).items():
            known = self._of(sent, asked[digest].oldest_s)
            if known is not None:
                self._known[digest] = known
        self._look_into_book([one for digest, one in asked.items() if digest not in self._known])

    def takes(self, document: Document, before: Remainder) -> bool:
        """Return whether a document needs no request: it takes an answer, or waits for one."""
        name = self._names.get(document.doc_id)
        known = None if name is None else self._known.get(name[0])
        if isinstance(known, _Answered) and name is not None and known.key != before.key:
            self._taken.append((before, known.key, name[1]))
            return True
        # one that was in a batch is packed again: others may wait for it
        if not isinstance(known, str) or known == before.key.doc_id or before.attempts:
            return False
        self._waiting.append(before._replace(same_as=known, reason=SAME_REQUEST))
        return True

    def sends(self, document: Document) -> None:
        """Note that a document is in a batch: equal ones wait for it from now on."""
        name = self._names.get(document.doc_id)
        if name is not None and name[0] not in self._known:
            self._known[name[0]] = self._sent[name[0]] = document.doc_id

    def settle(self) -> None:
        """Settle the documents that took an answer.

        Those whose answer is gone with its purged job wait for a batch."""
        found, self._taken = self._taken, []
        self._waiting += self._answers.settle(found)

    def _view(self, endpoint: str | None) -> JobView | None:
        endpoint = None if endpoint == self._spec.endpoint else endpoint
        if endpoint not in self._views:
            try:
                self._views[endpoint] = self._answers.views(self._job.job_id, endpoint)
            except EndpointRefused:
                self._views[endpoint] = None
        return self._views[endpoint]

    def _of(self, sent: SentRequest, oldest_s: float) -> _Known | None:
        """Return what a request that was sent says of the next equal one; None: nothing."""
        is_own = sent.key.generation == self._feed.generation
        if sent.is_dead is None:
            return sent.key.doc_id if is_own else None
        if not _may_serve(sent):
            return Alone if is_own else None
        return _Answered(sent.key) if time.time() - sent.made_at <= oldest_s else None

    def _look_into_book(self, asked: Sequence[Asked]) -> None:
        """Find answers of other jobs. A call that is on its way there is not waited for."""
        if not asked or self._spec.cache_s is None:
            return
        book = self._answers.book
        try:
            found = dict(zip(asked, book.ask(asked), strict=True))
            book.ask((), [one.name for one, told in found.items() if told is None])
        except redis.RedisError as error:
            self._answers.failures.tell(
                "answers of other jobs cannot be looked up", error, "the requests are sent"
            )
            return
        # a result may be gone with its purged job
        there = self._answers.outcomes.terminal(
            [told for told in found.values() if isinstance(told, ItemKey)]
        )
        for one, told in found.items():
            if isinstance(told, ItemKey) and told in there:
                self._known[one.name.digest] = _Answered(told)


def _may_serve(sent: SentRequest) -> bool:
    return not sent.is_dead and sent.size <= ANSWER_BYTES_MAX


def keep_answers(book: AnswerBook, view: JobView, settled: Iterable[Settled]) -> None:
    """Let the results of a job with `cache` answer equal requests of its tenant's later jobs."""
    if view.reuse is None or not view.reuse.across_jobs:
        return
    kept = list[tuple[BatchAttempt, Asked]]()
    for attempt, outcome in settled:
        if isinstance(attempt, BatchAttempt) and isinstance(outcome, Done) and attempt.given:
            asked = view.reuse.asked(attempt.given)
            if asked is not None and len(outcome.result.body) <= ANSWER_BYTES_MAX:
                kept.append((attempt, asked))
    # an answer is kept in the place of a claim
    for (attempt, asked), told in zip(kept, book.ask([one for _, one in kept]), strict=True):
        if told is None:
            attempt.keep = Keep(*asked.name, asked.oldest_s)
