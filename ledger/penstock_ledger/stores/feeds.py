"""Feeds: the durable reading position of each generation of a job, and who may move it.

One leader per feed, by a lease on the database's clock. The fence grows with every change of owner and with every
rewind, so a feeder that was frozen in between cannot move the cursor afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import orjson
from sqlalchemy import Connection, Row, bindparam, insert, select, update

from penstock_ledger.errors import FeedLost
from penstock_ledger.model import Feed, FeedKind, JobState
from penstock_ledger.sql.database import Database
from penstock_ledger.sql.tables import feeds, jobs, spool
from penstock_ledger.stored_values import json_text

# Built once: putting a statement together costs more than what the database does with it.
_THE_FEED: Final = (feeds.c.job_id == bindparam("job"), feeds.c.generation == bindparam("nth"))
_LOCKED_FEED: Final = select(feeds).where(*_THE_FEED).with_for_update()
_LEASE: Final = (
    update(feeds)
    .where(*_THE_FEED)
    .values(owner=bindparam("by"), lease_until=bindparam("until"), fence=bindparam("new_fence"))
)
_ADVANCE: Final = (
    update(feeds)
    .where(*_THE_FEED, feeds.c.owner == bindparam("by"), feeds.c.fence == bindparam("its_fence"))
    .values(cursor=bindparam("to"), exhausted=bindparam("read"))
)
_OF_JOB: Final = select(feeds).where(feeds.c.job_id == bindparam("job")).order_by(feeds.c.generation)


class FeedStore:
    """Leases and cursors. ``JobStore`` is one of these."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def feeds(self, job_id: str) -> list[Feed]:
        """All feeds of a job, oldest generation first."""
        of_job = {"job": job_id}
        return self._db.read(lambda connection: [feed_of(row) for row in connection.execute(_OF_JOB, of_job)])

    def lease_feed(self, job_id: str, generation: int, owner: str, ttl_s: float) -> Feed | None:
        """``lease_feeds`` of one feed; None when another process leads it, or there is no such feed."""
        return next(iter(self.lease_feeds([(job_id, generation)], owner, ttl_s)), None)

    def lease_feeds(self, names: Sequence[tuple[str, int]], owner: str, ttl_s: float) -> list[Feed]:
        """Become or stay the leader for ``ttl_s`` seconds, in one transaction; returns the feeds that ``owner`` leads now.

        ``names`` are jobs and generations; feeds that another process leads, or that do not exist, are left out.
        """

        def lease(connection: Connection) -> list[Feed]:
            leased: list[Feed] = []
            for job_id, generation in sorted(names):  # in one order, so that two processes do not wait for each other
                row = connection.execute(_LOCKED_FEED, {"job": job_id, "nth": generation}).one_or_none()
                if row is None:
                    continue
                now = self._db.now(connection)
                if row.owner not in (None, owner) and row.lease_until > now:
                    continue
                fence = row.fence if row.owner == owner else row.fence + 1
                taken = {"job": job_id, "nth": generation, "by": owner, "until": now + ttl_s, "new_fence": fence}
                connection.execute(_LEASE, taken)
                leased.append(feed_of(row, fence=fence))
            return leased

        return self._db.write(lease) if names else []

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
        moved = {
            "job": feed.job_id, "nth": feed.generation, "by": owner, "its_fence": feed.fence,
            "to": json_text(cursor), "read": exhausted,
        }  # fmt: skip
        if self._db.write(lambda connection: connection.execute(_ADVANCE, moved).rowcount) == 0:
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
