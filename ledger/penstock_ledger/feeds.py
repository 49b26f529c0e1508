"""Feeds: the durable reading position of each generation of a job, and who may move it.

One leader per feed, by a lease on the database's clock. The fence grows with every change of owner and with every
rewind, so a feeder that was frozen in between cannot move the cursor afterwards.
"""

from __future__ import annotations

from typing import Any

import orjson
from sqlalchemy import Connection, Row, insert, select, update

from penstock_ledger.database import Database
from penstock_ledger.errors import FeedLost
from penstock_ledger.model import Feed, FeedKind, JobState
from penstock_ledger.stored_values import json_text
from penstock_ledger.tables import feeds, jobs, spool


class FeedStore:
    """Leases and cursors. ``JobStore`` is one of these."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def feeds(self, job_id: str) -> list[Feed]:
        """All feeds of a job, oldest generation first."""
        query = select(feeds).where(feeds.c.job_id == job_id).order_by(feeds.c.generation)
        return self._db.read(lambda connection: [feed_of(row) for row in connection.execute(query)])

    def lease_feed(self, job_id: str, generation: int, owner: str, ttl_s: float) -> Feed | None:
        """Become or stay the leader for ``ttl_s`` seconds; None when another process is, or there is no such feed."""
        which = (feeds.c.job_id == job_id) & (feeds.c.generation == generation)

        def lease(connection: Connection) -> Feed | None:
            row = connection.execute(select(feeds).where(which).with_for_update()).one_or_none()
            now = self._db.now(connection)
            if row is None or (row.owner not in (None, owner) and row.lease_until > now):
                return None
            fence = row.fence if row.owner == owner else row.fence + 1
            connection.execute(update(feeds).where(which).values(owner=owner, lease_until=now + ttl_s, fence=fence))
            return feed_of(row, fence=fence)

        return self._db.write(lease)

    def renew_feeds(self, owner: str, ttl_s: float) -> None:
        """Stay the leader of what ``owner`` leads in jobs that run or are cancelled, for ``ttl_s`` seconds: one statement."""
        now = self._db.clock()
        led = select(jobs.c.job_id).where(jobs.c.state.in_((JobState.RUNNING, JobState.CANCELLING)))
        query = (
            update(feeds)
            .where(feeds.c.job_id.in_(led))
            .where(feeds.c.owner == owner, feeds.c.lease_until > now)
            .values(lease_until=now + ttl_s)
        )
        self._db.write(lambda connection: connection.execute(query))

    def release_feed(self, feed: Feed, owner: str) -> None:
        """Let the next leader start at once. Nothing happens when ``owner`` no longer leads it."""
        query = update(feeds).where(*_led_by(feed, owner)).values(owner=None, lease_until=None)
        self._db.write(lambda connection: connection.execute(query))

    def advance_feed(self, feed: Feed, owner: str, *, cursor: dict[str, Any], exhausted: bool) -> None:
        """Make the reading position durable. Raises FeedLost when another feeder took over, or the feed was rewound."""
        query = update(feeds).where(*_led_by(feed, owner)).values(cursor=json_text(cursor), exhausted=exhausted)
        if self._db.write(lambda connection: connection.execute(query).rowcount) == 0:
            raise FeedLost(feed.job_id, feed.generation, feed.fence)

    def rewind_feeds(self, job_id: str) -> None:
        """Read everything of the job again from the start; the leader of a feed must lease it anew."""
        back = update(feeds).where(feeds.c.job_id == job_id)
        unfed = update(spool).where(spool.c.job_id == job_id, spool.c.fed)

        def rewind(connection: Connection) -> None:
            connection.execute(
                back.values(cursor="{}", exhausted=False, owner=None, lease_until=None, fence=feeds.c.fence + 1)
            )
            connection.execute(unfed.values(fed=False))

        self._db.write(rewind)


def add_feed(
    connection: Connection,
    job_id: str,
    generation: int,
    kind: FeedKind,
    *,
    selection: dict[str, Any] | None = None,
    overrides: dict[str, Any] | None = None,
) -> Feed:
    """Insert a feed at its start, as part of a larger transaction."""
    feed = Feed(job_id, generation, kind, {}, False, 0, selection or {}, overrides or {})
    connection.execute(
        insert(feeds).values(
            job_id=job_id, generation=generation, kind=str(kind), cursor="{}", exhausted=False, fence=0,
            selection=json_text(feed.selection), overrides=json_text(feed.overrides),
        )
    )  # fmt: skip
    return feed


def _led_by(feed: Feed, owner: str) -> tuple[Any, ...]:
    return (
        feeds.c.job_id == feed.job_id,
        feeds.c.generation == feed.generation,
        feeds.c.owner == owner,
        feeds.c.fence == feed.fence,
    )


def feed_of(row: Row[Any], *, fence: int | None = None) -> Feed:
    return Feed(
        job_id=row.job_id,
        generation=row.generation,
        kind=FeedKind(row.kind),
        cursor=orjson.loads(row.cursor),
        exhausted=bool(row.exhausted),
        fence=row.fence if fence is None else fence,
        selection=orjson.loads(row.selection),
        overrides=orjson.loads(row.overrides),
    )
