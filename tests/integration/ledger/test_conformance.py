"""What the SQL stores promise, on SQLite and on a real PostgreSQL alike."""

from __future__ import annotations

import random
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from sqlalchemy import Connection, event, insert, select, update
from sqlalchemy.exc import OperationalError

from penstock_ledger import (
    Counts,
    Database,
    DeadLetter,
    FeedKind,
    FeedLost,
    ItemKey,
    Job,
    JobClosed,
    JobConflict,
    JobNotFound,
    JobNotReplayable,
    JobState,
    JobStore,
    LaneCounts,
    LiveJobs,
    MadeWith,
    Meta,
    NewJob,
    NothingToReplay,
    OutcomeStore,
    Paid,
    PaidBeside,
    Provenance,
    Result,
    Spool,
    SpoolConflict,
    TenantCosts,
    Vectors,
    made_by,
    month_of,
    open_database,
    purge_job,
)
from penstock_ledger.reasons import by_hand
from penstock_ledger.sql.database import WRITE_ATTEMPTS
from penstock_ledger.sql.tables import meta, paid_beside
from penstock_ledger.sql.tables import outcomes as outcome_rows
from penstock_ledger.vectors import pack


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/ledger.db"
    url: str = request.getfixturevalue("migrated_url")
    return url


@pytest.fixture
def db(database_url: str) -> Iterator[Database]:
    database = open_database(database_url, pool_size=8)
    database.migrate()
    yield database
    database.close()


@pytest.fixture
def jobs(db: Database) -> JobStore:
    return JobStore(db)


@pytest.fixture
def outcomes(db: Database) -> OutcomeStore:
    return OutcomeStore(db)


def new_job(job_id: str = "job-a", *, key: str | None = None, **changes: Any) -> NewJob:
    job = NewJob(
        job_id, key or job_id, {"lane": "api"}, {"kind": "file", "uri": "x"}, "digest-1", total=10
    )
    return replace(job, **changes)


def key(doc: str, generation: int = 1, job_id: str = "job-a") -> ItemKey:
    return ItemKey(job_id, generation, doc)


def result(doc: str, generation: int = 1, **changes: Any) -> Result:
    made = Result(
        key(doc, generation), 200, b'{"n": "\xc3\xa9"}', "req_1", "m", "stop", 10, 20, 5, 100, 1, 1
    )
    return structs.replace(made, **changes)


def letter(doc: str, reason: str = "http_400", generation: int = 1, **changes: Any) -> DeadLetter:
    made = DeadLetter(
        key(doc, generation), reason, 4, 4, "no", 400, b'{"q": 1}', b'{"error": 1}', prompt_tokens=3
    )
    return replace(made, **changes)


def docs(found: Any) -> list[str]:
    return [one.key.doc_id for one in found]


# -- jobs ------------------------------------------------------------------------------------------


def test_a_job_is_accepted_with_its_feed_and_its_refused_rows(
    db: Database, jobs: JobStore, outcomes: OutcomeStore
) -> None:
    """Once create returns, everything that the job needs to run and to be complete is there."""
    refused = [letter(f"bad-{n}", "invalid_json_line", request=b"", line=n) for n in range(1_200)]
    job, created = jobs.create(new_job(total=None), refused)
    assert created
    assert job == jobs.get("job-a") == jobs.get(job.job_key)
    assert (job.state, job.generation, job.spec, job.total) == (
        JobState.RUNNING,
        1,
        {"lane": "api"},
        None,
    )
    assert [(feed.generation, feed.kind, feed.cursor) for feed in jobs.feeds("job-a")] == [
        (1, FeedKind.SOURCE, {})
    ]
    assert outcomes.counts("job-a").dead_by_reason == {"invalid_json_line": 1_200}
    stored = outcomes.get("job-a", "bad-7")
    assert isinstance(stored, DeadLetter)
    assert stored.line == 7


def test_the_same_submit_returns_the_same_job(
    db: Database, jobs: JobStore, outcomes: OutcomeStore
) -> None:
    """A repeated submit finds the first job and leaves no trace of its own."""
    first, _ = jobs.create(new_job("job-a", key="nightly"))
    again, created = jobs.create(new_job("job-b", key="nightly"), [letter("bad")])
    assert (again, created) == (first, False)
    assert len(jobs.list()) == 1
    assert outcomes.counts("job-a").dead == outcomes.counts("job-b").dead == 0


def test_a_key_with_another_body_is_refused(jobs: JobStore) -> None:
    """A job key never silently means another spec or source; the error names the job that has
    it."""
    jobs.create(new_job("job-a", key="nightly"))
    with pytest.raises(JobConflict, match="job-a"):
        jobs.create(new_job("job-b", key="nightly", digest="digest-2"))


def test_racing_submits_make_one_job(jobs: JobStore) -> None:
    """Of many submits with one key at the same moment, one creates the job and all get it."""
    with ThreadPoolExecutor(8) as pool:
        answers = list(
            pool.map(lambda n: jobs.create(new_job(f"job-{n}", key="nightly")), range(8))
        )
    assert sum(created for _, created in answers) == 1
    assert len({job.job_id for job, _ in answers}) == 1


def test_unknown_jobs_are_named(jobs: JobStore) -> None:
    """Asking for a job that is not there says which name was asked for."""
    with pytest.raises(JobNotFound, match="nightly"):
        jobs.get("nightly")


