"""The end of a batch: its files, its figures, its last state."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from penstock_gateway.backend import Backend
from penstock_gateway.batches.figures import ended_by_deadline
from penstock_gateway.batches.lines import errors_of, not_begun, outputs_of
from penstock_gateway.batches.metadata import TENANT
from penstock_gateway.batches.specs import spec_of_batch
from penstock_gateway.batches.usage import Details
from penstock_gateway.files.form import BATCH_LIVES_S
from penstock_gateway.files.store import FileStore
from penstock_ledger import DoorBatch, DoorBatchState, DoorBatchStore, LeasedBatch, OutcomeStore, Whose
from penstock_ledger.model import Counts, Job, JobState
from penstock_producer.sources import open_source

__all__ = ["Finish", "input_path", "never_begun"]

OUTPUT, ERRORS = "output", "error"


def input_path(backend: Backend, batch: DoorBatch) -> str | None:
    """Where the file of a batch lies; None where it is gone, or is another tenant's. A batch that the operator has made for a
    tenant may read a file of the operator's."""
    files = FileStore(backend.settings, backend.database)
    file = files.get(batch.input_file_id, Whose(batch.tenant))
    if file is None and TENANT in (batch.metadata or {}):
        file = files.get(batch.input_file_id, Whose(None))
    return None if file is None else files.place(file)


def never_begun(backend: Backend, batch: DoorBatch) -> Iterator[bytes]:
    """The error lines of a batch that was cancelled before it was a job; none where its file is gone."""
    path = input_path(backend, batch)
    if path is None:
        return iter(())
    spec = spec_of_batch(backend.settings, batch, batch.window_s)
    return not_begun(batch, open_source(path, spec, backend.settings))


class Finish:
    """``go_on`` is called for each line, and raises where this process may not."""

    def __init__(self, backend: Backend, go_on: Callable[[], None]) -> None:
        self._backend = backend
        self._store = DoorBatchStore(backend.database)
        self._outcomes = OutcomeStore(backend.database)
        self._files = FileStore(backend.settings, backend.database)
        self._go_on = go_on

    def of_job(self, leased: LeasedBatch, job: Job, counts: Counts, shown: Mapping[str, int]) -> None:
        """Of a batch whose job has ended."""
        batch = leased.batch
        end = _end_of(batch, job)
        if batch.of_anthropic:  # whose results are read from the ledger
            self._store.move(leased, end, counts=shown, errors=_errors_of(end, job))
            return
        if batch.state is DoorBatchState.IN_PROGRESS:
            moved = self._store.move(leased, DoorBatchState.FINALIZING, counts=shown)
            if moved is None:
                return
            leased = LeasedBatch(moved, leased.fence)
        details = Details()
        output = self._file(leased.batch, job.job_id, OUTPUT, outputs_of(self._outcomes, job, details))
        errors = self._file(leased.batch, job.job_id, ERRORS, errors_of(self._outcomes, leased.batch, job))
        self._store.move(
            leased, end, counts=shown, usage=details.usage(counts), output_file_id=output, error_file_id=errors,
            errors=_errors_of(end, job),
        )  # fmt: skip

    def without_job(self, leased: LeasedBatch) -> None:
        """Of a batch that was cancelled before it was a job: every request of its file is one that was not executed."""
        batch = leased.batch
        counts, errors = batch.counts, None
        if not batch.of_anthropic:
            lines = _Counted(never_begun(self._backend, batch))
            errors = self._file(batch, batch.batch_id, ERRORS, lines)
            counts = {**counts, "total": lines.number or counts.get("total", 0)}
        counts = {**counts, "canceled": counts.get("total", 0)}
        self._store.move(leased, DoorBatchState.CANCELLED, counts=counts, error_file_id=errors)

    def _file(self, batch: DoorBatch, job_id: str, which: str, lines: Iterable[bytes]) -> str | None:
        """No file where there is no line. One that this batch has written before, and then did not come to its end, is taken."""
        name = f"{batch.batch_id}_{which}.jsonl"
        before = self._files.rows.written(job_id, name)
        if before is not None:
            for _ in lines:  # what the answers have used up is read again
                self._go_on()
            return before.file_id
        file = self._files.create_from(
            self._watched(lines), tenant=batch.tenant, filename=name, job_id=job_id,
            lives_s=batch.output_expires_s or BATCH_LIVES_S,
        )  # fmt: skip
        return None if file is None else file.file_id

    def _watched(self, lines: Iterable[bytes]) -> Iterator[bytes]:
        for line in lines:
            self._go_on()
            yield line


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


def _errors_of(end: DoorBatchState, job: Job) -> list[dict[str, Any]] | None:
    if end is not DoorBatchState.FAILED:
        return None
    return [{"code": "job_failed", "line": None, "message": job.reason or "The job has failed.", "param": None}]
