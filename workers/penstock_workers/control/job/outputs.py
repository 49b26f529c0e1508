"""The files of a job in a fleet, at its end, where the setting `results_url` says."""

from __future__ import annotations

import logging

from penstock_ledger import Database, OutcomeStore
from penstock_ledger.model import Job
from penstock_producer.job.spec import JobSpec
from penstock_producer.outputs import ERRORS_NAME, write_errors, write_outputs
from penstock_producer.storage import bucket_at
from penstock_producer.tables.with_source import reading_of, write_table
from penstock_workers.settings import WorkerSettings

log = logging.getLogger(__name__)


class OutputFiles:
    """`output.jsonl`, `errors.jsonl`, and the table that the option `output_format` asks for."""

    grows = False
    name = "files"

    def __init__(self, settings: WorkerSettings, database: Database) -> None:
        self._settings = settings
        self._database = database
        self._outcomes = OutcomeStore(database)

    def is_wanted(self, spec: JobSpec) -> bool:
        return self._settings.results_url is not None or _table_of(spec) is not None

    def write(self, job: Job, spec: JobSpec, *, whole: bool) -> None:
        """Write the files of a job where the setting `results_url` says.

        Raises SinkError and OutcomesHeldBack."""
        form = _table_of(spec)
        if self._settings.results_url is None:
            log.warning(
                "job %s asks for %s, and this process has no results_url: `penstock results` "
                "writes it at any time",
                job.job_id,
                form,
            )
            return
        destination = f"{self._settings.results_url.rstrip('/')}/{job.job_id}"
        endpoint = self._settings.s3_endpoint_url
        self._end_uploads(destination, form)
        if self._settings.writes_parts:  # bucket_parts.py makes the other one
            letters = write_errors(
                self._outcomes, job.job_id, destination, s3_endpoint_url=endpoint
            )
            log.info("job %s: %d dead letters written", job.job_id, letters)
        else:
            written = write_outputs(
                self._outcomes, job.job_id, destination, s3_endpoint_url=endpoint
            )
            log.info(
                "job %s: %d results, %d dead letters written",
                job.job_id,
                written.results,
                written.dead_letters,
            )
        if form is not None:
            write_table(
                reading_of(
                    self._database,
                    job,
                    self._settings,
                    keep=spec.keep_columns,
                    order=spec.order,
                    form=form,
                    whole=whole,
                ),
                destination,
                f"output.{form}",
                form,
                escape_formulas=bool(spec.escape_formulas),
                s3_endpoint_url=endpoint,
            )

    def forget(self, job_id: str) -> None:
        """Do nothing, since nothing is kept of a job."""

    def _end_uploads(self, destination: str, form: str | None) -> None:
        """End the uploads of these files that a process left unfinished when it died."""
        if "://" not in destination:
            return
        bucket = bucket_at(destination, s3_endpoint_url=self._settings.s3_endpoint_url)
        table = () if form is None else (f"output.{form}",)
        for begin in (ERRORS_NAME, *(table if self._settings.writes_parts else ("output.",))):
            bucket.abort_uploads(begin)


def _table_of(spec: JobSpec) -> str | None:
    """Return the form of the job's table; None where lines are all, which every job gets."""
    return None if spec.output_format == "jsonl" else spec.output_format
