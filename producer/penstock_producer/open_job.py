"""An open job: documents are pushed in groups into its spool, where the feeder takes them from."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from penstock_ledger import JobStore, Spool
from penstock_ledger.model import Job, JobState
from penstock_producer.documents import DocumentChecker
from penstock_producer.errors import JobCancelled
from penstock_producer.spec import JobSpec

# What waits in memory before it is written: one SQL transaction each. A crash loses at most this much of what was not
# yet flushed, and pushing it again is harmless.
MAX_BUFFERED_DOCUMENTS = 1_000
MAX_BUFFERED_BYTES = 4 * 1024 * 1024


class OpenJob:
    """``enqueue`` gathers, ``flush`` makes durable, ``close`` says that there will be no more. Thread-safe.

    As a context manager it flushes at the end and does not close: other processes may go on.
    """

    def __init__(self, job: Job, spec: JobSpec, spool: Spool, jobs: JobStore, max_bytes: int) -> None:
        self.job = job
        self.job_id = job.job_id
        self._checker = DocumentChecker(spec, max_bytes)
        self._spool = spool
        self._jobs = jobs
        self._lock = threading.Lock()  # guards the two below
        self._buffer: list[tuple[str, bytes]] = []
        self._buffered_bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.flush()

    def enqueue(self, doc_id: str | int, document: Mapping[str, Any] | bytes | str) -> None:
        """Add one document: a record for the spec's prompt, or a request body where the spec has none.

        Accepted for good once flushed, which happens by itself every so many documents. The same ``doc_id`` again is
        ignored when it holds the same and SpoolConflict when it does not. Raises InvalidDocument, JobCancelled for a job
        that was cancelled, and JobClosed after ``close``.
        """
        entry = self._checker.check(doc_id, document)
        with self._lock:
            self._buffer.append(entry)
            self._buffered_bytes += len(entry[1])
            if len(self._buffer) >= MAX_BUFFERED_DOCUMENTS or self._buffered_bytes >= MAX_BUFFERED_BYTES:
                self._flush()

    def flush(self) -> int:
        """Make everything enqueued so far durable; returns how many documents were new. Safe to repeat on errors."""
        with self._lock:
            return self._flush()

    def close(self) -> int:
        """Flush and seal the job: it completes once its documents have. Returns how many there are."""
        with self._lock:
            if self._buffer:
                self._flush()
            return self._jobs.close(self.job_id)

    def _flush(self) -> int:
        if not self._buffer:
            return 0
        state = self._jobs.get(self.job_id).state
        if state.final or state is JobState.CANCELLING:
            raise JobCancelled(f"job {self.job_id} is {state}: {len(self._buffer)} documents were not accepted")
        new = self._spool.append(self.job_id, self._buffer)
        self._buffer = []
        self._buffered_bytes = 0
        return new
