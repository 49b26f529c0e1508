"""Redis forgets; SQL does not: what was in Redis comes back, compactly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from servers import RedisServer

from penstock_ledger import (
    Begin,
    BeginReply,
    Begun,
    Counts,
    DeadLetter,
    ItemKey,
    JobStore,
    NewJob,
    OutcomeStore,
    Publish,
    RedisForgot,
    RedisLedger,
    Result,
    SettleBatch,
    SettledDone,
    bucket_count,
    buckets_for,
    open_database,
)
from penstock_ledger.keys import done_bucket, done_field
from penstock_producer.feed.wire import encode_item
from penstock_producer.reporting.reasons import retried_by_reason, retries
from penstock_workers.control.job.recover import stats_from

JOB = "job-a"
QUEUE = "penstock.api"
MAX_BYTES_PER_DOC = 24


def result(doc: str) -> Result:
    return Result(ItemKey(JOB, 1, doc), 200, b"{}", None, None, None, 3, 4, 5, 6, 1, 1)


def letter(doc: str) -> DeadLetter:
    return DeadLetter(ItemKey(JOB, 1, doc), "timeout", 4, 4, "", None, b"{}", None)


def publish(doc: str) -> Publish:
    key = ItemKey(JOB, 1, doc)
    return Publish(key, doc, encode_item(key, queue=QUEUE, body=b"{}", ref=None))


def figures(counts: Counts) -> dict[str, int]:
    return {"succeeded": counts.succeeded, "dead": counts.dead, "calls": counts.calls}


def test_an_emptied_redis_is_rebuilt_from_sql(redis_server: RedisServer, tmp_path: Path) -> None:
    """After FLUSHALL nothing finished is paid for again, and the rest of the source is fed anew,
    once."""
    db = open_database(f"sqlite:///{tmp_path}/ledger.db")
    db.migrate()
    jobs, outcomes = JobStore(db), OutcomeStore(db)
    job, _ = jobs.create(NewJob(JOB, JOB, {}, {"kind": "file"}, "d", 3_000))
    client = redis_server.client()
    hot = RedisLedger(client, "epoch-1")
    hot.install_epoch()
    source = [f"d{n}" for n in range(3_000)]
    buckets = buckets_for(job)
    hot.publish(QUEUE, [publish(doc) for doc in source[:2_000]], buckets)
    outcomes.settle(
        [result(doc) for doc in source[:1_000]], [letter(doc) for doc in source[1_000:1_200]]
    )

    client.flushall()
    assert not hot.check_epoch()
    with pytest.raises(RedisForgot):
        hot.publish(QUEUE, [publish("d1")], buckets)
    pages = list(outcomes.terminal_docs(JOB, 1, 700))
    assert sum(hot.rehydrate(JOB, 1, page, buckets) for page in pages) == 1_200
    assert sum(hot.rehydrate(JOB, 1, page, buckets) for page in pages) == 0
    hot.reset_stats(JOB, figures(outcomes.counts(JOB)))
    hot.install_epoch()

    assert hot.check_epoch()
    assert hot.stats(JOB) == {"succeeded": 1_000, "dead": 200, "calls": 1_800}
    assert hot.publish(QUEUE, [publish(doc) for doc in source], buckets) == (1_800, 1_200, 0)
    begun = hot.begin([Begin(ItemKey(JOB, 1, doc), buckets) for doc in ("d999", "d1100", "d1200")])
    assert [one.reply for one in begun] == [BeginReply.DONE, BeginReply.DONE, BeginReply.GO]
    db.close()


def test_a_redis_that_forgets_during_its_rebuild_is_not_declared_whole(
    redis_server: RedisServer,
) -> None:
    """What was rebuilt before that is gone: the next look begins anew, and ends well."""
    client = redis_server.client()
    hot, other = RedisLedger(client, "epoch-1"), RedisLedger(client, "epoch-1")
    assert not hot.check_epoch()
    hot.begin_rebuild()
    client.flushall()
    other.begin_rebuild()
    hot.install_epoch()
    assert not hot.check_epoch()
    other.install_epoch()
    assert hot.check_epoch()
    assert not client.keys("penstock:epoch:rebuild:*")


def test_a_rebuilt_document_leaves_the_window(redis_server: RedisServer) -> None:
    """A document that SQL knows as finished is not outstanding, whatever a half-restored Redis
    says."""
    hot = RedisLedger(redis_server.client(), "epoch-1")
    hot.install_epoch()
    hot.publish(QUEUE, [publish("a"), publish("b")], 1)
    assert hot.rehydrate(JOB, 1, [("a", False)], 1) == 1
    assert list(hot.window(JOB, 1)) == [("b", "b")]


def test_a_reset_keeps_what_sql_cannot_know(redis_server: RedisServer) -> None:
    """Counters from SQL replace the old ones, reasons that are gone included; skips and rate limits
    stay."""
    hot = RedisLedger(redis_server.client(), "epoch-1")
    redis_server.client().hset(
        f"penstock:{JOB}:stats",
        mapping={"skipped": 4, "rate_limited": 3, "dead:timeout": 2, "calls": -5},
    )
    assert hot.stats(JOB)["calls"] == 0
    hot.reset_stats(JOB, {"calls": 9})
    assert hot.stats(JOB) == {"skipped": 4, "rate_limited": 3, "calls": 9}


def test_retries_have_one_figure_whatever_redis_lost(redis_server: RedisServer) -> None:
    """It is the sum of the reasons, before and after a rebuild; for what SQL alone still knows the
    reason is unknown (U11)."""
    hot = RedisLedger(redis_server.client(), "epoch-1")
    counters: dict[Any, Any] = {"retried:server_error": 102, "retried:timeout": 3, "repairs": 4}
    redis_server.client().hset(f"penstock:{JOB}:stats", mapping=counters)
    # 79 more than documents, and 4 repairs
    known = Counts(100, 80, 1, {"timeout": 1}, 184, 5, 5, 5)
    hot.reset_stats(JOB, stats_from(known, hot.stats(JOB)))
    assert retries(hot.stats(JOB)) == 105
    redis_server.client().flushall()
    for _ in range(2):
        hot.reset_stats(JOB, stats_from(known, hot.stats(JOB)))
        assert retried_by_reason(hot.stats(JOB)) == {"unknown": 83}


def test_a_restart_is_noticed_even_when_everything_came_back(own_redis: RedisServer) -> None:
    """After a restart the last second may be missing, so it counts as forgetting until Redis was
    rebuilt."""
    hot = RedisLedger(own_redis.client(), "epoch-1")
    hot.install_epoch()
    assert hot.check_epoch()
    own_redis.restart()
    assert not hot.check_epoch()
    hot.install_epoch()
    assert hot.check_epoch()


def test_a_restart_during_the_rebuild_is_noticed(own_redis: RedisServer) -> None:
    """Declaring a rebuilt Redis healthy names the server that was checked, not the one that answers
    by then."""
    hot = RedisLedger(own_redis.client(), "epoch-1")
    assert not hot.check_epoch()
    own_redis.restart()
    hot.install_epoch()
    assert not hot.check_epoch()


def test_scripts_survive_a_restart(own_redis: RedisServer) -> None:
    """A Redis that lost its script cache is given the scripts again without the caller noticing."""
    hot = RedisLedger(own_redis.client(), "epoch-1")
    hot.install_epoch()
    # Otherwise Redis answers before it has written, while an fsync of a busy disk is under way: the
    # kill would lose "a".
    own_redis.client().config_set("appendfsync", "always")
    hot.publish(QUEUE, [publish("a")], 1)
    own_redis.restart()
    assert hot.publish(QUEUE, [publish("b")], 1) == (1, 0, 0)
    assert hot.outstanding(JOB, 1) == 2


def fill(client: Any, total: int, buckets: int) -> int:
    """Settle ``total`` documents with ids of 16 bytes; returns the bytes that Redis grew by."""
    hot = RedisLedger(client, "epoch-1")
    before = hot.memory().used
    for start in range(0, total, 5_000):
        keys = [
            ItemKey(JOB, 1, f"{n * 2654435761 % 2**61:016x}") for n in range(start, start + 5_000)
        ]
        hot.settle(SettleBatch(done=[SettledDone(key, buckets) for key in keys]))
    return hot.memory().used - before


def test_the_completed_set_is_compact_and_exact(redis_server: RedisServer) -> None:
    """A finished document costs at most 24 bytes of Redis, and no other document is taken for
    it."""
    client, total = redis_server.client(), 100_000
    buckets = bucket_count(total)
    RedisLedger(client, "epoch-1").settle(
        SettleBatch(done=[SettledDone(ItemKey("warm", 1, "up"), 1)])
    )
    grown = fill(client, total, buckets)
    assert grown / total <= MAX_BYTES_PER_DOC
    assert (
        sum(client.hlen(name) for name in client.scan_iter(f"penstock:{JOB}:1:done:*", count=1_000))
        == total
    )
    encodings = {
        client.object("encoding", f"penstock:{JOB}:1:done:{n}") for n in range(0, buckets, 50)
    }
    assert encodings <= {b"listpack", b"ziplist"}
    hot = RedisLedger(client, "epoch-1")
    fresh = [
        Begin(ItemKey(JOB, 1, f"{n * 2654435761 % 2**61:015x}-"), buckets) for n in range(2_000)
    ]
    assert {begun.reply for begun in hot.begin(fresh)} == {BeginReply.GO}


def test_an_old_copy_is_sure_of_nothing(own_redis: RedisServer) -> None:
    """A server that was started again may hold the queue of a backup, whose documents have ended
    since: until it is rebuilt, each start is looked up in SQL."""
    hot = RedisLedger(own_redis.client(), "epoch-1")
    begin = Begin(ItemKey(JOB, 1, "d1"), 1)
    hot.check_epoch()
    hot.install_epoch()
    hot.publish(QUEUE, [Publish(begin.key, "0", b"raw")], 1)
    assert hot.begin([begin])[0] == Begun(BeginReply.GO, 0, is_sure=True)
    own_redis.restart()
    assert hot.begin([begin])[0] == Begun(BeginReply.GO, 1, is_sure=False)
    hot.check_epoch()
    hot.install_epoch()
    assert hot.begin([begin])[0] == Begun(BeginReply.GO, 2, is_sure=True)


def test_a_job_of_unknown_size_stays_compact(redis_server: RedisServer) -> None:
    """An open job, whose total is not known yet, keeps small buckets too."""
    client = redis_server.client()
    fill(client, 20_000, bucket_count(None))
    field = done_field(f"{2654435761 % 2**61:016x}")
    name = f"penstock:{JOB}:1:done:{done_bucket(field, bucket_count(None))}"
    assert client.hget(name, field) == b""
    assert client.object("encoding", name) in (b"listpack", b"ziplist")
