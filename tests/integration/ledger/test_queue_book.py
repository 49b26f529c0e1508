"""The queues of a lane's models, and what looks at all of them, on a real Redis."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from servers import RedisServer

from penstock_ledger import ItemKey, Publish, RedisLedger, keys
from penstock_ledger.in_redis.queue_book import (
    FOUND_BELIEVED_S,
    FOUND_SHOWN_MAX,
    IDLE_S,
    QUEUES_MAX,
    WORKER_QUEUES_MAX,
)
from penstock_producer.feed.queues import Served
from penstock_producer.feed.wire import encode_item, item_tag
from penstock_workers.broker.lease_scripts import return_leases_of_the_dead
from penstock_workers.control.feeds.model_queues import FoundAdapters
from penstock_workers.item_worker import ServedModel
from penstock_workers.lanes.registry import home_queue, served_by
from penstock_workers.settings import WorkerSettings

LANE = "penstock.gpu"
TINY1, TINY2 = f"{LANE}.tiny1", f"{LANE}.tiny2"


@pytest.fixture
def client(redis_server: RedisServer) -> Any:
    return redis_server.client()


@pytest.fixture
def hot(client: Any) -> RedisLedger:
    ledger = RedisLedger(client, "epoch-1")
    ledger.install_epoch()
    return ledger


def message(doc: str, queue: str, *, urgent: bool = False) -> bytes:
    return encode_item(
        ItemKey("job", 1, doc), queue=queue, body=b'{"model":"m"}', ref=None, urgent=urgent
    )


def publish(hot: RedisLedger, queue: str, *docs: str) -> None:
    hot.queues.note(LANE, [queue])
    hot.publish(
        queue,
        [Publish(ItemKey("job", 1, doc), f"at {doc}", message(doc, queue)) for doc in docs],
        7,
    )


def hold(client: Any, home: str, doc: str, queue: str) -> None:
    """As a worker of the model of ``home`` does."""
    tag = item_tag(ItemKey("job", 1, doc))
    client.hset(keys.unacked(home), tag, b'[%b,"","%b"]' % (message(doc, queue), queue.encode()))
    client.zadd(keys.unacked_index(home), {tag: client.time()[0]})


def test_feeds_open_a_bounded_number_of_queues_and_workers_are_found_all_the_same(
    hot: RedisLedger,
) -> None:
    """A file that names thousands of models fills the book; what is in it stays, and a worker's
    model is noted even then."""
    hostile = [f"{LANE}.m{number}" for number in range(QUEUES_MAX + 50)]
    refused = hot.queues.note(LANE, hostile)
    assert len(refused) == 50
    assert hot.queues.note(LANE, [next(iter(set(hostile) - refused))]) == frozenset()
    assert hot.queues.note(LANE, [TINY1]) == {TINY1}
    assert hot.queues.note(LANE, [TINY1], by_worker=True) == frozenset()
    assert TINY1 in hot.queues.of(LANE)
    assert hot.queues.of(LANE)[0] == LANE
    assert hot.queues.of("penstock.embed") == ["penstock.embed"]


def test_empty_queues_are_forgotten_after_a_while(hot: RedisLedger, client: Any) -> None:
    """One in which something waits, is held or delayed stays, however long ago it was noted."""
    names = [f"{LANE}.{name}" for name in ("empty", "fresh", "queued", "held", "delayed")]
    hot.queues.note(LANE, names)
    publish(hot, f"{LANE}.queued", "a")
    hold(client, f"{LANE}.held", "b", LANE)
    client.zadd(keys.delayed(f"{LANE}.delayed"), {"c": 1})
    for name in names:
        if not name.endswith("fresh"):
            client.zincrby(keys.queues(LANE), -2 * IDLE_S, name)
    assert hot.queues.forget_idle(LANE) == 1
    assert set(hot.queues.of(LANE)) == {LANE, *names[1:]}


def test_what_waits_for_found_adapters_is_shown_to_an_autoscaler(
    hot: RedisLedger, client: Any
) -> None:
    """As the length of one key for each model, and after the last worker is gone; a withdrawn
    adapter counts no longer."""
    legal, tax, other = (f"{LANE}.{name}" for name in ("legal", "tax", "other"))
    hot.queues.note(LANE, [legal, tax, other], by_worker=True)
    hot.queues.note_found(LANE, TINY1, [legal, tax])
    hot.queues.note_found(LANE, TINY2, [other])
    publish(hot, legal, *(f"l{number}" for number in range(3000)))
    publish(hot, tax, "t1", "t2")
    publish(hot, TINY1, "counted by its own name")
    FoundAdapters(hot).look()
    assert client.llen(keys.found_waiting(TINY1)) == 3002
    assert not client.exists(keys.found_waiting(TINY2))
    hot.queues.note_found(LANE, TINY1, [tax])
    looks = FoundAdapters(hot)
    looks.look()
    assert client.llen(keys.found_waiting(TINY1)) == 2
    hot.queues.note_found(LANE, TINY1, [])
    looks._next_at = 0.0
    looks.look()
    assert not client.exists(keys.found_waiting(TINY1))
    assert hot.queues.found(LANE) == {other: TINY2}


async def test_a_worker_notes_the_adapters_that_its_settings_do_not_name(hot: RedisLedger) -> None:
    """Those that an autoscaler's configuration knows are not counted twice; what is withdrawn is
    forgotten."""
    settings = WorkerSettings.load(
        lane="gpu", gpu={"model": "/models/tiny1", "lora": {"known": "/loras/known"}}
    )
    loads = served_by(settings)
    assert loads is not None
    gate: Any = SimpleNamespace(open=lambda _: None)
    model = ServedModel(settings, loads, hot, gate, consume=None, announce=lambda: None)
    await model.open(lambda: Served(loads.names, ("known", "legal")))
    try:
        assert hot.queues.found(LANE) == {f"{LANE}.legal": home_queue(settings)}
        model._take_up(loads)
        model.note_queues()
        assert hot.queues.found(LANE) == {}
    finally:
        await model.close()


def test_what_a_stranger_writes_among_found_adapters_is_passed_over(
    hot: RedisLedger, client: Any
) -> None:
    """Names that are no queues of the lane are read by none, a key of another type is replaced, and
    the number is bounded."""
    client.hset(
        keys.found(LANE),
        mapping={"penstock.api": TINY1, TINY1: "penstock:epoch", b"\xff": TINY1, TINY2: TINY1},
    )
    assert hot.queues.found(LANE) == {TINY2: TINY1}
    client.set(keys.found_waiting(TINY1), "text")
    hot.queues.show_found(TINY1, 10**9)
    assert client.llen(keys.found_waiting(TINY1)) == FOUND_SHOWN_MAX
    assert 0 < client.ttl(keys.found_waiting(TINY1)) <= FOUND_BELIEVED_S
    hot.queues.note_found(
        LANE, TINY1, [f"{LANE}.a{number}" for number in range(WORKER_QUEUES_MAX + 50)]
    )
    assert client.hlen(keys.found(LANE)) == WORKER_QUEUES_MAX


def test_a_message_moves_once_its_holder_has_let_go(hot: RedisLedger, client: Any) -> None:
    """It enters the other queue when it is acknowledged, not before: until then it would be dropped
    as a duplicate."""
    hot.queues.note(LANE, [TINY1], by_worker=True)
    hold(client, TINY1, "a", LANE)
    tag = item_tag(ItemKey("job", 1, "a"))
    assert hot.queues.move(TINY2, [(tag, message("a", TINY2))]) == 1
    assert hot.queues.move(TINY2, [(tag, message("a", TINY2))]) == 0, (
        "a second writing changes nothing"
    )
    assert hot.promote(LANE) == 0
    client.delete(keys.unacked(TINY1))
    client.zincrby(keys.delayed(TINY2), -5, tag)  # the wait for its holder
    assert hot.promote(LANE) == 1
    assert client.lrange(TINY2, 0, -1) == [message("a", TINY2)]


def test_a_message_without_room_for_its_queue_waits_in_the_lanes(
    hot: RedisLedger, client: Any
) -> None:
    """It is neither lost nor moved in circles: it is looked at again half a minute later."""
    hot.queues.note(LANE, [f"{LANE}.m{number}" for number in range(QUEUES_MAX)])
    hot.queues.move(TINY2, [("tag", message("a", TINY2))])
    assert not client.exists(keys.delayed(TINY2))
    ((_, due),) = client.zrange(keys.delayed(LANE), 0, -1, withscores=True)
    assert 20 < due - client.time()[0] < 40


def test_a_lane_is_counted_over_all_its_queues(hot: RedisLedger, client: Any) -> None:
    """Depth, missing documents and calls under way are those of the lane, whichever model's queue
    or worker has them."""
    publish(hot, TINY1, "a", "b", "lost")
    publish(hot, TINY2, "c", "d")
    client.lrem(TINY1, 1, message("lost", TINY1))
    client.rpop(TINY2)
    hold(client, TINY1, "c", TINY2)
    client.hset("penstock:job:1:starts", "c", 1)
    assert hot.depth(LANE)[:2] == (3, 1)
    assert {queue: depth[:2] for queue, depth in hot.depths(LANE).items()} == {
        LANE: (0, 0),
        TINY1: (2, 1),
        TINY2: (1, 0),
    }
    assert hot.missing(LANE, "job", 1, item_tag) == [("lost", "at lost")]
    assert hot.under_way(LANE, "job", 1, item_tag, 60) == 1


def test_a_resumed_jobs_messages_go_back_to_the_queues_that_they_came_from(
    hot: RedisLedger, client: Any
) -> None:
    """Each to its model's; one that names a queue of another lane goes to the lane's own, one that
    is held stays parked."""
    elsewhere = message("d", "penstock.api.x")
    parked = [
        message("a", TINY1),
        message("b", TINY2, urgent=True),
        message("c", LANE),
        elsewhere,
        message("held", TINY2),
    ]
    hot.park("job", parked)
    hot.queues.note(LANE, [TINY1], by_worker=True)
    hold(client, TINY1, "held", TINY2)
    assert hot.unpark("job", LANE) == 4
    assert [client.lrange(queue, 0, -1) for queue in (TINY1, TINY2)] == [[parked[0]], [parked[1]]]
    assert client.lrange(LANE, 0, -1) == [elsewhere, parked[2]]
    assert client.lrange("penstock:job:parked", 0, -1) == [parked[4]]
    assert {TINY1, TINY2} <= set(hot.queues.of(LANE))


def test_a_job_is_bound_to_the_model_that_came_first(hot: RedisLedger) -> None:
    """Two workers that bind it at once agree, and forgetting the job forgets it."""
    assert hot.bound("job") is None
    assert [hot.bind("job", TINY1), hot.bind("job", TINY2), hot.bound("job")] == [TINY1] * 3
    hot.forget("job")
    assert hot.bound("job") is None


def test_a_run_that_died_is_taken_over_whatever_it_hosted(hot: RedisLedger, client: Any) -> None:
    """Messages that workers of any model held return to their queues at once."""
    hot.queues.note(LANE, [TINY1])
    hold(client, TINY1, "a", TINY1)
    hold(client, LANE, "b", LANE)
    assert return_leases_of_the_dead(client) == 2
    assert (client.llen(TINY1), client.llen(LANE)) == (1, 1)
    assert return_leases_of_the_dead(client) == 0
