"""The steps between Redis and RabbitMQ on a real Redis: who holds a message at each, and that no
copy is taken twice."""

from __future__ import annotations

import json
import math
import time
from typing import Any, cast

import pytest
import redis
from servers import RedisServer

from penstock_ledger import RedisLedger, keys
from penstock_ledger.model import ItemKey
from penstock_producer.feed.wire import encode_item, item_tag
from penstock_workers.broker.amqp.lane_shovel import Lead
from penstock_workers.broker.amqp.relay_scripts import Arrived, RelayScripts, TakeScript
from penstock_workers.broker.lease_scripts import Claim, ClaimScript, Lease, LeaseScripts, lane_keys

QUEUE, CONTROL = "penstock.api", "penstock.control"
TIMEOUT_S = 30.0
WHERE = lane_keys("api", visibility_timeout_s=TIMEOUT_S)
RELAYED = keys.relayed(QUEUE)


@pytest.fixture
def client(redis_server: RedisServer) -> redis.Redis:
    return redis_server.client()


@pytest.fixture
def relay(client: redis.Redis) -> RelayScripts:
    return RelayScripts(client, QUEUE, TIMEOUT_S)


@pytest.fixture
def taker(client: redis.Redis) -> TakeScript:
    return TakeScript(client, WHERE)


def queue_up(client: redis.Redis, *docs: str, queue: str = QUEUE) -> None:
    for doc in docs:
        client.lpush(queue, encode_item(ItemKey("job", 1, doc), queue=queue, body=b"{}", ref=None))


def claimed(
    client: redis.Redis, queue: str = QUEUE, lane: str = "api"
) -> tuple[list[Lease], list[Arrived]]:
    """What a shovel does first; the messages as RabbitMQ will deliver them."""
    script = ClaimScript()
    command = script.command(
        lane_keys(lane, visibility_timeout_s=TIMEOUT_S), [(queue, queue)], (), 64
    )
    claim: Claim = script.read(cast(Any, client).execute_command(*command))
    leases = [Lease(message.tag, claim.score) for message in claim.messages]
    return leases, [Arrived(queue, message.tag, message.raw) for message in claim.messages]


def relayed(client: redis.Redis, relay: RelayScripts, *docs: str) -> list[Arrived]:
    queue_up(client, *docs)
    leases, arrived = claimed(client)
    relay.announce(leases)
    assert relay.confirm(leases) == len(docs)
    return arrived


def test_a_message_that_no_worker_could_hold_is_parked_by_redis(client: redis.Redis) -> None:
    """A message of hundreds of megabytes never reaches a worker: it is parked where it lies, and
    the next is taken (B8)."""
    client.lpush(
        QUEUE, b'{"body": "%s", "properties": {"delivery_tag": "huge"}}' % (b"x" * 33 * 1024 * 1024)
    )
    queue_up(client, "small")
    leases, _ = claimed(client)
    assert [lease.tag for lease in leases] == ["job:small"]
    assert client.llen(WHERE.parked) == 1


def score(client: redis.Redis, tag: str) -> float | None:
    found: float | None = cast(Any, client).zscore(WHERE.unacked_index, tag)
    return found


def listed(client: redis.Redis, queue: str = QUEUE) -> list[str]:
    """Tags, front first."""
    texts: Any = client.lrange(queue, 0, -1)
    return [json.loads(text)["properties"]["delivery_tag"] for text in reversed(texts)]


def test_a_relayed_message_needs_no_lease(client: redis.Redis, relay: RelayScripts) -> None:
    """Once RabbitMQ has confirmed a message no sweep returns it, however long it lies there; it
    counts as unacked."""
    relayed(client, relay, "a", "b")
    client.zincrby(RELAYED, -10 * TIMEOUT_S, "job:a")
    assert LeaseScripts(client, WHERE).restore(0.001) == 0
    assert score(client, "job:a") == math.inf
    depth = RedisLedger(client, "epoch").depth(QUEUE)
    assert (depth.queued, depth.unacked, depth.relayed) == (0, 2, 2)


def test_a_message_on_its_way_returns_when_its_shovel_dies(
    client: redis.Redis, relay: RelayScripts
) -> None:
    """Between the claim and the confirmation the shovel's lease is what brings the message back."""
    queue_up(client, "a")
    leases, arrived = claimed(client)
    relay.announce(leases)
    client.zincrby(WHERE.unacked_index, -2 * TIMEOUT_S, "job:a")
    assert LeaseScripts(client, WHERE).restore(0.001) == 1
    assert listed(client) == ["job:a"]
    assert relay.confirm(leases) == 0, "it is not the dead shovel's any more"
    assert TakeScript(client, WHERE).take(arrived).held == [False], (
        "the copy in RabbitMQ is one too many"
    )


def test_taking_makes_a_relayed_message_the_workers(
    client: redis.Redis, relay: RelayScripts, taker: TakeScript
) -> None:
    """A worker that takes a message holds a lease like any other: it can renew and acknowledge
    it."""
    arrived = relayed(client, relay, "a", "b")
    taken = taker.take(arrived)
    assert taken.held == [True, True]
    assert client.zcard(RELAYED) == 0
    leases = [Lease(message.tag, taken.score) for message in arrived]
    scripts = LeaseScripts(client, WHERE)
    new_score, lost = scripts.renew(leases)
    assert lost == []
    assert scripts.ack([Lease(lease.tag, new_score) for lease in leases]) == []
    assert (client.hlen(WHERE.unacked), client.zcard(WHERE.unacked_index)) == (0, 0)


