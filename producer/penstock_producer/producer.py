"""The Python API for other services.

They submit a file as a job, or push documents into an open one, and read its outcomes.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from penstock_ledger import (
    POOL_SIZE,
    CommitOrder,
    Database,
    JobStore,
    MadeWith,
    NoticedStore,
    OutcomeStore,
    Provenance,
    ScheduleStore,
    Spool,
    open_database,
)
from penstock_ledger.model import (
    Counts,
    DeadLetter,
    FeedKind,
    ItemKey,
    Job,
    JobState,
    Result,
    TakenFiles,
)
from penstock_ledger.texts import Command, Run, Text
from penstock_ledger.vectors import Vectors
from penstock_producer.accepting.new_jobs import (
    MAX_JOB_KEY_CHARS,
    Content,
    NewJobs,
    Submission,
)
from penstock_producer.accepting.prompt_caching import check_open
from penstock_producer.accepting.remote_limits import RemoteLimits
from penstock_producer.accepting.results_probe import ResultsProbe
from penstock_producer.accepting.sampling import Preview, Sample, preview, sample_of
from penstock_producer.accepting.survey import Check, survey
from penstock_producer.errors import (
    JobCancelled,
    JobRefused,
    Problem,
    Refusal,
    SinkUnfit,
    SourceError,
    SpecError,
    seen,
)
from penstock_producer.job.options import STOP_FIELDS
from penstock_producer.job.sinks import columns_problem
from penstock_producer.job.spec import JobSpec
from penstock_producer.open_job import (
    TAKES_NO_MORE,
    DocumentChecker,
    OpenJob,
    PushedLine,
    PushedLines,
)
from penstock_producer.operations import Changed, JobOperations
from penstock_producer.pins import AWAITED, DOOR, REMOTE, UPLOADED
from penstock_producer.rows import FileSource
from penstock_producer.schedules.api import Schedules
from penstock_producer.schedules.timetable import taken_key
from penstock_producer.settings import ProducerSettings
from penstock_producer.sources.databases.source import key_pages
from penstock_producer.sources.kept import Kept, kept_rows
from penstock_producer.sources.listings.chosen import choose
from penstock_producer.sources.listings.new_files import Taken, TakenBetween, gone_files, taken_by
from penstock_producer.sources.of_feed import SPOOL, SPOOL_PIN
from penstock_producer.sources.open import open_new_files, open_source, unchanged
from penstock_producer.sources.outcomes import OutcomesSource, Where, pin_of
from penstock_producer.tables.reading import Committed, place_in

if TYPE_CHECKING:
    import pyarrow


@dataclass(frozen=True, slots=True)
class JobStatus:
    """The state of a job, counted in SQL."""

    job: Job
    counts: Counts

    @property
    def state(self) -> JobState:
        return self.job.state

    @property
    def has_stopped(self) -> bool:
        """Return whether nothing more happens by itself: it has ended, or waits for a person."""
        return self.state.final or (self.state == JobState.PAUSED and self.job.resume_at is None)

    def __repr__(self) -> str:
        of = "?" if self.job.total is None else f"{self.job.total:,}"
        return f"<Job {self.job.job_key}: {self.state}, {self.finished:,} of {of} documents>"

    @property
    def finished(self) -> int:
        return self.counts.succeeded + self.counts.dead

    @property
    def remaining(self) -> int | None:
        """Documents without an outcome; None while an open job is not closed."""
        return None if self.job.total is None else self.job.total - self.finished


class Producer:
    """Accepts jobs into the ledger; workers find them there. Needs the database only, not Redis.

    Thread-safe, and usable on both sides of a fork. As a context manager it closes at the end.
    Everything that it raises on purpose is a PenstockError, DatabaseUnavailable for a database that
    does not answer.
    """

    def __init__(
        self,
        settings: ProducerSettings | None = None,
        *,
        database_url: str | None = None,
        remote_limits: RemoteLimits | None = None,
        database: Database | None = None,
    ) -> None:
        """Open the ledger.

        ``remote_limits`` are for remote clients: their jobs may ask for no more, and read
        `source_roots` only. A ``database`` that is open already is used as it is, and stays open.
        """
        self._remote_limits = remote_limits
        self._settings = settings or ProducerSettings.load(database_url=database_url)
        self._owns_database = database is None
        self._database = database or _opened_database(
            database_url or self._settings.database_url, self._settings
        )
        self._jobs = JobStore(self._database)
        self._outcomes = OutcomeStore(self._database)
        self._new = NewJobs(self._database, self._jobs, self._settings, remote_limits)
        self._operations = JobOperations(self._database, self._settings)
        self._probe = ResultsProbe(
            self._settings, one_machine=self._database.is_sqlite, remote=remote_limits is not None
        )
        self._open: weakref.WeakSet[OpenJob] = weakref.WeakSet()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Flush the open jobs of this producer and end its connections.

        Raises as ``OpenJob.flush`` does."""
        try:
            for job in list(self._open):
                job.flush()
        finally:
            if self._owns_database:
                self._database.close()

    @property
    def schedules(self) -> Schedules:
        """Jobs that start themselves."""
        admit = None if self._remote_limits is None else self._settings.readable.admit
        stores = ScheduleStore(self._database), NoticedStore(self._database)
        return Schedules(*stores, self._new.accepted, self._probe.check, admit)

    def submit(
        self,
        source: str | Path,
        spec: JobSpec | Mapping[str, Any],
        *,
        job_key: str | None = None,
        timeout_s: float | None = None,
        progress: Callable[[int], None] | None = None,
        started_by: Mapping[str, Any] | None = None,
        uploaded: bool = False,
        check: Check | None = None,
        sample_of: Mapping[str, int] | None = None,
    ) -> Job:
        """Accept every document of ``source`` as one job.

        ``source`` is a path, an `s3://` URI or a database's URL.

        With a ``job_key``, submitting the same again returns the same job. Raises JobConflict when
        the key belongs to another spec or content, SpecError, SourceError (as when reading takes
        longer than ``timeout_s``), TooManyBadRows, and SinkError where its results could not be
        written; nothing is accepted then. ``progress`` is called now and then with the number of
        rows read, and ``started_by`` is kept with the job, where schedules say their name.
        ``uploaded``: a remote door has written the file itself, from what its caller sent; it need
        not lie in `source_roots`. ``check`` refuses further documents, see accepting/survey.py.
        ``sample_of`` is kept with a job over what ``sample`` drew: `documents` and `size` of all.
        """
        spec = self._new.accepted(spec)
        if not isinstance(source, str | Path):  # a pin is made here, of what was read here
            raise SourceError(
                "unsupported_source",
                f"{seen(source)} is not a source; give a path or an s3:// URI as text",
            )
        opened = self._source(source, spec, uploaded, timeout_s)
        known = self._new.known(job_key)
        if (
            known is not None
            and known.source.get("kind") != SPOOL
            and unchanged(known.source, source, self._settings, ended=known.state.final)
        ):
            content = Content(known.source, known.total)
            return self._new.create(spec, content, Submission(job_key, started_by))
        self._probe.check(spec)
        found = survey(opened, spec, progress, check=check)
        door = UPLOADED if uploaded else REMOTE
        came = Submission(job_key, started_by, door=door, sample_of=sample_of)
        return self._new.create_surveyed(spec, found, came, key_pages(opened))

    def preview(
        self,
        source: str | Path,
        spec: JobSpec | Mapping[str, Any],
        shown: int = 3,
        *,
        timeout_s: float | None = None,
        uploaded: bool = False,
    ) -> Preview:
        """Return the first requests of a job, what a submit would accept, and its cost.

        Nothing is accepted or called. Raises what reading the source raises, and SpecError.
        """
        spec = self._new.accepted(spec)
        opened = self._source(source, spec, uploaded, timeout_s)
        return preview(opened, spec, self._settings.prices, shown)

    def sample(
        self,
        source: str | Path,
        spec: JobSpec | Mapping[str, Any],
        number: int,
        *,
        timeout_s: float | None = None,
        uploaded: bool = False,
    ) -> Sample:
        """Draw ``number`` documents at random, as lines that are submitted as a job of its own.

        Raises as ``submit``.
        """
        accepted = self._new.accepted(spec)
        return sample_of(
            lambda: self._source(source, accepted, uploaded, timeout_s), accepted, number
        )

    def submit_new_files(
        self,
        source: str,
        spec: JobSpec | Mapping[str, Any],
        taken: Taken,
        *,
        job_key: str,
        started_by: Mapping[str, Any],
        among: Sequence[str] | None = None,
        timeout_s: float | None = None,
    ) -> tuple[Job | None, int]:
        """Accept the files that ``taken`` does not know as one job; None where there are none.

        ``source`` is a folder, prefix or pattern.

        With ``among``, of these names only, without a listing. For schedules; the job and what it
        takes are written together. The number is of files that may still be written, and were left
        for the next time. Raises as ``submit``, and FilesTaken.
        """
        spec = self._new.accepted(spec)
        opened, unsettled = open_new_files(
            source, spec, self._settings, taken, among=among, timeout_s=timeout_s
        )
        if opened is None:
            return None, unsettled
        self._probe.check(spec)
        found = survey(opened, spec)
        files = TakenFiles(str(started_by["schedule_id"]), taken_by(found.pin))
        came = Submission(job_key, started_by, files)
        return self._new.create_surveyed(spec, found, came), unsettled

    def gone_files(self, source: str, taken_between: TakenBetween) -> Iterator[Sequence[bytes]]:
        """Return the keys of files that were taken and are there no more.

        ``source`` is a folder, prefix or pattern. Raises SourceError.
        """
        chosen = choose(source, self._settings.s3_endpoint_url)
        return iter(()) if chosen is None else gone_files(chosen, taken_between)

    def submit_from(
        self,
        job: str,
        spec: JobSpec | Mapping[str, Any],
        *,
        where: Sequence[str] = (),
        job_key: str | None = None,
        progress: Callable[[int], None] | None = None,
        started_by: Mapping[str, Any] | None = None,
        after_generation: int = 0,
    ) -> Job:
        """Accept outcomes of a job that has ended as one job.

        They are those for which each condition of ``where`` holds; see sources/outcomes/. Raises as
        ``submit``, JobNotFound, and SourceUnavailable while the job has not ended. The last two
        arguments are for schedules, which take each generation of a job once: raises FilesTaken.
        """
        spec = self._new.accepted(spec)
        source = self.outcomes_source(job, spec, where=where, after_generation=after_generation)
        pin = source.pin()
        self._probe.check(spec)
        try:
            surveyed = survey(source, spec, progress)
        except SourceError as error:
            if error.code != "empty_source":
                raise
            what = " and ".join(where) or "any condition"
            raise SourceError(
                "empty_source",
                Text(
                    f"no outcome of job {pin['job_key']} satisfies {seen(what)}; ",
                    Run(Command.REPORT),
                    " counts what it has",
                ),
            ) from error
        taken = None
        if started_by is not None:
            key = taken_key(pin["job_id"], pin["generation"])
            taken = TakenFiles(str(started_by["schedule_id"]), [key])
        return self._new.create_surveyed(spec, surveyed, Submission(job_key, started_by, taken))

    def outcomes_source(
        self, job: str, spec: JobSpec, *, where: Sequence[str] = (), after_generation: int = 0
    ) -> OutcomesSource:
        """Return what ``submit_from`` reads, for those who look at it first.

        Raises as that, and accepts nothing.
        """
        if self._remote_limits is not None:
            raise SourceError(
                "unsupported_source", "remote doors read no outcomes of other jobs; submit a file"
            )
        found = self._found(job)
        if not spec.takes_records and spec.endpoint != found.spec["endpoint"]:
            fix = f"give the endpoint {found.spec['endpoint']}, or a prompt"
            message = (
                f"{seen(spec.endpoint)} is not where the requests of job {found.job_key} were sent"
            )
            raise SpecError([Problem("invalid_value", "/endpoint", message, fix)])
        pin = pin_of(
            found, Where(where), self._settings.max_body_bytes, after_generation=after_generation
        )
        return OutcomesSource(pin, spec, self._jobs, self._outcomes)

    def open_job(
        self,
        spec: JobSpec | Mapping[str, Any],
        *,
        job_key: str | None = None,
        awaited: bool = False,
    ) -> OpenJob:
        """Open a job that documents are pushed into until it is closed.

        The same ``job_key`` opens the same job again.

        ``awaited``: callers wait for its answers, which workers then store at once and tell of.

        Raises SpecError, JobConflict, and SinkError where its results could not be written.
        """
        spec = self._new.accepted(spec)
        check_open(spec)
        if self._new.known(job_key) is None:
            self._probe.check(spec)
        pin = {**SPOOL_PIN, AWAITED: True} if awaited else SPOOL_PIN
        content = Content(pin, None, feed_kind=FeedKind.SPOOL)
        job = self._new.create(spec, content, Submission(job_key))
        opened = OpenJob(job, spec, Spool(self._database), self._jobs, *self._limits)
        self._open.add(opened)
        return opened

    def push(self, job: str, doc_id: str | int, document: Mapping[str, Any] | bytes | str) -> bool:
        """Store one document of an open job at once; False when it is there already.

        Raises JobNotFound, InvalidDocument, SpoolConflict for another document with this id,
        JobCancelled and JobClosed.
        """
        found = self._opened(job)
        entry = DocumentChecker(JobSpec.accepted(found.spec), *self._limits).check(doc_id, document)
        if found.state in TAKES_NO_MORE:
            raise JobCancelled(found.job_id, str(found.state), [entry[0]])
        return Spool(self._database).append(found.job_id, [entry]) > 0

    def seal(self, job: str) -> int:
        """Close an open job; returns how many documents it has.

        Raises JobNotFound, SourceError. Safe to repeat."""
        return self._jobs.close(self._opened(job).job_id)

    def came_from_remote(self, job: str) -> bool:
        """Return whether a remote door accepted this job. Raises JobNotFound."""
        return self._found(job).source.get(DOOR) == REMOTE

    def check_tenant(self, job: str) -> None:
        """Raise SpecError where remote clients may not act for the tenant of this job.

        Raises JobNotFound, too.
        """
        tenant = self._found(job).spec.get("tenant")
        self._new.check_tenant(None if tenant is None else str(tenant))

    def push_lines(self, job: str, lines: bytes) -> list[PushedLine]:
        """Store documents of an open job that come as lines of JSON; return each line's fate.

        A line is `{"id": "a-1", "document": {…}}`.

        All lines that are not refused are durable then; the same lines again change nothing. Raises
        JobNotFound, SourceError, JobCancelled and JobClosed where the job takes none of them.
        """
        found = self._opened(job)
        if found.state in TAKES_NO_MORE:
            raise JobCancelled(found.job_id, str(found.state), [])
        checker = DocumentChecker(JobSpec.accepted(found.spec), *self._limits)
        return PushedLines(
            found.job_id, checker, Spool(self._database), self._settings.max_line_bytes
        ).push(lines)

    def _source(
        self, source: str | Path, spec: JobSpec, uploaded: bool, timeout_s: float | None
    ) -> FileSource:
        """Open what is read of the source, within the limits of remote clients.

        Raises SourceError and SpecError.
        """
        if self._remote_limits is None:
            return open_source(source, spec, self._settings, timeout_s=timeout_s)
        formats, remote = self._remote_limits.doors.formats, not uploaded
        return open_source(
            source,
            spec,
            self._settings,
            remote=remote,
            uploaded=uploaded,
            formats=formats,
            timeout_s=timeout_s,
        )

    @property
    def _limits(self) -> tuple[int, int]:
        return self._settings.max_line_bytes, self._settings.max_body_bytes

    def _opened(self, job: str) -> Job:
        found = self._found(job)
        if found.source.get("kind") != SPOOL:
            raise SourceError(
                "not_open",
                f"job {found.job_id} reads a source; documents are pushed into open jobs only",
            )
        return found

    def _found(self, job: object) -> Job:
        if not isinstance(job, str) or not job.isprintable() or len(job) > MAX_JOB_KEY_CHARS:
            raise SpecError(
                [
                    Problem(
                        "invalid_value",
                        "/job",
                        f"{seen(job)} is not the id or key of a job",
                        "give its key",
                    )
                ]
            )
        return self._jobs.get(job)

    def status(self, job: str) -> JobStatus:
        """Return where a job stands. Raises JobNotFound.

        ``job`` is an id or a key, here and below.
        """
        found = self._jobs.get(job)
        return JobStatus(found, self._outcomes.counts(found.job_id))

    def wait(
        self, job: str, *, timeout_s: float | None = None, look_every_s: float = 1.0
    ) -> JobStatus:
        """Wait until a job has ended, or is paused until a person acts; return where it stands.

        Raises JobNotFound, and TimeoutError where it takes longer than ``timeout_s``.
        """
        until = None if timeout_s is None else time.monotonic() + timeout_s
        while not (found := self.status(job)).has_stopped:
            if until is not None and time.monotonic() >= until:
                raise TimeoutError(f"{found!r} has not ended within {timeout_s:g} s")
            time.sleep(look_every_s)
        return found

    def results(self, job: str) -> Iterator[Result]:
        """Yield every visible result so far, in flat memory, in no promised order."""
        return self._outcomes.results(self._jobs.get(job).job_id)

    def outcomes(
        self, job: str, *, after: str | None = None, dead_letters: bool = True
    ) -> Iterator[Committed]:
        """Return results and dead letters as they were stored, in flat memory, each once.

        It can be called while the job runs.

        The iteration ends with what was stored when it began. ``after`` is the `cursor` of one of
        them: the next iteration goes on there, in this process or another, with nothing repeated
        and nothing left out. A document that is replayed comes again, with its new outcome and a
        higher generation. Raises JobNotFound, PlaceLost and ContentError.
        """
        job_id = self._jobs.get(job).job_id
        place = None if after is None else place_in(job_id, after)
        read = CommitOrder(self._database).read(job_id, place, letters=dead_letters)
        return (Committed(outcome, place) for place, outcome in read)

    def record_batches(
        self, job: str, *, keep_columns: str = "all", order: str = "source"
    ) -> pyarrow.RecordBatchReader:
        """Return results and dead letters so far as Arrow batches, one after the other.

        docs/results.md names the columns: those of the source, and behind them the answers'.

        ``reader.read_all()`` is a pyarrow table, ``reader.read_pandas()`` a frame of pandas,
        ``polars.from_arrow(reader)`` one of polars, ``duckdb.from_arrow(reader)`` a relation.
        Raises SinkError where pyarrow is not installed, and where the source cannot be read.
        """
        from penstock_producer.tables.arrow import reader_of
        from penstock_producer.tables.with_source import reading_of

        if problem := columns_problem(keep_columns, order):
            raise SinkUnfit(f"keep_columns={keep_columns!r}: {'; '.join(problem)}")
        found = self._jobs.get(job)
        reading = reading_of(
            self._database, found, self._settings, keep=keep_columns, order=order, form="parquet"
        )
        return reader_of(reading, reading.columns)

    def source_rows(self, job: str, *, keep_columns: str = "all") -> Kept | None:
        """Return the rows of a job's source with their columns, each by the id of its document.

        None where it has none that can be read again: pushed documents, outcomes of another job.
        Raises JobNotFound, and SourceError where the source has changed or is gone.
        """
        found = self._jobs.get(job)
        return kept_rows(self._database, found, keep_columns, self._settings)

    def made_with(self, job: str) -> list[MadeWith]:
        """Return what results of this job came from, by generation.

        These are releases, engines, providers and prices; a result has its model.
        """
        return Provenance(self._database).of(self._jobs.get(job).job_id)

    def latest(self, job: str, number: int) -> list[Result]:
        """Return the results that were stored last, the newest first."""
        return CommitOrder(self._database).latest(self._jobs.get(job).job_id, number)

    def vectors(self, job: str) -> Iterator[tuple[ItemKey, Vectors]]:
        """Return the stored embeddings of an embed job, in the order of ``results``.

        They come without JSON between.

        With numpy a row is ``numpy.frombuffer(vectors.rows()[0], "<f4")`` where ``vectors.dtype``
        is float32. Answers of providers are JSON, and only among ``results``.
        """
        return self._outcomes.vectors(self._jobs.get(job).job_id)

    def dead_letters(self, job: str, *, reason: str | None = None) -> Iterator[DeadLetter]:
        """Yield every visible dead letter so far, of one reason or all."""
        return self._outcomes.dead_letters(self._jobs.get(job).job_id, reason=reason)

    def pause(self, job: str, *, reason: str = "paused by its producer") -> bool:
        """Start nothing more until ``resume``; a pause that would end by itself lasts then, too.

        False when the job does not run: it was paused already, or goes to its end."""
        return self._changed(lambda: self._operations.pause(self._jobs.get(job), reason))

    def resume(self, job: str) -> bool:
        """Let a paused job go on. False when it is not paused."""
        return self._changed(lambda: self._operations.resume(self._jobs.get(job)))

    def cancel(self, job: str) -> bool:
        """Make dead letters `cancelled` of documents that have not started.

        False when the job ends or has ended already."""
        return self._changed(
            lambda: self._operations.cancel(self._jobs.get(job), "cancelled by its producer")
        )

    def limit(
        self,
        job: str,
        *,
        budget_usd: float | None,
        deadline_s: float | None,
        stops: Mapping[str, Any] | None = None,
    ) -> bool:
        """Give a job another budget and deadline; None lifts one.

        Submitting with them again then is the same job.

        ``stops`` are other bounds of its stop-loss, `stop_at_dead` and `stop_at_usd_per_doc`; what
        is left out stays. False when the job was changed by another process meanwhile. Raises
        SpecError, also for a sum that is spent already, and JobRefused for a job that has ended; of
        a job that has a budget the prices are known, maybe to its workers only.
        """
        found = self._jobs.get(job)
        given = {"budget_usd": budget_usd, "deadline_s": deadline_s}
        other = {name: value for name, value in given.items() if value != found.spec.get(name)}
        bounds = {name: value for name, value in (stops or {}).items() if name in STOP_FIELDS}
        try:
            self._operations.limit(found, other | bounds)
        except JobRefused as refused:
            if refused.code is not Refusal.CHANGED:
                raise
            return False
        return True

    def replay(
        self,
        job: str,
        *,
        reason: str | None = None,
        doc_ids: Sequence[str] | None = None,
        overrides: Mapping[str, Any] | None = None,
    ) -> int:
        """Try dead letters again as a new generation; returns how many.

        ``overrides`` changes their requests, and earlier changes stay until they are unset:
        ``{"set": {"model": "large"}, "unset": ["max_tokens"], "prompt": "Briefly: {prompt}"}``, or
        one document's whole request as ``{"body": {…}}``, see ``overrides.py``.
        Raises SpecError, JobNotReplayable, NothingToReplay.
        """
        return self._operations.replay(
            self._jobs.get(job), reason=reason, doc_ids=doc_ids, overrides=overrides
        ).documents

    @staticmethod
    def _changed(operation: Callable[[], Changed]) -> bool:
        try:
            return operation().changed
        except JobRefused:
            return False


def _opened_database(url: str, settings: ProducerSettings) -> Database:
    database = open_database(
        url,
        pool_size=settings.database_pool or POOL_SIZE,
        waits=settings.database_waits,
        role="producer",
    )
    if url.startswith("sqlite:"):
        database.migrate()  # an embedded file; the schema of a server is changed by its operator
    return database