def test_states_move_only_from_where_they_are_expected(jobs: JobStore) -> None:
    """A state change is a compare-and-set: the second of two that expect the same state fails."""
    jobs.create(new_job())
    assert jobs.set_state(
        "job-a", JobState.PAUSED, why=by_hand("no money"), expect={JobState.RUNNING}
    )
    assert not jobs.set_state("job-a", JobState.PAUSED, expect={JobState.RUNNING})
    assert jobs.get("job-a").reason == "no money"
    assert jobs.set_state("job-a", JobState.CANCELLED, expect=[JobState.PAUSED])
    job = jobs.get("job-a")
    assert job.finished_at is not None
    assert job.finished_at >= job.created_at
    assert job.reason is None
    assert not jobs.set_state("job-x", JobState.PAUSED, expect={JobState.RUNNING})


def test_a_job_ends_in_the_generation_that_was_counted_only(jobs: JobStore) -> None:
    """Who names the generation that has ended does not end a job that was replayed meanwhile."""
    jobs.create(new_job())
    expect = {JobState.RUNNING}
    assert not jobs.set_state("job-a", JobState.COMPLETED, expect=expect, generation=2)
    assert jobs.set_state("job-a", JobState.COMPLETED, expect=expect, generation=1)


def test_lists_are_newest_first_and_live_ones_are_not_final(jobs: JobStore) -> None:
    """People see the newest job first; the control loop sees each job that is not over."""
    for n in range(5):
        jobs.create(new_job(f"job-{n}"))
    jobs.set_state("job-1", JobState.COMPLETED, expect={JobState.RUNNING})
    jobs.set_state("job-2", JobState.PAUSED, expect={JobState.RUNNING})
    jobs.set_state("job-3", JobState.CANCELLING, expect={JobState.RUNNING})
    assert [job.job_id for job in jobs.list(limit=3)] == ["job-4", "job-3", "job-2"]
    assert [job.job_id for job in jobs.list(states=[JobState.COMPLETED])] == ["job-1"]


def test_a_control_loop_sees_live_jobs_with_the_leases_of_their_feeds(db: Database) -> None:
    """Each job that is not over, oldest first, with its feeds, their owners and how long each still
    leads."""
    jobs, live = JobStore(db), LiveJobs(db)
    assert live.look() == []
    for n in range(4):
        jobs.create(new_job(f"job-{n}"))
    jobs.set_state("job-1", JobState.COMPLETED, expect={JobState.RUNNING})
    jobs.set_state("job-2", JobState.PAUSED, expect={JobState.RUNNING})
    jobs.set_state("job-3", JobState.CANCELLING, expect={JobState.RUNNING})
    leased = jobs.lease_feed("job-0", 1, "one", 60)
    seen = live.look()
    assert [job.job_id for job, _ in seen] == ["job-0", "job-2", "job-3"]
    (feed,) = seen[0].feeds
    assert feed.feed == leased
    assert feed.led_by("one")
    assert not feed.led_by("two")
    assert not feed.free
    assert 50 < feed.lease_s <= 60
    assert all(feed.free and not feed.led_by("one") for _, feeds in seen[1:] for feed in feeds)


def test_a_job_is_parsed_again_only_when_it_changed(db: Database) -> None:
    """What was read before is returned as it is; a change of state, of a cursor or by a rewind is
    seen at once."""
    jobs, live = JobStore(db), LiveJobs(db)
    jobs.create(new_job())
    (first,) = live.look()
    leased = jobs.lease_feed("job-a", 1, "one", 60)
    assert leased is not None
    jobs.renew_feeds("one", 60)
    (second,) = live.look()
    assert second.job is first.job
    jobs.advance_feed(leased, "one", cursor={"offset": 7}, exhausted=True)
    jobs.set_state("job-a", JobState.PAUSED, why=by_hand("why"), expect={JobState.RUNNING})
    (third,) = live.look()
    assert (third.job.state, third.job.reason) == (JobState.PAUSED, "why")
    assert (third.feeds[0].feed.cursor, third.feeds[0].feed.exhausted) == ({"offset": 7}, True)
    jobs.rewind_feeds("job-a")
    (fourth,) = live.look()
    assert fourth.feeds[0].free
    assert fourth.feeds[0].feed.fence == leased.fence + 1


def test_leases_are_renewed_together_and_only_their_owners(db: Database) -> None:
    """One call prolongs all that a process leads; what others lead, what ran out and what is paused
    stays as it is."""
    jobs, live = JobStore(db), LiveJobs(db)
    for name, owner, ttl_s in (
        ("a", "one", 5),
        ("b", "one", 5),
        ("c", "two", 5),
        ("d", "one", 0),
        ("e", "one", 5),
    ):
        jobs.create(new_job(f"job-{name}"))
        assert jobs.lease_feed(f"job-{name}", 1, owner, ttl_s) is not None
    jobs.set_state("job-e", JobState.PAUSED, expect={JobState.RUNNING})
    jobs.renew_feeds("one", 60)
    assert [round(feeds[0].lease_s / 60) for _, feeds in live.look()] == [1, 1, 0, 0, 0]


# -- feeds -----------------------------------------------------------------------------------------


def test_one_feeder_leads_until_its_lease_ends_or_is_released(jobs: JobStore) -> None:
    """A second feeder gets the feed only after the first let it go; the fence tells them apart."""
    jobs.create(new_job())
    first = jobs.lease_feed("job-a", 1, "one", 60)
    assert first is not None
    assert jobs.lease_feed("job-a", 1, "two", 60) is None
    assert jobs.lease_feed("job-a", 1, "one", 60) == first
    jobs.release_feed(first, "one")
    second = jobs.lease_feed("job-a", 1, "two", 60)
    assert second is not None
    assert second.fence > first.fence
    assert jobs.lease_feed("job-a", 9, "two", 60) is None


