"""Feeds: the durable reading position of each generation of a job, and who may move it.

The source of a large job may be split: then each shard has a position and a leader of its own, and
the feed's leader reads nothing, but sees to what was fed and ends the job. The transaction that
ends the last shard ends the feed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import orjson
from sqlalchemy import Connection, Row, Table, bindparam, exists, func, insert, select, update

from penstock_ledger.errors import FeedLost
from penstock_ledger.model import SHARDS, Feed, FeedKind, JobState, Shard
from penstock_ledger.sql.database import Database
from penstock_ledger.sql.tables import feeds, jobs, shards, spool
from penstock_ledger.stored_values import json_text

Name = tuple[str | int, ...]  # of a row: the values of its key


class Moved(NamedTuple):
    """A cursor's new place, and whose it is."""

    owner: str
    fence: int
    cursor: str  # JSON
    exhausted: bool


class Leases:
    """The statements for one table, built once.

    Putting one together costs more than what the database does with it."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._key = [column.name for column in table.primary_key.columns]
        its = [table.c[name] == bindparam(f"its_{name}") for name in self._key]
        led = [*its, table.c.owner == bindparam("by"), table.c.fence == bindparam("its_fence")]
        self._locked = select(table).where(*its).with_for_update()
        self._lease = (
            update(table)
            .where(*its)
            .values(
                owner=bindparam("by"), lease_until=bindparam("to"), fence=bindparam("new_fence")
            )
        )
        self._advance = (
            update(table).where(*led).values(cursor=bindparam("to"), exhausted=bindparam("read"))
        )
        self._release = update(table).where(*led).values(owner=None, lease_until=None)

    def lease(
        self,
        connection: Connection,
        database: Database,
        names: Sequence[Name],
        owner: str,
        ttl_s: float,
    ) -> Iterator[tuple[Row[Any], int]]:
        """Become or stay the leader; yield the rows as they were, and their fences from now on.

        Rows that another process leads, or that do not exist, are left out.
        """
        for name in sorted(names):  # in one order, so that two processes do not wait for each other
            row = connection.execute(self._locked, self._its(name)).one_or_none()
            if row is None:
                continue
            now = database.now(connection)
            if row.owner not in (None, owner) and row.lease_until > now:
                continue
            fence = row.fence if row.owner == owner else row.fence + 1
            connection.execute(
                self._lease, self._its(name) | {"by": owner, "to": now + ttl_s, "new_fence": fence}
            )
            yield row, fence

    def renew(self, connection: Connection, database: Database, owner: str, ttl_s: float) -> None:
        """Stay the leader of what ``owner`` leads in jobs that run or are cancelled."""
        now, columns = database.clock(), self._table.c
        of_live = select(jobs.c.job_id).where(
            jobs.c.state.in_((JobState.RUNNING, JobState.CANCELLING))
        )
        connection.execute(
            update(self._table)
            .where(columns.job_id.in_(of_live))
            .where(columns.owner == owner, columns.lease_until > now)
            .values(lease_until=now + ttl_s)
        )

    def release(self, connection: Connection, name: Name, owner: str, fence: int) -> None:
        """Release a feed. Nothing happens when ``owner`` no longer leads it."""
        connection.execute(self._release, self._its(name) | {"by": owner, "its_fence": fence})

    def advance(self, connection: Connection, name: Name, to: Moved) -> bool:
        """Move the cursor; False when another process leads it, or it was rewound."""
        values = {"by": to.owner, "its_fence": to.fence, "to": to.cursor, "read": to.exhausted}
        return connection.execute(self._advance, self._its(name) | values).rowcount == 1

    def rewind(self, connection: Connection, job_id: str, cursor: Any) -> None:
        """Start all rows of a job at ``cursor`` again (a text or a column).

        Their leaders must lease them anew."""
        columns = self._table.c
        back = {
            "exhausted": False,
            "owner": None,
            "lease_until": None,
            "fence": columns.fence + 1,
            "cursor": cursor,
        }
        connection.execute(update(self._table).where(columns.job_id == job_id).values(back))

    def _its(self, name: Name) -> dict[str, Any]:
        return {f"its_{column}": value for column, value in zip(self._key, name, strict=True)}


_FEEDS: Final = Leases(feeds)
_SHARDS: Final = Leases(shards)

# Built once: putting a statement together costs more than what the database does with it.
_OF_JOB: Final = (
    select(feeds).where(feeds.c.job_id == bindparam("job")).order_by(feeds.c.generation)
)
_SHARDS_OF_JOB: Final = (
    select(shards)
    .where(shards.c.job_id == bindparam("job"))
    .order_by(shards.c.generation, shards.c.shard)
)
_LED: Final = exists().where(feeds.c.job_id == bindparam("job"))
_THE_FEED: Final = (feeds.c.job_id == bindparam("job"), feeds.c.generation == bindparam("nth"))
_LOCK_FEED: Final = select(feeds.c.fence).where(*_THE_FEED).with_for_update()
_END_FEED: Final = update(feeds).where(*_THE_FEED).values(exhausted=True)
_UNREAD: Final = select(
    exists().where(
        shards.c.job_id == bindparam("job"),
        shards.c.generation == bindparam("nth"),
        ~shards.c.exhausted,
    )
)


class FeedStore:
    """Leases and cursors. ``JobStore`` is one of these."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def feeds(self, job_id: str) -> list[Feed]:
        """Return all feeds of a job, oldest generation first."""
        of_job = {"job": job_id}
        return [feed_of(row) for row in self._db.rows(_OF_JOB, of_job)]

    def shards(self, job_id: str) -> list[tuple[Feed, str | None]]:
        """Return the shards of its source, in the source's order, and who reads each or did last.

        It is None where it is not split."""

        def read(connection: Connection) -> list[tuple[Feed, str | None]]:
            return [
                (shard_of(row), row.owner)
                for row in connection.execute(_SHARDS_OF_JOB, {"job": job_id})
            ]

        return self._db.read(read)

    def is_led(self, job_id: str) -> bool:
        """Return whether a control process leads a feed of the job now."""

        def read(connection: Connection) -> bool:
            led = _LED.where(feeds.c.lease_until > self._db.now(connection))
            return bool(connection.execute(select(led), {"job": job_id}).scalar_one())

        return self._db.read(read)

    def left(self, job_ids: Sequence[str]) -> set[str]:
        """Return those jobs that a control process has led, and that none leads now."""

        def read(connection: Connection) -> set[str]:
            latest = func.max(func.coalesce(feeds.c.lease_until, 0.0))
            query = (
                select(feeds.c.job_id)
                .where(feeds.c.job_id.in_(job_ids))
                .group_by(feeds.c.job_id)
                .having(func.max(feeds.c.fence) > 0, latest <= self._db.now(connection))
            )
            return set(connection.execute(query).scalars())

        return self._db.read(read) if job_ids else set()

    def lease_feed(self, job_id: str, generation: int, owner: str, ttl_s: float) -> Feed | None:
        """Do ``lease_feeds`` with one feed.

        It is None when another process leads it, or there is no such feed."""
        return next(iter(self.lease_feeds([(job_id, generation)], owner, ttl_s)), None)

    def lease_feeds(self, names: Sequence[tuple[str, int]], owner: str, ttl_s: float) -> list[Feed]:
        """Become or stay the leader for ``ttl_s`` seconds, in one transaction.

        Returns the feeds that ``owner`` leads now.

        ``names`` are jobs and generations; feeds that another process leads, or that do not exist,
        are left out.
        """

        def lease(connection: Connection) -> list[Feed]:
            leased = _FEEDS.lease(connection, self._db, names, owner, ttl_s)
            return [feed_of(row, fence=fence) for row, fence in leased]

        return self._db.write(lease) if names else []

    def lease_shards(
        self, names: Sequence[tuple[str, int, int]], owner: str, ttl_s: float
    ) -> list[Feed]:
        """Do as ``lease_feeds`` for shards, by job, generation and number."""

        def lease(connection: Connection) -> list[Feed]:
            leased = _SHARDS.lease(connection, self._db, names, owner, ttl_s)
            return [shard_of(row, fence=fence) for row, fence in leased]

        return self._db.write(lease) if names else []

    def renew_feeds(self, owner: str, ttl_s: float, *, shards: bool = True) -> None:
        """Keep the lead of ``owner`` in jobs that run or are cancelled, for ``ttl_s`` seconds.

        ``shards``: False for one that leads none, which saves a statement.
        """

        def renew(connection: Connection) -> None:
            for leases in (_FEEDS, _SHARDS) if shards else (_FEEDS,):
                leases.renew(connection, self._db, owner, ttl_s)

        self._db.write(renew)

    def release_feed(self, feed: Feed, owner: str) -> None:
        """Let the next leader start at once. Nothing happens when ``owner`` no longer leads it."""
        leases, name = _named(feed)
        self._db.write(lambda connection: leases.release(connection, name, owner, feed.fence))

    def advance_feed(
        self,
        feed: Feed,
        owner: str,
        *,
        cursor: dict[str, Any],
        exhausted: bool,
        also: Callable[[Connection], None] | None = None,
    ) -> None:
        """Make the reading position durable.

        Raises FeedLost when another feeder took over, or the feed was rewound.

        ``also`` writes what belongs to it, in the same transaction.
        """
        leases, name = _named(feed)
        to = Moved(owner, feed.fence, json_text(cursor), exhausted)

        def advance(connection: Connection) -> bool:
            ends_feed = exhausted and feed.shard > 0
            its_feed = {"job": feed.job_id, "nth": feed.generation}
            if ends_feed:
                # of two shards that end at once, the second sees both
                connection.execute(_LOCK_FEED, its_feed)
            if not leases.advance(connection, name, to):
                return False
            if also is not None:
                also(connection)
            if ends_feed and not connection.execute(_UNREAD, its_feed).scalar_one():
                connection.execute(_END_FEED, its_feed)
            return True

        if not self._db.write(advance):
            raise FeedLost(feed.job_id, feed.generation, feed.fence)

    def rewind_feeds(self, job_id: str, *, generation: int | None = None) -> bool:
        """Read everything of the job again from the start; return whether it will be.

        ``generation``: only while this is the newest one of a job that has not ended. The leader of
        a feed must lease it anew."""
        unfed = update(spool).where(spool.c.job_id == job_id, spool.c.fed)
        is_live = jobs.c.state.not_in([state for state in JobState if state.final])
        newest = select(jobs.c.generation).where(jobs.c.job_id == job_id, is_live)

        def rewind(connection: Connection) -> bool:
            if generation not in (None, connection.execute(newest.with_for_update()).scalar()):
                return False
            _FEEDS.rewind(connection, job_id, "{}")
            _SHARDS.rewind(connection, job_id, shards.c.starts_at)
            connection.execute(unfed.values(fed=False))
            return True

        return self._db.write(rewind)


