"""A batch on its way to the provider: uploaded, reserved in tokens and money, and created.

It is created once: a create whose answer was lost is looked for before it is made again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import replace
from typing import Final

from penstock_ledger import BatchFailure, BatchLost, BatchState, JobState, ProviderBatch
from penstock_workers.errors import PricesMissing, stop_reason
from penstock_workers.lanes.batch.apis.provider import (
    AccountStopped,
    BatchError,
    BatchGone,
    BatchRefused,
    BatchSeen,
    NewBatch,
    TokenCapReached,
    TryLater,
)
from penstock_workers.lanes.batch.jobs import Reservations, Room, Standing
from penstock_workers.lanes.batch.led_batch import LedBatch, counts_of
from penstock_workers.lanes.batch.packed import PackedBatch
from penstock_workers.settings import WorkerSettings

log = logging.getLogger(__name__)

# an upload that is younger is still there: Gemini keeps files for 48 hours, others for weeks
FILE_KEPT_S: Final = 3_600.0


class Sending:
    """The steps of a batch that no provider works on yet."""

    def __init__(
        self,
        led: LedBatch,
        settings: WorkerSettings,
        reservations: Reservations,
        uploading: asyncio.Semaphore,
    ) -> None:
        self._led, self._settings = led, settings
        self._reservations, self._uploading = reservations, uploading

    async def upload(self) -> None:
        led = self._led
        batch, tried_before = led.batch, led.batch.uploading_at is not None
        if led.standing is not Standing.RUNS or await led.has_given_way():
            await self._wait_or_give_up()
            return
        async with self._uploading:
            packed = await led.files()
            await led.write(uploading_at=time.time())
            file_id = await led.provider.find_upload(batch.tag) if tried_before else None
            led.hit("batch_before_upload")
            if file_id is None:
                file_id = await led.provider.upload(self._new(packed))
            led.hit("batch_after_upload")
            await led.write(
                state=BatchState.UPLOADED,
                file_id=file_id,
                uploaded_at=time.time(),
                why=None,
                trouble=None,
            )

    async def create(self) -> None:
        led = self._led
        if led.batch.creating_at is not None and not await self._is_absent(led.batch.creating_at):
            return
        if led.standing is not Standing.RUNS or await led.has_given_way():
            await self._wait_or_give_up()
            return
        packed = await led.files()
        if not await self._reserve():
            return
        led.hit("batch_before_create")
        try:
            seen = await led.provider.create(self._new(packed))
        except BatchGone:  # its input file, or the model
            if not self._file_may_be_gone():
                await led.write(creating_at=None)
                raise
            await self._upload_again()
            return
        except (TokenCapReached, TryLater, BatchRefused, AccountStopped):
            await led.write(creating_at=None)  # nothing is at the provider, for certain
            await led.unreserve()
            raise
        led.hit("batch_after_create")
        try:
            await self._created(seen)
        except BatchLost:
            await self._cancel_if_unknown(seen)
            raise

    async def _is_absent(self, creating_at: float) -> bool:
        """Return whether a create whose answer was lost has made no batch.

        Where it has made one, that is adopted."""
        led, batch = self._led, self._led.batch
        seen = await led.provider.find(batch.tag, creating_at)
        if seen is not None:
            log.info(
                "provider batch %s of job %s was created all the same: %s",
                batch.tag,
                batch.job_id,
                seen.batch_id,
            )
            await self._created(seen)
            return False
        if (left_s := self._unclear_s(creating_at)) > 0:
            await led.pause(left_s)  # the provider's list may show it late
            return False
        await led.write(creating_at=None)
        return True

    async def _cancel_if_unknown(self, seen: BatchSeen) -> None:
        """Cancel what was created after another process had taken over, unless it knows of it.

        Its answers would be paid for and never read. Who leads the batch by now may have
        looked for it already, or too early for the provider's list."""
        led, batch = self._led, self._led.batch
        now: ProviderBatch | None = await led.in_thread(led.journal.store.get, batch.tag)
        if now is not None and now.remote_id == seen.batch_id:
            return
        log.warning(
            "provider batch %s of job %s: another process went on while this one created %s, which "
            "is cancelled",
            batch.tag,
            batch.job_id,
            seen.batch_id,
        )
        try:
            await led.provider.cancel(seen.batch_id)
        except BatchError as error:
            log.error(
                "provider batch %s: %s runs on at %s, is paid for and never read: %s; cancel it "
                "there",
                batch.tag,
                seen.batch_id,
                batch.provider,
                error,
            )

    def _file_may_be_gone(self) -> bool:
        uploaded_at = self._led.batch.uploaded_at
        return uploaded_at is not None and time.time() - uploaded_at >= FILE_KEPT_S

    async def _upload_again(self) -> None:
        led = self._led
        log.info(
            "provider batch %s: its file is gone from the provider; it is uploaded again",
            led.batch.tag,
        )
        await led.write(
            state=BatchState.PACKED,
            file_id=None,
            uploading_at=None,
            uploaded_at=None,
            creating_at=None,
        )

    async def _created(self, seen: BatchSeen) -> None:
        led = self._led
        await led.write(
            state=BatchState.CREATED,
            remote_id=seen.batch_id,
            status=seen.status,
            created_at=time.time(),
            why=None,
            trouble=None,
            **counts_of(seen),
        )
        led.hit("batch_created")

    async def _wait_or_give_up(self) -> None:
        """Wait for the job, or give the batch up.

        Nothing of it is at the provider but its file, maybe. Where the job has given way, its
        documents are packed again by that step."""
        led, standing = self._led, self._led.standing
        if standing is Standing.WAITS:
            await led.wait_for_job()
            return
        if led.batch.file_id is None and led.batch.uploading_at is not None:
            await led.write(file_id=await led.provider.find_upload(led.batch.tag))
        await led.delete(unasked=True)
        if standing is not Standing.ENDS:
            is_leaving = standing is Standing.LEAVES
            await led.collected(BatchFailure("lane_left" if is_leaving else "gave_way"))
        else:
            why = BatchFailure("batch_cancelled", "its job ended before it was created")
            await led.settled(why)

    async def _reserve(self) -> bool:
        if not await self._is_paid_for():
            return False
        led, batch = self._led, self._led.batch
        cap = self._settings.provider(batch.provider).batch_enqueued_tokens
        if await led.in_thread(led.journal.store.begin_create, batch, led.journal.owner, cap):
            led.batch = replace(batch, creating_at=time.time())
            return True
        await led.unreserve()
        await led.wait_for_room(
            f"the account may have {cap} tokens in batches (batch_enqueued_tokens)"
        )
        return False

    async def _is_paid_for(self) -> bool:
        """Reserve what it may cost; return whether budgets have room for it.

        Those of its job and its tenant, beside all that is under way in any lane."""
        led, batch, jobs = self._led, self._led.batch, self._led.jobs
        job = await jobs.get(batch.job_id)
        budget_usd = None if job is None else jobs.spec(job).budget_usd
        if job is None:
            return True
        reservations = self._reservations
        try:
            room: Room | None = await led.in_thread(reservations.reserve, job, batch, budget_usd)
        except PricesMissing as error:
            await jobs.stop(job.job_id, JobState.PAUSED, stop_reason(error))
            await led.wait_for_job()
            return False
        if room is None or room.is_reserved:
            return True
        if room.may_grow:
            await led.wait_for_room(
                "the budget of the job, or of its tenant, may be needed for what is under way"
            )
        else:
            why = await led.in_thread(reservations.why, job, budget_usd, room, batch)
            await jobs.stop(job.job_id, JobState.PAUSED, why)
            await led.wait_for_job()
        return False

    def _unclear_s(self, creating_at: float) -> float:
        """Return how long the provider's list is not yet believed when a batch is not in it."""
        most = self._settings.batch.unclear_s
        return min(most, creating_at + most - time.time())

    def _new(self, packed: PackedBatch) -> NewBatch:
        batch = self._led.batch
        return NewBatch(
            batch.tag, packed.input, batch.endpoint, batch.model, batch.requests, batch.file_id
        )