def test_many_feeds_are_leased_at_once_and_those_of_others_are_left_out(jobs: JobStore) -> None:
    """One call takes what is free or led already; what another process leads, or does not exist, is
    not returned."""
    for name in ("a", "b", "c"):
        jobs.create(new_job(f"job-{name}"))
    mine = jobs.lease_feed("job-a", 1, "one", 60)
    assert jobs.lease_feed("job-b", 1, "two", 60) is not None
    leased = jobs.lease_feeds([(f"job-{name}", 1) for name in ("c", "b", "a", "x")], "one", 60)
    assert [feed.job_id for feed in leased] == ["job-a", "job-c"]
    assert leased[0] == mine
    assert jobs.lease_feeds([], "one", 60) == []
    jobs.advance_feed(leased[1], "one", cursor={"offset": 1}, exhausted=False)


def test_an_expired_feeder_cannot_move_its_successors_cursor(jobs: JobStore) -> None:
    """A feeder that was frozen past its lease gets FeedLost and changes nothing."""
    jobs.create(new_job())
    frozen = jobs.lease_feed("job-a", 1, "one", 0.0)
    assert frozen is not None
    # late, but no other feeder took over
    jobs.advance_feed(frozen, "one", cursor={"offset": 1}, exhausted=False)
    second = jobs.lease_feed("job-a", 1, "two", 60)
    assert second is not None
    assert second.cursor == {"offset": 1}
    with pytest.raises(FeedLost):
        jobs.advance_feed(frozen, "one", cursor={"offset": 2}, exhausted=True)
    jobs.release_feed(frozen, "one")
    assert jobs.lease_feed("job-a", 1, "one", 60) is None
    jobs.advance_feed(second, "two", cursor={"offset": 3}, exhausted=True)
    assert [(feed.cursor, feed.exhausted) for feed in jobs.feeds("job-a")] == [
        ({"offset": 3}, True)
    ]


def test_a_rewind_stops_the_feeder_that_is_at_work(jobs: JobStore) -> None:
    """After a rewind the cursor is at the start, and a step that began before cannot move it past
    unfed documents."""
    jobs.create(new_job())
    feed = jobs.lease_feed("job-a", 1, "one", 60)
    assert feed is not None
    jobs.advance_feed(feed, "one", cursor={"offset": 5}, exhausted=True)
    jobs.rewind_feeds("job-a")
    with pytest.raises(FeedLost):
        jobs.advance_feed(feed, "one", cursor={"offset": 6}, exhausted=True)
    again = jobs.lease_feed("job-a", 1, "one", 60)
    assert again is not None
    assert (again.cursor, again.exhausted) == ({}, False)


# -- outcomes --------------------------------------------------------------------------------------


def test_outcomes_come_back_as_they_went_in(jobs: JobStore, outcomes: OutcomeStore) -> None:
    """Every field of a result and of a dead letter survives the store, absent ones included."""
    jobs.create(new_job())
    sparse = Result(key("sparse"), 200, b"", None, None, None, None, None, 0, 0, 1, 1)
    whole = result(
        "whole é ✓ \\ \" ' {},NULL", body=bytes(range(256)), model='a"b\\c', attempts=3, calls=5
    )
    dead = letter(
        "dead",
        last_error='line\n"quoted" \\ {curly}, NULL',
        response=None,
        status_code=None,
        cost_microusd=7,
    )
    assert outcomes.settle([sparse, whole], [dead]) == set()
    assert outcomes.get("job-a", sparse.key.doc_id) == sparse
    assert outcomes.get("job-a", whole.key.doc_id) == whole
    stored = outcomes.get("job-a", "dead")
    assert isinstance(stored, DeadLetter)
    assert stored.created_at is not None
    assert replace(stored, created_at=None) == dead
    assert outcomes.get("job-a", "never seen") is None


def test_vectors_are_kept_as_numbers_and_read_as_json(
    db: Database, jobs: JobStore, outcomes: OutcomeStore
) -> None:
    """Beside bodies that are JSON, as all were in earlier releases: readers get JSON of both, or
    the numbers."""
    jobs.create(new_job())
    numbers = Vectors(bytes([0, 0, 128, 63, 0, 0, 0, 191]), "float32", 2, "float", "mini", 3)
    packed, plain = result("a", body=pack(numbers)), result("b")
    assert outcomes.settle([packed, plain], []) == set()
    read, same = outcomes.results("job-a")
    assert read.json()["data"][0]["embedding"] == [1.0, -0.5]
    assert outcomes.get("job-a", "a") == read
    assert same == plain
    assert list(outcomes.vectors("job-a")) == [(packed.key, numbers)]
    with db.engine.connect() as connection:
        stored = connection.execute(
            select(outcome_rows.c.body).where(outcome_rows.c.doc_id == "a")
        ).scalar_one()
    assert bytes(stored).endswith(numbers.data)


def test_unstorable_text_of_a_provider_does_not_block_its_outcome(
    jobs: JobStore, outcomes: OutcomeStore
) -> None:
    """NUL characters and lone surrogates in an error message are replaced, never an error."""
    jobs.create(new_job())
    outcomes.settle([], [letter("odd", last_error="a\0b\ud800c")])
    stored = outcomes.get("job-a", "odd")
    assert isinstance(stored, DeadLetter)
    assert stored.last_error == "a\N{REPLACEMENT CHARACTER}b\N{REPLACEMENT CHARACTER}c"


