"""Packs the jobs that this worker leads, a few batches ahead of what their provider takes."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Final

import redis

from penstock_ledger import BatchState, FeedLost, JobState, JobStore, LiveFeed, Waiting
from penstock_ledger.model import Feed, FeedKind, Job
from penstock_producer.errors import SourceError, SourceUnavailable
from penstock_producer.job.spec import JobSpec
from penstock_workers.errors import WorkerError, stop_reason
from penstock_workers.failpoints import Failpoints
from penstock_workers.lanes.batch.jobs import Jobs, Standing
from penstock_workers.lanes.batch.journeys import Journeys, Providers
from penstock_workers.lanes.batch.led_batch import Journal
from penstock_workers.lanes.batch.packer import REQUESTS_MAX, Packing
from penstock_workers.lanes.batch.settings import BatchSettings
from penstock_workers.lanes.batch.window import OPEN_MAX

log = logging.getLogger(__name__)

REMAINDERS_WAIT_S: Final = 20.0  # for more of them, where other batches are under way
# Between two looks for answers to equal requests. A look reads what waits, and a batch takes hours.
EQUAL_FIRST_S: Final = 1.0
EQUAL_CAP_S: Final = 60.0
EQUAL_JOBS: Final = 1_000  # whose looks are remembered


class FirstBatch(Enum):
    """The progress of a job with the small batch that large jobs begin with."""

    NEXT = "next"
    WAITED_FOR = "waited for"  # its answers are not checked yet
    NONE = "none"  # it is over, or the job has none


class JobPacking:
    """Packs the documents of jobs, on the event loop but for ``turned_at``."""

    def __init__(
        self,
        settings: BatchSettings,
        journal: Journal,
        jobs: Jobs,
        feeds: JobStore,
        packing: Packing,
        journeys: Journeys,
        providers: Providers,
        failpoints: Failpoints,
    ) -> None:
        self._settings, self._journal, self._jobs, self._feeds = settings, journal, jobs, feeds
        self._packing, self._journeys = packing, journeys
        self._providers, self._failpoints = providers, failpoints
        self.turned_at = time.monotonic()  # when something was packed last
        # when documents that wait for equal requests are looked at next, and after which pause
        self._equal_looks = dict[str, tuple[float, float]]()

    async def pack(
        self, job: Job, feeds: Sequence[LiveFeed], waiting: Mapping[int, Sequence[Waiting]]
    ) -> None:
        """Pack what waits of a job; ``waiting``: its remainders, by generation."""
        for live in feeds:
            try:
                if not live.feed.exhausted:
                    await self._pack_feed(job, live)
                for one in waiting.get(live.feed.generation, ()):
                    await self._pack_remainders(job, live.feed, one)
            except FeedLost:
                continue
            except redis.RedisError as error:  # it says what a lane that the job has left holds
                log.warning("job %s: nothing is packed until Redis answers: %s", job.job_id, error)
            except (SourceUnavailable, WorkerError) as error:
                await self._jobs.stop(job.job_id, JobState.PAUSED, stop_reason(error))
            except SourceError as error:
                await self._jobs.stop(job.job_id, JobState.FAILED, stop_reason(error))

    async def answer_equal(self, job: Job, feeds: Sequence[LiveFeed]) -> None:
        """Now and then, give documents that wait for equal requests the answers that have come."""
        now = time.monotonic()
        if not self._jobs.spec(job).reuses_answers:
            return
        due_at, wait_s = self._equal_looks.get(job.job_id, (0.0, 0.0))
        if now < due_at:
            return
        found = await self._packing.answer_equal(job, [live.feed.generation for live in feeds])
        wait_s = EQUAL_FIRST_S if found else min(EQUAL_CAP_S, max(EQUAL_FIRST_S, 2 * wait_s))
        if len(self._equal_looks) >= EQUAL_JOBS:
            self._equal_looks.clear()  # most of them are over: the others are looked at anew
        self._equal_looks[job.job_id] = (now + wait_s, wait_s)

    async def _pack_feed(self, job: Job, live: LiveFeed) -> None:
        owner = self._journal.owner
        if not (live.free or live.led_by(owner)) or not await self._has_room(job):
            return
        feed = live.feed
        if job.moves and not feed.cursor and await self._is_in_batches(feed):
            return
        if not live.led_by(owner):
            leased = await asyncio.to_thread(
                self._feeds.lease_feed, job.job_id, feed.generation, owner, self._journal.lease_s
            )
            if leased is None:
                return
            feed = leased
        try:
            await self._pack_windows(job, feed)
        finally:
            await asyncio.to_thread(self._feeds.release_feed, feed, owner)

    async def _is_in_batches(self, feed: Feed) -> bool:
        """Return whether documents of a feed that is read anew are in batches that have not ended.

        Redis was lost while the job left another lane: they would be paid twice."""
        holds = self._journal.store.holds_documents
        return await asyncio.to_thread(holds, feed.job_id, feed.generation)

    async def _pack_windows(self, job: Job, feed: Feed) -> None:
        """Pack while there is room for what is packed.

        A round packs a few windows at most: other jobs have their turn, too, and whether jobs are
        paused or cancelled is looked at between rounds.
        """
        spec = self._jobs.spec(job)
        provider = self._providers(spec.provider)
        for _ in range(self._settings.packed_ahead):
            if feed.exhausted or not await self._has_room(job):
                return
            if await self._jobs.look_again(job.job_id) is not Standing.RUNS:
                return  # packing takes its time, and a person need not wait for all of it
            first = await asyncio.to_thread(self._first_batch, job, spec, feed)
            if first is FirstBatch.WAITED_FOR:
                return
            most = self._settings.first_requests if first is FirstBatch.NEXT else None
            after, packed = await self._packing.feed(job, spec, feed, provider, most)
            self.turned_at = time.monotonic()
            await self._packed(job, packed)
            if after == feed:
                return  # an open job that has no more documents now
            feed = after

    def _first_batch(self, job: Job, spec: JobSpec, feed: Feed) -> FirstBatch:
        """Decide whether a small batch comes first, or is waited for; in a thread."""
        settings, now = self._settings, time.time()
        ends_at = None if spec.deadline_s is None else job.created_at + spec.deadline_s
        if job.total is None or job.total < settings.first_from or not settings.first_requests:
            return FirstBatch.NONE
        if spec.stop_at_share is None or feed.kind is not FeedKind.SOURCE:
            return FirstBatch.NONE
        if ends_at is not None and ends_at - now < settings.first_deadline_s:
            return FirstBatch.NONE
        if not feed.cursor:
            return FirstBatch.NEXT
        first = [
            one
            for one in self._journal.store.of_job(job.job_id, OPEN_MAX)
            if one.cursor_before == {}
        ]
        is_small = all(one.requests <= settings.first_requests for one in first)
        is_open = any(one.state is not BatchState.SETTLED for one in first)
        return FirstBatch.WAITED_FOR if is_small and is_open else FirstBatch.NONE

    async def _pack_remainders(self, job: Job, feed: Feed, waiting: Waiting) -> None:
        """Pack remainders that fill a batch or have waited for a while.

        Or when nothing else is under way that could add to them."""
        spec = self._jobs.spec(job)
        limits = self._providers(spec.provider).limits
        enough = min(
            waiting.most or REQUESTS_MAX, spec.batch_max_requests or REQUESTS_MAX, limits.requests
        )
        is_due = waiting.documents >= enough or time.time() - waiting.since >= REMAINDERS_WAIT_S
        if not is_due:  # unless nothing can add to them any more
            is_due = feed.exhausted and not await asyncio.to_thread(
                self._journal.store.open_of, job.job_id
            )
        if not is_due or not await self._has_room(job):
            return
        provider = self._providers(spec.provider)
        packed = await self._packing.remainders(job, spec, feed, provider, waiting.most)
        await self._packed(job, packed)

    async def _packed(self, job: Job, packed: int) -> None:
        if packed:
            log.info("job %s: %d provider batches are packed", job.job_id, packed)
            self._failpoints.hit("batch_packed")
            await self._journeys.take()

    async def _has_room(self, job: Job) -> bool:
        provider = self._jobs.spec(job).provider
        return (
            await asyncio.to_thread(self._journal.store.packed_waiting, provider)
            < self._settings.packed_ahead
        )
