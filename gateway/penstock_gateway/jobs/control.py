"""What changes a job: pause, resume, cancel, move, other limits, replay, and purge, which forgets
it.

SQL first, since it says what is true; then Redis, so that workers see it at once.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Collection
from typing import Annotated, Any, Final

import redis
from fastapi import Query, Request

from penstock_gateway.backend import Backend, backend_of
from penstock_gateway.batches.finish import batch_note
from penstock_gateway.callers.caller import Caller
from penstock_gateway.jobs.letter_shapes import Replay, Replayed
from penstock_gateway.jobs.names import Writer, find_job, shown_key
from penstock_gateway.jobs.shapes import CancelOrPause, JobShown, Limits, Move, Purged
from penstock_gateway.jobs.shown import counted
from penstock_gateway.jobs.sources import reading
from penstock_gateway.refused import Refused
from penstock_gateway.routing import Router
from penstock_ledger import (
    BY_HAND,
    BatchState,
    JobStore,
    LaneMoves,
    OutcomeStore,
    ProviderBatchStore,
    needed_by,
    purge_job,
)
from penstock_ledger.model import Job, JobState
from penstock_producer.accepting.acceptance import check_other_lane
from penstock_producer.errors import Problem, SpecError, seen
from penstock_producer.job.lanes import LANES, lanes_in_words, packs
from penstock_producer.job.options import STOP_FIELDS
from penstock_producer.job.spec import OFF, JobSpec

router = Router()
log = logging.getLogger("penstock.gateway")

_MICRO: Final = 1_000_000


@router.post("/{job}/pause", operation_id="pause_job")
async def pause(
    request: Request, job: str, caller: Writer, given: CancelOrPause | None = None
) -> JobShown:
    """Start nothing more of a job; what is in flight ends.

    Pausing a paused job gives it the new reason."""
    reason = given.reason if given is not None and given.reason is not None else "paused over HTTP"
    return await _moved(
        request, caller, job, JobState.PAUSED, {JobState.RUNNING, JobState.PAUSED}, reason
    )


@router.post("/{job}/resume", operation_id="resume_job")
async def resume(request: Request, job: str, caller: Writer) -> JobShown:
    """Let a paused job go on."""
    return await _moved(request, caller, job, JobState.RUNNING, {JobState.PAUSED}, None)


@router.post("/{job}/cancel", operation_id="cancel_job")
async def cancel(
    request: Request, job: str, caller: Writer, given: CancelOrPause | None = None
) -> JobShown:
    """End a job: documents that have not ended become dead letters `cancelled`."""
    reason = (
        given.reason if given is not None and given.reason is not None else "cancelled over HTTP"
    )
    return await _moved(
        request, caller, job, JobState.CANCELLING, {JobState.RUNNING, JobState.PAUSED}, reason
    )


@router.post("/{job}/move", operation_id="move_job")
async def move(request: Request, job: str, given: Move, caller: Writer) -> JobShown:
    """Let a running job go on in another lane; what is done stays."""
    return await _changed(
        request, caller, job, lambda backend, found: _move_lane(backend, found, given)
    )


@router.patch("/{job}", operation_id="change_job")
async def limit(request: Request, job: str, given: Limits, caller: Writer) -> JobShown:
    """Give a job another budget, deadline or bound of its stop-loss.

    What is left out stays, null lifts it."""
    return await _changed(
        request, caller, job, lambda backend, found: _give_limits(backend, found, given)
    )


@router.post("/{job}/replay", operation_id="replay_dead_letters")
async def replay(request: Request, job: str, given: Replay, caller: Writer) -> Replayed:
    """Try dead letters again, changed or as they were, as a new generation of the job."""
    backend = backend_of(request)

    def again() -> Replayed:
        found = find_job(backend, caller, job)
        number = backend.remote.replay(
            found.job_id, reason=given.reason, doc_ids=given.doc_ids, overrides=given.overrides
        )
        now = JobStore(backend.database).get(found.job_id)
        _tell_workers(backend, now)
        return Replayed(
            documents=number, generation=now.generation, note=batch_note(backend.database, now)
        )

    return await backend.run(again)


@router.delete("/{job}", operation_id="purge_job")
async def purge(
    request: Request,
    job: str,
    caller: Writer,
    leave_batches: Annotated[
        bool,
        Query(
            description=(
                "For the operator: forget batches that still run at a provider, too, which charges "
                "for them."
            )
        ),
    ] = False,
) -> Purged:
    """Delete a job that has ended: its results and dead letters.

    Files that batches wrote of it go, too; uploaded ones stay.

    409 while it runs, while another job reads its outcomes, while a batch is written from them, and
    while batches at a provider are not settled. What was begun goes on when it is asked for again.
    """
    backend = backend_of(request)

    def forget() -> Purged:
        found = find_job(backend, caller, job)
        _check_purge(backend, caller, found, leave_batches=leave_batches)
        purged = Purged(
            id=found.job_id,
            job=shown_key(found),
            outcomes=purge_job(backend.database, found.job_id),
        )
        try:
            backend.fleet.forget(found.job_id)
        except redis.RedisError as error:
            log.warning(
                "job %s was purged, and its keys stay in Redis, which does not answer: %s",
                found.job_id,
                error,
            )
        return purged

    async with reading(backend, caller):
        return await backend.run(forget)


def _check_purge(backend: Backend, caller: Caller, job: Job, *, leave_batches: bool) -> None:
    if not job.state.final:
        fix = "wait until it has ended" if job.state is JobState.CANCELLING else "cancel it first"
        raise Refused(
            409,
            f"the job is {job.state}; only one that has ended can be purged: {fix}",
            code="job_state",
        )
    needed = needed_by(backend.database, job.job_id)
    if needed is not None:
        message = f"{needed} still reads its outcomes; wait until that has ended, or cancel it"
        raise Refused(409, message, code="job_needed")
    sums = ProviderBatchStore(backend.database).sums(job.job_id)
    open_ones = sum(one.batches for one in sums if one.state != BatchState.SETTLED)
    if open_ones and not (
        leave_batches and caller.is_operator
    ):  # what they cost would count for no tenant
        raise Refused(
            409,
            f"{open_ones} of its batches at a provider are not settled; a worker of its lane "
            "cancels them there and ends them. Wait for it, or let the operator forget them with "
            "leave_batches=true and cancel them at the provider",
            code="open_batches",
        )


async def _changed(
    request: Request, caller: Caller, name: str, change: Callable[[Backend, Job], None]
) -> JobShown:
    backend = backend_of(request)

    def work() -> JobShown:
        found = find_job(backend, caller, name)
        change(backend, found)
        now = JobStore(backend.database).get(found.job_id)
        _tell_workers(backend, now)
        return counted(backend, now)

    return await backend.run(work)


async def _moved(
    request: Request,
    caller: Caller,
    name: str,
    to: JobState,
    expect: Collection[JobState],
    reason: str | None,
) -> JobShown:
    def change(backend: Backend, found: Job) -> None:
        jobs = JobStore(backend.database)
        if jobs.set_state(found.job_id, to, reason=reason, expect=expect):
            return
        state = jobs.get(found.job_id).state
        if state != to and not (to is JobState.CANCELLING and state is JobState.CANCELLED):
            allowed = " or ".join(sorted(expect))
            raise Refused(
                409,
                f"the job is {state}; only one that is {allowed} can become {to}",
                code="job_state",
            )

    return await _changed(request, caller, name, change)


def _move_lane(backend: Backend, job: Job, given: Move) -> None:
    _check_move(backend, job, given.lane)
    moves = LaneMoves(backend.database)
    if (
        moves.move(job.job_id, job.lane, given.lane, BY_HAND, given.reason, {}, now=time.time())
        is None
    ):
        raise Refused(
            409,
            "the job was moved or stopped just now; look at it, and try again",
            code="job_state",
        )


def _check_move(backend: Backend, job: Job, lane: str) -> None:
    if lane not in LANES:
        raise SpecError(
            [
                Problem(
                    "invalid_value",
                    "/lane",
                    f"there is no lane {seen(lane)}",
                    f"lanes are {lanes_in_words()}",
                )
            ]
        )
    if lane == job.lane:
        raise Refused(409, f"the job is in lane {lane} already", code="job_state")
    if job.state is not JobState.RUNNING:
        raise Refused(
            409,
            f"the job is {job.state}; only one that is running can change its lane",
            code="job_state",
        )
    check_other_lane(JobSpec.accepted(job.spec), lane, backend.settings)
    shards = JobStore(backend.database).shards(job.job_id)
    if packs(lane) and any(not shard.exhausted for shard, _ in shards):
        raise Refused(
            409,
            "several feeders read the source of the job, and one packs the documents of lane "
            f"{lane}: wait until all of it is read",
            code="job_state",
        )


def _give_limits(backend: Backend, job: Job, given: Limits) -> None:
    names = given.model_fields_set
    if job.state.final:
        raise Refused(
            409,
            f"the job is {job.state}; only one that goes on takes other limits",
            code="job_state",
        )
    limits: dict[str, Any] = {
        name: getattr(given, name) if name in names else job.spec.get(name)
        for name in ("budget_usd", "deadline_s")
    }
    spent = OutcomeStore(backend.database).counts(job.job_id).cost_microusd / _MICRO
    if "budget_usd" in names and given.budget_usd is not None and given.budget_usd <= spent:
        message = f"{given.budget_usd:g} USD is refused: {spent:.4f} USD are spent already"
        raise SpecError(
            [
                Problem(
                    "invalid_value",
                    "/budget_usd",
                    message,
                    "give a larger sum, of all that the job may cost",
                )
            ]
        )
    stops: dict[str, Any] = {name: getattr(given, name) for name in STOP_FIELDS if name in names}
    if stops.get("stop_at_dead", "") is None:  # as everywhere, null lifts it
        stops["stop_at_dead"] = OFF
    if names and not backend.remote.limit(job.job_id, **limits, stops=stops):
        raise Refused(
            409, "the job was changed by another process meanwhile; try again", code="job_state"
        )


def _tell_workers(backend: Backend, job: Job) -> None:
    """The control process does it again within a second; so nothing is lost where Redis does not
    answer."""
    with contextlib.suppress(redis.RedisError):
        backend.fleet.set_job_state(job.job_id, job.state)
        backend.fleet.set_job_lane(job)
