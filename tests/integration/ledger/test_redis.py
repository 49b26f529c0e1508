"""What each atomic step on Redis promises, on a real server."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import redis
from servers import RedisServer

from penstock_ledger import (
    AskedAgain,
    Begin,
    BeginReply,
    Begun,
    ItemKey,
    JobState,
    MayCost,
    Publish,
    RedisForgot,
    RedisLedger,
    RedisUnfit,
    SettleBatch,
    SettledCrash,
    SettledDead,
    SettledDone,
    SettledRetry,
    SettleReport,
    open_database,
)
from penstock_ledger.in_redis.redis_ledger import PURGED_S
from penstock_producer.feed.wire import encode_item, item_tag
from penstock_workers.settings import WorkerSettings
from penstock_workers.stores import open_stores

QUEUE = "penstock.api"
JOB = "job-a"
BUCKETS = 7
GO, DONE, PAUSED, CANCELLED, UNKNOWN, UNKNOWN_SINCE_REBUILT, ELSEWHERE, NO_ROOM, *_ = BeginReply
BUDGET_CHANGED, REBUILT = BeginReply.BUDGET_CHANGED, BeginReply.REBUILT


@pytest.fixture
def client(redis_server: RedisServer) -> Any:
    return redis_server.client()


@pytest.fixture
def hot(client: Any) -> RedisLedger:
    ledger = RedisLedger(client, "epoch-1")
    ledger.install_epoch()
    return ledger


def key(doc: str, generation: int = 1) -> ItemKey:
    return ItemKey(JOB, generation, doc)


def message(doc: str, retries: int = 0, generation: int = 1) -> bytes:
    # A body that talks about delivery tags must not be taken for one.
    body = b'{"text": "\\"delivery_tag\\": \\"of the body\\""}'
    return encode_item(key(doc, generation), queue=QUEUE, body=body, ref=None, retries=retries)


def publish(doc: str, generation: int = 1) -> Publish:
    item = key(doc, generation)
    return Publish(item, f"at {doc}", message(doc, generation=generation))


def begin(doc: str, generation: int = 1) -> Begin:
    return Begin(key(doc, generation), BUCKETS)


def feed(hot: RedisLedger, *docs: str) -> None:
    """Only what was fed may begin."""
    hot.publish(QUEUE, [publish(doc) for doc in docs], BUCKETS)


def done(doc: str, **figures: Any) -> SettledDone:
    return SettledDone(key(doc), BUCKETS, **figures)


def retry(doc: str, *, after_s: float = 0.0, **how: Any) -> SettledRetry:
    return SettledRetry(
        key(doc), BUCKETS, QUEUE, item_tag(key(doc)), message(doc, 1), after_s, **how
    )


def claim(client: Any, number: int = 1) -> list[bytes]:
    """What a transport does: pop from the consuming end and record as unacked."""
    raws: list[bytes] = client.rpop(QUEUE, number)
    for raw in raws:
        client.hset("unacked.api", tag_in(raw), raw)
    return raws


def due_in(client: Any, doc: str) -> float:
    seconds, microseconds = client.time()
    due: float = client.zscore(f"penstock:delayed:{QUEUE}", item_tag(key(doc)))
    return due - float(seconds) - float(microseconds) / 1e6


def ack(client: Any, docs: Iterable[str]) -> None:
    for doc in docs:
        client.hdel("unacked.api", item_tag(key(doc)))


def tag_in(raw: bytes) -> str:
    return raw.rpartition(b'"delivery_tag":"')[2].partition(b'"')[0].decode()


# -- publish ---------------------------------------------------------------------------------------


def test_documents_are_queued_once(hot: RedisLedger, client: Any) -> None:
    """Publishing again, in any mixture, sends only what is neither waiting nor finished."""
    assert hot.publish(QUEUE, [publish(f"d{n}") for n in range(1_200)], BUCKETS) == (1_200, 0, 0)
    hot.settle(SettleBatch(done=[done("d3")], dead=[SettledDead(key("d4"), BUCKETS, "http_400")]))
    assert hot.publish(QUEUE, [publish(f"d{n}") for n in range(1_201)], BUCKETS) == (1, 2, 1_198)
    assert hot.depth(QUEUE).queued == client.llen(QUEUE) == 1_201
    assert hot.outstanding(JOB, 1) == 1_199
    assert tag_in(client.rpop(QUEUE)) == "job-a:d0"  # the consuming end: first in, first out


def urgent(doc: str) -> Publish:
    raw = encode_item(key(doc), queue=QUEUE, body=b"{}", ref=None, urgent=True)
    return Publish(key(doc), doc, raw)


def claimed(client: Any, number: int) -> list[str]:
    return [tag_in(raw).removeprefix("job-a:") for raw in claim(client, number)]


def test_urgent_documents_are_claimed_first_and_in_their_order(
    hot: RedisLedger, client: Any
) -> None:
    """They pass what waits already, but not each other, in whatever batches they come; nothing is
    lost or doubled."""
    hot.publish(QUEUE, [publish(f"n{n}") for n in range(3)], BUCKETS)
    assert hot.publish(QUEUE, [urgent("u0"), urgent("u1")], BUCKETS, urgent=True) == (2, 0, 0)
    hot.publish(QUEUE, [publish("n3")], BUCKETS)
    assert hot.publish(QUEUE, [urgent("u1"), urgent("u2")], BUCKETS, urgent=True) == (1, 0, 1)
    assert claimed(client, 7) == ["u0", "u1", "u2", "n0", "n1", "n2", "n3"]


def test_urgent_documents_find_an_empty_queue(hot: RedisLedger, client: Any) -> None:
    """Urgent documents published into an empty queue are claimed in their order, however many they
    are."""
    hot.publish(QUEUE, [urgent("u0"), urgent("u1")], BUCKETS, urgent=True)
    hot.publish(QUEUE, [urgent(f"v{n}") for n in range(1_200)], BUCKETS, urgent=True)
    assert claimed(client, 3) == ["u0", "u1", "v0"]
    assert client.llen(QUEUE) == 1_199


def test_a_full_redis_refuses_urgent_documents_whole(hot: RedisLedger, client: Any) -> None:
    """The refusal comes before any message is moved."""
    hot.publish(QUEUE, [publish("n0")], BUCKETS)
    hot.publish(QUEUE, [urgent("u0"), urgent("u1")], BUCKETS, urgent=True)
    client.config_set("maxmemory", 1)
    try:
        with pytest.raises(redis.ResponseError, match="maxmemory"):
            hot.publish(QUEUE, [urgent("u2")], BUCKETS, urgent=True)
    finally:
        client.config_set("maxmemory", 0)
    assert hot.outstanding(JOB, 1) == 3
    assert claimed(client, 3) == ["u0", "u1", "n0"]


def test_urgent_documents_that_come_back_are_urgent_still(hot: RedisLedger, client: Any) -> None:
    """A due retry and a resumed message go where they were at first, behind the urgent ones
    there."""
    hot.publish(QUEUE, [publish("n0")], BUCKETS)
    hot.publish(QUEUE, [urgent("u0")], BUCKETS, urgent=True)
    raw = encode_item(key("u1"), queue=QUEUE, body=b"{}", ref=None, retries=1, urgent=True)
    hot.settle(
        SettleBatch(
            retries=[SettledRetry(key("u1"), BUCKETS, QUEUE, item_tag(key("u1")), raw, 0.0)]
        )
    )
    assert hot.promote(QUEUE) == 1
    hot.park(JOB, [urgent("u2").raw, publish("n1").raw, urgent("u3").raw])
    assert hot.unpark(JOB, QUEUE) == 3
    assert claimed(client, 6) == ["u0", "u1", "u2", "u3", "n0", "n1"]


def test_outstanding_of_many_feeds_is_one_look(hot: RedisLedger) -> None:
    """One call counts the outstanding documents of several feeds, zero for one that is unknown."""
    hot.publish(QUEUE, [publish("a"), publish("b"), publish("a", 2)], BUCKETS)
    assert hot.outstanding_of([(JOB, 2), (JOB, 1), ("unknown", 1)]) == [1, 2, 0]
    assert hot.outstanding_of([]) == []


def test_generations_and_jobs_in_one_call_do_not_mix(hot: RedisLedger) -> None:
    """A replayed document is another item: what its first generation left behind does not stop
    it."""
    hot.settle(SettleBatch(dead=[SettledDead(key("a"), BUCKETS, "http_400")]))
    assert hot.publish(
        QUEUE, [publish("a"), publish("a", 2), publish("b"), publish("b", 2)], BUCKETS
    ) == (3, 1, 0)
    assert (hot.outstanding(JOB, 1), hot.outstanding(JOB, 2)) == (1, 2)


def test_long_ids_are_told_apart(hot: RedisLedger) -> None:
    """Ids above the compact size are as exact as short ones."""
    long_a, long_b = "x" * 100 + "a", "x" * 100 + "b"
    as_long_as_a_digest = "\N{CRYING FACE}" * 32
    finished = [long_a, "é" * 40, as_long_as_a_digest]
    hot.settle(SettleBatch(done=[done(doc) for doc in finished]))
    docs = [publish("short"), *map(publish, finished), publish(long_b)]
    assert hot.publish(QUEUE, docs, BUCKETS) == (2, 3, 0)
    assert hot.publish(QUEUE, docs, BUCKETS) == (0, 3, 2)


def test_a_document_twice_in_one_call_is_queued_once(hot: RedisLedger) -> None:
    """The second one finds the first in the window."""
    assert hot.publish(QUEUE, [publish("a"), publish("b"), publish("a")], BUCKETS) == (2, 0, 1)


@pytest.mark.parametrize("found", [None, "epoch-0"])
def test_nothing_is_published_into_a_redis_that_forgot(
    hot: RedisLedger, client: Any, found: str | None
) -> None:
    """With the sentinel missing or of another epoch, feeding stops with an error and leaves no
    trace."""
    client.flushall()
    if found:
        RedisLedger(client, found).install_epoch()
    before = client.dbsize()
    with pytest.raises(RedisForgot, match=found or "none"):
        hot.publish(QUEUE, [publish("a")], BUCKETS)
    assert client.dbsize() == before


def test_nothing_is_published_that_was_looked_at_before_a_rebuild(
    hot: RedisLedger, client: Any
) -> None:
    """A process that stood still since it looked at a job may find that the job has ended and that
    Redis was rebuilt without it: nothing in Redis would keep its documents from being called
    again. Once it has looked again, it publishes."""
    late = RedisLedger(client, "epoch-1")
    assert late.check_epoch()
    client.flushall()
    hot.install_epoch()
    for _ in range(2):  # also where it stood still between its look at the jobs and this one
        with pytest.raises(RedisForgot):
            late.publish(QUEUE, [publish("a")], BUCKETS)
        assert client.llen(QUEUE) == 0
        late.check_epoch()
    assert late.publish(QUEUE, [publish("a")], BUCKETS).published == 1


# -- begin and settle ------------------------------------------------------------------------------


def test_a_clean_life_counts_no_crash(hot: RedisLedger) -> None:
    """First try, retries and a release: none looks like a crash, and nothing stays behind."""
    feed(hot, "a")
    assert hot.begin([begin("a")]) == [Begun(GO, 0)]
    hot.settle(SettleBatch(retries=[retry("a")]))
    hot.promote(QUEUE)
    assert hot.begin([begin("a")]) == [Begun(GO, 0)]
    hot.settle(SettleBatch(retries=[retry("a", rate_limited=True)]))
    assert hot.begin([begin("a")]) == [Begun(GO, 0)]
    hot.settle(SettleBatch(released=[key("a")]))
    assert hot.begin([begin("a")]) == [Begun(GO, 0)]
    hot.settle(
        SettleBatch(
            done=[
                done("a", after_retry=True, prompt_tokens=5, completion_tokens=7, cost_microusd=11)
            ]
        )
    )
    assert hot.begin([begin("a")]) == [Begun(DONE, 0)]
    assert hot.stats(JOB) == {
        "succeeded": 1,
        "succeeded_after_retry": 1,
        "calls": 3,
        "rate_limited": 1,
        "skipped": 1,
        "prompt_tokens": 5,
        "completion_tokens": 7,
        "cost_microusd": 11,
        "retried:unknown": 2,
    }


def test_attempts_that_were_followed_by_another_are_counted_by_reason(hot: RedisLedger) -> None:
    """A retry by its reason, and what was given back as its engine died; the latter's start stays
    counted (H6)."""
    feed(hot, "a", "b")
    hot.begin([begin("a"), begin("b")])
    crashed = [SettledCrash(key("b"), "engine_died")]
    hot.settle(SettleBatch(retries=[retry("a", reason="timeout")], crashed=crashed))
    assert hot.begin([begin("b")]) == [Begun(GO, 1)]
    stats = hot.stats(JOB)
    assert {name: stats[name] for name in stats if name.startswith("retried:")} == {
        "retried:timeout": 1,
        "retried:engine_died": 1,
    }
    hot.reset_stats(JOB, {"succeeded": 5})
    assert hot.stats(JOB)["retried:timeout"] == 1


def test_a_start_that_nobody_concluded_is_a_crash(hot: RedisLedger) -> None:
    """Each process that dies with an item is counted, whatever retries and releases lie between."""
    feed(hot, "a")
    hot.begin([begin("a")])
    hot.settle(SettleBatch(retries=[retry("a")]))
    assert [hot.begin([begin("a")])[0].crashes for _ in range(4)] == [0, 1, 2, 3]
    hot.settle(SettleBatch(released=[key("a")]))
    assert hot.begin([begin("a")])[0].crashes == 3


def test_an_item_that_is_fed_again_keeps_its_crashes(hot: RedisLedger) -> None:
    """An item that takes its message along when it kills a process is still found out; its retries
    do not count as kills."""
    hot.publish(QUEUE, [publish("a")], BUCKETS)
    hot.begin([begin("a")])
    hot.settle(SettleBatch(retries=[retry("a")]))
    hot.begin([begin("a")])
    hot.drop_from_window([key("a")])
    assert hot.publish(QUEUE, [publish("a")], BUCKETS).published == 1
    assert hot.begin([begin("a")])[0].crashes == 1


def test_one_item_twice_in_a_batch_is_counted_twice(hot: RedisLedger) -> None:
    """Duplicate deliveries in one group see each other."""
    feed(hot, "a", "b")
    assert [begun.crashes for begun in hot.begin([begin("a"), begin("b"), begin("a")])] == [0, 0, 1]


def test_the_starts_of_many_items_become_a_table(hot: RedisLedger, client: Any) -> None:
    """With many items in flight, counting a start costs as much as with few: Redis need not walk
    along a list (table.lua)."""
    docs = [f"d{number}" for number in range(41)]
    starts = f"penstock:{JOB}:1:starts"
    feed(hot, *docs)
    hot.begin([begin(doc) for doc in docs[:40]])
    assert client.object("encoding", starts) in (b"listpack", b"ziplist"), (
        "few were there when the call began"
    )
    hot.begin([begin(docs[40])])
    assert client.object("encoding", starts) == b"hashtable"
    assert set(client.hkeys(starts)) == {doc.encode() for doc in docs}, "nothing else is left in it"
    hot.settle(SettleBatch(done=[done(doc) for doc in docs[:40]]))
    assert client.hgetall(starts) == {b"d40": b"1"}


def test_only_what_was_fed_begins(hot: RedisLedger, client: Any) -> None:
    """An item that no feed sent, or of a generation that none has fed, is not counted and hears
    that it is unknown (B6)."""
    feed(hot, "a")
    strangers = [
        begin("forged"),
        begin("a", generation=7),
        Begin(ItemKey("its key", 1, "a"), BUCKETS),
    ]
    replies = [begun.reply for begun in hot.begin([begin("a"), *strangers])]
    assert replies == [GO] + [UNKNOWN_SINCE_REBUILT] * 3, "the epoch is new here"
    client.delete("penstock:epoch:rebuilt")
    assert [begun.reply for begun in hot.begin([begin("a"), *strangers])] == [GO] + [UNKNOWN] * 3
    assert client.hkeys(f"penstock:{JOB}:1:starts") == [b"a"]
    assert not client.exists(f"penstock:{JOB}:7:starts")
    hot.settle(SettleBatch(retries=[retry("a")]))
    hot.promote(QUEUE)
    assert hot.begin([begin("a")])[0].reply is GO, "a retry stays in the window"


def test_items_of_several_feeds_begin_in_one_call(hot: RedisLedger) -> None:
    """Each item gets its own answer, in the order in which they were asked, however their feeds are
    mixed."""
    long = "x" * 100
    hot.publish(
        QUEUE,
        [publish("a"), publish("a", 2), publish("b"), publish("b", 2), publish(long)],
        BUCKETS,
    )
    hot.begin([begin("b", 2), begin("b", 2), begin("b")])
    hot.settle(SettleBatch(done=[done(long), done("a")]))
    asked = [begin("b", 2), begin("a"), begin("a", 2), begin(long), begin("b"), begin("b", 2)]
    assert hot.begin(asked) == [
        Begun(GO, 2),
        Begun(DONE, 0),
        Begun(GO, 0),
        Begun(DONE, 0),
        Begun(GO, 1),
        Begun(GO, 3),
    ]
    assert hot.stats(JOB)["skipped"] == 2


def test_while_redis_has_forgotten_nobody_is_a_stranger(hot: RedisLedger, client: Any) -> None:
    """Items that workers hold while Redis is emptied go on, as no window is left to look them up in
    (B6)."""
    client.flushall()
    assert hot.begin([begin("a")]) == [Begun(GO, 0, is_sure=False)]
    hot.install_epoch()
    assert hot.begin([begin("b")])[0].reply is UNKNOWN_SINCE_REBUILT


def test_nothing_that_was_taken_before_a_rebuild_starts(hot: RedisLedger, client: Any) -> None:
    """Who has not renewed its leases since then hears the name of the rebuild, and nothing is
    counted; with that name, or without leases, its items start. Those that have ended hear so."""
    feed(hot, "a", "ended")
    hot.settle(SettleBatch(done=[done("ended")]))
    name = client.get("penstock:epoch:rebuilt").decode()
    asked = [begin("a"), begin("ended"), begin("stranger")]
    for before in ("", "an earlier one"):
        assert hot.begin(asked, rebuilt=before) == [
            Begun(REBUILT, 0, rebuilt=name),
            Begun(DONE, 0),
            Begun(UNKNOWN_SINCE_REBUILT, 0),
        ]
    assert hot.begin([begin("a")], rebuilt=name) == [Begun(GO, 0)]
    assert hot.begin([begin("a")]) == [Begun(GO, 1)]
    hot.install_epoch()
    assert hot.begin([begin("a")], rebuilt=name)[0].reply is REBUILT
    client.delete("penstock:epoch:rebuilt")
    assert hot.begin([begin("a")], rebuilt="") == [Begun(GO, 2)]


def test_an_old_copy_of_an_account_pays_for_nothing(hot: RedisLedger, client: Any) -> None:
    """After a restart, calls of a job with a budget wait until Redis is rebuilt."""
    feed(hot, "a")
    hot.budgets.look(JOB, 1_000)
    call = Begin(key("a"), BUCKETS, MayCost(5, owner="w"))
    client.set("penstock:epoch:run", "an earlier one")
    assert hot.begin([call]) == [Begun(BeginReply.NO_ROOM, 0)]
    hot.install_epoch()
    assert hot.begin([call]) == [Begun(GO, 0)]


def test_a_lost_message_is_queued_again_without_leaving_the_window(
    hot: RedisLedger, client: Any
) -> None:
    """Publishing what is in the window already queues it once more; what is finished stays finished
    (B6)."""
    feed(hot, "a", "b")
    hot.settle(SettleBatch(done=[done("b")]))
    client.delete(QUEUE)
    assert hot.publish(QUEUE, [publish("a"), publish("b")], BUCKETS, again=True) == (1, 1, 0)
    assert hot.outstanding(JOB, 1) == client.llen(QUEUE) == 1


def test_no_count_is_negative_after_redis_forgot(hot: RedisLedger, client: Any) -> None:
    """Conclusions of starts that Redis has forgotten count for nothing; the next crash is seen."""
    hot.begin([begin("a"), begin("b")])
    client.flushall()
    hot.settle(SettleBatch(released=[key("a")], retries=[retry("b")]))
    assert [[begun.crashes for begun in hot.begin([begin("a"), begin("b")])] for _ in range(2)] == [
        [0, 0],
        [1, 1],
    ]


def test_settling_again_changes_nothing(hot: RedisLedger) -> None:
    """A settlement whose answer was lost may be sent again: figures and delayed messages stay
    single."""
    hot.begin([begin("a"), begin("b"), begin("c")])
    batch = SettleBatch(
        done=[done("a", prompt_tokens=5)],
        dead=[SettledDead(key("b"), BUCKETS, "timeout", calls=2)],
        retries=[retry("c", after_s=60)],
    )
    assert hot.settle(batch)[:2] == (2, 1)
    before = hot.stats(JOB)
    assert hot.settle(batch)[:2] == (0, 0)
    assert hot.stats(JOB) == before
    assert (before["dead:timeout"], before["calls"], before["retried:unknown"]) == (1, 4, 1)
    assert hot.depth(QUEUE).delayed == 1


def test_a_retry_of_a_finished_item_is_dropped(hot: RedisLedger) -> None:
    """When the other execution of an item succeeded meanwhile, its failure here causes no third
    one."""
    hot.begin([begin("a"), begin("a")])
    hot.settle(SettleBatch(done=[done("a")]))
    assert hot.settle(SettleBatch(retries=[retry("a")])).delayed == 0
    assert hot.depth(QUEUE).delayed == 0


def test_large_batches_are_cut(hot: RedisLedger) -> None:
    """A batch of thousands goes through, in calls of bounded size."""
    names = [f"d{n}" for n in range(1_700)]
    feed(hot, *names)
    assert [begun.reply for begun in hot.begin([begin(doc) for doc in names])] == [GO] * len(names)
    report = hot.settle(
        SettleBatch(
            done=[done(doc) for doc in names[:600]],
            dead=[SettledDead(key(doc), BUCKETS, "x") for doc in names[600:1_200]],
            retries=[retry(doc) for doc in names[1_200:1_500]],
            released=[key(doc) for doc in names[1_500:]],
        )
    )
    assert report[:2] == (1_200, 300)
    assert hot.promote(QUEUE, 1_000) == 300


def test_figures_beyond_32_bits_stay_exact(hot: RedisLedger) -> None:
    """Large token and money sums are counted to the last unit."""
    hot.settle(
        SettleBatch(done=[done("a", cost_microusd=9_000_000_000_000), done("b", cost_microusd=1)])
    )
    assert hot.stats(JOB)["cost_microusd"] == 9_000_000_000_001


@pytest.mark.parametrize(
    ("state", "verdict"),
    [
        (JobState.RUNNING, GO),
        (JobState.PAUSED, PAUSED),
        (JobState.CANCELLING, CANCELLED),
        (JobState.CANCELLED, CANCELLED),
        (JobState.FAILED, CANCELLED),
        (JobState.COMPLETED, GO),
    ],
)
def test_workers_hear_of_a_jobs_state_at_begin(
    hot: RedisLedger, state: JobState, verdict: BeginReply
) -> None:
    """A paused or cancelled job starts nothing and counts nothing; finished documents are finished
    in every state."""
    feed(hot, "a", "finished")
    hot.settle(SettleBatch(done=[done("finished")]))
    hot.set_job_state(JOB, JobState.PAUSED)
    hot.set_job_state(JOB, state)
    assert hot.begin([begin("a"), begin("finished")]) == [Begun(verdict, 0), Begun(DONE, 0)]
    hot.set_job_state(JOB, JobState.RUNNING)
    assert hot.begin([begin("a")])[0].crashes == (1 if verdict is GO else 0)


# -- delayed and parked ----------------------------------------------------------------------------


def test_a_retry_waits_for_its_time_on_the_servers_clock(hot: RedisLedger, client: Any) -> None:
    """Not-yet-due messages stay; due ones go to the back of the queue, unchanged."""
    hot.publish(QUEUE, [publish("fresh")], BUCKETS)
    hot.settle(SettleBatch(retries=[retry("soon"), retry("later", after_s=3600)]))
    assert hot.promote(QUEUE, longest_s=7200) == 1
    assert 3500 < due_in(client, "later") <= 3600
    assert hot.depth(QUEUE) == (2, 0, 1, 0)
    assert [tag_in(raw) for raw in claim(client, 2)] == ["job-a:fresh", "job-a:soon"]
    assert client.hlen(f"penstock:delayed:{QUEUE}:raw") == 1


def test_a_clock_that_steps_back_delays_no_retry(hot: RedisLedger, client: Any) -> None:
    """After an hour's step back retries keep the wait they had left, and none waits longer than it
    was asked to (A12)."""
    now = client.time()[0]
    hot.settle(SettleBatch(retries=[retry("soon", after_s=3_598), retry("later", after_s=3_610)]))
    # promoting has seen a clock that was an hour ahead
    client.set(f"penstock:delayed:{QUEUE}:clock", now + 3_600)
    assert hot.promote(QUEUE) == 1
    assert 5 < due_in(client, "later") <= 11.5
    assert hot.promote(QUEUE) == 0
    assert 5 < due_in(client, "later") <= 11.5, "moved once"
    # stepped while nothing promoted
    client.zadd(f"penstock:delayed:{QUEUE}", {item_tag(key("later")): now + 86_400})
    hot.promote(QUEUE, longest_s=30)
    assert 25 < due_in(client, "later") <= 30


def test_a_clock_that_steps_back_keeps_no_worker_alive(hot: RedisLedger, client: Any) -> None:
    """Heartbeats and leases of a time to come are of before the step: they count for nothing
    (A12)."""
    now = client.time()[0]
    hot.heartbeat("lives", {"lane": "api"})
    client.zadd("penstock:workers", {"of a time to come": now + 3_600})
    assert [worker.name for worker in hot.workers()] == ["lives"]
    hot.heartbeat("lives", {"lane": "api"})
    assert client.zrange("penstock:workers", 0, -1) == [b"lives"]
    feed(hot, "a", "b")
    hot.begin([begin("a"), begin("b")])
    client.zadd("unacked_index.api", {item_tag(key("a")): now + 3_600, item_tag(key("b")): now})
    assert hot.under_way(QUEUE, JOB, 1, item_tag, 60) == 1


def test_a_retry_waits_until_its_last_delivery_is_acknowledged(
    hot: RedisLedger, client: Any
) -> None:
    """A due message whose tag is still held would be dropped as a duplicate, so it is not queued
    yet; others are."""
    hot.publish(QUEUE, [publish("held"), publish("other")], BUCKETS)
    claim(client, 2)
    hot.settle(SettleBatch(retries=[retry("held"), retry("other")]))
    ack(client, ["other"])
    assert hot.promote(QUEUE) == 1
    assert [tag_in(raw) for raw in claim(client)] == ["job-a:other"]
    assert 0 < due_in(client, "held") <= 1
    ack(client, ["held"])
    client.zadd(f"penstock:delayed:{QUEUE}", {item_tag(key("held")): 0})
    assert hot.promote(QUEUE) == 1


def test_what_workers_from_before_the_upgrade_hold_is_not_lost(
    hot: RedisLedger, client: Any
) -> None:
    """Their key, which all lanes shared, counts as a place where a document can be, and as a lease;
    not as depth."""
    hot.publish(QUEUE, [publish(doc) for doc in ("new", "old", "lost")], BUCKETS)
    hot.begin([begin("old")])
    held = {tag_in(raw): raw for raw in client.rpop(QUEUE, 3)}
    client.hset("unacked.api", item_tag(key("new")), held[item_tag(key("new"))])
    client.hset("unacked", item_tag(key("old")), held[item_tag(key("old"))])
    client.zadd("unacked_index", {item_tag(key("old")): time.time()})
    assert [doc for doc, _ in hot.missing(QUEUE, JOB, 1, item_tag)] == ["lost"]
    assert hot.under_way(QUEUE, JOB, 1, item_tag, 60) == 1
    assert hot.depth(QUEUE).unacked == 1


def test_parked_messages_come_back_in_order(hot: RedisLedger, client: Any) -> None:
    """What was parked is queued again oldest first, in steps, except what its worker still
    holds."""
    names = [f"d{n}" for n in range(700)]
    hot.park(JOB, [message(doc) for doc in names])
    client.hset("unacked.api", item_tag(key("d1")), "held")
    assert hot.unpark(JOB, QUEUE, 3) == 2
    assert [tag_in(raw) for raw in client.rpop(QUEUE, 5)] == ["job-a:d0", "job-a:d2"]
    assert hot.unpark(JOB, QUEUE, 10_000) >= 497
    ack(client, ["d1"])
    while hot.unpark(JOB, QUEUE, 500):
        pass
    assert client.llen(QUEUE) == 698
    assert client.exists(f"penstock:{JOB}:parked") == 0


# -- what is lost ----------------------------------------------------------------------------------


def test_documents_that_are_nowhere_are_found(hot: RedisLedger, client: Any) -> None:
    """Of all fed documents exactly those are missing that are neither queued, held, delayed, parked
    nor finished."""
    names = [f"d{n}" for n in range(1_000)]
    hot.publish(QUEUE, [publish(doc) for doc in names], BUCKETS)
    assert hot.missing(QUEUE, JOB, 1, item_tag) == []
    held, delayed, parked, finished, lost = (names[n * 100 : n * 100 + 100] for n in range(5))
    claim(client, 500)
    hot.settle(
        SettleBatch(
            done=[done(doc) for doc in finished], retries=[retry(doc, after_s=9) for doc in delayed]
        )
    )
    hot.park(JOB, [message(doc) for doc in parked])
    ack(client, [*delayed, *parked, *finished, *lost])
    assert sorted(hot.missing(QUEUE, JOB, 1, item_tag)) == sorted(
        (doc, f"at {doc}") for doc in lost
    )
    hot.drop_from_window([key(doc) for doc in lost])
    assert hot.missing(QUEUE, JOB, 1, item_tag) == []
    assert hot.publish(QUEUE, [publish(doc) for doc in names], BUCKETS) == (100, 100, 800)
    assert held


def test_messages_of_stock_producers_are_recognised(hot: RedisLedger, client: Any) -> None:
    """A message with spaces in its JSON, or with its tag far from the end, still counts as
    present."""
    hot.publish(QUEUE, [publish("a"), publish("b")], BUCKETS)
    client.delete(QUEUE)
    client.lpush(
        QUEUE,
        b'{"properties": {"delivery_tag": "job-a:a"}, "body": "%s"}' % (b"x" * 5_000),
        b"no message",
    )
    assert hot.missing(QUEUE, JOB, 1, item_tag) == [("b", "at b")]


# -- Redis itself ----------------------------------------------------------------------------------


def test_a_full_redis_refuses_new_work_and_finishes_old(
    redis_server: RedisServer, client: Any
) -> None:
    """With memory used up, publishing fails whole, while begin, settle, promote and retry go on and
    free memory."""
    hot = RedisLedger(client, "epoch-1")
    hot.install_epoch()
    hot.publish(QUEUE, [publish("a"), publish("b")], BUCKETS)
    client.config_set("maxmemory", "1")
    try:
        with pytest.raises(redis.ResponseError, match="maxmemory"):
            hot.publish(QUEUE, [publish("c")], BUCKETS)
        assert hot.begin([begin("a"), begin("b")]) == [Begun(GO, 0)] * 2
        assert hot.settle(SettleBatch(retries=[retry("b")]))[:2] == (0, 1)
        assert hot.promote(QUEUE) == 1
        assert hot.settle(SettleBatch(done=[done("a")]))[:2] == (1, 0)
        assert hot.outstanding(JOB, 1) == 1
    finally:
        client.config_set("maxmemory", "0")


def test_a_redis_that_would_lose_work_is_refused(hot: RedisLedger, client: Any) -> None:
    """Preflight accepts this server, and names the setting when it would evict queued work."""
    hot.preflight()
    client.config_set("maxmemory", "1gb")
    client.config_set("maxmemory-policy", "allkeys-lru")
    try:
        with pytest.raises(RedisUnfit, match="noeviction"):
            hot.preflight()
        assert hot.memory()[1:] == (2**30, "allkeys-lru")
        assert hot.memory().used > 0
    finally:
        client.config_set("maxmemory", "0")
        client.config_set("maxmemory-policy", "noeviction")
    hot.preflight()


def test_no_worker_starts_on_a_redis_that_evicts(
    redis_server: RedisServer, client: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Workers and control loops end at once with the setting and its fix; a Redis that is away is
    only warned of (C12)."""
    database_url = f"sqlite:///{tmp_path}/l.db"
    open_database(database_url).migrate()
    client.config_set("maxmemory", "1gb")
    client.config_set("maxmemory-policy", "volatile-lru")
    try:
        with (
            pytest.raises(RedisUnfit, match=r"volatile-lru.*noeviction"),
            open_stores(
                WorkerSettings(database_url=database_url, redis_url=redis_server.url), "control"
            ),
        ):
            pytest.fail("it must not start")
    finally:
        client.config_set("maxmemory", "0")
        client.config_set("maxmemory-policy", "noeviction")
    with open_stores(
        WorkerSettings(database_url=database_url, redis_url="redis://127.0.0.1:1/0"), "worker"
    ):
        assert "make sure that its maxmemory-policy is noeviction" in caplog.text


