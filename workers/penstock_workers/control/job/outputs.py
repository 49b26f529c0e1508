"""A job's results leave a fleet: as files at its end, as parts in a bucket, as rows of a table.

Files and parts go where the setting `results_url` says; `output.jsonl` is made of the parts at the
end, as `results_parts` says. Rows go where the job's option `into` says, while it runs, and whole
at its end.
"""

from __future__ import annotations

import logging
import os

from penstock_ledger import Database, OutcomeStore, PlaceLost
from penstock_ledger.model import Job
from penstock_producer.bucket.place import Place
from penstock_producer.errors import SinkTaken, SinkUnfit
from penstock_producer.job.sinks import into_url
from penstock_producer.job.spec import JobSpec
from penstock_producer.outputs import ERRORS_NAME, write_errors, write_outputs
from penstock_producer.parts import GrowingOutput
from penstock_producer.storage import bucket_at
from penstock_producer.tables.columns import Table
from penstock_producer.tables.database import TableSink
from penstock_producer.tables.reading import Reading, end_of
from penstock_producer.tables.with_source import WithSource, reading_of, source_beside, write_table
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
        if self._settings.writes_parts:  # ``BucketParts`` makes the other one
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


class TableRows:
    """One pass writes what is new.

    The place in the table goes with the rows, so passes may be repeated and taken over."""

    grows = True
    name = "into"

    def __init__(self, settings: WorkerSettings, database: Database) -> None:
        self._settings = settings
        self._database = database
        # of jobs that are led here: their columns are looked for once
        self._sources: dict[str, WithSource | None] = {}
        # of jobs that are led here: up to where the table has them
        self._places: dict[str, str | None] = {}

    def is_wanted(self, spec: JobSpec) -> bool:
        return spec.into is not None

    def write(self, job: Job, spec: JobSpec, *, whole: bool) -> None:
        """Write the rows that are new, or all of them when ``whole``.

        Raises SinkError and OutcomesHeldBack."""
        if job.job_id in self._places and not whole and self._has_nothing_new(job):
            return
        assert spec.into is not None, "a job without a table has no passes"
        sink = TableSink(
            into_url(spec.into, os.environ),
            spec.into_table or "",
            Table(job.spec),
            id_column=spec.into_id,
            source=self._source(job, spec),
        )
        try:
            sink.prepare()
            reading = Reading(self._database, job, sink.place(job.job_id), whole=whole)
            end = end_of(self._database, job) if whole else None
            filled = sink.fill(job.job_id, reading, end)
            self._places[job.job_id] = reading.cursor
        except SinkTaken:
            self._places.pop(job.job_id, None)  # the other process has moved it
            raise
        except PlaceLost:
            raise SinkUnfit(
                f"table {spec.into_table} has a place that job {job.job_id} does not have in this "
                "ledger, which was copied or restored: to write all of it again, delete the job's "
                "row in the table penstock_progress beside it"
            ) from None
        finally:
            sink.close()
        if filled.missing:
            log.warning(
                "job %s: %d documents have no row in table %s, and it takes no others: it has "
                "columns that must not be null",
                job.job_id,
                filled.missing,
                spec.into_table,
            )

    def forget(self, job_id: str) -> None:
        self._places.pop(job_id, None)
        self._sources.pop(job_id, None)

    def _source(self, job: Job, spec: JobSpec) -> WithSource | None:
        if job.job_id not in self._sources:
            self._sources[job.job_id] = source_beside(
                self._database, job, self._settings, keep=spec.keep_columns, order=spec.order
            )
        return self._sources[job.job_id]

    def _has_nothing_new(self, job: Job) -> bool:
        return next(iter(Reading(self._database, job, self._places[job.job_id])), None) is None
