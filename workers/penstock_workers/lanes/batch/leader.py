"""The loop of a batch worker: it packs the feeds that it leads, and sees its batches to their end.

Several workers share the work by leases in SQL: of each feed until it is read to its end, and of
each provider batch until it is settled. What a worker leaves behind, another one takes up where the
journal says.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from penstock_ledger import (
    BatchState,
    Database,
    FeedLost,
    JobState,
    JobStore,
    LaneMove,
    LaneMoves,
    LiveFeed,
    LiveJob,
    LiveJobs,
    ProviderBatch,
    RemainderStore,
    Waiting,
)
from penstock_ledger.model import Feed, FeedKind, Job
from penstock_producer.errors import SourceError, SourceUnavailable
from penstock_producer.job.lanes import AUTO, packs
from penstock_producer.job.spec import JobSpec
from penstock_ratelimit import full_jitter
from penstock_workers.errors import WorkerError, stop_reason
from penstock_workers.failure_log import FailureLog
from penstock_workers.lanes.batch.apis.provider import BatchProvider
from penstock_workers.lanes.batch.jobs import Standing
from penstock_workers.lanes.batch.journey import Journey
from penstock_workers.lanes.batch.led_batch import Surroundings
from penstock_workers.lanes.batch.packer import REQUESTS_MAX, Stopped
from penstock_workers.lanes.batch.window import OPEN_MAX
from penstock_workers.settings import WorkerSettings

log = logging.getLogger(__name__)

LOOK_S: Final = 1.0  # at the jobs, their feeds and their batches
FAULT_CAP_S: Final = 10.0
REMAINDERS_WAIT_S: Final = 20.0  # for more of them, where other batches are under way
# of the folder of packed files: what batches that are over have left there
SWEEP_EACH_S: Final = 3_600.0
FREE_EACH_S: Final = 5.0  # a walk takes some milliseconds of the loop
STUCK_S: Final = 600.0  # of one round: packing takes minutes at most


class FirstBatch(Enum):
    """Where a job is with the small batch that large jobs begin with."""

    NEXT = "next"
    WAITED_FOR = "waited for"  # its answers are not checked yet
    NONE = "none"  # it is over, or the job has none


Providers = Callable[[str], BatchProvider]  # by name; raises WorkerError


@dataclass(slots=True)
class _Round:
    """What one look found."""

    live: Sequence[LiveJob]  # of this lane
    left: Mapping[str, float]  # when jobs left it last
    moved: Collection[str]  # jobs that have left any lane
    every: Sequence[Job]  # of all lanes: batches of some that have left are still here
    waiting: Mapping[tuple[str, int], Sequence[Waiting]]


class Leader:
    """Belongs to the event loop, but for ``figures`` and ``is_turning``."""

    def __init__(self, around: Surroundings, database: Database, providers: Providers) -> None:
        self._around, self._providers = around, providers
        self._settings: WorkerSettings = around.settings
        # of feeds and batches: a leader that died is replaced after it
        self._lease_s = around.settings.visibility_timeout_s
        self._live, self._feeds = LiveJobs(database), JobStore(database)
        self._remainders, self._moves = RemainderStore(database), LaneMoves(database)
        self._failures = FailureLog(log)
        self._journeys: dict[str, tuple[Journey, asyncio.Task[None]]] = {}
        self._stop = asyncio.Event()
        self._turned_at = time.monotonic()
        self._swept_at = time.monotonic()  # the engine does it at its start
        self._freed_at = time.monotonic()
        self._left_to_others = set[str]()  # jobs of providers that this worker has no settings of
        self.packed = 0  # batches, since the start

    async def run(self) -> None:
        """Run until ``close``."""
        faults = 0
        while not self._stop.is_set():
            try:
                await self._round()
                wait_s, faults = LOOK_S, 0
            except Stopped:
                return
            except Exception as error:
                faults += 1
                wait_s = full_jitter(faults, base_s=0.5, cap_s=FAULT_CAP_S) + LOOK_S
                self._failures.tell("batch: a round failed", error, f"next look in {wait_s:.1f} s")
            self._turned_at = time.monotonic()
            await self._rest(wait_s)

    async def renew(self) -> None:
        """Keep what this worker leads, while rounds and steps take their time."""
        while True:
            await asyncio.sleep(self._lease_s / 3)
            try:
                await asyncio.to_thread(self._renew)
            except Exception as error:
                self._failures.tell(
                    "batch: leases could not be renewed", error, "the next try follows"
                )

    async def close(self, deadline_s: float) -> None:
        """Let the steps under way end, and hand over what is led."""
        self._stop.set()
        self._around.packer.stopped.set()
        for journey, _ in self._journeys.values():
            journey.close()
        tasks = [task for _, task in self._journeys.values()]
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=deadline_s)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    def release(self) -> None:
        """Release all batches, in a thread, once nothing runs any more."""
        self._around.store.release_all(self._around.owner)

    def is_turning(self) -> bool:
        """Return False when a round has not ended for ``STUCK_S`` seconds. Any thread."""
        return time.monotonic() - self._turned_at < STUCK_S

    def led(self) -> Counter[tuple[str, str]]:
        """Count batches by provider and state; from any thread."""
        batches = [journey.batch for journey, _ in tuple(self._journeys.values())]
        return Counter((batch.provider, str(batch.state)) for batch in batches)

    # -- a round -----------------------------------------------------------------------------------

    async def _round(self) -> None:
        found = await asyncio.to_thread(self._look)
        self._around.jobs.note(found.every, found.left, found.moved)
        await self._take_batches()
        await self._sweep_now_and_then()
        self._free_now_and_then()
        self._left_to_others &= {job.job_id for job, _ in found.live}
        for job, feeds in found.live:
            if not self._has_provider_of(job):
                continue
            if job.state is JobState.RUNNING:
                await self._pack_job(job, feeds, found)
            else:
                await self._let_go(job, feeds)

    def _look(self) -> _Round:
        """Look at the jobs and the batches, in a thread."""
        every = self._live.look()
        moves = {job.job_id: self._moves.of(job.job_id) for job, _ in every if job.moves}
        live = [
            one
            for one in every
            if packs(one.job.lane) and _has_arrived(one.job, moves.get(one.job.job_id))
        ]
        running = [job.job_id for job, _ in live if job.state is JobState.RUNNING]
        waiting = defaultdict[tuple[str, int], list[Waiting]](list)
        for one in self._remainders.waiting(running):
            waiting[one.job_id, one.generation].append(one)
        left = {job_id: at for job_id, some in moves.items() if (at := _left_at(some)) is not None}
        moved = {
            job_id
            for job_id, some in moves.items()
            if any(move.before is not None for move in some)
        }
        return _Round(live, left, moved, [job for job, _ in every], waiting)

    def _has_provider_of(self, job: Job) -> bool:
        """Return whether this worker has the settings of the job's provider.

        Another worker may have them, and its key: the job is left to that one."""
        provider = self._around.jobs.spec(job).provider
        if provider in self._settings.providers:
            return True
        if job.job_id not in self._left_to_others:
            self._left_to_others.add(job.job_id)
            log.warning(
                "job %s is for provider %s, which this worker has no settings of; it is left to "
                "workers that have them ([providers.%s] in penstock.toml)",
                job.job_id,
                provider,
                provider,
            )
        return False

    async def _sweep_now_and_then(self) -> None:
        if time.monotonic() - self._swept_at < SWEEP_EACH_S:
            return
        self._swept_at = time.monotonic()
        folder, store = self._around.folder, self._around.store
        await asyncio.to_thread(lambda: folder.sweep(store.open_tags()))

    def _free_now_and_then(self) -> None:
        """Run the garbage collector now and then.

        Statements of SQL are circles that hold the ids of their documents. How often a worker's
        collector runs is right for items, of which there are none here: they would be kept for
        hundreds of thousands of documents.
        """
        if time.monotonic() - self._freed_at >= FREE_EACH_S:
            self._freed_at = time.monotonic()
            gc.collect()

    async def _take_batches(self) -> None:
        """Take the batches that no worker leads now, and those that this one has packed."""
        self._journeys = {tag: pair for tag, pair in self._journeys.items() if not pair[1].done()}
        room = self._settings.batch.led_max - len(self._journeys)
        if room <= 0:
            return
        store, owner = self._around.store, self._around.owner
        led = [tag for journey, _ in self._journeys.values() for tag in journey.tags]
        known = [*self._settings.providers]
        taken = await asyncio.to_thread(
            lambda: store.take(owner, self._lease_s, room, providers=known, besides=led)
        )
        for batch in taken:
            await self._around.jobs.look_if_new(batch.job_id)
            self._start(batch, self._providers(batch.provider))

    def _start(self, batch: ProviderBatch, provider: BatchProvider) -> None:
        journey = Journey(batch, provider, self._around)
        self._journeys[batch.tag] = (
            journey,
            asyncio.create_task(journey.run(), name=f"provider batch {batch.tag}"),
        )

    async def _pack_job(self, job: Job, feeds: Sequence[LiveFeed], found: _Round) -> None:
        for live in feeds:
            try:
                if not live.feed.exhausted:
                    await self._pack_feed(job, live)
                for waiting in found.waiting.get((job.job_id, live.feed.generation), ()):
                    await self._pack_remainders(job, live.feed, waiting)
            except FeedLost:
                continue
            except (SourceUnavailable, WorkerError) as error:
                await self._around.jobs.stop(job.job_id, JobState.PAUSED, stop_reason(error))
            except SourceError as error:
                await self._around.jobs.stop(job.job_id, JobState.FAILED, stop_reason(error))

    async def _pack_feed(self, job: Job, live: LiveFeed) -> None:
        owner = self._around.owner
        if not (live.free or live.led_by(owner)) or not await self._has_room(job):
            return
        feed = live.feed
        if not live.led_by(owner):
            leased = await asyncio.to_thread(
                self._feeds.lease_feed, job.job_id, feed.generation, owner, self._lease_s
            )
            if leased is None:
                return
            feed = leased
        try:
            await self._pack_windows(job, feed)
        finally:
            await asyncio.to_thread(self._feeds.release_feed, feed, owner)

    async def _pack_windows(self, job: Job, feed: Feed) -> None:
        """Pack while there is room for what is packed.

        A round packs a few windows at most: other jobs have their turn, too, and whether jobs are
        paused or cancelled is looked at between rounds.
        """
        spec = self._around.jobs.spec(job)
        provider = self._providers(spec.provider)
        for _ in range(self._settings.batch.packed_ahead):
            if feed.exhausted or not await self._has_room(job):
                return
            if await self._around.jobs.look_again(job.job_id) is not Standing.RUNS:
                return  # packing takes its time, and a person need not wait for all of it
            first = await asyncio.to_thread(self._first_batch, job, spec, feed)
            if first is FirstBatch.WAITED_FOR:
                return
            most = self._settings.batch.first_requests if first is FirstBatch.NEXT else None
            async with self._around.packing:
                after, packed = await asyncio.to_thread(
                    self._around.packer.pack_feed, job, spec, feed, provider, most
                )
            self._turned_at = time.monotonic()
            await self._packed(job, packed)
            if after == feed:
                return  # an open job that has no more documents now
            feed = after

    def _first_batch(self, job: Job, spec: JobSpec, feed: Feed) -> FirstBatch:
        """Decide whether a small batch comes first, or is waited for; in a thread."""
        settings, now = self._settings.batch, time.time()
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
            for one in self._around.store.of_job(job.job_id, OPEN_MAX)
            if one.cursor_before == {}
        ]
        is_small = all(one.requests <= settings.first_requests for one in first)
        is_open = any(one.state is not BatchState.SETTLED for one in first)
        return FirstBatch.WAITED_FOR if is_small and is_open else FirstBatch.NONE

    async def _pack_remainders(self, job: Job, feed: Feed, waiting: Waiting) -> None:
        """Pack remainders that fill a batch or have waited for a while.

        Or when nothing else is under way that could add to them."""
        spec = self._around.jobs.spec(job)
        limits = self._providers(spec.provider).limits
        enough = min(
            waiting.most or REQUESTS_MAX, spec.batch_max_requests or REQUESTS_MAX, limits.requests
        )
        is_due = waiting.documents >= enough or time.time() - waiting.since >= REMAINDERS_WAIT_S
        if not is_due:  # unless nothing can add to them any more
            is_due = feed.exhausted and not await asyncio.to_thread(
                self._around.store.open_of, job.job_id
            )
        if not is_due or not await self._has_room(job):
            return
        async with self._around.packing:
            packer, provider = self._around.packer, self._providers(spec.provider)
            packed = await asyncio.to_thread(
                packer.pack_remainders, job, spec, feed, provider, waiting.most
            )
        await self._packed(job, packed)

    async def _packed(self, job: Job, packed: int) -> None:
        if packed:
            log.info("job %s: %d provider batches are packed", job.job_id, packed)
            self.packed += packed
            self._around.failpoints.hit("batch_packed")
            await self._take_batches()

    async def _has_room(self, job: Job) -> bool:
        provider = self._around.jobs.spec(job).provider
        return (
            await asyncio.to_thread(self._around.store.packed_waiting, provider)
            < self._settings.batch.packed_ahead
        )

    async def _let_go(self, job: Job, feeds: Sequence[LiveFeed]) -> None:
        """Release the feeds of a job that is paused or ends."""
        for live in feeds:
            if live.led_by(self._around.owner) and not live.feed.exhausted:
                await asyncio.to_thread(self._feeds.release_feed, live.feed, self._around.owner)

    def _renew(self) -> None:
        self._feeds.renew_feeds(self._around.owner, self._lease_s, shards=False)
        self._around.store.renew(self._around.owner, self._lease_s)

    async def _rest(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._stop.wait()
        except TimeoutError:
            pass


def _has_arrived(job: Job, moves: Sequence[LaneMove] | None) -> bool:
    """Return whether the job's lane is chosen, and all of the lane before waits in SQL.

    Until then the same documents would be packed twice."""
    if not moves:
        return job.spec.get("lane") != AUTO
    return moves[-1].before is None or moves[-1].left_at is not None


def _left_at(moves: Sequence[LaneMove]) -> float | None:
    """Return when the job left this lane last."""
    return max(
        (move.at for move in moves if move.before is not None and packs(move.before)), default=None
    )
