"""The feeder of a feed that was leased, with all that it works with."""

from __future__ import annotations

from penstock_ledger import Database, JobStore, OutcomeStore, RedisLedger
from penstock_ledger.model import Feed, FeedKind, Job
from penstock_producer.feed.feed_step import FeedStores
from penstock_producer.feed.feeder import Feeder
from penstock_producer.feed.prefix_order import wants_order
from penstock_producer.feed.routes import Routes
from penstock_producer.feed.tracing import SendSpans
from penstock_producer.job.spec import JobSpec
from penstock_producer.settings import ProducerSettings
from penstock_producer.sources.of_feed import source_of

__all__ = ["open_feeder"]


def open_feeder(
    database: Database,
    redis_ledger: RedisLedger,
    job: Job,
    feed: Feed,
    *,
    owner: str,
    settings: ProducerSettings | None = None,
    spans: SendSpans | None = None,
    spec: JobSpec | None = None,
) -> Feeder:
    """A feeder for a feed that ``owner`` has leased. Nothing of the source is read yet.

    ``spec``: the job's, where the caller has parsed it.
    """
    outcomes = OutcomeStore(database)
    spec = spec or JobSpec.accepted(job.spec)
    return Feeder(
        job,
        feed,
        source_of(database, job, feed, settings, spec),
        FeedStores(JobStore(database), outcomes, redis_ledger),
        routes=Routes(spec, job.lane, feed, redis_ledger),
        owner=owner,
        refused_lines=outcomes.refused_lines(job.job_id)
        if feed.kind is FeedKind.SOURCE
        else frozenset(),
        ordered_for=spec.endpoint if wants_order(spec) else None,
        spans=spans,
    )
