"""One provider batch, from its packed file to its last outcome: each step is journalled before and after the provider's call.

``Journey.run`` takes step after step; what a step does when it comes a second time is what makes a crash harmless. A batch is
created once: a create whose answer was lost is looked for before it is made again.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any, Final
from uuid import uuid4

from penstock_ledger import BatchLost, BatchState, JobState, NoRoom, ProviderBatch, ProviderBatchStore
from penstock_producer.errors import SourceError, SourceUnavailable
from penstock_producer.job.spec import JobSpec
from penstock_ratelimit import full_jitter
from penstock_workers.errors import JobCannotRun
from penstock_workers.failpoints import Failpoints
from penstock_workers.failure_log import FailureLog
from penstock_workers.item.attempt import JobView
from penstock_workers.item.run.reading.jobs import JobBook
from penstock_workers.lanes.batch.collect import Collector
from penstock_workers.lanes.batch.judging import Parting
from penstock_workers.lanes.batch.packed import PackedBatch, PackedFolder
from penstock_workers.lanes.batch.packing import Packer, Stopped
from penstock_workers.lanes.batch.provider import (
    TOKEN_CAP_CODES,
    AccountStopped,
    BatchGone,
    BatchProvider,
    BatchRefused,
    BatchSeen,
    NewBatch,
    TokenCapReached,
    TryLater,
    Unclear,
)
from penstock_workers.lanes.batch.standing import Jobs, Standing
from penstock_workers.settings import WorkerSettings

log = logging.getLogger(__name__)

FAULT_BASE_S: Final = 0.5  # before a step is tried again, doubled with each failure
FAULT_CAP_S: Final = 60.0
LOOK_AT_JOB_S: Final = 1.0  # while a batch waits for its job to be resumed
CAP_WAIT_S: Final = 15.0  # for room among the tokens of the account, where no other batch of this worker ends sooner
CAP_DOUBLINGS_MAX: Final = 5  # of that wait, where the provider fails a batch for want of room again and again
DELETE_TRIES: Final = 5  # of files at the provider: tidying up must not keep a job from its end
FULL_TRIES: Final = 7  # after 25 minutes of such waits a batch that is alone at its provider is too large
FILE_KEPT_S: Final = (
    3_600.0  # an upload that is younger is still there: Gemini keeps files for 48 hours, others for weeks
)
OUTPUTS_WITHIN_S: Final = 600.0  # of its end a batch names the outputs that it has counted answers for
POLL_GROWTH: Final = 1.5
MICROUSD: Final = 1_000_000  # in a dollar
POLL_GROWTHS_MAX: Final = 100  # far beyond every cap; a power of some thousands is no float any more


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What all journeys of a worker share."""

    settings: WorkerSettings
    owner: str
    store: ProviderBatchStore
    jobs: Jobs
    views: JobBook
    folder: PackedFolder
    packer: Packer
    packing: asyncio.Lock  # one file is packed at a time
    collecting: asyncio.Semaphore
    uploading: asyncio.Semaphore
    collector: Collector
    failpoints: Failpoints
    changed: asyncio.Event  # set when a batch has ended: others may have room now


