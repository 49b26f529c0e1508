"""A control loop looks in each round at every live job with its feeds and leases.

It is one read transaction.

Jobs change seldom and are looked at several times a second, so a row is parsed only when it is not
the one of the last look.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from operator import itemgetter
from typing import Any, Generic, NamedTuple, TypeVar

from sqlalchemy import Connection, Row, select

from penstock_ledger.model import Feed, Job
from penstock_ledger.sql.database import Database
from penstock_ledger.sql.tables import feeds, jobs, shards
from penstock_ledger.stores.feeds import feed_of, shard_of
from penstock_ledger.stores.jobs import LIVE, job_of


class LiveFeed(NamedTuple):
    """A feed, and who leads it."""

    feed: Feed
    owner: str | None
    # how long the owner's lease still lasts; 0 and less: it is over, or there is none
    lease_s: float
    # of a feed that is split: those that are not read to their end
    shards: tuple[LiveFeed, ...] = ()

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
            select(feeds, database.clock().label("now"))
            .where(of_live)
            .order_by(feeds.c.job_id, feeds.c.generation)
        )
        unread = shards.c.job_id.in_(select(jobs.c.job_id).where(is_live)) & ~shards.c.exhausted
        self._unread_shards = (
            select(shards, database.clock().label("now"))
            .where(unread)
            .order_by(shards.c.job_id, shards.c.generation, shards.c.shard)
        )
        self._jobs = _Parsed(lambda row: row.job_id, job_of)
        self._feeds = _Parsed(lambda row: (row.job_id, row.generation), feed_of)
        self._shards = _Parsed(lambda row: (row.job_id, row.generation, row.shard), shard_of)

    def look(self) -> list[LiveJob]:
        """Return every job that is not over, oldest first.

        One statement where there is none, and at most three.
        """
        return self._db.read(self._look)

    def _look(self, connection: Connection) -> list[LiveJob]:
        found = self._jobs.of(list(connection.execute(self._live_jobs)))
        rows = list(connection.execute(self._live_feeds)) if found else []
        feeds_found = self._feeds.of(rows)
        split = (
            self._split(connection)
            if any(feed.shards and not feed.exhausted for feed in feeds_found)
            else {}
        )
        by_job = defaultdict[str, list[LiveFeed]](list)
        for feed, row in zip(feeds_found, rows, strict=True):
            its_shards = tuple(split.get((feed.job_id, feed.generation), ()))
            by_job[feed.job_id].append(LiveFeed(feed, row.owner, _lease_s(row), its_shards))
        return [LiveJob(job, tuple(by_job[job.job_id])) for job in found]

    def _split(self, connection: Connection) -> Mapping[tuple[str, int], list[LiveFeed]]:
        """Return shards that are not read to their end, by job and generation."""
        rows = list(connection.execute(self._unread_shards))
        split = defaultdict[tuple[str, int], list[LiveFeed]](list)
        for shard, row in zip(self._shards.of(rows), rows, strict=True):
            split[shard.job_id, shard.generation].append(LiveFeed(shard, row.owner, _lease_s(row)))
        return split


def _lease_s(row: Row[Any]) -> float:
    return 0.0 if row.lease_until is None else float(row.lease_until - row.now)


T = TypeVar("T")


class _Parsed(Generic[T]):
    """The parsed rows of one table at the last look, by their key.

    What a lease changes counts as no change."""

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
            found[key] = (
                known if known is not None and known[0] == values else (values, self._parse(row))
            )
        self._known = found
        return [parsed for _, parsed in found.values()]


_OF_THE_LEASE = frozenset({"owner", "lease_until", "now"})


def _values_of(row: Row[Any]) -> Callable[[Row[Any]], tuple[object, ...]]:
    return itemgetter(
        *(place for place, name in enumerate(row._fields) if name not in _OF_THE_LEASE)
    )
