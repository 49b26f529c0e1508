"""What the journal of provider batches promises, on SQLite and on a real PostgreSQL alike."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from penstock_ledger import (
    BatchFailure,
    BatchLost,
    BatchState,
    BatchTrouble,
    Database,
    DeadLetter,
    EqualRequests,
    EqualRequestStore,
    FeedKind,
    FeedLost,
    ItemKey,
    JobState,
    JobStore,
    Missing,
    NewJob,
    NewProviderBatch,
    OutcomeStore,
    PaidBeside,
    ProviderBatchStore,
    Remainder,
    RemainderStore,
    SentRequest,
    Spool,
    open_database,
    purge_job,
)
from penstock_ledger.reasons import by_hand
from penstock_ledger.sql.tables import paid_beside, provider_batches, spending

ME, OTHER = "me", "another"
LEASE_S = 30.0


@pytest.fixture(params=["sqlite", "postgresql"])
def db(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    url = (
        f"sqlite:///{tmp_path}/ledger.db"
        if request.param == "sqlite"
        else request.getfixturevalue("migrated_url")
    )
    database = open_database(url)
    database.migrate()
    new = NewJob("job-a", "key", {"lane": "batch"}, {"kind": "file"}, "digest", 10, FeedKind.SOURCE)
    JobStore(database).create(new)
    yield database
    database.close()


@pytest.fixture
def batches(db: Database) -> ProviderBatchStore:
    return ProviderBatchStore(db)


def packed(tag: str = "t1", **changes: Any) -> NewProviderBatch:
    values: dict[str, Any] = {
        "tag": tag,
        "job_id": "job-a",
        "generation": 1,
        "provider": "p",
        "kind": "openai",
        "model": "m",
        "endpoint": "/v1/chat/completions",
        "cursor_before": {},
        "cursor_behind": {"offset": 9},
        "requests": 3,
        "size": 90,
        "tokens": 100,
        "may_cost_microusd": 0,
    }
    return NewProviderBatch(**values | changes)


def of_feed(
    db: Database, batches: ProviderBatchStore, *new: NewProviderBatch, owner: str = ME
) -> None:
    feed = JobStore(db).lease_feed("job-a", 1, owner, LEASE_S)
    assert feed is not None
    batches.add_of_feed(feed, owner, LEASE_S, new, cursor={"offset": 9}, exhausted=True)


def left(doc: str, attempts: int = 1) -> Remainder:
    return Remainder(ItemKey("job-a", 1, doc), f"at-{doc}", attempts, 1, 5, 6, 7, "batch_expired")


def dead(doc: str) -> DeadLetter:
    return DeadLetter(ItemKey("job-a", 1, doc), "bad_request", 1, 1, "no", 400, b"{}", None)


def test_a_batch_and_the_cursor_are_written_together(
    db: Database, batches: ProviderBatchStore
) -> None:
    """A process that leads the feed no more notes no batch, and moves no cursor."""
    jobs = JobStore(db)
    feed = jobs.lease_feed("job-a", 1, ME, LEASE_S)
    assert feed is not None
    jobs.release_feed(feed, ME)
    assert jobs.lease_feed("job-a", 1, OTHER, LEASE_S) is not None
    with pytest.raises(FeedLost):
        batches.add_of_feed(feed, ME, LEASE_S, [packed()], cursor={"offset": 9}, exhausted=True)
    assert batches.of_job("job-a") == []
    assert jobs.feeds("job-a")[0].cursor == {}


def test_one_process_leads_a_batch(db: Database, batches: ProviderBatchStore) -> None:
    """Others get it when it is released or its lease is over, and then the earlier leader writes
    nothing."""
    of_feed(db, batches, packed())
    assert batches.take(OTHER, LEASE_S, 10) == []
    (mine,) = batches.take(ME, LEASE_S, 10)
    assert batches.take(ME, LEASE_S, 10, besides=["t1"]) == []
    assert batches.step(mine, ME, state="uploaded", file_id="file-1")
    batches.release_all(ME)
    (theirs,) = batches.take(OTHER, LEASE_S, 10)
    assert (theirs.state, theirs.file_id) == (BatchState.UPLOADED, "file-1")
    assert (theirs.cursor_before, theirs.cursor_behind) == ({}, {"offset": 9})
    assert not batches.step(mine, ME, state="created")
    with pytest.raises(BatchLost):
        batches.begin_create(mine, ME, None)
    assert batches.step(theirs, OTHER, state="settled")
    assert (batches.open_of("job-a"), batches.take(ME, LEASE_S, 10)) == (0, [])


def test_a_lease_holds_until_its_time_is_over(db: Database, batches: ProviderBatchStore) -> None:
    """Its owner renews what it still leads; what it has lost by time, or another leads, stays as it
    is."""
    of_feed(db, batches, packed("t1"))
    batches.renew(ME, -1.0)
    batches.renew(ME, LEASE_S)
    assert [one.tag for one in batches.take(OTHER, LEASE_S, 10)] == ["t1"]
    batches.renew(ME, -1.0)
    assert batches.take("a third", LEASE_S, 10) == []
    batches.renew(OTHER, 2 * LEASE_S)
    ((until,),) = db.read(lambda c: c.execute(select(provider_batches.c.lease_until)).all())
    assert LEASE_S < until - db.read(db.now) <= 2 * LEASE_S


def test_batches_of_remainders_are_led_by_the_one_who_packed_them(
    db: Database, batches: ProviderBatchStore
) -> None:
    """From the start, as those of a feed are, and for as long as its lease says."""
    of_feed(db, batches, packed("t1"))
    batches.settle("t1", [], [], [left("a"), left("b")])
    keys = [left("a").key], [left("b").key]
    for tag, some, lease_s in (("t2", keys[0], LEASE_S), ("t3", keys[1], -1.0)):
        new = packed(tag, cursor_before=None, cursor_behind=None)
        assert batches.add_of_remainders(ME, lease_s, [(new, some)])
    (found,) = batches.take(OTHER, LEASE_S, 10)
    assert (found.tag, found.cursor_before, found.cursor_behind) == ("t3", None, None)


def test_a_feed_whose_documents_make_no_batch_moves_on(
    db: Database, batches: ProviderBatchStore
) -> None:
    """As where each of them is a dead letter already."""
    of_feed(db, batches)
    assert batches.of_job("job-a") == []
    assert JobStore(db).feeds("job-a")[0].cursor == {"offset": 9}


def test_what_a_batch_cost_of_documents_that_went_on_is_noted_once(
    db: Database, batches: ProviderBatchStore
) -> None:
    """However often its answers are read: beside the outcomes that another lane brought."""
    of_feed(db, batches, packed("t1"))
    for _ in range(2):
        batches.settle("t1", [], [], [], beside=[PaidBeside(left("a").key, 1, 5, 6, 7, 0)])
    rows = db.read(lambda c: c.execute(select(paid_beside)).all())
    assert [(row.doc_id, row.calls, row.cost_microusd) for row in rows] == [("a", 1, 7)]


def test_documents_of_an_open_job_wait_as_remainders_once_they_are_taken(db: Database) -> None:
    """In one step with the mark that they are fed, so that they are packed once."""
    new = NewJob("job-s", "k", {"lane": "batch"}, {"kind": "spool"}, "digest", None, FeedKind.SPOOL)
    jobs, spool = JobStore(db), Spool(db)
    jobs.create(new)
    spool.append("job-s", [("a", b"1"), ("b", b"2")])
    feed = jobs.lease_feed("job-s", 1, ME, LEASE_S)
    assert feed is not None
    first, _ = spool.take("job-s", 10)
    waiting = Remainder(ItemKey("job-s", 1, "a"), str(first.seq), 0, 0, 0, 0, 0, "")
    ProviderBatchStore(db).add_of_spool(feed, ME, [waiting], [first.seq], exhausted=False)
    assert [one.doc_id for one in spool.take("job-s", 10)] == ["b"]
    found = RemainderStore(db).unclaimed("job-s", 1)
    assert [one.key for one in found] == [waiting.key]


def handed_at(db: Database) -> dict[str, float | None]:
    query = select(provider_batches.c.tag, provider_batches.c.handed_at)
    return dict(db.read(lambda c: [tuple(row) for row in c.execute(query)]))


def test_a_batch_that_is_handed_over_leaves_its_documents_to_others(
    db: Database, batches: ProviderBatchStore
) -> None:
    """It alone: the time is noted once, and what it had as remainders waits again."""
    of_feed(db, batches, packed("t1"), packed("other"))
    batches.settle("t1", [], [], [left("a")])
    new = packed("t2", cursor_before=None, cursor_behind=None)
    assert batches.add_of_remainders(ME, LEASE_S, [(new, [left("a").key])])
    (batch,) = [one for one in batches.take(ME, LEASE_S, 10) if one.tag == "t2"]
    batches.hand_over(batch)
    handed = handed_at(db)
    batches.hand_over(batch)
    assert handed_at(db) == handed
    assert [tag for tag, at in handed.items() if at is not None] == ["t2"]
    found = RemainderStore(db).unclaimed("job-a", 1)
    assert [one.key for one in found] == [left("a").key]


def test_what_goes_on_in_another_lane_is_paid_beside_its_outcome(
    db: Database, batches: ProviderBatchStore
) -> None:
    """What batches had cost, once for each time that a document waited; what it waited for without
    cost leaves nothing."""
    of_feed(db, batches, packed("t1"))
    free = Remainder(ItemKey("job-a", 1, "free"), "at", 0, 0, 0, 0, 0, "")
    for cost in (7, 8):
        again = left("a")._replace(calls=cost, cost_microusd=cost)
        batches.settle("t1", [], [], [again, free])
        batches.passed_on([again.key, free.key])
    assert list(RemainderStore(db).unclaimed("job-a", 1)) == []
    rows = db.read(lambda c: c.execute(select(paid_beside).order_by("cost_microusd")).all())
    assert [
        (row.doc_id, row.calls, row.prompt_tokens, row.completion_tokens, row.cost_microusd)
        for row in rows
    ] == [("a", 0, 5, 6, 7), ("a", 0, 5, 6, 8)]


def test_remainders_with_an_outcome_elsewhere_are_forgotten(
    db: Database, batches: ProviderBatchStore
) -> None:
    """These and no others."""
    of_feed(db, batches, packed("t1"))
    batches.settle("t1", [], [], [left("a"), left("b")])
    batches.forget([left("a").key])
    assert [one.key for one in RemainderStore(db).unclaimed("job-a", 1)] == [left("b").key]


def test_tokens_of_an_account_are_reserved(db: Database, batches: ProviderBatchStore) -> None:
    """A batch is created where its tokens fit beside those that are at the provider; they are free
    again once it has ended."""
    of_feed(db, batches, packed("t1"), packed("t2"), packed("big", tokens=900, provider="q"))
    one, two, big = sorted(
        batches.take(ME, LEASE_S, 10), key=lambda batch: batch.tokens * 10 + (batch.tag == "t2")
    )
    for batch in (one, two, big):
        batches.step(batch, ME, state="uploaded")
    assert batches.begin_create(one, ME, 150)
    assert not batches.begin_create(two, ME, 150), "100 are held"
    assert batches.begin_create(big, ME, 150), "the only batch of its account"
    assert batches.begin_create(two, ME, 200), "all of it is not too much"
    batches.step(two, ME, creating_at=None)
    batches.step(one, ME, state="ended")
    assert batches.begin_create(two, ME, 150)


def test_what_batches_have_cost_and_may_cost_is_told(
    db: Database, batches: ProviderBatchStore
) -> None:
    """From this a lost Redis learns what a job's budget has to count: outcomes, remainders, and
    batches that may be created."""
    of_feed(db, batches, packed("t1", may_cost_microusd=60), packed("t2", may_cost_microusd=50))
    one, _ = sorted(batches.take(ME, LEASE_S, 10), key=lambda batch: batch.tag)
    assert batches.begin_create(one, ME, None)
    assert (batches.may_cost("job-a"), batches.tags_of("job-a")) == ({"t1": 60}, {"t1", "t2"})
    letter = DeadLetter(
        ItemKey("job-a", 1, "d1"), "bad_request", 1, 1, "", 400, b"", None, cost_microusd=40
    )
    left = Remainder(ItemKey("job-a", 1, "d2"), "2", 1, 1, 5, 5, 15, "batch_expired")
    batches.settle("t1", [], [letter], [left])
    assert batches.step(one, ME, state="settled")
    assert (batches.may_cost("job-a"), batches.tags_of("job-a")) == ({}, {"t2"})
    assert (batches.spent("job-a"), batches.spent("job-b")) == (55, 0)


def test_what_a_batch_leaves_goes_into_one_other(db: Database, batches: ProviderBatchStore) -> None:
    """A document waits once however often its answers are read, is claimed by one batch, and goes
    with its outcome."""
    remainders = RemainderStore(db)
    of_feed(db, batches, packed("t1"))
    batches.settle("t1", [], [dead("c")], [left("a"), left("b"), left("c")])
    batches.settle("t1", [], [], [left("a"), left("c")])
    (waiting,) = remainders.waiting(["job-a"])
    assert (waiting.generation, waiting.documents) == (1, 2)
    found = list(remainders.unclaimed("job-a", 1, page=1))
    assert [(one.key.doc_id, one.position, one.attempts) for one in found] == [
        ("a", "at-a", 1),
        ("b", "at-b", 1),
    ]
    keys = [one.key for one in found]
    second = packed("t2", cursor_before=None, cursor_behind=None)
    assert batches.add_of_remainders(ME, LEASE_S, [(second, keys)])
    assert not batches.add_of_remainders(OTHER, LEASE_S, [(packed("t3", cursor_behind=None), keys)])
    assert [batch.tag for batch in batches.of_job("job-a")] == ["t1", "t2"]
    assert remainders.elsewhere(keys, "t1") == set(keys)
    assert remainders.elsewhere(keys, "t2") == set()
    assert [one.key for one in remainders.of_batch("t2")] == keys
    batches.settle("t2", [], [dead("a")], [left("b", attempts=2)])
    batches.settle("t1", [], [], [left("a"), left("b", attempts=1)])
    assert [(one.key.doc_id, one.attempts) for one in remainders.unclaimed("job-a", 1)] == [
        ("b", 2)
    ]
    assert batches.is_busy("job-a")
    assert OutcomeStore(db).counts("job-a").dead == 2


def test_a_worker_takes_what_it_has_settings_of(db: Database, batches: ProviderBatchStore) -> None:
    """Others stay for other workers, and are shown as led by none."""
    of_feed(db, batches, packed("t1"), packed("t2", provider="q"))
    batches.release_all(ME)
    assert batches.take(ME, LEASE_S, 10, providers=[]) == []
    assert [batch.tag for batch in batches.take(ME, LEASE_S, 10, providers=["q", "r"])] == ["t2"]
    assert {one.provider: (one.batches, one.led) for one in batches.sums("job-a")} == {
        "p": (1, 0),
        "q": (1, 1),
    }


def test_ids_are_kept_as_long_as_their_batch_is_open(
    db: Database, batches: ProviderBatchStore
) -> None:
    """They go along to a batch that takes its place."""
    feed = JobStore(db).lease_feed("job-a", 1, ME, LEASE_S)
    assert feed is not None
    new, ids = [packed("t1"), packed("t2")], {"t1": b"\x00ids"}
    batches.add_of_feed(feed, ME, LEASE_S, new, cursor={"offset": 9}, exhausted=True, ids=ids)
    assert (batches.kept_ids("t1"), batches.kept_ids("t2")) == (b"\x00ids", None)
    (one,) = [batch for batch in batches.take(ME, LEASE_S, 10) if batch.tag == "t1"]
    fresh = batches.replace(one, ME, "t3", "full")
    assert fresh is not None
    assert (batches.kept_ids("t1"), batches.kept_ids("t3")) == (None, b"\x00ids")
    assert batches.end(fresh, ME, None)
    assert batches.kept_ids("t3") is None


def test_answers_that_never_came_are_in_the_account_once(
    db: Database, batches: ProviderBatchStore
) -> None:
    """With the step that gives them up, however often that is written; without a price they are
    counted as such."""
    of_feed(db, batches, packed("t1"), packed("t2"))
    one, two = batches.take(ME, LEASE_S, 10)
    assert batches.collected(one, ME, BatchFailure("batch_lost", "gone"), 2, 30)
    assert not batches.collected(one, ME, BatchFailure("batch_lost", "gone"), 2, 30)
    assert not batches.collected(two, OTHER, BatchFailure("batch_lost", "gone"), 1, None)
    assert batches.collected(two, ME, BatchFailure("batch_lost", "gone"), 1, None)
    row = db.read(lambda connection: connection.execute(select(spending)).one())
    assert (row.kind, row.calls, row.cost_microusd, row.unpriced) == ("unread", 3, 30, 1)
    [alike] = batches.sums("job-a")
    assert (alike.state, alike.unread, alike.unread_microusd) == (BatchState.COLLECTED, 3, None)


def test_missing_answers_hold_up_no_rescue(db: Database, batches: ProviderBatchStore) -> None:
    """A batch that a worker reads is not handed over to another lane; one whose answers are missing
    is, and counts as running."""
    of_feed(db, batches, packed("t1"), packed("t2"))
    now = time.time()
    for batch in batches.take(ME, LEASE_S, 10):
        batches.step(batch, ME, state="ended", created_at=now - 50.0, ended_at=now)
    assert (batches.to_hand_over("job-a"), batches.open_times("job-a").created_at) == ([], None)
    one, _ = batches.take(ME, LEASE_S, 10)
    batches.step(one, ME, missing=Missing("answers", now, 1).to_text())
    assert [found.tag for found in batches.to_hand_over("job-a")] == [one.tag]
    assert batches.open_times("job-a").created_at == now - 50.0


def test_a_trouble_in_any_words_is_kept(db: Database, batches: ProviderBatchStore) -> None:
    """What a provider says may hold what no database takes."""
    of_feed(db, batches, packed("t1"))
    [one] = batches.take(ME, LEASE_S, 10)
    assert batches.step(
        one, ME, trouble=BatchTrouble("look", "x", "a\0b \ud83d c", None, 1.0, 1, 2.0).to_text()
    )
    [found] = batches.of_job("job-a")
    assert found.trouble is not None
    assert found.trouble.said.endswith("b \N{REPLACEMENT CHARACTER} c")


def test_troubles_that_are_alike_are_shown_together(
    db: Database, batches: ProviderBatchStore
) -> None:
    """By the batch that is tried next, since the first of them began; settled batches have none."""
    of_feed(db, batches, packed("t1"), packed("t2"), packed("t3"))
    one, two, three = batches.take(ME, LEASE_S, 10)
    for batch, (name, since, times, again_at) in zip(
        (one, two, three),
        [("a", 5.0, 2, 90.0), ("a", 4.0, 1, 80.0), ("b", 6.0, 1, 70.0)],
        strict=True,
    ):
        trouble = BatchTrouble("upload", name, "words", 500, since, times, again_at)
        assert batches.step(batch, ME, trouble=trouble.to_text())
    [alike] = batches.sums("job-a")
    assert sorted(alike.troubles) == [
        (1, BatchTrouble("upload", "b", "words", 500, 6.0, 1, 70.0)),
        (2, BatchTrouble("upload", "a", "words", 500, 4.0, 2, 80.0)),
    ]
    assert {
        found.tag: found.trouble.times for found in batches.of_job("job-a") if found.trouble
    } == {
        "t1": 2,
        "t2": 1,
        "t3": 1,
    }
    assert batches.step(one, ME, trouble='{"of": "a later release"}')
    assert batches.end(three, ME, None)
    [_, waits] = sorted(batches.sums("job-a"), key=lambda found: len(found.troubles))
    assert waits.troubles == ((1, BatchTrouble("upload", "a", "words", 500, 4.0, 1, 80.0)),)


def test_documents_of_a_refused_batch_wait_for_smaller_ones(
    db: Database, batches: ProviderBatchStore
) -> None:
    """Those with the same bound together, apart from all others; and so many refusals in a row are
    noticed."""
    remainders = RemainderStore(db)
    of_feed(db, batches, packed("t1"), packed("t2"))
    batches.settle(
        "t1", [], [], [left("a"), left("b")._replace(most=2), left("c")._replace(most=2)]
    )
    assert [
        (one.most, one.documents)
        for one in sorted(remainders.waiting(["job-a"]), key=lambda one: one.most or 0)
    ] == [
        (None, 1),
        (2, 2),
    ]
    assert [one.key.doc_id for one in remainders.unclaimed("job-a", 1)] == ["a", "b", "c"]
    assert [one.key.doc_id for one in remainders.alike("job-a", 1, None)] == ["a"]
    assert [(one.key.doc_id, one.most) for one in remainders.alike("job-a", 1, 2)] == [
        ("b", 2),
        ("c", 2),
    ]
    one, two = batches.take(ME, LEASE_S, 10)
    batches.step(one, ME, created_at=1.0, why="batch_refused: no")  # of a release before
    assert not batches.failed_in_a_row("job-a", 2, "batch_refused")
    batches.step(two, ME, created_at=2.0, why="batch_lost")
    assert not batches.failed_in_a_row("job-a", 2, "batch_refused")
    batches.step(two, ME, **BatchFailure("batch_refused", "no").columns())
    assert batches.failed_in_a_row("job-a", 2, "batch_refused")


def test_a_batch_is_replaced_by_another(db: Database, batches: ProviderBatchStore) -> None:
    """Its documents and what it has of others go along; the first is over, with the reason."""
    of_feed(db, batches, packed("t1"))
    batches.settle("t0", [], [], [left("a")])
    batches.add_of_remainders(
        ME, LEASE_S, [(packed("t2", cursor_before=None, cursor_behind=None), [left("a").key])]
    )
    for batch in batches.take(ME, LEASE_S, 10):
        fresh = batches.replace(batch, ME, f"new-{batch.tag}", "token_limit_exceeded")
        assert fresh is not None
        assert (fresh.state, fresh.cursor_behind, fresh.file_id) == (
            BatchState.PACKED,
            batch.cursor_behind,
            None,
        )
        assert batches.step(fresh, ME, why="waits")
        assert batches.replace(batch, OTHER, "x", "") is None
    assert [one.key.doc_id for one in RemainderStore(db).of_batch("new-t2")] == ["a"]
    sums = {(one.state, one.why): one.batches for one in batches.sums("job-a")}
    assert sums == {
        (BatchState.SETTLED, "token_limit_exceeded"): 2,
        (BatchState.PACKED, "waits"): 2,
    }


def test_a_batch_that_ends_keeps_no_document(db: Database, batches: ProviderBatchStore) -> None:
    """What it leaves without an outcome waits again, so that its job can end; who leads it no more
    changes nothing."""
    remainders = RemainderStore(db)
    of_feed(db, batches, packed("t1"))
    batches.settle("t1", [], [], [left("a"), left("b")])
    keys = [one.key for one in remainders.unclaimed("job-a", 1)]
    assert batches.add_of_remainders(
        ME, LEASE_S, [(packed("t2", cursor_before=None, cursor_behind=None), keys)]
    )
    led = {batch.tag: batch for batch in batches.take(ME, LEASE_S, 10)}
    batches.settle("t2", [], [dead("a")], [])
    assert not batches.end(led["t2"], OTHER, None)
    assert [one.key.doc_id for one in remainders.of_batch("t2")] == ["b"]
    assert batches.end(led["t2"], ME, BatchFailure("batch_cancelled", "its job ended"))
    assert list(remainders.of_batch("t2")) == []
    assert [one.key.doc_id for one in remainders.unclaimed("job-a", 1)] == ["b"]
    assert [batch.tag for batch in batches.take(ME, LEASE_S, 10)] == ["t1"]


def test_only_batches_that_may_go_on_take_room(db: Database, batches: ProviderBatchStore) -> None:
    """Those of a paused job, of another provider, and those that were created hold up the packing
    of no other job."""
    of_feed(db, batches, packed("t1"), packed("t2"), packed("t3"), packed("t4", provider="q"))
    led = {batch.tag: batch for batch in batches.take(ME, LEASE_S, 10)}
    assert (
        batches.packed_waiting("p"),
        batches.packed_waiting("q"),
        batches.packed_waiting("r"),
    ) == (3, 1, 0)
    batches.step(led["t1"], ME, state="uploaded")
    batches.step(led["t2"], ME, state="created")
    assert batches.packed_waiting("p") == 2
    JobStore(db).set_state(
        "job-a", JobState.PAUSED, why=by_hand("a person paused it"), expect={JobState.RUNNING}
    )
    assert batches.packed_waiting("p") == 0


def test_sums_say_what_is_not_told(db: Database, batches: ProviderBatchStore) -> None:
    """Counts of batches are summed up only where the provider tells them for each."""
    of_feed(db, batches, packed("t1"), packed("t2"), packed("t3"))
    one, two, three = batches.take(ME, LEASE_S, 10)
    batches.step(one, ME, state="created", status="in_progress", succeeded=2, failed=1)
    batches.step(two, ME, state="created", status="validating", succeeded=None, failed=None)
    batches.step(three, ME, state="created", status="in_progress", succeeded=1, failed=0)
    seen = {
        one.status: (one.batches, one.requests, one.succeeded, one.failed)
        for one in batches.sums("job-a")
    }
    assert seen == {"in_progress": (2, 6, 3, 1), "validating": (1, 3, None, None)}


def test_a_purge_forgets_the_batches_of_a_job(db: Database, batches: ProviderBatchStore) -> None:
    """Nothing of them is left."""
    of_feed(db, batches, packed("t1"))
    batches.settle("t1", [], [], [left("a")])
    assert time.time() - RemainderStore(db).waiting(["job-a"])[0].since < 60
    purge_job(db, "job-a")
    assert (batches.of_job("job-a"), batches.is_busy("job-a")) == ([], False)


def test_of_equal_requests_one_is_packed_and_the_others_wait_for_it(
    db: Database, batches: ProviderBatchStore
) -> None:
    """They are written with the cursor, count as none that is packed, and go wherever remainders
    go. The first document that was noted of a request stays, until a later generation sends it."""
    equal, remainders = EqualRequestStore(db), RemainderStore(db)
    feed = JobStore(db).lease_feed("job-a", 1, ME, LEASE_S)
    assert feed is not None
    follows = [left(doc, 0)._replace(same_as="d0", reason="same_request") for doc in ("d1", "d2")]
    found = EqualRequests("job-a", 1, {"digest": "d0"}, follows)
    batches.add_of_feed(
        feed, ME, LEASE_S, [packed()], cursor={"offset": 9}, exhausted=True, equal=found
    )
    assert remainders.waiting(["job-a"]) == []
    assert list(remainders.alike("job-a", 1, None)) == []
    assert [one.same_as for one in remainders.unclaimed("job-a", 1)] == ["d0", "d0"]
    assert equal.waiting([one.key for one in follows]) == {one.key for one in follows}
    assert (equal.answered("job-a", 1, 10), equal.count("job-a")) == ([], 2)
    sent = equal.sent("job-a", ["digest", "another"])
    assert sent == {"digest": SentRequest(ItemKey("job-a", 1, "d0"), None)}

    # one that was packed by itself until now waits as well
    remainders.add([left("d3", 0)])
    later = EqualRequests("job-a", 1, {"digest": "d9"}, [left("d3", 0)._replace(same_as="d0")])
    assert batches.add_of_remainders(ME, LEASE_S, [], equal=later)
    assert (remainders.waiting(["job-a"]), equal.sent("job-a", ["digest"])) == ([], sent)

    batches.settle("t1", [], [dead("d0")], [])
    rows = equal.answered("job-a", 1, 2)
    assert [(one.key.doc_id, found.is_dead) for one, found in rows] == [("d1", True), ("d2", True)]
    equal.let_go([one.key for one, _ in rows])
    (waiting,) = remainders.waiting(["job-a"])
    assert (waiting.documents, len(equal.answered("job-a", 1, 9))) == (2, 1)
    again = EqualRequests("job-a", 2, {"digest": "d8"}, [])
    assert batches.add_of_remainders(ME, LEASE_S, [], equal=again)
    assert equal.sent("job-a", ["digest"])["digest"].key == ItemKey("job-a", 2, "d8")
