"""Hands over what the lane before still holds of a job that has moved.

It goes to SQL, where it waits for the lane that the job has now.

What was in a queue: every document of the window that no worker holds becomes a row of
``batch_remainders``, and leaves the window; workers that come upon its message drop it, since they
see the job's lane at begin. What workers hold may end there, and is looked at again. What is in
batches at a provider: a worker of the batch lane cancels them, and what they leave waits in the
same table. Where that takes longer than the patience allows, all documents of such a batch go on at
once: the first answer counts, and an answer that comes second is counted as paid. Batches that have
ended are left to the worker that reads them.

Each step may be taken twice, by any process: a row is added once, and never for a document that has
its outcome.

The moves of live jobs are read once per change.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Final, NamedTuple

from penstock_ledger import (
    Database,
    JobStore,
    LaneMove,
    LaneMoves,
    OutcomeStore,
    ProviderBatch,
    ProviderBatchStore,
    RedisLedger,
    Remainder,
    RemainderStore,
    kept_documents,
)
from penstock_ledger.model import FeedKind, ItemKey, Job
from penstock_producer.feed.queues import queue_name
from penstock_producer.feed.wire import item_tag
from penstock_producer.job.lanes import LANES, packs
from penstock_producer.job.spec import JobSpec
from penstock_producer.rows import Document
from penstock_producer.sources.of_feed import source_of
from penstock_workers.failpoints import Failpoints
from penstock_workers.settings import WorkerSettings

log = logging.getLogger(__name__)

PAGE: Final = 1_000  # documents that go to SQL in one transaction
PAGES_MAX: Final = 5  # in one round
LOOK_AGAIN_S: Final = 2.0  # at what workers held, and at batches that still run
# of the time that was left at the move: patience with a provider takes no more of it
OF_DEADLINE: Final = 0.25
_LEFT: Final = "lane_left"

Page = list[Remainder]


class KnownMoves:
    """The moves of jobs between lanes, each read once. For the control thread."""

    def __init__(self, moves: LaneMoves) -> None:
        self._moves = moves
        self._known: dict[str, list[LaneMove]] = {}

    def of(self, job: Job) -> Sequence[LaneMove]:
        """Return the moves of a job; nothing is read for one that has never moved."""
        if not job.moves:
            return ()
        known = self._known.get(job.job_id)
        if known is None or len(known) != job.moves:
            known = self._known[job.job_id] = self._moves.of(job.job_id)
        return known

    def note_left(self, move: LaneMove, now: float) -> None:
        """Note that nothing waits in the lane before any more."""
        self._moves.note_left(move, now)
        self._known.pop(move.job_id, None)

    def keep_only(self, live: Collection[str]) -> None:
        self._known = {job_id: moves for job_id, moves in self._known.items() if job_id in live}


class _Walk(NamedTuple):
    """The progress in taking the documents of one job.

    It is kept from one round to the next unless a page of it has failed: an iterator that raises is
    over, and would have no more pages and no end."""

    of: object  # its moves and generations, or a batch
    pages: Iterator[Page]


class Leaving:
    """Takes the documents of a job out of the lane that it leaves, on the control thread."""

    def __init__(
        self,
        settings: WorkerSettings,
        database: Database,
        hot: RedisLedger,
        moves: KnownMoves,
        failpoints: Failpoints,
    ) -> None:
        self._settings, self._database, self._hot = settings, database, hot
        self._moves, self._failpoints = moves, failpoints
        self._jobs, self._outcomes = JobStore(database), OutcomeStore(database)
        self._remainders, self._batches = RemainderStore(database), ProviderBatchStore(database)
        self._windows: dict[str, _Walk] = {}  # by job
        self._handed: dict[str, _Walk] = {}
        self._look_at: dict[str, float] = {}  # by job: monotonic time

    def step(self, job: Job, spec: JobSpec, outstanding: int) -> bool:
        """Take one bounded step; return whether documents of the job may be fed now.

        ``outstanding`` is how many are in its windows. Raises SourceError, and errors of the
        stores.
        """
        moves = self._moves.of(job)
        if not any(move.before is not None for move in moves):
            return True
        last = moves[-1]
        if last.left_at is None and last.before is not None:
            if not self._empty_window(job, moves):
                return False
            self._failpoints.hit("move_left")
            self._moves.note_left(last, time.time())
            log.info("job %s: nothing of it waits in lane %s any more", job.job_id, last.before)
        elif time.monotonic() >= self._look_at.get(job.job_id, 0.0):
            is_over = self._empty_window(job, moves) if packs(job.lane) and outstanding else True
            if is_over and (packs(job.lane) or not self._hand_over(job, spec, moves)):
                self._look_at[job.job_id] = time.monotonic() + LOOK_AGAIN_S
        return True

    def held_elsewhere(self, job: Job) -> list[str]:
        """Return the queues of lanes that the job has left and whose workers may hold items."""
        moves = self._moves.of(job)
        if not moves or time.time() >= moves[-1].at + self._settings.lanes.moving_s:
            return []
        return [queue for queue in _queues(moves) if queue != queue_name(job.lane)]

    def keep_only(self, live: Collection[str]) -> None:
        """Forget jobs that have ended."""
        self._moves.keep_only(live)
        for known in (self._windows, self._handed, self._look_at):
            for job_id in [name for name in known if name not in live]:
                known.pop(job_id)

    # -- what was in a queue -----------------------------------------------------------------------

    def _empty_window(self, job: Job, moves: Sequence[LaneMove]) -> bool:
        """Take some pages of documents out of the window.

        Return True once all of it was looked at."""
        walk = self._windows.pop(job.job_id, None)
        if walk is None or walk.of != (job.moves, job.generation):
            walk = _Walk((job.moves, job.generation), self._window(job))
        held_until = moves[-1].at + self._settings.lanes.moving_s
        for page in islice(walk.pages, PAGES_MAX):
            held = self._held(moves, page) if time.time() < held_until else set[ItemKey]()
            free = [one for one in page if one.key not in held]
            self._remainders.add(free)
            self._failpoints.hit("move_leaving")
            self._hot.drop_from_window(one.key for one in free)
            if not page:  # the end
                return True
        self._windows[job.job_id] = walk
        return False

    def _window(self, job: Job) -> Iterator[Page]:
        """Yield the documents of the window in pages; an empty page is the last one."""
        for generation in range(1, job.generation + 1):
            found = self._hot.window(job.job_id, generation)
            while some := list(islice(found, PAGE)):
                yield [
                    _waiting(ItemKey(job.job_id, generation, doc), position)
                    for doc, position in some
                ]
        yield []

    def _held(self, moves: Sequence[LaneMove], page: Page) -> set[ItemKey]:
        """Return the documents that a worker may be working on."""
        keys = [one.key for one in page]
        return {key for queue in _queues(moves) for key in self._hot.held(queue, keys, item_tag)}

    # -- what is in batches ------------------------------------------------------------------------

    def _hand_over(self, job: Job, spec: JobSpec, moves: Sequence[LaneMove]) -> bool:
        """Let documents of batches that do not end go on; True while there is more to do."""
        left = next(
            (move for move in reversed(moves) if move.before is not None and packs(move.before)),
            None,
        )
        if left is None or time.time() < left.at + self._patience_s(job, spec, left):
            return False
        still_open = self._batches.to_hand_over(job.job_id)
        if not still_open:
            return False
        batch = still_open[0]
        walk = self._handed.pop(job.job_id, None)
        if walk is None or walk.of != batch.tag:
            walk = _Walk(batch.tag, self._documents(job, spec, batch))
        for page in islice(walk.pages, PAGES_MAX):
            self._remainders.add(page)
            self._failpoints.hit("move_handing")
            if not page:  # the end
                self._end(job, batch)
                return True
        self._handed[job.job_id] = walk
        return True

    def _end(self, job: Job, batch: ProviderBatch) -> None:
        self._batches.hand_over(batch)
        log.warning(
            "job %s: provider batch %s is %s %.0f s after the job has left its lane; its %d "
            "documents go on in lane %s, and what the provider still answers may be paid twice",
            job.job_id,
            batch.tag,
            batch.status or batch.state,
            time.time() - self._moves.of(job)[-1].at,
            batch.requests,
            job.lane,
        )

    def _documents(self, job: Job, spec: JobSpec, batch: ProviderBatch) -> Iterator[Page]:
        """Yield the documents of a batch in pages; an empty page is the last one.

        Documents that were remainders are in the table already."""
        rows = self._rows(job, spec, batch) if batch.is_of_source else iter(())
        while page := list(islice(rows, PAGE)):
            yield page
        yield []

    def _rows(self, job: Job, spec: JobSpec, batch: ProviderBatch) -> Iterator[Remainder]:
        """Yield a batch's own documents, as its packer kept them.

        Where they were too many to keep, all that lie between its cursors: some may be in batches
        for other models and endpoints, and be paid twice.
        """
        kept = self._batches.kept_ids(batch.tag)
        if kept is not None:
            for document in kept_documents(kept):
                yield _waiting(
                    ItemKey(job.job_id, batch.generation, document.doc_id), document.position
                )
            return
        feed = next(
            feed for feed in self._jobs.feeds(job.job_id) if feed.generation == batch.generation
        )
        refused = (
            self._outcomes.refused_lines(job.job_id)
            if feed.kind is FeedKind.SOURCE
            else frozenset[int]()
        )
        part = replace(feed, ends_at=batch.cursor_behind)
        source = source_of(self._database, job, part, self._settings, spec)
        for row in source.documents(batch.cursor_before or {}):
            if isinstance(row, Document) and row.line not in refused:
                yield _waiting(ItemKey(job.job_id, batch.generation, row.doc_id), row.position)

    def _patience_s(self, job: Job, spec: JobSpec, left: LaneMove) -> float:
        most = self._settings.lanes.moving_s
        if spec.deadline_s is None:
            return most
        return min(most, max(0.0, job.created_at + spec.deadline_s - left.at) * OF_DEADLINE)


def _queues(moves: Sequence[LaneMove]) -> list[str]:
    """Return the own queues of the lanes in which a job was or is, if these have messages."""
    lanes = {lane for move in moves for lane in (move.before, move.lane) if lane is not None}
    return [queue_name(lane) for lane in sorted(lanes) if lane in LANES and not packs(lane)]


def _waiting(key: ItemKey, position: str) -> Remainder:
    """Return the remainder of a document of which no more is known here.

    What earlier attempts used up is noted when its message is dropped."""
    return Remainder(key, position, 0, 0, 0, 0, 0, _LEFT)