def test_the_first_writer_wins_and_the_losers_are_named(
    jobs: JobStore, outcomes: OutcomeStore
) -> None:
    """A second outcome for a key changes nothing, whatever its kind, and the others of its batch
    are stored."""
    jobs.create(new_job())
    assert outcomes.settle([result("a")], [letter("b")]) == set()
    losers = outcomes.settle(
        [result("b", model="late"), result("c")], [letter("a", "late"), letter("d")]
    )
    assert losers == {key("a"), key("b")}
    assert outcomes.get("job-a", "a") == result("a")
    assert isinstance(outcomes.get("job-a", "b"), DeadLetter)
    assert outcomes.settle([result(doc) for doc in "abcd"], []) == {key(doc) for doc in "abcd"}
    assert outcomes.counts("job-a").succeeded == outcomes.counts("job-a").dead == 2


def test_losers_are_named_whatever_the_size_of_the_group(
    jobs: JobStore, outcomes: OutcomeStore
) -> None:
    """A group goes into the table in statements of some rows each; where they are cut does not
    matter."""
    jobs.create(new_job())
    taken = [f"{n:03}" for n in range(0, 87, 10)]
    outcomes.settle([result(doc, model="first") for doc in taken], [])
    every = [f"{n:03}" for n in range(87)]
    assert outcomes.settle([result(doc) for doc in every], []) == {key(doc) for doc in taken}
    found = {one.key.doc_id: one.model for one in outcomes.results("job-a")}
    assert found == dict.fromkeys(every, "m") | dict.fromkeys(taken, "first")
    assert outcomes.counts("job-a") == outcomes.recount("job-a")


def test_one_key_twice_in_a_batch_has_one_outcome(jobs: JobStore, outcomes: OutcomeStore) -> None:
    """The first outcome in a call counts, and a result before a dead letter."""
    jobs.create(new_job())
    assert outcomes.settle([result("a"), result("a", model="second")], [letter("a")]) == set()
    assert outcomes.get("job-a", "a") == result("a")
    assert outcomes.counts("job-a") == outcomes.recount("job-a")
    assert outcomes.settle([], []) == set()


def test_terminal_knows_exactly_the_settled_keys(jobs: JobStore, outcomes: OutcomeStore) -> None:
    """Any number of keys of any jobs and generations can be asked for at once."""
    jobs.create(new_job())
    outcomes.settle([result(f"{n}") for n in range(1_100)], [letter("x", generation=2)])
    asked = [key(f"{n}") for n in range(1_000, 1_300)] + [
        key("x"),
        key("x", 2),
        key("1", job_id="job-b"),
    ]
    expected = {key(f"{n}") for n in range(1_000, 1_100)} | {key("x", 2)}
    assert outcomes.terminal(asked) == expected
    assert outcomes.terminal([]) == set()


def test_counts_are_sums_over_visible_outcomes(jobs: JobStore, outcomes: OutcomeStore) -> None:
    """The figures that decide completeness are those of the rows, by reason."""
    jobs.create(new_job())
    assert outcomes.counts("job-a") == Counts(0, 0, 0, {}, 0, 0, 0, 0)
    results = [result("a"), result("b", attempts=2, calls=3, prompt_tokens=None)]
    outcomes.settle(results, [letter("c"), letter("d", "timeout"), letter("e", "timeout")])
    spent = Paid(1 + 3 + 12, 10 + 9, 40, 10)
    expected = Counts(2, 1, 3, {"http_400": 1, "timeout": 2}, *spent[:4], visible=spent)
    assert outcomes.counts("job-a") == outcomes.recount("job-a") == expected


def test_sums_by_lane_are_those_of_the_lanes_that_answered(db: Database, jobs: JobStore) -> None:
    """A job that changes its lane has two; what is reused has no tokens of its own, and a replay
    takes its letters along."""
    jobs.create(new_job())
    api, batch = OutcomeStore(db, "api"), OutcomeStore(db, "batch")
    api.settle(
        [result("a"), result("b", reason="dedup", calls=0, cost_microusd=0)],
        [letter("c", cost_microusd=7)],
    )
    batch.settle([result("d"), result("a")], [letter("e")])
    OutcomeStore(db).settle([], [letter("refused", "invalid_json_line", calls=0)])
    assert api.by_lane("job-a") == [
        LaneCounts("api", 2, 1, 1 + 4, 10 + 3, 20, 5 + 7),
        LaneCounts("batch", 1, 1, 1 + 4, 10 + 3, 20, 5),
    ]
    assert api.counts("job-a").reused_tokens == {"dedup": (10, 20)}
    jobs.replay("job-a", doc_ids=["c"])
    assert api.by_lane("job-a")[0] == LaneCounts("api", 2, 0, 1 + 4, 10 + 3, 20, 5 + 7), (
        "what was spent stays"
    )
    jobs.replay("job-a", doc_ids=["e"])
    batch.settle([result("c", generation=2)], [])
    whole = api.by_lane("job-a")
    assert whole[1] == LaneCounts("batch", 2, 0, 2 + 4, 20 + 3, 40, 10)
    purge_job(db, "job-a")
    assert api.by_lane("job-a") == [one._replace(succeeded=0, dead=0) for one in whole]


