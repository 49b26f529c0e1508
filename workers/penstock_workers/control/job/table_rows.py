"""Writes the rows of a job to a table of a database, as its option `into` says.

It does so while the job runs, and writes the whole at its end."""

from __future__ import annotations

import logging
import os

from penstock_ledger import Database, PlaceLost
from penstock_ledger.model import Job
from penstock_producer.errors import SinkTaken, SinkUnfit
from penstock_producer.job.sinks import into_url
from penstock_producer.job.spec import JobSpec
from penstock_producer.tables.columns import Table
from penstock_producer.tables.database import TableSink
from penstock_producer.tables.reading import Reading, end_of
from penstock_producer.tables.with_source import WithSource, source_beside
from penstock_workers.settings import WorkerSettings

log = logging.getLogger(__name__)


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