class Journey:
    """Belongs to the event loop; one task runs it."""

    def __init__(self, batch: ProviderBatch, provider: BatchProvider, around: Surroundings) -> None:
        self.batch, self._provider, self._around = batch, provider, around
        self._failures = FailureLog(log)
        self._faults = self._polls = 0
        self._cancel_asked = False
        self._times_full = 0  # in a row that the provider failed it because the account had no room for its tokens
        self.tags = {batch.tag}  # that it leads: two while a batch takes the place of another
        self._closing = asyncio.Event()
        self._steps: dict[BatchState, Callable[[], Awaitable[None]]] = {
            BatchState.PACKED: self._upload,
            BatchState.UPLOADED: self._create,
            BatchState.CREATED: self._watch,
            BatchState.ENDED: self._collect,
            BatchState.COLLECTED: self._conclude,
        }

    async def run(self) -> None:
        """Until the batch is settled, another process leads it, or ``close``."""
        while self.batch.state is not BatchState.SETTLED and not self._closing.is_set():
            try:
                await self._turn()
            except BatchLost as error:
                log.info("%s", error)
                return
            except Stopped:
                return

    async def _turn(self) -> None:
        try:
            await self._steps[self.batch.state]()
            self._faults = 0
        except (BatchLost, Stopped):
            raise
        except Exception as error:
            await self._after(error)

    def close(self) -> None:
        """End after the step that is under way."""
        self._closing.set()

    # -- the steps -----------------------------------------------------------------------------------------------------

    async def _upload(self) -> None:
        batch, tried_before = self.batch, self.batch.uploading_at is not None
        if self._standing is not Standing.RUNS:
            await self._wait_or_give_up()
            return
        async with self._around.uploading:
            packed = await self._files()
            await self._write(uploading_at=time.time())
            file_id = await self._provider.find_upload(batch.tag) if tried_before else None
            self._hit("batch_before_upload")
            if file_id is None:
                file_id = await self._provider.upload(self._new(packed))
            self._hit("batch_after_upload")
            await self._write(state=BatchState.UPLOADED, file_id=file_id, uploaded_at=time.time(), why=None)

    async def _create(self) -> None:
        batch = self.batch
        if batch.creating_at is not None:  # its answer was lost, with this process or on the way
            seen = await self._provider.find(batch.tag, batch.creating_at)
            if seen is not None:
                log.info(
                    "provider batch %s of job %s was created all the same: %s", batch.tag, batch.job_id, seen.batch_id
                )
                await self._created(seen)
                return
            if (left_s := self._unclear_s(batch.creating_at)) > 0:
                await self._pause(left_s)  # the provider's list may show it late
                return
            await self._write(creating_at=None)
        if self._standing is not Standing.RUNS:
            await self._wait_or_give_up()
            return
        packed = await self._files()
        if not await self._reserve():
            return
        self._hit("batch_before_create")
        try:
            seen = await self._provider.create(self._new(packed))
        except BatchGone:  # its input file, or the model
            if batch.uploaded_at is None or time.time() - batch.uploaded_at < FILE_KEPT_S:
                await self._write(creating_at=None)
                raise
            log.info("provider batch %s: its file is gone from the provider; it is uploaded again", batch.tag)
            await self._write(
                state=BatchState.PACKED, file_id=None, uploading_at=None, uploaded_at=None, creating_at=None
            )
            return
        except (TokenCapReached, TryLater, BatchRefused, AccountStopped):
            await self._write(creating_at=None)  # nothing is at the provider, for certain
            raise
        self._hit("batch_after_create")
        await self._created(seen)

    async def _created(self, seen: BatchSeen) -> None:
        await self._write(
            state=BatchState.CREATED, remote_id=seen.batch_id, status=seen.status, created_at=time.time(), why=None,
            **_counts(seen),
        )  # fmt: skip
        self._hit("batch_created")

    async def _watch(self) -> None:
        remote_id = self._remote_id
        try:
            if self._standing in (Standing.ENDS, Standing.LEAVES) and not self._cancel_asked:
                await self._provider.cancel(remote_id)
                self._cancel_asked, self._polls = True, 0
            seen = await self._provider.look(remote_id)
        except BatchGone as error:
            await self._ended(status=self.batch.status, why=f"batch_lost: {error}")
            return
        shown = {"status": seen.status, **_counts(seen)}
        if seen.ended:
            await self._ended(**shown)
            return
        if any(getattr(self.batch, name) != value for name, value in shown.items()):
            await self._write(**shown)
        await self._pause(self._poll_s())

    async def _ended(self, **shown: Any) -> None:
        self._hit("batch_before_ended")
        await self._write(state=BatchState.ENDED, ended_at=time.time(), **shown)
        self._around.changed.set()
        self._hit("batch_ended")

    async def _collect(self) -> None:
        async with self._around.collecting:
            full = await self._read()
        if full is not None:  # it waits without keeping others from being read
            await self._again(full)

    async def _read(self) -> BatchSeen | None:
        """Give its documents what they came to; the batch itself where the account had no room for it."""
        try:
            seen = await self._provider.look(self._remote_id)
        except BatchGone as error:
            await self._collected(f"batch_lost: {error}")
            return None
        if not self._is_whole(seen):
            raise TryLater(None, f"the provider shows it as {seen.status} and without all that it has answered")
        if any(problem.code in TOKEN_CAP_CODES for problem in seen.problems):
            return seen
        view, packed = await self._view(), await self._files()
        if view is None:
            await self._collected("batch_cancelled")
            return None
        parting = Parting(
            has_left=self._standing is Standing.LEAVES,
            is_handed_over=await self._in_thread(self._around.store.is_handed_over, self.batch.tag),
        )
        if seen.problems:
            await self._refused(view, packed, seen)
            return None
        try:
            collected = await self._around.collector.answers(self.batch, view, packed, self._provider, seen, parting)
        except BatchGone as error:  # what was read of its outputs until then is settled
            await self._collected(f"batch_lost: {error}")
            return None
        if collected.odd:
            kinds = ", ".join(f"{number} {kind}" for kind, number in sorted(collected.odd.items()))
            log.warning("provider batch %s: lines of its outputs that are no answers: %s", self.batch.tag, kinds)
        await self._collected("lane_left" if parting.has_left and seen.cancelled else _why(seen))
        return None

    def _is_whole(self, seen: BatchSeen) -> bool:
        """Whether its answers can be read: what seems to have none would be asked for, and paid for, again."""
        if seen.ended and (seen.outputs or seen.counts is None or not seen.counts.succeeded):
            return True
        return seen.ended and time.time() - (self.batch.ended_at or 0.0) > OUTPUTS_WITHIN_S

    async def _collected(self, why: str) -> None:
        await self._write(state=BatchState.COLLECTED, collected_at=time.time(), why=why)
        self._hit("batch_collected")

    async def _conclude(self) -> None:
        """What has no answer goes on, and nothing of the batch is left lying about."""
        batch = self.batch
        handed_over = await self._in_thread(self._around.store.is_handed_over, batch.tag)
        if self._standing is not Standing.ENDS and not handed_over:  # a job that ends writes off all that has no outcome
            view, packed = await self._view(), await self._files()
            if view is not None:
                await self._around.collector.unanswered(batch, view, packed, batch.why or "batch_lost")
        await self._delete()
        self._hit("batch_before_settled")
        await self._settled(batch.why if batch.why not in (None, "batch_lost") else None)

    # -- less often ----------------------------------------------------------------------------------------------------

    async def _refused(self, view: JobView, packed: PackedBatch, seen: BatchSeen) -> None:
        """Its validation refused all of it for some lines. Those are dead letters, and the others go into another batch."""
        at_fault = await self._around.collector.refused(self.batch, view, packed, seen.problems)
        first = seen.problems[0]
        words = f"{first.code}: {first.message}"
        log.warning(
            "provider batch %s of job %s was refused by its provider (%s); %d of its %d lines are at fault", self.batch.tag,
            self.batch.job_id, words, at_fault, self.batch.requests,
        )  # fmt: skip
        await self._collected(
            f"batch_refused: {words}" if at_fault else f"batch_lost: the provider refused it: {words}"
        )

    async def _again(self, seen: BatchSeen) -> None:
        """The account had no room for its tokens: the same documents wait as another batch, since this one has failed."""
        tag, why = uuid4().hex, f"{seen.problems[0].code}: {seen.problems[0].message}"
        if self._times_full >= FULL_TRIES and not await self._in_thread(self._around.store.tokens_beside, self.batch):
            await self._give_up_size(why)
            return
        await self._delete(unasked=True)  # each try uploads a file, and no batch was made of this one
        self.tags.add(tag)
        fresh = await self._in_thread(self._around.store.replace, self.batch, self._around.owner, tag, why)
        if fresh is None:
            raise BatchLost(self.batch.tag)
        await self._in_thread(self._around.folder.rename, self.batch.tag, tag)
        self.batch, self.tags, self._polls = fresh, {tag}, 0
        await self._write(why=why)
        self._around.changed.clear()
        doubled = CAP_WAIT_S * 2.0 ** min(self._times_full, CAP_DOUBLINGS_MAX)
        others_may_end = None if self._times_full else self._around.changed
        self._times_full += 1
        await self._pause(doubled, or_when=others_may_end)

    async def _give_up_size(self, why: str) -> None:
        """It does not fit where it is alone, so it never will: a person says how much does, and its documents go into smaller
        batches then."""
        provider, name = self.batch.provider, f"provider batch {self.batch.tag} of {self.batch.requests} requests"
        words = (
            f"{name} has more tokens than the account takes even alone ({why}); set providers.{provider}.batch_enqueued_tokens "
            "to what the account may have, start the worker again, and resume the job"
        )
        await self._around.jobs.stop(self.batch.job_id, JobState.PAUSED, words)
        await self._delete(unasked=True)
        await self._collected(f"batch_refused: {why}")

    async def _wait_or_give_up(self) -> None:
        """Nothing of it is at the provider but its file, maybe."""
        standing = self._standing
        if standing is Standing.WAITS:
            await self._pause(LOOK_AT_JOB_S)
            return
        batch = self.batch
        if batch.file_id is None and batch.uploading_at is not None:
            await self._write(file_id=await self._provider.find_upload(batch.tag))
        await self._delete(unasked=True)
        if standing is Standing.LEAVES:
            await self._collected("lane_left")
        else:
            await self._settled("batch_cancelled: its job ended before it was created")

    async def _settled(self, why: str | None) -> None:
        if not await self._in_thread(self._around.store.end, self.batch, self._around.owner, why):
            raise BatchLost(self.batch.tag)
        self.batch = replace(self.batch, state=BatchState.SETTLED, why=why)
        await self._in_thread(self._around.folder.batch(self.batch.tag).remove)
        self._around.changed.set()

    async def _delete(self, *, unasked: bool = False) -> None:
        """At the provider, where the job asks for it; what no batch was made of goes ``unasked``."""
        batch, job = self.batch, await self._around.jobs.get(self.batch.job_id)
        wanted = unasked or (job is not None and self._around.jobs.spec(job).batch_files == "delete")
        if not wanted or (batch.file_id is None and batch.remote_id is None):
            return
        try:
            await self._delete_at_provider(batch)
        except (BatchRefused, AccountStopped, TryLater, Unclear) as error:
            if isinstance(error, TryLater | Unclear) and self._faults < DELETE_TRIES:
                raise
            log.warning(
                "provider batch %s: its files stay at the provider, which does not delete them: %s", batch.tag, error
            )

    async def _delete_at_provider(self, batch: ProviderBatch) -> None:
        if batch.remote_id is None:
            seen = BatchSeen("", "", ended=True, counts=None, file_id=batch.file_id)
        else:
            try:
                seen = await self._provider.look(batch.remote_id)
            except BatchGone:
                return
        await self._provider.delete(seen)

    async def _after(self, error: Exception) -> None:
        """A step has failed: it is taken again after a pause, unless a person has to act first."""
        self._faults += 1
        wait_s = full_jitter(self._faults, base_s=FAULT_BASE_S, cap_s=FAULT_CAP_S)
        name = f"provider batch {self.batch.tag} of job {self.batch.job_id}"
        match error:
            case TryLater():
                wait_s = max(wait_s, error.after_s or 0.0)
            case TokenCapReached():
                await self._wait_for_room(str(error))
                return
            case AccountStopped() | BatchRefused() | JobCannotRun():
                await self._around.jobs.stop(self.batch.job_id, JobState.PAUSED, f"{name}: {error}")
                wait_s = max(wait_s, LOOK_AT_JOB_S)
            case SourceUnavailable():
                await self._around.jobs.stop(self.batch.job_id, JobState.PAUSED, str(error))
            case SourceError():
                await self._around.jobs.stop(self.batch.job_id, JobState.FAILED, str(error))
            case _:
                pass
        level = logging.WARNING if isinstance(error, TryLater | Unclear) else logging.ERROR
        words = f"{name} is {self.batch.state}; the step is taken again in {wait_s:.1f} s"
        self._failures.tell("a step of a provider batch failed", error, words, level=level)
        await self._pause(wait_s)

    async def _reserve(self) -> bool:
        cap, budget = self._around.settings.provider(self.batch.provider).batch_enqueued_tokens, await self._budget()
        begin, owner = self._around.store.begin_create, self._around.owner
        full: NoRoom | None = await self._in_thread(begin, self.batch, owner, cap, budget)
        if full is None:
            self.batch = replace(self.batch, creating_at=time.time())
            return True
        if not full.is_budget:
            await self._wait_for_room(f"the account may have {cap} tokens in batches (batch_enqueued_tokens)")
        elif full.held:
            await self._wait_for_room("the job's budget may be needed for its other batches")
        else:
            await self._around.jobs.stop(
                self.batch.job_id, JobState.PAUSED, _over_budget(self.batch, full, budget or 0)
            )
            await self._pause(LOOK_AT_JOB_S)
        return False

    async def _budget(self) -> int | None:
        """In millionths of a dollar."""
        job = await self._around.jobs.get(self.batch.job_id)
        budget_usd = None if job is None else self._around.jobs.spec(job).budget_usd
        return None if budget_usd is None else round(budget_usd * MICROUSD)

    async def _wait_for_room(self, why: str) -> None:
        if self.batch.why != why:
            await self._write(why=why)
        self._around.changed.clear()
        await self._pause(CAP_WAIT_S, or_when=self._around.changed)

    # -- small -----------------------------------------------------------------------------------------------------------

    @property
    def _standing(self) -> Standing:
        return self._around.jobs.standing(self.batch.job_id, self.batch.packed_at)

    @property
    def _remote_id(self) -> str:
        assert self.batch.remote_id is not None, "a batch that was created has a name at the provider"
        return self.batch.remote_id

    def _new(self, packed: PackedBatch) -> NewBatch:
        batch = self.batch
        return NewBatch(batch.tag, packed.input, batch.endpoint, batch.model, batch.requests, batch.file_id)

    async def _view(self) -> JobView | None:
        """None for a job that was purged."""
        job = await self._around.jobs.get(self.batch.job_id)
        return None if job is None else await self._around.views.get(job.job_id)

    async def _files(self) -> PackedBatch:
        job = await self._around.jobs.get(self.batch.job_id)
        packed = self._around.folder.batch(self.batch.tag)
        if job is None or packed.is_there:
            return packed
        async with self._around.packing:
            spec: JobSpec = self._around.jobs.spec(job)
            return await asyncio.to_thread(self._around.packer.files, job, spec, self.batch, self._provider)

    def _unclear_s(self, creating_at: float) -> float:
        """How long the provider's list is not yet believed that it does not have the batch."""
        most = self._around.settings.batch.unclear_s
        return min(most, creating_at + most - time.time())

    def _poll_s(self) -> float:
        own, fixed = self._around.settings.batch, self._around.jobs.poll_s(self.batch.job_id)
        if fixed is not None:
            return fixed
        self._polls += 1
        growth = POLL_GROWTH ** min(self._polls - 1, POLL_GROWTHS_MAX)
        return min(own.poll_cap_s, own.poll_first_s * growth) * random.uniform(0.9, 1.1)

    async def _write(self, **values: Any) -> None:
        """Raises BatchLost."""
        plain = {name: str(value) if isinstance(value, BatchState) else value for name, value in values.items()}
        store, owner = self._around.store, self._around.owner
        if not await asyncio.to_thread(lambda: store.step(self.batch, owner, **plain)):
            raise BatchLost(self.batch.tag)
        known = {name: value for name, value in values.items() if name in ProviderBatch.__dataclass_fields__}
        self.batch = replace(self.batch, **known)

    async def _in_thread(self, call: Callable[..., Any], *arguments: Any) -> Any:
        return await asyncio.to_thread(call, *arguments)

    async def _pause(self, seconds: float, *, or_when: asyncio.Event | None = None) -> None:
        events = [self._closing] if or_when is None else [self._closing, or_when]
        waits = [asyncio.ensure_future(event.wait()) for event in events]
        try:
            await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    def _hit(self, place: str) -> None:
        self._around.failpoints.hit(place)


def _counts(seen: BatchSeen) -> dict[str, int | None]:
    counts = seen.counts
    return (
        {"succeeded": None, "failed": None}
        if counts is None
        else {"succeeded": counts.succeeded, "failed": counts.failed}
    )


def _over_budget(batch: ProviderBatch, full: NoRoom, budget: int) -> str:
    return (
        f"budget_exhausted: {full.spent / MICROUSD:.4f} of {budget / MICROUSD:g} USD are spent, and the next batch of "
        f"{batch.requests} documents may cost {batch.may_cost_microusd / MICROUSD:.4f} USD; resume with a higher budget_usd"
    )


def _why(seen: BatchSeen) -> str:
    """Why documents of it may be without an answer: the name of a failure."""
    if seen.expired:
        return "batch_expired"
    return "batch_cancelled" if seen.cancelled else "batch_lost"
