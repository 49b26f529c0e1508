"""What a control loop looks at in each round: every live job with its feeds and their leases, in one read transaction.

Jobs change seldom and are looked at several times a second, so a row is parsed only when it is not the one of the last look.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from operator import itemgetter
from typing import Any, Generic, NamedTuple, TypeVar

from sqlalchemy import Connection, Row, select

from penstock_ledger.model import Feed, Job
from penstock_ledger.sql.database import Database
from penstock_ledger.sql.tables import feeds, jobs
from penstock_ledger.stores.feeds import feed_of
from penstock_ledger.stores.jobs import LIVE, job_of


class LiveFeed(NamedTuple):
    """A feed, and who leads it."""

    feed: Feed
    owner: str | None
    lease_s: float  # how long the owner's lease still lasts; 0 and less: it is over, or there is none

    def led_by(self, owner: str) -> bool:
        return self.owner == owner and self.lease_s > 0

    @property
    def free(self) -> bool:
        return self.owner is None or self.lease_s <= 0


class LiveJob(NamedTuple):
    """A job that is not over, with its feeds, oldest generation first."""

    job: Job
    feeds: tuple[LiveFeed, ...]


class LiveJobs:
    """Looks at the live jobs of a database. Not thread-safe: one per control loop."""

    def __init__(self, database: Database) -> None:
        self._db = database
        is_live = jobs.c.state.in_(LIVE)
        of_live = feeds.c.job_id.in_(select(jobs.c.job_id).where(is_live))
        self._live_jobs = select(jobs).where(is_live).order_by(jobs.c.created_at, jobs.c.job_id)
        self._live_feeds = (
            select(feeds, database.clock().label("now")).where(of_live).order_by(feeds.c.job_id, feeds.c.generation)
        )
        self._jobs = _Parsed(lambda row: row.job_id, job_of)
        self._feeds = _Parsed(lambda row: (row.job_id, row.generation), feed_of)

    def look(self) -> list[LiveJob]:
        """Every job that is not over, oldest first. Two statements, and one where there is none."""
        job_rows, feed_rows = self._db.read(self._select)
        by_job = defaultdict[str, list[LiveFeed]](list)
        for feed, row in zip(self._feeds.of(feed_rows), feed_rows, strict=True):
            lease_s = 0.0 if row.lease_until is None else row.lease_until - row.now
            by_job[feed.job_id].append(LiveFeed(feed, row.owner, lease_s))
        return [LiveJob(job, tuple(by_job[job.job_id])) for job in self._jobs.of(job_rows)]

    def _select(self, connection: Connection) -> tuple[list[Row[Any]], list[Row[Any]]]:
        job_rows = list(connection.execute(self._live_jobs))
        return job_rows, list(connection.execute(self._live_feeds)) if job_rows else []


T = TypeVar("T")


class _Parsed(Generic[T]):
    """What rows of one table were parsed into at the last look, by their key. What a lease changes counts as no change."""

    def __init__(self, key: Callable[[Row[Any]], object], parse: Callable[[Row[Any]], T]) -> None:
        self._key = key
        self._parse = parse
        self._known: dict[object, tuple[tuple[object, ...], T]] = {}

    def of(self, rows: Iterable[Row[Any]]) -> list[T]:
        found: dict[object, tuple[tuple[object, ...], T]] = {}
        values_of: Callable[[Row[Any]], tuple[object, ...]] | None = None
        for row in rows:
            if values_of is None:
                values_of = _values_of(row)  # the same columns in each row
            key, values = self._key(row), values_of(row)
            known = self._known.get(key)
            found[key] = known if known is not None and known[0] == values else (values, self._parse(row))
        self._known = found
        return [parsed for _, parsed in found.values()]


_OF_THE_LEASE = frozenset({"owner", "lease_until", "now"})


def _values_of(row: Row[Any]) -> Callable[[Row[Any]], tuple[object, ...]]:
    return itemgetter(*(place for place, name in enumerate(row._fields) if name not in _OF_THE_LEASE))
