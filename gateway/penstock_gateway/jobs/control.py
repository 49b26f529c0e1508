"""Jobs are changed by pause, resume, cancel, move, other limits, replay, and purge.

A purge forgets the job.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from fastapi import Query, Request

from penstock_gateway.backend import backend_of
from penstock_gateway.batches.finish import batch_note
from penstock_gateway.callers.caller import Caller
from penstock_gateway.jobs.dead_letters import Replay, Replayed
from penstock_gateway.jobs.listing import counted
from penstock_gateway.jobs.names import Writer, find_job, reading, shown_key
from penstock_gateway.jobs.schemas import CancelOrPause, JobResponse, Limits, Move, Purged
from penstock_gateway.routing import Router
from penstock_ledger.model import Job
from penstock_producer.operations import Changed, JobOperations

router = Router(prefix="/v1/jobs", tags=["jobs"])


@router.post("/{job}/pause", operation_id="pause_job")
async def pause(
    request: Request, job: str, caller: Writer, given: CancelOrPause | None = None
) -> JobResponse:
    """Start nothing more of a job; what is in flight ends.

    Pausing a paused job gives it the new reason."""
    note = (given and given.reason) or "paused over HTTP"
    return await _changed(request, caller, job, lambda do, found: do.pause(found, note))


@router.post("/{job}/resume", operation_id="resume_job")
async def resume(request: Request, job: str, caller: Writer) -> JobResponse:
    """Let a paused job go on."""
    return await _changed(request, caller, job, lambda do, found: do.resume(found))


@router.post("/{job}/cancel", operation_id="cancel_job")
async def cancel(
    request: Request, job: str, caller: Writer, given: CancelOrPause | None = None
) -> JobResponse:
    """End a job: documents that have not ended become dead letters `cancelled`."""
    note = (given and given.reason) or "cancelled over HTTP"
    return await _changed(request, caller, job, lambda do, found: do.cancel(found, note))


@router.post("/{job}/move", operation_id="move_job")
async def move(request: Request, job: str, given: Move, caller: Writer) -> JobResponse:
    """Let a running job go on in another lane; what is done stays."""
    return await _changed(
        request, caller, job, lambda do, found: do.move(found, given.lane, given.reason)
    )


@router.patch("/{job}", operation_id="change_job")
async def limit(request: Request, job: str, given: Limits, caller: Writer) -> JobResponse:
    """Give a job another budget, deadline or bound of its stop-loss.

    What is left out stays, null lifts it."""
    limits = given.model_dump(exclude_unset=True)
    return await _changed(request, caller, job, lambda do, found: do.limit(found, limits))


@router.post("/{job}/replay", operation_id="replay_dead_letters")
async def replay(request: Request, job: str, given: Replay, caller: Writer) -> Replayed:
    """Try dead letters again, changed or as they were, as a new generation of the job."""
    backend = backend_of(request)

    def again() -> Replayed:
        done = backend.operations.replay(
            find_job(backend, caller, job),
            reason=given.reason,
            doc_ids=given.doc_ids,
            overrides=given.overrides,
        )
        return Replayed(
            documents=done.documents,
            generation=done.job.generation,
            note=batch_note(backend.database, done.job),
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

    Files that batches wrote of it go, too, and the images of its answers; uploaded ones stay.

    409 while it runs, while another job reads its outcomes, while a batch is written from them, and
    while batches at a provider are not settled. What was begun goes on when it is asked for again.
    """
    backend = backend_of(request)
    # what they cost would count for no tenant
    leave = leave_batches and caller.is_operator

    def forget() -> Purged:
        found = find_job(backend, caller, job)
        deleted = backend.operations.purge(found, leave_batches=leave)
        return Purged(id=found.job_id, job=shown_key(found), outcomes=deleted)

    async with reading(backend, caller):
        return await backend.run(forget)


async def _changed(
    request: Request,
    caller: Caller,
    name: str,
    change: Callable[[JobOperations, Job], Changed],
) -> JobResponse:
    backend = backend_of(request)

    def work() -> JobResponse:
        found = find_job(backend, caller, name)
        return counted(backend, change(backend.operations, found).job)

    return await backend.run(work)
