"""A provider batch as this worker leads it: its row, its files, and what several steps do."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

from penstock_ledger import (
    BatchFailure,
    BatchLost,
    BatchState,
    BatchTrouble,
    Missing,
    ProviderBatch,
    ProviderBatchStore,
)
from penstock_workers.failpoints import Failpoints
from penstock_workers.item.job_view import JobView
from penstock_workers.lanes.batch.apis.provider import (
    AccountStopped,
    BatchGone,
    BatchProvider,
    BatchRefused,
    BatchSeen,
    TryLater,
    Unclear,
)
from penstock_workers.lanes.batch.jobs import Jobs, Reservations, Standing
from penstock_workers.lanes.batch.packed import PackedBatch
from penstock_workers.lanes.batch.packer import Packing

log = logging.getLogger(__name__)

LOOK_AT_JOB_S: Final = 1.0  # while a batch waits for its job to be resumed
# for room among the tokens of the account, where no other batch of this worker ends sooner
CAP_WAIT_S: Final = 15.0
# of that wait, where the provider fails a batch for want of room again and again
CAP_DOUBLINGS_MAX: Final = 5
DELETE_TRIES: Final = 5  # of files at the provider: tidying up must not keep a job from its end


@dataclass(frozen=True, slots=True)
class Journal:
    """The journal of provider batches, as one worker reads and writes it. Called in threads."""

    store: ProviderBatchStore
    owner: str
    lease_s: float  # of batches and feeds: a leader that died is replaced after it


class LedBatch:
    """A batch that this worker leads, on the event loop; one journey has it."""

    def __init__(
        self,
        batch: ProviderBatch,
        provider: BatchProvider,
        journal: Journal,
        jobs: Jobs,
        reservations: Reservations,
        packing: Packing,
        failpoints: Failpoints,
        changed: asyncio.Event,
    ) -> None:
        """Lead a batch; ``changed`` is set when one of this worker has ended, which makes room."""
        self.batch, self.provider = batch, provider
        self.journal, self.jobs, self.packing = journal, jobs, packing
        self._reservations, self._failpoints, self._changed = reservations, failpoints, changed
        self.tags = {batch.tag}  # that are led: two while a batch takes the place of another
        self.faults = 0  # of its step, in a row
        self._began_as = self.standing
        self.closing = asyncio.Event()

    @property
    def standing(self) -> Standing:
        found = self.jobs.standing(self.batch.job_id, self.batch.packed_at)
        return Standing.LEAVES if self.has_gone_on and found is not Standing.ENDS else found

    @property
    def has_left(self) -> bool:
        """Return whether its job has left the lane since it was packed.

        Even where the job has come back, or is cancelled by now."""
        return self.has_gone_on or self.jobs.has_left(self.batch.job_id, self.batch.packed_at)

    @property
    def has_moved(self) -> bool:
        """Return whether its job has moved between lanes, at any time."""
        return self.jobs.has_moved(self.batch.job_id)

    @property
    def has_gone_on(self) -> bool:
        """Return whether all its documents were handed over before this process took it.

        Its job has left the lane since it was packed, whatever the clocks of the processes say."""
        return self.batch.handed_at is not None

    async def has_given_way(self) -> bool:
        """Return whether its job has taken a step of `degrade` since it was packed."""
        return await self.jobs.step(self.batch.job_id) > self.batch.step

    def note_standing(self) -> None:
        """Note what its job does now: pauses end as soon as that changes."""
        self._began_as = self.standing

    @property
    def remote_id(self) -> str:
        assert self.batch.remote_id is not None, (
            "a batch that was created has a name at the provider"
        )
        return self.batch.remote_id

    async def view(self) -> JobView | None:
        """As its documents see it; None for a job that was purged."""
        return await self.jobs.view(self.batch.job_id, self.batch.endpoint)

    async def files(self) -> PackedBatch:
        job = await self.jobs.get(self.batch.job_id)
        spec = None if job is None else self.jobs.spec(job)
        return await self.packing.files(job, spec, self.batch, self.provider)

    async def write(self, **values: Any) -> None:
        """Write columns of the journal; raise BatchLost.

        A ``failure`` brings its sentence along; a ``why`` alone is what the batch waits for."""
        plain = {name: _as_column(value) for name, value in values.items()}
        failure: BatchFailure | None = values.get("failure")
        if failure is not None:
            values["why"] = str(failure)
            plain |= failure.columns()
        elif "why" in values:
            values["failure"] = plain["failure"] = None
        store, owner = self.journal.store, self.journal.owner
        if not await asyncio.to_thread(lambda: store.step(self.batch, owner, **plain)):
            raise BatchLost(self.batch.tag)
        known = {
            name: value
            for name, value in values.items()
            if name in ProviderBatch.__dataclass_fields__
        }
        self.batch = replace(self.batch, **known)

    async def collected(self, failure: BatchFailure, *, unread: int = 0) -> None:
        """Note that every answer of it is stored, but for the ``unread`` that were paid for.

        Raises BatchLost."""
        microusd = self._cost_of(unread)
        store, owner = self.journal.store, self.journal.owner
        if not await self.in_thread(store.collected, self.batch, owner, failure, unread, microusd):
            raise BatchLost(self.batch.tag)
        if unread:
            _tell_unread(self.batch, unread, microusd, str(failure))
        self.batch = replace(
            self.batch,
            state=BatchState.COLLECTED,
            why=str(failure),
            failure=failure,
            trouble=None,
            missing=None,
            unread=unread or None,
        )
        self.hit("batch_collected")

    @property
    def answers_out(self) -> int:
        """Return how many answers the provider has counted that were not read."""
        return max(0, (self.batch.succeeded or 0) - (self.batch.answers_read or 0))

    def _cost_of(self, answers: int) -> int | None:
        """Return what answers cost at most, by the estimate of its reservation.

        None where no price is known."""
        batch = self.batch
        return (
            batch.may_cost_microusd * answers // batch.requests if batch.may_cost_microusd else None
        )

    async def is_handed_over(self) -> bool:
        """Return whether its documents are in another lane, too, since its job left this one."""
        return bool(await self.in_thread(self.journal.store.is_handed_over, self.batch.tag))

    async def settled(self, failure: BatchFailure | None) -> None:
        """End the batch in the journal; raise BatchLost."""
        if not await self.in_thread(
            self.journal.store.end, self.batch, self.journal.owner, failure
        ):
            raise BatchLost(self.batch.tag)
        await self.unreserve()
        why = None if failure is None else str(failure)
        self.batch = replace(self.batch, state=BatchState.SETTLED, why=why, failure=failure)
        await self.in_thread(self.packing.remove, self.batch.tag)
        self.note_change()

    async def unreserve(self) -> None:
        """End the reservation: nothing is at the provider that its job's budget has to pay for."""
        job = await self.jobs.get(self.batch.job_id)
        if job is not None and await self.in_thread(
            self._reservations.bound, job, self.jobs.spec(job).budget_usd
        ):
            await self.in_thread(self._reservations.end, self.batch)

    async def delete(self, *, unasked: bool = False) -> None:
        """Delete it at the provider, where the job asks for that or ``unasked``.

        What no batch was made of goes unasked."""
        batch, job = self.batch, await self.jobs.get(self.batch.job_id)
        wanted = unasked or (job is not None and self.jobs.spec(job).batch_files == "delete")
        if not wanted or (batch.file_id is None and batch.remote_id is None):
            return
        try:
            await self._delete_at_provider(batch)
        except (BatchRefused, AccountStopped, TryLater, Unclear) as error:
            if isinstance(error, TryLater | Unclear) and self.faults < DELETE_TRIES:
                raise
            log.warning(
                "provider batch %s: its files stay at the provider, which does not delete them: %s",
                batch.tag,
                error,
            )

    async def wait_for_room(self, why: str) -> None:
        if self.batch.why != why:
            await self.write(why=why)
        self._changed.clear()
        await self.pause(CAP_WAIT_S, or_when=self._changed)

    async def wait_for_room_again(self, times: int) -> None:
        """Wait after the provider found no room, for the ``times``-th time again."""
        self._changed.clear()
        others_may_end = None if times else self._changed
        await self.pause(CAP_WAIT_S * 2.0 ** min(times, CAP_DOUBLINGS_MAX), or_when=others_may_end)

    async def wait_for_job(self) -> None:
        """Wait until its job was looked at again."""
        await self.pause(LOOK_AT_JOB_S)

    async def pause(self, seconds: float, *, or_when: asyncio.Event | None = None) -> None:
        """Wait for ``seconds``, or until its job is paused, goes on or ends.

        However long a provider wants to be left alone."""
        if self.standing is not self._began_as:
            return
        events = [
            self.closing,
            self.jobs.turn(self.batch.job_id),
            *([] if or_when is None else [or_when]),
        ]
        waits = [asyncio.ensure_future(event.wait()) for event in events]
        try:
            await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    def note_change(self) -> None:
        """Wake those that wait for room: this one has ended."""
        self._changed.set()

    async def in_thread(self, call: Callable[..., Any], *arguments: Any) -> Any:
        return await asyncio.to_thread(call, *arguments)

    def hit(self, place: str) -> None:
        self._failpoints.hit(place)

    async def _delete_at_provider(self, batch: ProviderBatch) -> None:
        if batch.remote_id is None:
            seen = BatchSeen("", "", ended=True, counts=None, file_id=batch.file_id)
        else:
            try:
                seen = await self.provider.look(batch.remote_id)
            except BatchGone:
                return
        await self.provider.delete(seen)


def counts_of(seen: BatchSeen) -> dict[str, int]:
    """Return the journal's columns of its counts; none where the provider tells none.

    What it said last stays."""
    return (
        {}
        if seen.counts is None
        else {"succeeded": seen.counts.succeeded, "failed": seen.counts.failed}
    )


def _as_column(value: object) -> object:
    if isinstance(value, BatchTrouble | Missing):
        return value.to_text()
    return str(value) if isinstance(value, BatchState) else value


def _tell_unread(batch: ProviderBatch, unread: int, microusd: int | None, why: str) -> None:
    cost = "of an unknown cost" if microusd is None else f"of about ${microusd / 1_000_000:.4f}"
    log.error(
        "provider batch %s of job %s (%s at %s): %d answers %s were paid for and cannot be read "
        "(%s); their documents go into another batch, unless their job ends",
        batch.tag,
        batch.job_id,
        batch.remote_id,
        batch.provider,
        unread,
        cost,
        why,
    )