def test_workers_are_seen_while_they_beat(hot: RedisLedger, client: Any) -> None:
    """A worker is listed with what it said last, and forgotten when it has been silent for a
    minute."""
    hot.heartbeat("w2", {"lane": "api", "held": "3"})
    hot.heartbeat("w1", {})
    hot.heartbeat("w2", {"lane": "gpu"})
    assert [(seen.name, seen.info) for seen in hot.workers()] == [
        ("w1", {"name": "w1"}),
        ("w2", {"lane": "gpu"}),
    ]
    assert all(seen.seconds_ago < 5 for seen in hot.workers())
    client.zincrby("penstock:workers", -61, "w1")
    assert [seen.name for seen in hot.workers()] == ["w2"]
    hot.heartbeat("w3", {})
    assert client.zscore("penstock:workers", "w1") is None


def test_a_forgotten_job_leaves_no_key_and_takes_no_others(hot: RedisLedger, client: Any) -> None:
    """Forgetting a job deletes all its keys, and none of a job whose id looks similar."""
    other = ItemKey("job-ab", 1, "x")
    hot.publish(QUEUE, [publish("a"), Publish(other, "p", b"{}")], BUCKETS)
    hot.settle(SettleBatch(done=[done(f"d{n}") for n in range(50)]))
    hot.set_job_state(JOB, JobState.PAUSED)
    hot.park(JOB, [message("a")])
    hot.forget(JOB)
    assert list(client.scan_iter("penstock:job-a:*")) == [b"penstock:job-a:state"]
    assert 0 < client.ttl("penstock:job-a:state") <= PURGED_S
    assert hot.outstanding("job-ab", 1) == 1


