"""Shards in the database: each with a cursor and a leader of its own, and a feed that ends with the
last of them."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from penstock_ledger import (
    Database,
    FeedLost,
    JobState,
    JobStore,
    LiveJobs,
    NewJob,
    open_database,
    purge_job,
)
from penstock_ledger.model import Feed, Shard

SHARDS = (
    Shard({}, {"offset": 10}),
    Shard({"offset": 10}, {"offset": 20}),
    Shard({"offset": 20}, None),
)


@pytest.fixture(params=["sqlite", "postgresql"])
def db(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    url = (
        f"sqlite:///{tmp_path}/ledger.db"
        if request.param == "sqlite"
        else request.getfixturevalue("migrated_url")
    )
    database = open_database(url)
    database.migrate()
    yield database
    database.close()


@pytest.fixture
def jobs(db: Database) -> JobStore:
    store = JobStore(db)
    store.create(
        NewJob("job-a", "job-a", {"lane": "api"}, {"kind": "file"}, "digest", 30, shards=SHARDS)
    )
    return store


def lease(jobs: JobStore, shard: int, owner: str = "one", ttl_s: float = 60) -> Feed:
    (leased,) = jobs.lease_shards([("job-a", 1, shard)], owner, ttl_s)
    return leased


def test_a_job_is_made_with_its_shards(db: Database, jobs: JobStore) -> None:
    """They are there once the job is, in the source's order, and a job that is accepted again gets
    no others."""
    feed, shards = jobs.feeds("job-a")[0], jobs.shards("job-a")
    assert (feed.shards, feed.shard, feed.exhausted) == (3, 0, False)
    assert [(shard.shard, shard.cursor, shard.ends_at, owner) for shard, owner in shards] == [
        (1, {}, {"offset": 10}, None),
        (2, {"offset": 10}, {"offset": 20}, None),
        (3, {"offset": 20}, None, None),
    ]
    again = NewJob(
        "job-b", "job-a", {"lane": "api"}, {"kind": "file"}, "digest", 30, shards=SHARDS[:2]
    )
    assert jobs.create(again)[0].job_id == "job-a"
    assert len(jobs.shards("job-a")) == 3
    jobs.create(NewJob("job-c", "job-c", {}, {}, "digest", 1))
    assert (jobs.feeds("job-c")[0].shards, jobs.shards("job-c")) == (0, [])


def test_each_shard_has_one_leader_and_moves_alone(jobs: JobStore) -> None:
    """Two processes lead two shards at once; one that was frozen moves neither its own nor
    another's cursor."""
    first, second = lease(jobs, 1, "one"), lease(jobs, 2, "two")
    assert jobs.lease_shards([("job-a", 1, 1), ("job-a", 1, 9)], "two", 60) == []
    assert jobs.lease_feed("job-a", 1, "two", 60) is not None, "the feed has a leader of its own"
    jobs.advance_feed(first, "one", cursor={"offset": 4}, exhausted=False)
    jobs.advance_feed(second, "two", cursor={"offset": 14}, exhausted=False)
    jobs.release_feed(second, "two")
    taken = lease(jobs, 2, "one")
    assert (taken.cursor, taken.ends_at, taken.fence) == (
        {"offset": 14},
        {"offset": 20},
        second.fence + 1,
    )
    with pytest.raises(FeedLost):
        jobs.advance_feed(second, "two", cursor={"offset": 15}, exhausted=True)
    assert [shard.cursor for shard, _ in jobs.shards("job-a")] == [
        {"offset": 4},
        {"offset": 14},
        {"offset": 20},
    ]
    assert jobs.feeds("job-a")[0].cursor == {}


def test_the_feed_ends_with_its_last_shard(jobs: JobStore) -> None:
    """In the same transaction: a leader that dies after it leaves a feed that everyone sees ended,
    and before it one to go on."""
    leased = [lease(jobs, number) for number in (1, 2, 3)]
    for shard in leased[::-1]:
        assert not jobs.feeds("job-a")[0].exhausted
        jobs.advance_feed(shard, "one", cursor={"offset": 30}, exhausted=True)
    assert jobs.feeds("job-a")[0].exhausted


def test_shards_that_end_at_the_same_moment_end_the_feed(db: Database, jobs: JobStore) -> None:
    """Whichever commits last sees the others: no feed stays open with all of it read."""
    for number in range(20):
        name = f"job-{number}"
        jobs.create(NewJob(name, name, {}, {}, "digest", 30, shards=SHARDS))
        leased = jobs.lease_shards([(name, 1, shard) for shard in (1, 2, 3)], "one", 60)
        with ThreadPoolExecutor(3) as threads:
            list(
                threads.map(
                    lambda shard: jobs.advance_feed(shard, "one", cursor={}, exhausted=True), leased
                )
            )
        assert jobs.feeds(name)[0].exhausted


def test_a_rewind_takes_all_shards_back_to_their_starts(jobs: JobStore) -> None:
    """Whatever was read is read again, each part by a leader that leases it anew."""
    leased = [lease(jobs, number) for number in (1, 2, 3)]
    for shard in leased:
        jobs.advance_feed(shard, "one", cursor={"offset": 30}, exhausted=True)
    jobs.rewind_feeds("job-a")
    assert [(shard.cursor, shard.exhausted) for shard, _ in jobs.shards("job-a")] == [
        ({}, False),
        ({"offset": 10}, False),
        ({"offset": 20}, False),
    ]
    assert not jobs.feeds("job-a")[0].exhausted
    for shard in leased:
        with pytest.raises(FeedLost):
            jobs.advance_feed(shard, "one", cursor={"offset": 30}, exhausted=True)
    assert not jobs.feeds("job-a")[0].exhausted


def test_a_look_shows_the_shards_that_are_still_read(db: Database, jobs: JobStore) -> None:
    """With who leads them; those at their end need no leader, and a job without shards costs no
    look at them."""
    look = LiveJobs(db).look
    jobs.create(NewJob("job-b", "job-b", {}, {}, "digest", 1))
    leased = lease(jobs, 2)
    (of_a, of_b) = look()
    assert [(shard.feed.shard, shard.free) for shard in of_a.feeds[0].shards] == [
        (1, True),
        (2, False),
        (3, True),
    ]
    assert of_a.feeds[0].shards[1].led_by("one")
    assert of_b.feeds[0].shards == ()
    jobs.advance_feed(leased, "one", cursor={"offset": 20}, exhausted=True)
    assert [shard.feed.shard for shard in look()[0].feeds[0].shards] == [1, 3]


def test_leases_of_shards_are_renewed_with_those_of_feeds(db: Database, jobs: JobStore) -> None:
    """One call prolongs all that a process leads in jobs that run."""
    lease(jobs, 1, "one", 5)
    lease(jobs, 2, "two", 5)
    jobs.renew_feeds("one", 60)
    (job,) = LiveJobs(db).look()
    assert [round(shard.lease_s / 60) for shard in job.feeds[0].shards] == [1, 0, 0]
    jobs.set_state("job-a", JobState.PAUSED, expect={JobState.RUNNING})
    jobs.renew_feeds("one", 600)
    (job,) = LiveJobs(db).look()
    assert job.feeds[0].shards[0].lease_s < 61


def test_a_purge_forgets_the_shards(db: Database, jobs: JobStore) -> None:
    """Nothing of a job stays."""
    jobs.set_state("job-a", JobState.CANCELLED, expect={JobState.RUNNING})
    purge_job(db, "job-a")
    assert jobs.shards("job-a") == []
