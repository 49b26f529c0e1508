"""The end of a batch: its files, its figures, its last state."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from typing import Any, Final

import msgspec

from penstock_gateway.backend import Backend
from penstock_gateway.batches.figures import ended_by_deadline
from penstock_gateway.batches.lines import (
    JOB_FAILED,
    Details,
    NotReached,
    errors_of,
    not_begun,
    outputs_of,
    why_failed,
)
from penstock_gateway.batches.specs import input_path, spec_of_batch
from penstock_gateway.files.form import BATCH_LIVES_S
from penstock_gateway.files.store import FileStore
from penstock_ledger import (
    Database,
    DoorBatch,
    DoorBatchState,
    DoorBatchStore,
    LeasedBatch,
    OutcomeStore,
)
from penstock_ledger.model import Counts, Job, JobState
from penstock_producer.sources import open_source

__all__ = ["Finish", "batch_note", "error_lines", "never_begun"]

OUTPUT, ERRORS = "output", "error"


class _Named(msgspec.Struct):
    custom_id: str


_READ_ID: Final = msgspec.json.Decoder(_Named).decode


def never_begun(backend: Backend, batch: DoorBatch) -> Iterator[bytes]:
    """Return the error lines of a batch that was cancelled before it was a job.

    It is None where its file is gone."""
    path = input_path(backend, batch)
    if path is None:
        return iter(())
    spec = spec_of_batch(backend.settings, batch, batch.window_s)
    return not_begun(batch, open_source(path, spec, backend.settings))


def error_lines(backend: Backend, batch: DoorBatch, job: Job) -> Iterator[bytes]:
    """Yield the lines of the requests without an answer.

    Of a job that failed as a whole, also of those that it never came to."""
    yield from errors_of(OutcomeStore(backend.database), batch, job)
    if job.state is JobState.FAILED:
        yield from NotReached(backend, batch, job).lines()


class Finish:
    """``go_on`` is called for each line, and raises where this process may not."""

    def __init__(self, backend: Backend, go_on: Callable[[], None]) -> None:
        self._backend = backend
        self._store = DoorBatchStore(backend.database)
        self._outcomes = OutcomeStore(backend.database)
        self._files = FileStore(backend.settings, backend.database)
        self._go_on = go_on

    def of_job(
        self, leased: LeasedBatch, job: Job, counts: Counts, shown: Mapping[str, int]
    ) -> None:
        """Finish a batch whose job has ended."""
        batch = leased.batch
        end = _end_of(batch, job)
        if batch.of_anthropic:  # whose results are read from the ledger
            self._store.move(
                leased,
                end,
                counts=shown,
                errors=[_failed(job)] if end is DoorBatchState.FAILED else None,
            )
            return
        if batch.state is DoorBatchState.IN_PROGRESS:
            moved = self._store.move(leased, DoorBatchState.FINALIZING, counts=shown)
            if moved is None:
                return
            leased = LeasedBatch(moved, leased.fence)
        details = Details()
        failed = _Failed(self._backend, leased.batch, job) if end is DoorBatchState.FAILED else None
        outputs, errors = (
            outputs_of(self._outcomes, leased.batch, job, details),
            errors_of(self._outcomes, leased.batch, job),
        )
        if failed is not None:
            outputs, errors = (
                failed.noted(outputs),
                chain(failed.noted(errors), failed.rest.lines()),
            )
        output_id = self._file(leased.batch, job.job_id, OUTPUT, outputs)
        error_id = self._file(leased.batch, job.job_id, ERRORS, errors)
        self._store.move(
            leased,
            end,
            counts=shown,
            usage=details.usage(counts),
            output_file_id=output_id,
            error_file_id=error_id,
            errors=None if failed is None else failed.told(),
        )

    def without_job(self, leased: LeasedBatch) -> None:
        """End a batch that was cancelled before it was a job.

        Every request of its file is one that was not executed."""
        batch = leased.batch
        counts, errors = batch.counts, None
        if not batch.of_anthropic:
            lines = _Counted(never_begun(self._backend, batch))
            errors = self._file(batch, batch.batch_id, ERRORS, lines)
            counts = {**counts, "total": lines.number or counts.get("total", 0)}
        counts = {**counts, "canceled": counts.get("total", 0)}
        self._store.move(leased, DoorBatchState.CANCELLED, counts=counts, error_file_id=errors)

    def _file(
        self, batch: DoorBatch, job_id: str, which: str, lines: Iterable[bytes]
    ) -> str | None:
        """Write a file of the batch and return its id; None where there is no line.

        A file that this batch has written before, without coming to its end, is taken.
        """
        name = f"{batch.batch_id}_{which}.jsonl"
        before = self._files.rows.written(job_id, name)
        if before is not None:
            for _ in lines:  # what the answers have used up is read again
                self._go_on()
            return before.file_id
        file = self._files.create_from(
            self._watched(lines),
            tenant=batch.tenant,
            filename=name,
            job_id=job_id,
            lives_s=batch.output_expires_s or BATCH_LIVES_S,
        )
        return None if file is None else file.file_id

    def _watched(self, lines: Iterable[bytes]) -> Iterator[bytes]:
        for line in lines:
            self._go_on()
            yield line


class _Failed:
    """A job that failed as a whole.

    What is in flight then may still be answered, so its lines are held against those that were
    written, not against the ledger of a moment later."""

    def __init__(self, backend: Backend, batch: DoorBatch, job: Job) -> None:
        self._job = job
        self._written = set[str]()
        self.rest = NotReached(backend, batch, job, self._written)

    def noted(self, lines: Iterable[bytes]) -> Iterator[bytes]:
        for line in lines:
            self._written.add(_READ_ID(line).custom_id)
            yield line

    def told(self) -> list[dict[str, Any]]:
        errors = [_failed(self._job)]
        if self.rest.unread is not None:
            why = (
                "The error file lacks requests that were not reached, as the input file cannot be "
                f"read: {self.rest.unread}"
            )
            errors.append(
                {
                    "code": "input_file_unreadable",
                    "line": None,
                    "message": why,
                    "param": "input_file_id",
                }
            )
        return errors


class _Counted:
    """Lines, and how many there were."""

    def __init__(self, lines: Iterable[bytes]) -> None:
        self._lines = lines
        self.number = 0

    def __iter__(self) -> Iterator[bytes]:
        for line in self._lines:
            self.number += 1
            yield line


def _end_of(batch: DoorBatch, job: Job) -> DoorBatchState:
    if job.state is JobState.FAILED:
        return DoorBatchState.FAILED
    if batch.state is DoorBatchState.CANCELLING:
        return DoorBatchState.CANCELLED
    if job.state is JobState.COMPLETED:
        return DoorBatchState.COMPLETED
    return DoorBatchState.EXPIRED if ended_by_deadline(job) else DoorBatchState.CANCELLED


def _failed(job: Job) -> dict[str, Any]:
    return {"code": JOB_FAILED, "line": None, "message": why_failed(job), "param": None}


def batch_note(database: Database, job: Job) -> str | None:
    """Return what to say about the batch of a job.

    None for a job that belongs to no batch, and for one whose batch will write its files later.
    Blocks.
    """
    batch = DoorBatchStore(database).get(job.job_key)
    if batch is None or batch.job_id != job.job_id or not batch.state.final:
        return None
    what = (
        "its results and counts"
        if batch.of_anthropic
        else "its output and error files, its counts and its state"
    )
    return (
        f"Batch {batch.batch_id} has ended: {what} stay as they are. The new outcomes: GET "
        f"/v1/jobs/{job.job_id}/results"
    )