def test_the_course_of_a_job_is_counted_by_stretches_of_time(
    db: Database, jobs: JobStore, outcomes: OutcomeStore
) -> None:
    """What ended when, and how long answers took, in numbers that do not grow with the job."""
    jobs.create(new_job())
    results = [result(str(number), latency_ms=number) for number in (7, 1_234, 23_456, 3_999_999)]
    outcomes.settle(
        [*results, result("reused", reason="cache"), result("unknown", latency_ms=0)], [letter("x")]
    )
    for number, doc in enumerate(("7", "1234", "x")):
        moved = (
            update(outcome_rows)
            .where(outcome_rows.c.doc_id == doc)
            .values(created_at=1000.0 + 25 * number)
        )
        with db.engine.begin() as connection:
            connection.execute(moved)
    assert outcomes.ended_in("job-a", 1000.0, 10)[:3] == [(0, 1, 0), (2, 1, 0), (5, 0, 1)]
    assert outcomes.latencies("job-a") == [(7, 1), (1_230, 1), (23_400, 1), (3_999_000, 1)]


def test_listings_are_complete_whatever_the_page(jobs: JobStore, outcomes: OutcomeStore) -> None:
    """Pages join without a gap or a repetition, in the order of generation and bytes of the
    document id."""
    jobs.create(new_job())
    names = sorted(["a", "B", "é", "z", "0", "~", "aa", "a b", "Ω"])
    outcomes.settle([result(doc) for doc in names], [letter(f"dead {doc}") for doc in names])
    for page in (1, 2, 3, len(names), 100):
        assert docs(outcomes.results("job-a", page)) == names
        assert docs(outcomes.dead_letters("job-a", page=page)) == [f"dead {doc}" for doc in names]
        pages = list(outcomes.terminal_docs("job-a", 1, page))
        assert all(len(rows) <= page for rows in pages)
        joined = [row for rows in pages for row in rows]
        assert joined == sorted(
            [(doc, False) for doc in names] + [(f"dead {doc}", True) for doc in names]
        )
    assert docs(outcomes.dead_letters("job-a", "timeout")) == []


def test_other_tools_read_two_views(db: Database, jobs: JobStore, outcomes: OutcomeStore) -> None:
    """`results` and `dead_letters` show each document's one visible state, and nothing twice."""
    jobs.create(new_job())
    outcomes.settle([result("a")], [letter("b"), letter("c")])
    jobs.replay("job-a", doc_ids=["c"])
    with db.engine.connect() as connection:
        seen = [
            connection.exec_driver_sql(f"SELECT doc_id FROM {view}").scalars().all()
            for view in ("results", "dead_letters")
        ]
    assert seen == [["a"], ["b"]]


# -- replays ---------------------------------------------------------------------------------------


def finished(jobs: JobStore) -> Job:
    jobs.set_state("job-a", JobState.COMPLETED, expect={JobState.RUNNING})
    return jobs.get("job-a")


def test_a_replay_is_a_new_generation_of_the_chosen_dead_letters(
    db: Database, jobs: JobStore, outcomes: OutcomeStore
) -> None:
    """Chosen dead letters stop being visible, become a feed, and end once more; others stay as they
    are."""
    jobs.create(new_job())
    outcomes.settle([result("a")], [letter("b"), letter("c", "timeout"), letter("d", "timeout")])
    finished(jobs)
    feed, replayed = jobs.replay("job-a", reason="timeout", overrides={"set": {"model": "big"}})
    assert (feed.generation, feed.kind, replayed, feed.overrides) == (
        2,
        FeedKind.REPLAY,
        2,
        {"set": {"model": "big"}},
    )
    assert jobs.feeds("job-a")[1] == feed
    job = jobs.get("job-a")
    assert (job.state, job.generation, job.finished_at) == (JobState.RUNNING, 2, None)
    assert outcomes.counts("job-a").dead_by_reason == {"http_400": 1}
    assert outcomes.get("job-a", "c") is None
    assert docs(outcomes.replayable("job-a", 2, page=1)) == ["c", "d"]
    assert docs(outcomes.replayable("job-a", 2, after="c")) == ["d"]
    assert docs(outcomes.dead_letters("job-a", include_superseded=True)) == ["b", "c", "d"]
    outcomes.settle([result("c", 2)], [letter("d", "timeout", 2)])
    assert outcomes.get("job-a", "c") == result("c", 2)
    assert docs(outcomes.results("job-a", 1)) == ["a", "c"]
    counts = outcomes.counts("job-a")
    assert counts == outcomes.recount("job-a")
    assert (counts.succeeded, counts.dead) == (2, 2)


def test_a_late_answer_of_an_old_generation_changes_nothing(
    jobs: JobStore, outcomes: OutcomeStore
) -> None:
    """A worker that was frozen before a replay cannot add a second visible state after it."""
    jobs.create(new_job())
    outcomes.settle([], [letter("a")])
    jobs.replay("job-a")
    assert outcomes.settle([result("a")], []) == {key("a")}
    assert outcomes.get("job-a", "a") is None
    assert outcomes.counts("job-a").succeeded == 0


