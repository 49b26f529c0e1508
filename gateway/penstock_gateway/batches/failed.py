"""The requests of a batch whose job failed as a whole that have no outcome: each still has a line,
so that none is missed."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator

from penstock_gateway.backend import Backend
from penstock_gateway.batches.specs import input_path, spec_of_batch
from penstock_ledger import DoorBatch, OutcomeStore
from penstock_ledger.model import DeadLetter, ItemKey, Job
from penstock_producer import SourceError, SourceUnavailable
from penstock_producer.outputs import error_line
from penstock_producer.sources import Document, open_source

__all__ = ["JOB_FAILED", "NotReached", "why_failed"]

JOB_FAILED = "job_failed"


def why_failed(job: Job) -> str:
    return job.reason or "The job has failed."


class NotReached:
    """Read from the batch's file.

    Its ids are in memory meanwhile: as many as one batch may have requests."""

    def __init__(
        self, backend: Backend, batch: DoorBatch, job: Job, ended: Collection[str] | None = None
    ) -> None:
        """``ended``: documents that have a line elsewhere; None: those that have an outcome."""
        self._backend, self._batch, self._job = backend, batch, job
        self._ended = ended
        self.unread: str | None = (
            None  # why the file could not be read to its end; known once it was tried
        )

    def ids(self) -> Iterator[str]:
        """Of documents.

        Raises SourceUnavailable while the batch's window is open: the file may come back."""
        ended = self._with_outcome() if self._ended is None else self._ended
        path = input_path(self._backend, self._batch)
        if path is None:
            self.unread = f"Cannot find file {self._batch.input_file_id}."
            return
        try:
            spec = spec_of_batch(self._backend.settings, self._batch, self._batch.window_s)
            for row in open_source(path, spec, self._backend.settings).documents({}):
                if isinstance(row, Document) and row.doc_id not in ended:
                    yield row.doc_id
        except SourceError as error:
            if isinstance(error, SourceUnavailable) and time.time() < self._batch.expires_at:
                raise
            self.unread = error.public_message.replace(path, "the input file")

    def lines(self) -> Iterator[bytes]:
        """As the error file has them."""
        for doc_id in self.ids():
            key = ItemKey(self._job.job_id, self._job.generation, doc_id)
            yield error_line(
                DeadLetter(
                    key=key,
                    reason=JOB_FAILED,
                    attempts=0,
                    calls=0,
                    last_error=why_failed(self._job),
                    status_code=None,
                    request=b"",
                    response=None,
                )
            )

    def _with_outcome(self) -> Collection[str]:
        pages = OutcomeStore(self._backend.database).terminal_docs(
            self._job.job_id, self._job.generation
        )
        return {doc_id for page in pages for doc_id, _ in page}
