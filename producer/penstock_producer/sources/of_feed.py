"""From a feed in the ledger to the source it reads."""

from __future__ import annotations

from penstock_ledger import Database, JobStore, OutcomeStore, SourceKeys, Spool
from penstock_ledger.model import Feed, FeedKind, Job
from penstock_producer.errors import SourceError
from penstock_producer.job.spec import JobSpec
from penstock_producer.rows import Source
from penstock_producer.settings import ProducerSettings
from penstock_producer.sources.databases.address import KIND as TABLE
from penstock_producer.sources.databases.source import accepted
from penstock_producer.sources.open import open_source
from penstock_producer.sources.outcomes.source import KIND as OUTCOMES
from penstock_producer.sources.outcomes.source import OutcomesSource
from penstock_producer.sources.replay import ReplaySource
from penstock_producer.sources.spool import SpoolSource
from penstock_producer.sources.until import Until

__all__ = ["open_feed_source", "source_of"]


def open_feed_source(
    database: Database, job_id: str, generation: int, settings: ProducerSettings | None = None
) -> Source:
    """The source of one generation of a job; what a message's ``ref`` is fetched from.

    Raises JobNotFound, and SourceError when the job has no such generation.
    """
    jobs = JobStore(database)
    job = jobs.get(job_id)
    for feed in jobs.feeds(job.job_id):
        if feed.generation == generation:
            return source_of(database, job, feed, settings)
    raise SourceError(
        "source_unavailable", f"job {job_id} has no generation {generation}; is this its database?"
    )


def source_of(
    database: Database,
    job: Job,
    feed: Feed,
    settings: ProducerSettings | None = None,
    spec: JobSpec | None = None,
) -> Source:
    """The source that ``feed`` reads, or the part of it that a shard is. Nothing is read yet.

    ``spec``: the job's, where the caller has parsed it.
    """
    whole = _whole(database, job, feed, settings, spec)
    return whole if feed.ends_at is None else Until(whole, feed.ends_at)


def _whole(
    database: Database,
    job: Job,
    feed: Feed,
    settings: ProducerSettings | None,
    spec: JobSpec | None,
) -> Source:
    if feed.kind is FeedKind.REPLAY:
        return ReplaySource(feed, OutcomeStore(database))
    if feed.kind is FeedKind.SPOOL:
        return SpoolSource(job.job_id, Spool(database), JobStore(database))
    if job.source.get("kind") == OUTCOMES:
        parsed = spec or JobSpec.accepted(job.spec)
        return OutcomesSource(job.source, parsed, JobStore(database), OutcomeStore(database))
    if job.source.get("kind") == TABLE:
        chosen = settings or ProducerSettings.model_construct()
        return accepted(job, spec or JobSpec.accepted(job.spec), SourceKeys(database), chosen)
    return open_source(job.source, spec or JobSpec.accepted(job.spec), settings)