def test_late_workers_write_no_key_of_a_job_that_was_purged(hot: RedisLedger, client: Any) -> None:
    """Whatever a process does that slept through the purge, with items that it held or with the job
    as it knew it (A8)."""
    held = [begin("a"), Begin(key("b"), BUCKETS, MayCost(5, owner="w"))]
    feed(hot, "a", "b")
    hot.budgets.look(JOB, 1_000)
    hot.begin(held)
    hot.forget(JOB)
    client.delete(QUEUE)
    before = set(client.scan_iter("*"))
    assert hot.begin([begin("a"), begin("b")]) == [Begun(CANCELLED, 0)] * 2
    left = [key("b")]
    batch = SettleBatch(
        [done("a")],
        [SettledDead(key("b"), BUCKETS, "http_400", has_budget=True)],
        [retry("a", has_budget=True)],
        left,
        {left[0]: 3},
        [SettledCrash(key("a"), "engine_died")],
        [AskedAgain(JOB, 1, 1)],
        tried_again=[SettledCrash(key("a"), "expired")],
    )
    assert hot.settle(batch) == SettleReport(0, 0, {})
    assert hot.publish(QUEUE, [publish("c")], BUCKETS) == (0, 0, 0)
    assert hot.rehydrate(JOB, 1, [("a", False)], BUCKETS) == 0
    hot.park(JOB, [message("a")])
    hot.bind(JOB, f"{QUEUE}.m")
    hot.reset_stats(JOB, {"succeeded": 1})
    for state in JobState:
        hot.set_job_state(JOB, state)
    hot.budgets.look(JOB, 2_000, spent=5, batches={"t": 5})
    hot.budgets.reserve_batch(JOB, 2_000, "t", 5, spent=5)
    hot.budgets.relearn(JOB)
    assert set(client.scan_iter("*")) == before
    assert client.get("penstock:job-a:state") == b"purged"