def test_replays_that_cannot_be_are_refused_without_a_trace(
    jobs: JobStore, outcomes: OutcomeStore
) -> None:
    """Nothing matches, nothing can be sent, or the job is over for good: an error, and no new
    generation."""
    jobs.create(new_job())
    with pytest.raises(JobNotFound):
        jobs.replay("job-b")
    outcomes.settle([result("a")], [letter("unparsed", request=b""), letter("b")])
    choices: list[dict[str, Any]] = [
        {"reason": "timeout"},
        {"doc_ids": ["a", "unparsed"]},
        {"doc_ids": []},
    ]
    for choice in choices:
        with pytest.raises(NothingToReplay):
            jobs.replay("job-a", **choice)
    jobs.set_state("job-a", JobState.CANCELLED, expect={JobState.RUNNING})
    with pytest.raises(JobNotReplayable, match="cancelled"):
        jobs.replay("job-a")
    assert (
        jobs.get("job-a").generation,
        len(jobs.feeds("job-a")),
        outcomes.counts("job-a").dead,
    ) == (1, 1, 2)


def test_racing_replays_never_send_a_letter_twice(jobs: JobStore, outcomes: OutcomeStore) -> None:
    """Of two replays of the same dead letters one gets them, the other finds nothing."""
    jobs.create(new_job())
    outcomes.settle([], [letter(f"{n}") for n in range(50)])

    def replay(_: int) -> int:
        try:
            return jobs.replay("job-a")[1]
        except NothingToReplay:
            return 0

    with ThreadPoolExecutor(4) as pool:
        assert sorted(pool.map(replay, range(4))) == [0, 0, 0, 50]
    assert jobs.get("job-a").generation == 2


# -- races -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_racing_settlers_leave_exactly_one_state_per_key(
    jobs: JobStore, outcomes: OutcomeStore, seed: int
) -> None:
    """However many workers settle overlapping batches in whatever order, each key has one winner,
    and one only."""
    jobs.create(new_job())
    rng = random.Random(seed)
    names = [f"doc-{n}" for n in range(200)]
    batches = [rng.sample(names, 60) for _ in range(24)]
    won: list[ItemKey] = []
    lock = threading.Lock()

    def settle(number: int) -> None:
        batch = batches[number]
        results = [result(doc, model=f"writer-{number}") for doc in batch[:40]]
        letters = [letter(doc, f"writer-{number}") for doc in batch[40:]]
        losers = outcomes.settle(results, letters)
        with lock:
            won.extend({key(doc) for doc in batch} - losers)

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(settle, range(len(batches))))
    touched = {key(doc) for batch in batches for doc in batch}
    assert len(won) == len(set(won))
    assert set(won) == touched == outcomes.terminal(touched)
    assert outcomes.counts("job-a") == outcomes.recount("job-a")
    assert outcomes.counts("job-a").succeeded + outcomes.counts("job-a").dead == len(touched)


# -- spool, meta -----------------------------------------------------------------------------------


def test_a_pushed_document_is_kept_once_until_it_is_fed(db: Database, jobs: JobStore) -> None:
    """Pushing again is harmless, feeding marks rows, and a rewind brings them back."""
    jobs.create(new_job(total=None, feed_kind=FeedKind.SPOOL))
    spool = Spool(db)
    assert spool.append("job-a", [(f"d{n}", b"%d" % n) for n in range(1_100)]) == 1_100
    assert spool.append("job-a", [("d0", b"0"), ("new", b"x"), ("new", b"x")]) == 1
    assert spool.append("job-a", []) == 0
    assert spool.count("job-a") == 1_101
    first = spool.take("job-a", 1_050)
    assert len(first) == 1_050
    assert spool.fetch("job-a", first[3].seq) == first[3]
    spool.mark_fed("job-a", [row.seq for row in first])
    rest = spool.take("job-a", 1_000)
    assert {row.doc_id for row in first}.isdisjoint(row.doc_id for row in rest)
    assert len(rest) == 51
    jobs.rewind_feeds("job-a")
    assert len(spool.take("job-a", 2_000)) == 1_101
    assert spool.fetch("job-a", 10**9) is None


def test_a_document_with_another_body_is_refused_alone(db: Database, jobs: JobStore) -> None:
    """A conflicting push names the documents whose id is taken and stores all others, once (D2)."""
    jobs.create(new_job(total=None, feed_kind=FeedKind.SPOOL))
    spool = Spool(db)
    spool.append("job-a", [("a", b"1")])
    for batch, taken in (([("b", b"1"), ("a", b"2")], "a"), ([("c", b"1"), ("c", b"2")], "c")):
        with pytest.raises(SpoolConflict, match=f"'{taken}'") as caught:
            spool.append("job-a", batch)
        assert (caught.value.doc_ids, caught.value.stored) == ((taken,), 1)
    assert [(row.doc_id, row.body) for row in spool.take("job-a", 9)] == [
        ("a", b"1"),
        ("b", b"1"),
        ("c", b"1"),
    ]


def test_a_closed_job_counts_its_spool_and_takes_no_more(db: Database, jobs: JobStore) -> None:
    """The total of an open job is what was pushed before it closed: never one less, never one
    more."""
    jobs.create(new_job(total=None, feed_kind=FeedKind.SPOOL))
    spool = Spool(db)
    spool.append("job-a", [("a", b"1"), ("b", b"2")])
    assert jobs.close("job-a") == 2
    assert jobs.close("job-a", 2) == 2
    assert jobs.get("job-a").total == 2
    with pytest.raises(JobClosed):
        jobs.close("job-a", 3)
    with pytest.raises(JobClosed):
        spool.append("job-a", [("c", b"3")])
    with pytest.raises(JobNotFound):
        spool.append("job-x", [("c", b"3")])


