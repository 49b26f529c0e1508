"""The lines of a batch's two files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from penstock_gateway.batches.figures import CANCELLED, DEADLINE, ended_by_deadline
from penstock_gateway.batches.usage import Details
from penstock_gateway.for_tenants import told_letter
from penstock_ledger import DoorBatch, DoorBatchState, OutcomeStore
from penstock_ledger.model import DeadLetter, ItemKey, Job
from penstock_producer.outputs import error_line, output_line
from penstock_producer.sources import Document, FileSource

__all__ = ["errors_of", "not_begun", "outputs_of"]

EXPIRED: Final = "This request could not be executed before the completion window expired."
STOPPED: Final = "This request was not executed: the batch was cancelled."


def outputs_of(outcomes: OutcomeStore, job: Job, details: Details | None = None) -> Iterator[bytes]:
    for result in outcomes.results(job.job_id):
        if details is not None:
            details.add(result.body)
        yield output_line(result)


def errors_of(outcomes: OutcomeStore, batch: DoorBatch, job: Job) -> Iterator[bytes]:
    """A request that was not executed says why: the window was over, or the batch was cancelled."""
    late = batch.state is not DoorBatchState.CANCELLING and ended_by_deadline(job)
    for letter in outcomes.dead_letters(job.job_id):
        if letter.reason not in (CANCELLED, DEADLINE):
            yield error_line(told_letter(job, letter))
        elif late:
            yield error_line(replace(letter, reason=DEADLINE, last_error=EXPIRED, status_code=None))
        else:
            yield error_line(
                replace(letter, reason=CANCELLED, last_error=STOPPED, status_code=None)
            )


def not_begun(batch: DoorBatch, source: FileSource) -> Iterator[bytes]:
    """Of a batch that was cancelled before it was a job: every line that was a request."""
    for row in source.documents({}):
        if isinstance(row, Document):
            key = ItemKey(batch.batch_id, 1, row.doc_id)
            yield error_line(
                DeadLetter(
                    key=key,
                    reason=CANCELLED,
                    attempts=0,
                    calls=0,
                    last_error=STOPPED,
                    status_code=None,
                    request=b"",
                    response=None,
                )
            )
