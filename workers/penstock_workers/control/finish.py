"""The last act of a job in a fleet: its output files, where the setting `results_url` says."""

from __future__ import annotations

import logging
from concurrent.futures import Future, ThreadPoolExecutor

from penstock_ledger import OutcomeStore
from penstock_ledger.model import Job
from penstock_producer.outputs import Written, write_outputs
from penstock_workers.settings import WorkerSettings

log = logging.getLogger(__name__)


class Finisher:
    """Writes outputs in a thread, one job after the other, so that a large job holds up no other job's feeding."""

    def __init__(self, settings: WorkerSettings, outcomes: OutcomeStore) -> None:
        self._settings = settings
        self._outcomes = outcomes
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="outputs")
        self._writing: dict[tuple[str, int], Future[Written]] = {}

    def finished(self, job: Job) -> bool:
        """Start writing, or ask how it goes; True once the files are there (or none are wanted).

        Raises SinkError after a failure; the next call starts again.
        """
        if self._settings.results_url is None:
            return True
        name = (job.job_id, job.generation)
        writing = self._writing.get(name)
        if writing is None:
            self._writing[name] = self._thread.submit(self._write, job)
            return False
        if not writing.done():
            return False
        del self._writing[name]
        written = writing.result()
        log.info("job %s: %d results, %d dead letters written", job.job_id, written.results, written.dead_letters)
        return True

    def close(self) -> None:
        self._thread.shutdown(cancel_futures=True)

    def _write(self, job: Job) -> Written:
        destination = f"{str(self._settings.results_url).rstrip('/')}/{job.job_id}"
        return write_outputs(self._outcomes, job.job_id, destination, s3_endpoint_url=self._settings.s3_endpoint_url)
