"""The output files of a job in a fleet, at its end, where the setting `results_url` says."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future

from penstock_ledger import OutcomeStore
from penstock_ledger.model import Job
from penstock_producer.outputs import WrittenFiles, write_outputs
from penstock_workers.settings import WorkerSettings

log = logging.getLogger(__name__)


class OutputWriter:
    """Writes outputs in threads, one job after the other, so that a large job holds up no other job's feeding.

    The threads are daemons: the process that leads the job next writes all of it anew, so no end of a process waits for them.
    """

    def __init__(self, settings: WorkerSettings, outcomes: OutcomeStore, on_written: Callable[[], None]) -> None:
        self._on_written = on_written  # called in the writing thread, after success and failure
        self._settings = settings
        self._outcomes = outcomes
        self._turn = threading.Lock()  # held by the one thread that writes
        self._writing: dict[tuple[str, int], Future[WrittenFiles]] = {}  # bounded by the jobs that are live

    def written(self, job: Job) -> bool:
        """Start writing, or check on it; True once the files are there (or none are wanted).

        Raises SinkError after a failure; the next call starts again.
        """
        if self._settings.results_url is None:
            return True
        name = (job.job_id, job.generation)
        writing = self._writing.get(name)
        if writing is None:
            writing = self._writing[name] = Future()
            threading.Thread(target=self._write, args=(job, writing), name="outputs", daemon=True).start()
            return False
        if not writing.done():
            return False
        del self._writing[name]
        written = writing.result()
        log.info("job %s: %d results, %d dead letters written", job.job_id, written.results, written.dead_letters)
        return True

    def close(self) -> None:
        """Start no more writing."""
        for writing in self._writing.values():
            writing.cancel()

    def _write(self, job: Job, writing: Future[WrittenFiles]) -> None:
        destination = f"{str(self._settings.results_url).rstrip('/')}/{job.job_id}"
        with self._turn:
            if not writing.set_running_or_notify_cancel():
                return
            try:
                writing.set_result(
                    write_outputs(
                        self._outcomes, job.job_id, destination, s3_endpoint_url=self._settings.s3_endpoint_url
                    )
                )
            except Exception as error:
                writing.set_exception(error)
        self._on_written()