def test_racing_pushes_and_a_close_agree_on_the_total(db: Database, jobs: JobStore) -> None:
    """A push that returned before or during the close is in the total; one that was refused is
    not."""
    jobs.create(new_job(total=None, feed_kind=FeedKind.SPOOL))
    spool = Spool(db)

    def push(number: int) -> int:
        try:
            return spool.append("job-a", [(f"{number}-{n}", b"") for n in range(20)])
        except JobClosed:
            return 0

    steps: list[Callable[[], int]] = [partial(push, number) for number in range(20)]
    steps.insert(8, lambda: jobs.close("job-a"))
    with ThreadPoolExecutor(6) as pool:
        answers = [future.result() for future in [pool.submit(step) for step in steps]]
    total = answers.pop(8)
    assert total == sum(answers) == spool.count("job-a") == jobs.get("job-a").total


def test_everyone_sees_one_epoch(db: Database) -> None:
    """Processes that ask for the epoch at the same moment get the same one."""
    with ThreadPoolExecutor(6) as pool:
        epochs = set(pool.map(lambda _: Meta(db).epoch(), range(6)))
    assert len(epochs) == 1
    assert epochs == {Meta(db).epoch()}


# -- transactions ----------------------------------------------------------------------------------


def test_large_bodies_and_large_batches_are_stored(jobs: JobStore, outcomes: OutcomeStore) -> None:
    """A batch with more rows or bytes than one statement takes is still one transaction."""
    jobs.create(new_job())
    big = [result(f"big-{n}", body=b"x" * 7_000_000) for n in range(3)]
    small = [result(f"{n}") for n in range(2_500)]
    assert outcomes.settle([*big, *small], []) == set()
    assert outcomes.settle([*big, *small, result("new")], []) == {one.key for one in (*big, *small)}
    assert outcomes.get("job-a", "big-2") == big[2]
    assert outcomes.counts("job-a").succeeded == 2_504


def test_transactions_that_deadlock_are_repeated(db: Database) -> None:
    """Two writers that take the same rows in opposite order both get through, without an error."""
    barrier = threading.Barrier(2, timeout=10)
    tries: list[str] = []
    rows = [{"name": name, "value": ""} for name in ("x", "y")]
    db.write(lambda connection: connection.execute(insert(meta), rows))

    def swap(order: tuple[str, str]) -> None:
        def work(connection: Connection) -> None:
            for name in order:
                connection.execute(
                    update(meta).where(meta.c.name == name).values(value=meta.c.value + order[0])
                )
                # SQLite has one writer: they cannot meet
                if name == order[0] and not db.is_sqlite and len(tries) < 2:
                    tries.append(name)
                    barrier.wait()

        db.write(work)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(swap, (("x", "y"), ("y", "x"))))
    with db.engine.connect() as connection:
        values = (
            connection.execute(select(meta.c.value).where(meta.c.name.in_(["x", "y"])))
            .scalars()
            .all()
        )
    assert [sorted(value) for value in values] == [["x", "y"], ["x", "y"]]


def test_a_transaction_that_never_gets_through_is_given_up(db: Database) -> None:
    """Repeating is bounded, only for conflicts, and nothing of a failed transaction stays."""
    attempts: list[str] = []

    def work(connection: Connection, code: int) -> None:
        connection.execute(insert(meta).values(name=f"left-{len(attempts)}", value=""))
        attempts.append("x")
        conflict = sqlite3.OperationalError("conflict")
        conflict.sqlite_errorcode = code
        raise OperationalError("statement", {}, conflict)

    for code, expected in ((sqlite3.SQLITE_BUSY, WRITE_ATTEMPTS), (sqlite3.SQLITE_FULL, 1)):
        attempts.clear()
        with pytest.raises(OperationalError):
            db.write(partial(work, code=code))
        assert len(attempts) == expected
    assert db.read(lambda connection: connection.execute(select(meta.c.name)).all()) == []


def test_nothing_is_written_into_the_outbox(
    db: Database, jobs: JobStore, outcomes: OutcomeStore
) -> None:
    """Accepting and replaying a job write no rows that no code acts on (C5)."""
    jobs.create(new_job())
    outcomes.settle([], [letter("a")])
    jobs.replay("job-a")
    with db.engine.connect() as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM outbox").scalar_one() == 0


# -- jobs that are no more -------------------------------------------------------------------------


def test_a_purged_job_gets_no_outcomes(
    db: Database, jobs: JobStore, outcomes: OutcomeStore
) -> None:
    """A worker that goes on after its job was cancelled and purged writes nothing of it, and the
    rest of its group (A16)."""
    jobs.create(new_job("job-a"))
    jobs.create(new_job("job-b"))
    outcomes.settle([result("early")], [])
    assert purge_job(db, "job-a") == 1
    late = [result("late"), result("kept", key=key("kept", job_id="job-b"))]
    losers = outcomes.settle(late, [letter("late too")])
    assert losers == {key("late"), key("late too")}
    assert list(outcomes.results("job-b")) == [late[1]]
    counts = outcomes.counts("job-a")
    assert outcomes.recount("job-a") == counts
    assert (counts.succeeded, counts.dead, counts.visible) == (0, 0, Paid())
    assert (counts.calls, counts.cost_microusd) == (1 + 1 + 4, 5 + 5), (
        "what late answers cost was paid, too"
    )


