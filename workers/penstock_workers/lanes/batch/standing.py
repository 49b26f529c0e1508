"""What the jobs of provider batches are doing now, as the leader's latest look has it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection, Mapping
from dataclasses import replace
from enum import Enum

from penstock_ledger import Job, JobNotFound, JobState, JobStore, RedisLedger
from penstock_ledger.redaction import redact
from penstock_producer.job.lanes import packs
from penstock_producer.job.spec import JobSpec


class Standing(Enum):
    """What a job lets its batches do."""

    RUNS = "runs"
    # its job goes on in another lane: what is at the provider is cancelled, and what was answered
    # is kept
    LEAVES = "leaves"
    WAITS = "waits"  # paused: nothing new goes to the provider; what is there is collected
    # cancelled, failed or purged: what is at the provider is cancelled, and what was answered is
    # kept
    ENDS = "ends"


class Jobs:
    """Used on the event loop."""

    def __init__(self, jobs: JobStore, hot: RedisLedger) -> None:
        self._jobs, self._hot = jobs, hot
        self._live: dict[str, Job] = {}
        self._turns: dict[str, asyncio.Event] = {}
        self._specs: dict[str, tuple[str, JobSpec]] = {}
        self._left: Mapping[str, float] = {}
        self._moved: Collection[str] = ()

    def note(
        self,
        live: Collection[Job],
        left: Mapping[str, float] | None = None,
        moved: Collection[str] = (),
    ) -> None:
        """``live``: all jobs that are not over; ``left``: when those that have ever left the lane
        did so last; ``moved``: those that have ever left any lane."""
        self._left, self._moved = left or {}, moved
        self._know({job.job_id: job for job in live})
        self._specs = {job_id: spec for job_id, spec in self._specs.items() if job_id in self._live}

    def spec(self, job: Job) -> JobSpec:
        known = self._specs.get(job.job_id)
        if known is None or known[0] != job.digest:
            known = self._specs[job.job_id] = (job.digest, JobSpec.accepted(job.spec))
        return known[1]

    def standing(self, job_id: str, packed_at: float | None = None) -> Standing:
        """``packed_at``: of a batch.

        One from before its job left the lane is given up, even where the job has come back: its
        documents may be elsewhere."""
        job = self._live.get(job_id)
        if job is None or job.state is JobState.CANCELLING:
            return Standing.ENDS
        if self.has_left(job_id, packed_at):
            return Standing.LEAVES
        return Standing.WAITS if job.state is JobState.PAUSED else Standing.RUNS

    def has_left(self, job_id: str, packed_at: float | None = None) -> bool:
        """Whether a live job is in another lane, or was since ``packed_at``."""
        job = self._live.get(job_id)
        if job is None:
            return False
        return not packs(job.lane) or (
            packed_at is not None and packed_at < self._left.get(job_id, 0.0)
        )

    def has_moved(self, job_id: str) -> bool:
        """Whether a job has ever left a lane, this one or another."""
        return job_id in self._moved

    def turn(self, job_id: str) -> asyncio.Event:
        """Set as soon as its standing is another one than now."""
        return self._turns.setdefault(job_id, asyncio.Event())

    def _know(self, live: dict[str, Job]) -> None:
        before = {job_id: self.standing(job_id) for job_id in self._turns}
        self._live = live
        for job_id, was in before.items():
            if self.standing(job_id) is not was:
                self._turns.pop(job_id).set()
            elif job_id not in live:
                del self._turns[job_id]  # it is over, and stays so

    async def look_again(self, job_id: str) -> Standing:
        """The same, read anew."""
        job: Job | None = None
        with contextlib.suppress(JobNotFound):
            job = await asyncio.to_thread(self._jobs.get, job_id)
        self._know(
            self._besides(job_id)
            | ({job_id: job} if job is not None and not job.state.final else {})
        )
        return self.standing(job_id)

    async def look_if_new(self, job_id: str) -> None:
        """At a job that the latest look did not have: it may be over, or younger than that look,
        and then nothing of it may be cancelled."""
        if job_id not in self._live:
            await self.look_again(job_id)

    def poll_s(self, job_id: str) -> float | None:
        """How often the job wants its batches looked at; None: as the worker's settings have it."""
        job = self._live.get(job_id)
        return None if job is None else self.spec(job).batch_poll_s

    async def get(self, job_id: str) -> Job | None:
        """None for a job that was purged."""
        if job_id in self._live:
            return self._live[job_id]
        try:
            return await asyncio.to_thread(self._jobs.get, job_id)
        except JobNotFound:
            return None

    async def stop(
        self, job_id: str, to: JobState, reason: str, resume_at: float | None = None
    ) -> None:
        """Pause or fail a running job, with the reason for people.

        ``resume_at``: when a pause ends by itself."""
        moved = await asyncio.to_thread(
            lambda: self._jobs.set_state(
                job_id, to, reason=redact(reason), expect={JobState.RUNNING}, resume_at=resume_at
            )
        )
        if moved:
            await asyncio.to_thread(self._hot.set_job_state, job_id, to)
            job = self._live.get(job_id)
            goes_on = {} if job is None or to.final else {job_id: replace(job, state=to)}
            self._know(self._besides(job_id) | goes_on)

    def _besides(self, job_id: str) -> dict[str, Job]:
        return {name: job for name, job in self._live.items() if name != job_id}