def add_feed(
    connection: Connection,
    job_id: str,
    generation: int,
    kind: FeedKind,
    *,
    selection: dict[str, Any] | None = None,
    overrides: dict[str, Any] | None = None,
    parts: Sequence[Shard] = (),
) -> Feed:
    """Insert a feed at its start, as part of a larger transaction.

    ``parts``: those of its source, where it is split."""
    chosen = {SHARDS: len(parts)} if parts else selection or {}
    feed = Feed(job_id, generation, kind, {}, False, 0, chosen, overrides or {})
    connection.execute(
        insert(feeds).values(
            job_id=job_id,
            generation=generation,
            kind=str(kind),
            cursor="{}",
            exhausted=False,
            fence=0,
            selection=json_text(feed.selection),
            overrides=json_text(feed.overrides),
        )
    )
    rows = [
        {
            "job_id": job_id,
            "generation": generation,
            "shard": number,
            "starts_at": json_text(part.starts_at),
            "ends_at": None if part.ends_at is None else json_text(part.ends_at),
            "cursor": json_text(part.starts_at),
            "exhausted": False,
            "fence": 0,
        }
        for number, part in enumerate(parts, start=1)
    ]
    if rows:
        connection.execute(insert(shards), rows)
    return feed


def _named(feed: Feed) -> tuple[Leases, Name]:
    name = (feed.job_id, feed.generation)
    return (_SHARDS, (*name, feed.shard)) if feed.shard else (_FEEDS, name)


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


def shard_of(row: Row[Any], *, fence: int | None = None) -> Feed:
    """Return a shard as a feed.

    Only sources are split: a replay's documents are few, and an open job's come one after the
    other."""
    return Feed(
        job_id=row.job_id,
        generation=row.generation,
        kind=FeedKind.SOURCE,
        cursor=orjson.loads(row.cursor),
        exhausted=bool(row.exhausted),
        fence=row.fence if fence is None else fence,
        shard=row.shard,
        ends_at=None if row.ends_at is None else orjson.loads(row.ends_at),
    )