def test_a_copy_is_never_taken(client: redis.Redis, relay: RelayScripts, taker: TakeScript) -> None:
    """Of two deliveries of a message the second is dropped, while it is held and after it is
    done."""
    arrived = relayed(client, relay, "a")
    taken = taker.take(arrived + arrived)
    assert taken.held == [True, False]
    LeaseScripts(client, WHERE).ack([Lease("job:a", taken.score)])
    assert taker.take(arrived).held == [False]
    assert client.hlen(WHERE.unacked) == 0


def test_a_worker_may_be_faster_than_the_confirmation(
    client: redis.Redis, relay: RelayScripts, taker: TakeScript
) -> None:
    """RabbitMQ delivers before it confirms: what a worker has taken by then stays the worker's,
    whatever the shovel hears."""
    queue_up(client, "a", "b")
    leases, arrived = claimed(client)
    relay.announce(leases)
    taken = taker.take(arrived[:1])
    assert taken.held == [True]
    assert relay.confirm(leases) == 1
    assert score(client, "job:a") == float(taken.score)
    assert relay.recall(["job:a"]) == 0, "nor can the shovel give it back"
    assert listed(client) == []


def test_what_rabbitmq_refused_goes_back_in_order(
    client: redis.Redis, relay: RelayScripts, taker: TakeScript
) -> None:
    """Recalled messages are at the front of their list again, and a copy that arrives after all is
    dropped."""
    queue_up(client, "a", "b", "c", "d")
    leases, arrived = claimed(client)
    queue_up(client, "e")
    relay.announce(leases)
    relay.confirm(leases[2:])
    assert relay.recall(["job:a", "job:b"]) == 2
    assert listed(client) == ["job:a", "job:b", "job:e"]
    assert taker.take(arrived).held == [False, False, True, True]


def test_lost_messages_are_recalled_by_age(client: redis.Redis, relay: RelayScripts) -> None:
    """Only what was relayed before the first look comes back."""
    relayed(client, relay, "old", "new")
    client.zincrby(RELAYED, -100, "job:old")
    assert relay.oldest() == pytest.approx(time.time() - 100, abs=5)
    assert relay.recall_before(relay.now() - 50) == 1
    assert (listed(client), client.zcard(RELAYED)) == (["job:old"], 1)


def test_copies_are_unknown_to_a_redis_that_forgot(
    client: redis.Redis, relay: RelayScripts, taker: TakeScript
) -> None:
    """After FLUSHALL what lies in RabbitMQ is dropped: the reconciler publishes what is missing
    anew."""
    arrived = relayed(client, relay, "a")
    client.flushall()
    assert taker.take(arrived).held == [False]


def test_a_worker_of_a_lane_takes_from_the_control_queue_into_its_own_record(
    client: redis.Redis,
) -> None:
    """Its keeper renews one hash: a message of another queue moves there, and goes back to its own
    list."""
    control = RelayScripts(client, "penstock.control", TIMEOUT_S)
    queue_up(client, "a", queue=CONTROL)
    leases, arrived = claimed(client, CONTROL, "control")
    control.announce(leases)
    control.confirm(leases)
    taken = TakeScript(client, WHERE).take(arrived)
    assert taken.held == [True]
    assert (client.hlen(keys.unacked(CONTROL)), client.zcard(keys.unacked_index(CONTROL))) == (0, 0)
    assert LeaseScripts(client, WHERE).give_back([Lease("job:a", taken.score)]) == []
    assert listed(client, CONTROL) == ["job:a"]


def test_messages_that_clients_sent_to_rabbitmq_are_recorded(
    client: redis.Redis, taker: TakeScript
) -> None:
    """They come without a record in Redis; once they have one they are leased, and given back to
    the list, like any other."""
    raw = encode_item(ItemKey("job", 1, "a"), queue=QUEUE, body=b"{}", ref=None)
    arrived = Arrived(QUEUE, "job:a", raw, f'[{raw.decode()},"","{QUEUE}"]')
    taken = taker.take([arrived, arrived])
    assert taken.held == [True, False]
    LeaseScripts(client, WHERE).give_back([Lease("job:a", taken.score)])
    assert listed(client) == ["job:a"]


def test_relayed_items_are_not_under_way(client: redis.Redis, relay: RelayScripts) -> None:
    """A cancelled job waits for what workers run, not for what waits in RabbitMQ."""
    arrived = relayed(client, relay, "a")
    client.hset(f"{keys.feed_scope('job', 1)}:starts", "a", 1)
    ledger = RedisLedger(client, "epoch")
    assert ledger.under_way(QUEUE, "job", 1, item_tag, TIMEOUT_S) == 0
    TakeScript(client, WHERE).take(arrived)
    assert ledger.under_way(QUEUE, "job", 1, item_tag, TIMEOUT_S) == 1


def test_one_shovel_leads_a_lane_until_it_resigns(client: redis.Redis) -> None:
    """Others leave its messages alone meanwhile, and one takes over at once when it ends well."""
    first, second = (Lead(client, QUEUE, owner=name) for name in ("first", "second"))
    assert (first.leads(), second.leads(), first.leads()) == (True, False, True)
    first.resign()
    assert (second.leads(), first.leads()) == (True, False)


def test_what_lies_in_a_former_broker_comes_home(
    client: redis.Redis, relay: RelayScripts, taker: TakeScript
) -> None:
    """After a switch back to Redis relayed messages return to their lists, once they are older than
    a lease."""
    arrived = relayed(client, relay, "a", "b")
    assert relay.recall_unclaimed() == 0
    for tag in ("job:a", "job:b"):
        client.zincrby(RELAYED, -2 * TIMEOUT_S, tag)
    assert relay.recall_unclaimed() == 2
    assert listed(client) == ["job:a", "job:b"]
    assert taker.take(arrived).held == [False, False]
