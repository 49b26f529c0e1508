"""Packs documents from their source into provider batches, and packs lost files again.

A window is read, written to the disk, and then one transaction notes its batches and moves the
feed's cursor. If the process dies before that, the next leader packs the same window again; nothing
was sent by then.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from itertools import islice
from typing import Any, Final

from penstock_ledger import (
    AnswerBook,
    Database,
    JobStore,
    NewProviderBatch,
    OutcomeStore,
    ProviderBatch,
    ProviderBatchStore,
    RedisLedger,
    Remainder,
    RemainderStore,
    StepsTaken,
)
from penstock_ledger.model import DeadLetter, Feed, FeedKind, ItemKey, Job, JobState
from penstock_producer.errors import RowChanged, SourceError, SourceUnavailable
from penstock_producer.job.spec import JobSpec
from penstock_producer.planning.prefixes import CachedPrompts
from penstock_producer.refusals import changed_since, lost_of, refused
from penstock_producer.rows import BadRow, Document, Source
from penstock_producer.sources.of_feed import source_of
from penstock_producer.storage import discarded_on_error
from penstock_workers.item.attempt import Settled
from penstock_workers.item.run.reading import read_job
from penstock_workers.lanes.batch.apis.provider import BadLine, BatchProvider
from penstock_workers.lanes.batch.equal import EqualAnswers, EqualWindow
from penstock_workers.lanes.batch.packed import (
    PackedBatch,
    PackedDocument,
    PackedFolder,
    PackedWriter,
    packed_before,
)
from penstock_workers.lanes.batch.window import Terms, Window, line_of
from penstock_workers.settings import WorkerSettings

log = logging.getLogger(__name__)

ROWS_READ: Final = 500  # looked up in the ledger together
FETCHED_TOGETHER: Final = 50  # documents that are read again, by their places
BYTES_READ: Final = 16 * 1024 * 1024  # of their requests
# in one batch, whatever a provider allows: their ids are held in memory
REQUESTS_MAX: Final = 100_000

Row = Document | BadRow


class Stopped(Exception):
    """The worker is about to end; what was packed so far is thrown away."""


class Packer:
    """Packs documents into batches, in threads, one call at a time.

    ``settle`` settles outcomes on the event loop."""

    def __init__(
        self,
        settings: WorkerSettings,
        database: Database,
        hot: RedisLedger,
        folder: PackedFolder,
        owner: str,
        book: AnswerBook,
        settle: Callable[[Sequence[Settled]], Future[None]],
    ) -> None:
        self._settings, self._database, self._folder, self._owner = (
            settings,
            database,
            folder,
            owner,
        )
        self._settle, self._hot = settle, hot
        self._jobs, self._outcomes = JobStore(database), OutcomeStore(database)
        self._batches, self._remainders = ProviderBatchStore(database), RemainderStore(database)
        self._lease_s = settings.visibility_timeout_s
        self.stopped = threading.Event()
        self._views, self._steps = read_job(self._jobs, settings), StepsTaken(database)
        self._equal = EqualAnswers(database, self._views, book, self._take)

    def pack_feed(
        self, job: Job, spec: JobSpec, feed: Feed, provider: BatchProvider, most: int | None = None
    ) -> tuple[Feed, int]:
        """Pack the next window of a feed; return the feed behind it and the number of batches.

        This process leads the feed. A batch has ``most`` documents at most.

        Raises SourceChanged, SourceUnavailable, FeedLost, Stopped, OSError and errors of the
        database, and of Redis where the job has moved."""
        source = source_of(self._database, job, feed, self._settings, spec)
        if feed.kind is FeedKind.SPOOL:
            return self._move_spool(feed, source), 0
        equal = self._equal.window(job, spec, feed)
        with self._window(job, spec, feed, provider, most) as window:
            cursor, exhausted = self._fill(window, feed, source, equal, has_moved=job.moves > 0)
            packed = [batch for batch, _ in window.close(feed.cursor, cursor)]
        if window.letters:
            self._batches.settle("", [], window.letters, [])
        if packed or exhausted or cursor != feed.cursor:
            with self._removed_on_error(packed):
                self._batches.add_of_feed(
                    feed,
                    self._owner,
                    self._lease_s,
                    packed,
                    cursor=cursor,
                    exhausted=exhausted,
                    ids=window.kept,
                    equal=equal.found,
                )
        return replace(feed, cursor=cursor, exhausted=exhausted), len(packed)

    def pack_remainders(
        self, job: Job, spec: JobSpec, feed: Feed, provider: BatchProvider, most: int | None = None
    ) -> int:
        """Pack documents that earlier batches left, ``most`` of them at most.

        Raises as ``pack_feed`` does, but for FeedLost."""
        source = source_of(self._database, job, feed, self._settings, spec)
        changed, equal = list[DeadLetter](), self._equal.window(job, spec, feed)
        waiting = self._unfinished(self._remainders.alike(job.job_id, feed.generation, most))
        with self._window(job, spec, feed, provider, most) as window:
            for some in batched(waiting, FETCHED_TOGETHER):
                fetched = [(_fetch(source, one, changed), one) for one in some]
                documents = [(document, one) for document, one in fetched if document is not None]
                equal.look(document for document, _ in documents)
                is_whole = all(_add(window, equal, *both) for both in documents)
                equal.settle()
                if not is_whole or equal.is_full:
                    break
            packed = window.close(None, None)
        if changed or window.letters:
            self._batches.settle("", [], [*changed, *window.letters], [])
        if (packed or equal.found.waiting) and not self._batches.add_of_remainders(
            self._owner, self._lease_s, packed, window.kept, equal.found
        ):
            for batch, _ in packed:
                self._folder.batch(batch.tag).remove()
            return 0
        return len(packed)

    def files(
        self, job: Job, spec: JobSpec, batch: ProviderBatch, provider: BatchProvider
    ) -> PackedBatch:
        """Return the files of a batch, made again where they are gone from this disk.

        Raises as ``pack_feed`` does, but for FeedLost."""
        packed = self._folder.batch(batch.tag)
        if packed.is_there:
            return packed
        feed = next(
            feed for feed in self._jobs.feeds(job.job_id) if feed.generation == batch.generation
        )
        kept = None if batch.remote_id is None else self._batches.kept_ids(batch.tag)
        with discarded_on_error(self._folder.writer(batch.tag)) as writer:
            if kept is None:
                self._pack_again(writer, job, spec, feed, batch, provider)
            else:
                self._restore(
                    writer,
                    job,
                    spec,
                    feed,
                    batch,
                    list(packed_before(kept, provider.limits.id_chars)),
                )
            writer.close()
        return packed

    @contextlib.contextmanager
    def _window(
        self, job: Job, spec: JobSpec, feed: Feed, provider: BatchProvider, most: int | None
    ) -> Iterator[Window]:
        """Open the batches to pack, which leave no files behind after an error."""
        terms = self._terms(job, spec, feed)
        terms = replace(terms, requests_max=min(most or REQUESTS_MAX, terms.requests_max))
        with discarded_on_error(Window(self._folder, provider, terms)) as window:
            yield window

    def _pack_again(
        self,
        writer: PackedWriter,
        job: Job,
        spec: JobSpec,
        feed: Feed,
        batch: ProviderBatch,
        provider: BatchProvider,
    ) -> None:
        terms = self._terms(job, spec, feed, batch.step)
        for document, before in self._documents_of(job, spec, feed, batch, terms):
            with contextlib.suppress(BadLine):  # it has its dead letter
                packed_document, line = line_of(provider, terms, document, before)
                if not writer.has(packed_document.custom_id):
                    writer.add(packed_document, line, document.body)

    def _restore(
        self,
        writer: PackedWriter,
        job: Job,
        spec: JobSpec,
        feed: Feed,
        batch: ProviderBatch,
        documents: Sequence[PackedDocument],
    ) -> None:
        """Write a batch's documents as the journal has them, so that no answer is lost.

        Requests are read as far as the source still has them."""
        places, wanted = dict[str, tuple[int, int]](), {document.doc_id for document in documents}
        try:
            terms = self._terms(job, spec, feed, batch.step)
            for document, _ in self._documents_of(job, spec, feed, batch, terms):
                if document.doc_id in wanted and document.doc_id not in places:
                    places[document.doc_id] = writer.add_body(document.body)
        except SourceError as error:
            if isinstance(error, SourceUnavailable) and job.state in (
                JobState.RUNNING,
                JobState.PAUSED,
            ):
                raise  # it may be back soon
            log.warning(
                "provider batch %s of job %s: its packed files are gone, and %d requests of %d "
                "cannot be read again (%s); its answers are stored all the same, and dead letters "
                "among them have no request",
                batch.tag,
                batch.job_id,
                len(documents) - len(places),
                len(documents),
                error,
            )
        for one in documents:
            offset, size = places.get(one.doc_id, (0, 0))
            writer.add_name(one._replace(offset=offset, size=size))

    def _terms(self, job: Job, spec: JobSpec, feed: Feed, step: int | None = None) -> Terms:
        """Return on which terms the batches of a feed are packed.

        ``step``: of a batch that was packed before; None: the latest that its job has taken."""
        provider = self._settings.provider(spec.provider)
        turns = bool(spec.escalate or spec.degrade)  # documents to other models as they are packed
        is_one_model = spec.asks_one_model and feed.kind is not FeedKind.REPLAY and not turns
        if step is None:
            step = self._steps.latest(job.job_id) if spec.degrade else 0
        return Terms(
            feed.job_id,
            feed.generation,
            spec.provider,
            provider.kind,
            spec.endpoint,
            spec.model if is_one_model else None,
            min(spec.batch_max_requests or REQUESTS_MAX, REQUESTS_MAX),
            provider.batch_enqueued_tokens,
            spec.max_prompt_tokens,
            provider.prices_of,
            CachedPrompts.of(
                job.source, provider.kind, provider.base_url, spec.endpoint, packs=True
            ),
            self._views(job.job_id) if turns else None,
            step,
        )

    def answer_equal(self, job: Job, generations: Sequence[int]) -> int:
        """Give documents that wait for equal requests the answers that have come.

        Returns how many were looked at. Raises Stopped, and errors of the database."""
        return sum(self._equal.answer(job, generation) for generation in generations)

    def _take(self, group: Sequence[Settled]) -> None:
        """Settle documents that took an answer; return once that is durable."""
        future = self._settle(group)
        while True:
            self._go_on()
            with contextlib.suppress(TimeoutError):
                return future.result(timeout=1.0)

    def _fill(
        self,
        window: Window,
        feed: Feed,
        source: Source,
        equal: EqualWindow,
        *,
        has_moved: bool,
    ) -> tuple[dict[str, Any], bool]:
        """Fill the window; return the cursor behind it, and whether the source has ended."""
        cursor = dict(feed.cursor)
        refused_lines = self._refused_lines(feed)
        for rows in _groups(source.documents(feed.cursor)):
            self._go_on()
            self._settle_bad(feed, rows, refused_lines)
            documents = [
                row for row in rows if isinstance(row, Document) and row.line not in refused_lines
            ]
            done = self._outcomes.terminal(_key(feed, document) for document in documents)
            if has_moved:
                done |= self._left_behind(feed, documents)
            wanted = {
                document.doc_id: document
                for document in documents
                if _key(feed, document) not in done
            }
            equal.look(wanted.values())
            is_whole = True
            for row in rows:
                document = wanted.pop(row.doc_id, None) if isinstance(row, Document) else None
                is_whole = document is None or _add(window, equal, document, _new(feed, document))
                if not is_whole:
                    break
                cursor = dict(row.cursor)
            equal.settle()
            if not is_whole or equal.is_full:
                return cursor, False
        return cursor, source.ended()

    def _left_behind(self, feed: Feed, documents: Sequence[Document]) -> set[ItemKey]:
        """Return what another lane had of a feed, beyond its cursor, and that is not over.

        It waits as remainders do, or workers of that lane hold it, and it will."""
        keys = [_key(feed, document) for document in documents]
        held = self._hot.in_window(feed.job_id, feed.generation, [key.doc_id for key in keys])
        return self._remainders.known(keys) | {key for key in keys if key.doc_id in held}

    def _documents_of(
        self, job: Job, spec: JobSpec, feed: Feed, batch: ProviderBatch, terms: Terms
    ) -> Iterator[tuple[Document, Remainder]]:
        """Yield the documents that a batch has.

        Where the provider has its file already, also those of its part of the source that had an
        outcome when it was packed: looking for their answers does no harm.
        """
        if batch.cursor_before is None or batch.cursor_behind is None:
            source = source_of(self._database, job, feed, self._settings, spec)
            for one in self._remainders.of_batch(batch.tag):
                document = _fetch(source, one, [])
                if document is not None:
                    yield document, one
            return
        is_sent = batch.file_id is not None or batch.remote_id is not None
        part = replace(feed, ends_at=batch.cursor_behind)
        source, refused_lines = (
            source_of(self._database, job, part, self._settings, spec),
            self._refused_lines(feed),
        )
        for rows in _groups(source.documents(batch.cursor_before)):
            self._go_on()
            documents = [
                row for row in rows if isinstance(row, Document) and row.line not in refused_lines
            ]
            done = (
                set()
                if is_sent
                else self._outcomes.terminal(_key(feed, document) for document in documents)
            )
            # those that wait for the answers to equal requests were never in it
            done |= self._equal.store.waiting([_key(feed, document) for document in documents])
            wanted = (batch.model, batch.endpoint)
            for document in documents:
                if (
                    _key(feed, document) not in done
                    and terms.kind_of(
                        terms.asked(document.body, escalated=False), document.endpoint
                    )
                    == wanted
                ):
                    yield document, _new(feed, document)

    def _unfinished(self, found: Iterable[Remainder]) -> Iterator[Remainder]:
        """Yield those that have got no outcome since; rows of the others go."""
        for some in batched(found, ROWS_READ):
            self._go_on()
            done = self._outcomes.terminal(one.key for one in some)
            if done:
                self._batches.forget(done)
            yield from (one for one in some if one.key not in done)

    def _move_spool(self, feed: Feed, source: Source) -> Feed:
        """Let the documents of an open job wait as remainders do.

        They come as they like, and are packed when they are many or old."""
        documents = [row for row in source.documents(feed.cursor) if isinstance(row, Document)]
        ended = source.ended()
        if documents or ended:
            waiting = [_new(feed, document) for document in documents]
            rows = [document.line for document in documents]
            self._batches.add_of_spool(feed, self._owner, waiting, rows, exhausted=ended)
        return replace(feed, exhausted=ended)

    def _refused_lines(self, feed: Feed) -> frozenset[int]:
        return (
            self._outcomes.refused_lines(feed.job_id)
            if feed.kind is FeedKind.SOURCE
            else frozenset()
        )

    def _settle_bad(self, feed: Feed, rows: Sequence[Row], refused_lines: frozenset[int]) -> None:
        """Settle bad rows as feeders do: those of a file were settled at submit."""
        bad = [row for row in rows if isinstance(row, BadRow)]
        if bad and feed.kind is FeedKind.SOURCE:
            bad = changed_since(bad, refused_lines)
        letters = [
            refused(row, ItemKey(feed.job_id, feed.generation, row.doc_id))
            for row in bad
            if row.doc_id is not None
        ]
        if letters:
            self._outcomes.settle([], letters)

    @contextlib.contextmanager
    def _removed_on_error(self, packed: Iterable[NewProviderBatch]) -> Iterator[None]:
        """Remove the files of batches that were not noted, or perhaps not.

        They are packed again."""
        try:
            yield
        except BaseException:
            for batch in packed:
                self._folder.batch(batch.tag).remove()
            raise

    def _go_on(self) -> None:
        if self.stopped.is_set():
            raise Stopped


def _add(window: Window, equal: EqualWindow, document: Document, before: Remainder) -> bool:
    """Add a document to a window, unless an equal request serves it; False where it is full."""
    if equal.takes(document, before):
        return True
    packed = window.packed
    if not window.add(document, before):
        return False
    if window.packed > packed:
        equal.sends(document)
    return True


def _groups(rows: Iterable[Row]) -> Iterator[list[Row]]:
    """Yield rows in stretches of bounded number and size."""
    group, size = list[Row](), 0
    for row in rows:
        group.append(row)
        size += len(row.body) if isinstance(row, Document) else len(row.request)
        if len(group) >= ROWS_READ or size >= BYTES_READ:
            yield group
            group, size = [], 0
    if group:
        yield group


def batched(found: Iterable[Remainder], size: int) -> Iterator[list[Remainder]]:
    rest = iter(found)
    while some := list(islice(rest, size)):
        yield some


def _fetch(source: Source, one: Remainder, changed: list[DeadLetter]) -> Document | None:
    """Return the document again; None where a row of a table is not what it was.

    ``changed`` gets its dead letter then."""
    try:
        return source.fetch(one.position)
    except RowChanged as error:
        changed.append(lost_of(one, str(error)))
        return None


def _key(feed: Feed, document: Document) -> ItemKey:
    return ItemKey(feed.job_id, feed.generation, document.doc_id)


def _new(feed: Feed, document: Document) -> Remainder:
    """Return the remainder of a document that no batch has had yet."""
    return Remainder(_key(feed, document), document.position, 0, 0, 0, 0, 0, "new")


class Packing:
    """The packed folder, used on the event loop but for ``sweep``, ``remove`` and ``rename``."""

    def __init__(self, packer: Packer, folder: PackedFolder) -> None:
        self._packer, self._folder = packer, folder
        self._one_at_a_time = asyncio.Lock()

    async def feed(
        self, job: Job, spec: JobSpec, feed: Feed, provider: BatchProvider, most: int | None
    ) -> tuple[Feed, int]:
        """Pack a window of a feed. Return the feed after it, and how many batches it made."""
        async with self._one_at_a_time:
            return await asyncio.to_thread(self._packer.pack_feed, job, spec, feed, provider, most)

    async def remainders(
        self, job: Job, spec: JobSpec, feed: Feed, provider: BatchProvider, most: int | None
    ) -> int:
        """Pack remainders of a feed, and return how many batches they made."""
        async with self._one_at_a_time:
            return await asyncio.to_thread(
                self._packer.pack_remainders, job, spec, feed, provider, most
            )

    async def answer_equal(self, job: Job, generations: Sequence[int]) -> int:
        """Give documents that wait for equal requests the answers that have come.

        Returns how many were looked at."""
        async with self._one_at_a_time:
            return await asyncio.to_thread(self._packer.answer_equal, job, generations)

    async def files(
        self, job: Job | None, spec: JobSpec | None, batch: ProviderBatch, provider: BatchProvider
    ) -> PackedBatch:
        """Return the files of a batch, packed again where they are gone and its job is there."""
        packed = self._folder.batch(batch.tag)
        if job is None or spec is None or packed.is_there:
            return packed
        async with self._one_at_a_time:
            return await asyncio.to_thread(self._packer.files, job, spec, batch, provider)

    def sweep(self, open_tags: Callable[[], Collection[str]]) -> None:
        """Remove the files of batches that are over."""
        self._folder.sweep(open_tags())

    def remove(self, tag: str) -> None:
        self._folder.batch(tag).remove()

    def rename(self, tag: str, to: str) -> None:
        self._folder.rename(tag, to)

    def stop(self) -> None:
        """Throw away what is being packed: the worker ends."""
        self._packer.stopped.set()