def test_what_late_attempts_of_a_purged_job_have_cost_is_in_its_account(
    db: Database, jobs: JobStore, outcomes: OutcomeStore
) -> None:
    """A worker thaws with a try that failed and was paid for, or one that its job's move has ended:
    no row of a job that no person can see or delete is left, and its tenant has spent the money."""
    jobs.create(new_job("job-a", spec={"tenant": "acme"}))
    purge_job(db, "job-a")
    paid = PaidBeside(key("late"), 1, 10, 5, 70)
    outcomes.settle([], [], retried=[("retried-1", paid)], left=[paid._replace(key=key("left"))])
    with db.engine.connect() as connection:
        assert connection.execute(select(paid_beside)).all() == []
    assert outcomes.counts("job-a").cost_microusd == 70 + 70
    assert TenantCosts(db).usd_of("acme", month_of(time.time())) == pytest.approx(140e-6)


def test_what_results_were_made_with_is_kept_once(db: Database, jobs: JobStore) -> None:
    """However often it is noted, each combination is one entry of its job and generation; a purge
    takes it along."""
    first = MadeWith(1, "api", "default", "1.0", "", 0.5, 1.5)
    second = MadeWith(2, "gpu", "", "1.1", "vllm 0.32.0", usd_per_hour=2.0)
    other = MadeWith(1, "api", "default", "1.0", "")
    # an underscore is no pattern, and some databases sort without dashes
    for name in ("job-a", "job_a", "job-ab", "jobab"):
        jobs.create(new_job(name), [])
    store = Provenance(db)
    store.note([])
    for _ in range(2):
        store.note(
            [
                ("job-a", second),
                ("job-a", first),
                *((name, other) for name in ("job_a", "job-ab", "jobab")),
            ]
        )
    assert store.of("job-a") == [first, second]
    assert all(one.last is not None and one.last >= one.since for one in store.in_use("job-a"))
    jobs.set_state("job-a", JobState.CANCELLED, why=None, expect={JobState.RUNNING})
    purge_job(db, "job-a")
    assert [store.of(name) for name in ("job-a", "job_a", "job-ab", "jobab")] == [
        [],
        [other],
        [other],
        [other],
    ]


def test_reads_of_a_block_are_one_transaction(db: Database, jobs: JobStore) -> None:
    """Inside `one_read`, also where blocks lie in one another, a thread's reads share a connection;
    after it they do not."""
    jobs.create(new_job("job-a"), [])
    seen = list[int]()

    def look(connection: Connection, *_: object) -> None:
        seen.append(id(connection))

    event.listen(db.engine, "before_cursor_execute", look)
    with db.one_read():
        first = db.read(id)
        with db.one_read():
            assert (jobs.get("job-a").job_id, db.read(id)) == ("job-a", first)
        assert db.read(id) == first
        with ThreadPoolExecutor(1) as other:
            assert other.submit(db.read, id).result() != first
    assert len(set(seen)) == 1
    with pytest.raises(JobNotFound), db.one_read():
        jobs.get("job-b")
    jobs.set_state("job-a", JobState.PAUSED, why=None, expect={JobState.RUNNING})
    assert jobs.get("job-a").state is JobState.PAUSED, "a block that failed leaves nothing behind"


def test_nothing_is_written_inside_a_block_of_reads(db: Database, jobs: JobStore) -> None:
    """It would wait for a connection that others in such blocks hold: said at once, and not when
    the pool is empty."""
    with db.one_read(), pytest.raises(AssertionError, match="second connection"):
        jobs.create(new_job("job-a"), [])


def test_entries_are_noted_in_one_order(db: Database, jobs: JobStore) -> None:
    """Of two workers that note the same combinations none waits for the other with what the other
    waits for."""
    jobs.create(new_job("job-a"), [])
    seen = list[list[str]]()

    def look(_c: object, _cursor: object, statement: str, given: Any, *_: object) -> None:
        if statement.startswith("INSERT INTO meta"):
            seen.append(
                [next(iter(row.values() if isinstance(row, dict) else row)) for row in given]
            )

    event.listen(db.engine, "before_cursor_execute", look)
    made = [("job-a", MadeWith(1, "api", f"p{number}", "1.0", "")) for number in range(8)]
    for order in (made, made[::-1]):
        Provenance(db).note(order)
    first, second = seen
    assert first == second == sorted(first)
    assert len(set(first)) == 16


def test_one_result_says_what_made_it(
    db: Database, jobs: JobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Among the combinations of its generation the model and the time choose; both are named where
    the fleet was changed then."""
    before, after = (
        MadeWith(1, "api", "default", release, "", 1.0, 1.0, model="small")
        for release in ("1.0", "1.1")
    )
    dear = MadeWith(1, "api", "dear", "1.0", "", 9.0, 9.0, model="big")
    old = MadeWith(2, "api", "default", "0.9", "")
    jobs.create(new_job("job-a"), [])
    store = Provenance(db)
    for now, made in (
        (1_000, before),
        (1_000, dear),
        (1_060, before),
        (1_120, after),
        (1_600, after),
        (2_000, old),
    ):
        monkeypatch.setattr("penstock_ledger.stores.provenance.time.time", float(now).__pos__)
        store.note([("job-a", made)])
    entries = store.in_use("job-a")
    assert made_by(entries, 1, "small", 1_030) == [before]
    assert made_by(entries, 1, "small", 1_118) == [before, after]
    assert made_by(entries, 1, "small", 1_500) == [after]
    assert made_by(entries, 1, "big", 1_030) == [dear]
    assert made_by(entries, 2, "any", 2_010) == [old]
    assert made_by(entries, 2, "any", 9_000) == [old], "the nearest that is known"
    assert made_by(entries, 3, "small", 1_030) == []
