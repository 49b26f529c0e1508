"""A batch that has ended: its answers are read, and what has none goes on to another batch."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Final
from uuid import uuid4

from penstock_ledger import BatchFailure, BatchLost, JobState
from penstock_ledger.reasons import By, Code, Reason
from penstock_workers.item.job_view import JobView
from penstock_workers.lanes.batch.answers import Collected, Collector, Parting
from penstock_workers.lanes.batch.apis.provider import (
    TOKEN_CAP_CODES,
    AnswersMissing,
    BatchError,
    BatchGone,
    BatchSeen,
    TryLater,
)
from penstock_workers.lanes.batch.jobs import Standing
from penstock_workers.lanes.batch.led_batch import LedBatch, counts_of
from penstock_workers.lanes.batch.packed import PackedBatch
from penstock_workers.lanes.batch.settings import BatchSettings
from penstock_workers.lanes.batch.troubles import Troubles

log = logging.getLogger(__name__)

# after 25 minutes of waits for room a batch that is alone at its provider is too large
FULL_TRIES: Final = 7
# batches of a job in a row, for no line of theirs: then it is nothing that smaller ones could find
REFUSED_MAX: Final = 8


LOST: Final = BatchFailure("batch_lost")


class Ending:
    """The steps of a batch that its provider has finished with."""

    def __init__(
        self,
        led: LedBatch,
        troubles: Troubles,
        settings: BatchSettings,
        collector: Collector,
        collecting: asyncio.Semaphore,
    ) -> None:
        self._led, self._troubles, self._settings = led, troubles, settings
        self._collector, self._collecting = collector, collecting
        self._is_all_answered = False  # as far as this process has seen
        self._is_seen = self._has_outputs = False  # at the look of this reading
        # in a row that the provider failed it because the account had no room for its tokens
        self._times_full = 0

    async def collect(self) -> None:
        try:
            async with self._collecting:
                full = await self._read()
        # what was read of its outputs until then is settled
        except (BatchGone, AnswersMissing) as error:
            await self._missed(error)
            return
        if full is not None:  # it waits without keeping others from being read
            await self._again(full)

    async def conclude(self) -> None:
        """Send on what has no answer, and leave nothing of the batch lying about."""
        led, batch = self._led, self._led.batch
        if await self._has_unanswered():
            view, packed = await led.view(), await led.files()
            if view is not None:
                await self._collector.unanswered(batch, view, packed, batch.failure or LOST)
        if not batch.unread:  # else a person may still fetch what this program could not
            await led.delete()
        led.hit("batch_before_settled")
        await led.settled(None if batch.failure == LOST else batch.failure)

    async def _has_unanswered(self) -> bool:
        """Return whether documents of it may have to go on.

        A job that ends writes off all that has no outcome."""
        led = self._led
        return (
            led.standing is not Standing.ENDS
            and not self._is_all_answered
            and not await led.is_handed_over()
        )

    async def _missed(self, error: BatchGone | AnswersMissing) -> None:
        """Look again later, or give up what has not come by now."""
        led, batch = self._led, self._led.batch
        unread = led.answers_out
        # the provider names outputs, and does not count
        if self._has_outputs and batch.succeeded is None:
            unread = batch.requests - (batch.answers_read or 0)
        is_partly_there = isinstance(error, AnswersMissing) and error.is_short
        what = "answers" if self._is_seen else "batch"
        if await self._troubles.is_given_up(
            error, what, may_come=unread > 0 and not is_partly_there
        ):
            why = error.why if isinstance(error, AnswersMissing) else "batch_lost"
            await led.collected(BatchFailure(why, str(error)), unread=unread)

    async def _read(self) -> BatchSeen | None:
        """Give its documents what they came to; return the batch where it found no room.

        The account had none for its tokens then."""
        led = self._led
        self._is_seen = self._has_outputs = False
        seen = await led.provider.look(led.remote_id)
        self._is_seen, self._has_outputs = True, bool(seen.outputs)
        await self._check_whole(seen)
        if any(problem.code in TOKEN_CAP_CODES for problem in seen.problems):
            return seen
        view, packed = await led.view(), await led.files()
        if view is None:
            await led.collected(BatchFailure("batch_cancelled"))
            return None
        if seen.problems:
            await self._refused(view, packed, seen)
            return None
        is_handed_over = await led.is_handed_over()

        def parting() -> Parting:
            return Parting(led.has_left, is_handed_over, led.has_moved)

        collected = Collected()
        try:
            await self._collector.answers(
                led.batch, view, packed, led.provider, seen, parting, collected
            )
        except BatchError:
            await self._note_read(collected)
            raise
        await self._note_read(collected)
        if collected.odd:
            kinds = ", ".join(f"{number} {kind}" for kind, number in sorted(collected.odd.items()))
            log.warning(
                "provider batch %s: lines of its outputs that are no answers: %s",
                led.batch.tag,
                kinds,
            )
        if collected.is_short(led.batch, seen):
            raise _missing(seen, collected)
        self._is_all_answered = not collected.left
        why = "lane_left" if led.has_left and seen.cancelled else _why(seen)
        await led.collected(BatchFailure(why))
        return None

    async def _check_whole(self, seen: BatchSeen) -> None:
        """Raise TryLater and AnswersMissing where answers cannot be read.

        What seems to have none would be asked for, and paid for, again."""
        led = self._led
        counts = counts_of(seen)
        if any(getattr(led.batch, name) != value for name, value in counts.items()):
            await led.write(**counts)
        if not seen.ended:
            if time.time() - (led.batch.ended_at or 0.0) <= self._settings.stuck_after_s:
                raise TryLater(None, f"the provider shows it as {seen.status} again")
        elif not seen.outputs and seen.counts is not None and seen.counts.succeeded:
            raise _missing(seen, Collected())

    async def _note_read(self, collected: Collected) -> None:
        if collected.good > (self._led.batch.answers_read or 0):
            await self._led.write(answers_read=collected.good)

    async def _refused(self, view: JobView, packed: PackedBatch, seen: BatchSeen) -> None:
        """Settle a batch whose validation refused all of it for some lines.

        Those are dead letters, and the others go into batches of half its size: a provider that
        names one bad line at a time, or none, costs no more rounds than a batch can be halved.
        """
        led, batch = self._led, self._led.batch
        at_fault = await self._collector.refused(batch, view, packed, seen.problems)
        first = seen.problems[0]
        words = f"{first.code}: {first.message}"
        log.warning(
            "provider batch %s of job %s was refused by its provider (%s); it names %d of its %d "
            "lines",
            batch.tag,
            batch.job_id,
            words,
            at_fault,
            batch.requests,
        )
        await led.collected(BatchFailure(Code.BATCH_REFUSED, words))
        failed_in_a_row = led.journal.store.failed_in_a_row
        if not at_fault and await led.in_thread(
            failed_in_a_row, batch.job_id, REFUSED_MAX, Code.BATCH_REFUSED
        ):
            detail = (
                f"the provider {batch.provider} has refused {REFUSED_MAX} batches "
                f"of this job in a row and named no line ({words}); correct what it says and "
                "resume the job, which tries smaller batches"
            )
            reason = Reason(Code.BATCH_REFUSED, By.LANE, {"detail": detail})
            await led.jobs.stop(batch.job_id, JobState.PAUSED, reason)

    async def _again(self, seen: BatchSeen) -> None:
        """Let the same documents wait as another batch, since this one found no room."""
        led = self._led
        tag, why = uuid4().hex, f"{seen.problems[0].code}: {seen.problems[0].message}"
        if self._times_full >= FULL_TRIES and not await led.in_thread(
            led.journal.store.tokens_beside, led.batch
        ):
            await self._give_up_size(why)
            return
        await led.delete(unasked=True)  # each try uploads a file, and no batch was made of this one
        led.tags.add(tag)
        fresh = await led.in_thread(
            led.journal.store.replace, led.batch, led.journal.owner, tag, why
        )
        if fresh is None:
            raise BatchLost(led.batch.tag)
        await led.unreserve()
        await led.in_thread(led.packing.rename, led.batch.tag, tag)
        led.batch, led.tags = fresh, {tag}
        await led.write(why=why)
        self._times_full += 1
        await led.wait_for_room_again(self._times_full - 1)

    async def _give_up_size(self, why: str) -> None:
        """Pause the job: its batch does not fit even alone, so it never will.

        A person says how much does, and its documents go into smaller batches then."""
        led, batch = self._led, self._led.batch
        detail = (
            f"provider batch {batch.tag} of {batch.requests} requests has more "
            f"tokens than the account takes even alone ({why}); set "
            f"providers.{batch.provider}.batch_enqueued_tokens to what the account may have, start "
            "the worker again, and resume the job"
        )
        reason = Reason(Code.BATCH_REFUSED, By.LANE, {"detail": detail})
        await led.jobs.stop(batch.job_id, JobState.PAUSED, reason)
        await led.delete(unasked=True)
        await led.collected(BatchFailure(Code.BATCH_REFUSED, why))


def _missing(seen: BatchSeen, collected: Collected) -> AnswersMissing:
    counted = f"{seen.counts.succeeded} answers" if seen.counts is not None else "a whole output"
    words = (
        f"the provider shows the batch as {seen.status} with {counted}, and {collected.good} could "
        "be read"
    )
    return AnswersMissing(words, _why(seen), is_short=collected.answers > 0)


def _why(seen: BatchSeen) -> str:
    """Return why documents of it may be without an answer: the name of a failure."""
    if seen.expired:
        return "batch_expired"
    return "batch_cancelled" if seen.cancelled else "batch_lost"
