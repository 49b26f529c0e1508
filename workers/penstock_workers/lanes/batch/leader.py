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
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from penstock_ledger import (
    Database,
    JobState,
    JobStore,
    LaneMove,
    LaneMoves,
    LiveFeed,
    LiveJob,
    LiveJobs,
    RemainderStore,
    Waiting,
)
from penstock_ledger.model import Job
from penstock_producer.job.lanes import AUTO, packs
from penstock_ratelimit import full_jitter
from penstock_workers.failure_log import FailureLog
from penstock_workers.lanes.batch.job_packing import JobPacking
from penstock_workers.lanes.batch.jobs import Jobs
from penstock_workers.lanes.batch.journeys import Journeys
from penstock_workers.lanes.batch.led_batch import Journal
from penstock_workers.lanes.batch.packer import Packing, Stopped
from penstock_workers.settings import WorkerSettings

log = logging.getLogger(__name__)

LOOK_S: Final = 1.0  # at the jobs, their feeds and their batches
FAULT_CAP_S: Final = 10.0
# of the folder of packed files: what batches that are over have left there
SWEEP_EACH_S: Final = 3_600.0
FREE_EACH_S: Final = 5.0  # a walk takes some milliseconds of the loop
STUCK_S: Final = 600.0  # of one round: packing takes minutes at most


@dataclass(slots=True)
class Round:
    """The findings of one look."""

    live: Sequence[LiveJob]  # of this lane
    left: Mapping[str, float]  # when jobs left it last
    moved: Collection[str]  # jobs that have left any lane
    every: Sequence[Job]  # of all lanes: batches of some that have left are still here
    # remainders, by job and generation
    waiting: Mapping[str, Mapping[int, Sequence[Waiting]]]


class Looks:
    """Looks at the jobs and the batches. Called in threads."""

    def __init__(self, database: Database) -> None:
        self._live, self._moves = LiveJobs(database), LaneMoves(database)
        self._remainders = RemainderStore(database)

    def take(self) -> Round:
        """Look at the jobs and the batches, in a thread."""
        every = self._live.look()
        moves = {job.job_id: self._moves.of(job.job_id) for job, _ in every if job.moves}
        live = [
            one
            for one in every
            if packs(one.job.lane) and _has_arrived(one.job, moves.get(one.job.job_id))
        ]
        running = [job.job_id for job, _ in live if job.state is JobState.RUNNING]
        waiting = defaultdict[str, dict[int, list[Waiting]]](dict)
        for one in self._remainders.waiting(running):
            waiting[one.job_id].setdefault(one.generation, []).append(one)
        left = {job_id: at for job_id, some in moves.items() if (at := _left_at(some)) is not None}
        moved = {
            job_id
            for job_id, some in moves.items()
            if any(move.before is not None for move in some)
        }
        return Round(live, left, moved, [job for job, _ in every], waiting)


class Tidying:
    """The things a batch worker tidies now and then: the packed folder, and its own memory."""

    def __init__(self, packing: Packing, journal: Journal) -> None:
        self._packing, self._journal = packing, journal
        self._swept_at = time.monotonic()  # the engine does it at its start
        self._freed_at = time.monotonic()

    async def look(self) -> None:
        now = time.monotonic()
        if now - self._swept_at >= SWEEP_EACH_S:
            self._swept_at = now
            await asyncio.to_thread(self._packing.sweep, self._journal.store.open_tags)
        # Statements of SQL are circles that hold the ids of their documents. How often a worker's
        # collector runs is right for items, of which there are none here: they would be kept for
        # hundreds of thousands of documents.
        if now - self._freed_at >= FREE_EACH_S:
            self._freed_at = now
            gc.collect()


class Leader:
    """Leads feeds and batches round by round, on the event loop but for ``is_turning``."""

    def __init__(
        self,
        settings: WorkerSettings,
        journal: Journal,
        jobs: Jobs,
        looks: Looks,
        packs: JobPacking,
        journeys: Journeys,
        packing: Packing,
        feeds: JobStore,
    ) -> None:
        self._known = frozenset(settings.providers)
        self._journal, self._jobs, self._feeds = journal, jobs, feeds
        self._looks, self._packs, self._journeys, self._packing = looks, packs, journeys, packing
        self._failures = FailureLog(log)
        self._stop = asyncio.Event()
        self._turned_at = time.monotonic()
        self._tidying = Tidying(packing, journal)
        self._left_to_others = set[str]()  # jobs of providers that this worker has no settings of

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
            await asyncio.sleep(self._journal.lease_s / 3)
            try:
                await asyncio.to_thread(self._renew)
            except Exception as error:
                self._failures.tell(
                    "batch: leases could not be renewed", error, "the next try follows"
                )

    async def close(self, deadline_s: float) -> None:
        """Let the steps under way end, and hand over what is led."""
        self._stop.set()
        self._packing.stop()
        await self._journeys.close(deadline_s)

    def release(self) -> None:
        """Release all batches, in a thread, once nothing runs any more."""
        self._journal.store.release_all(self._journal.owner)

    def is_turning(self) -> bool:
        """Return False when a round has not ended for ``STUCK_S`` seconds. Any thread."""
        turned_at = max(self._turned_at, self._packs.turned_at)
        return time.monotonic() - turned_at < STUCK_S

    # -- a round -----------------------------------------------------------------------------------

    async def _round(self) -> None:
        found = await asyncio.to_thread(self._looks.take)
        self._jobs.note(found.every, found.left, found.moved)
        await self._journeys.take()
        await self._tidying.look()
        self._left_to_others &= {job.job_id for job, _ in found.live}
        for job, feeds in found.live:
            if not self._has_provider_of(job):
                continue
            await self._let_go(job, feeds)
            if job.state in (JobState.RUNNING, JobState.PAUSED):
                await self._packs.answer_equal(job, feeds)
            if job.state is JobState.RUNNING:
                await self._packs.pack(job, feeds, found.waiting.get(job.job_id, {}))

    def _has_provider_of(self, job: Job) -> bool:
        """Return whether this worker has the settings of the job's provider.

        Another worker may have them, and its key: the job is left to that one."""
        provider = self._jobs.spec(job).provider
        if provider in self._known:
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

    async def _let_go(self, job: Job, feeds: Sequence[LiveFeed]) -> None:
        """Release feeds that are not packed: of a job that is paused or ends, or read to their end.

        They were released as they were packed, unless SQL was away; a lease that is renewed for
        ever keeps control from ending the job."""
        for live in feeds:
            is_packed = job.state is JobState.RUNNING and not live.feed.exhausted
            if live.led_by(self._journal.owner) and not is_packed:
                await asyncio.to_thread(self._feeds.release_feed, live.feed, self._journal.owner)

    def _renew(self) -> None:
        self._feeds.renew_feeds(self._journal.owner, self._journal.lease_s, shards=False)
        self._journal.store.renew(self._journal.owner, self._journal.lease_s)

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
