"""Writes the results of a job to the bucket of `results_url` while the job runs.

`output.jsonl` is made of these parts at its end, as the setting `results_parts` says."""

from __future__ import annotations

import logging

from penstock_ledger import Database, OutcomeStore
from penstock_ledger.model import Job
from penstock_producer.bucket.place import Place
from penstock_producer.job.spec import JobSpec
from penstock_producer.parts import GrowingOutput
from penstock_producer.storage import bucket_at
from penstock_workers.settings import WorkerSettings

log = logging.getLogger(__name__)


class BucketParts:
    """One pass writes the parts that there are results for; the last one makes the object."""

    grows = True
    name = "parts"

    def __init__(self, settings: WorkerSettings, database: Database) -> None:
        self._settings = settings
        self._database = database
        self._outcomes = OutcomeStore(database)
        self._bucket: Place | None = None  # opened by the first pass, which imports its client
        self._conditional = False
        self._growing: dict[str, GrowingOutput] = {}  # of jobs that are led here

    def is_wanted(self, spec: JobSpec) -> bool:
        return self._settings.writes_parts

    def write(self, job: Job, spec: JobSpec, *, whole: bool) -> None:
        """Write what is new, or all of the results when ``whole``.

        Raises SinkError and OutcomesHeldBack."""
        growing = self._growing.get(job.job_id)
        if growing is None:
            bucket = self._opened().below(job.job_id)
            growing = GrowingOutput(bucket, self._database, job, conditional=self._conditional)
            self._growing[job.job_id] = growing
        results = self._outcomes.counts(job.job_id).succeeded
        if whole:
            growing.complete(results, keep=self._settings.results_parts == "keep")
        else:
            growing.grow(results)

    def forget(self, job_id: str) -> None:
        self._growing.pop(job_id, None)

    def _opened(self) -> Place:
        """Open the bucket; two threads may do so at the same time, which does no harm."""
        if self._bucket is None:
            bucket = bucket_at(
                str(self._settings.results_url), s3_endpoint_url=self._settings.s3_endpoint_url
            )
            self._conditional = bucket.takes_conditions()
            if not self._conditional:
                log.warning(
                    "%s has no conditional writes: two control processes that both take a job for "
                    "theirs replace each other's index of parts; each is whole",
                    self._settings.results_url,
                )
            self._bucket = bucket
        return self._bucket
