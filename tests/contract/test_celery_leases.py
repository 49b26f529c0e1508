"""The Lua steps on a real Redis: what they take, record, refuse and return, and that stock kombu
reads their records."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
import redis
from kombu.connection import Connection
from kombu.entity import Exchange, Queue
from servers import RedisServer

from penstock_ledger import keys
from penstock_ledger.model import ItemKey
from penstock_producer.feed.wire import encode_item, item_tag
from penstock_workers.broker.lease_scripts import PARKED_KEY, Keys, Lease, LeaseScripts, script_text

QUEUE = "penstock.api"
KEYS = Keys("unacked.api", "unacked_index.api", visibility_timeout_s=30)
KEY_OPTIONS = {"unacked_key": KEYS.unacked, "unacked_index_key": KEYS.unacked_index}


@pytest.fixture
def client(redis_server: RedisServer) -> redis.Redis:
    return redis_server.client()


@pytest.fixture
def scripts(client: redis.Redis) -> LeaseScripts:
    return LeaseScripts(client, KEYS)


def message(doc: str, **options: Any) -> bytes:
    return encode_item(
        ItemKey("job", 1, doc), queue=QUEUE, body=options.pop("body", b"{}"), ref=None, **options
    )


def claim(
    client: redis.Redis, room: int = 64, *queues: str, record: bool = True
) -> tuple[list[Lease], list[Any]]:
    """Runs claim.lua; returns what is held now, and its reply."""
    lists = queues or (QUEUE,)
    names = [json.dumps(queue) if record else "" for queue in lists]
    arguments = ["unacked.api", "unacked_index.api", PARKED_KEY, *lists, str(room), *names]
    reply: Any = client.eval(script_text("claim"), 3 + len(lists), *arguments)
    return [Lease(tag.decode(), reply[0].decode()) for tag in reply[4::3]], reply


def age(client: redis.Redis, seconds: float, *tags: str) -> None:
    """As if the leases had last been renewed that long ago."""
    for tag in tags:
        client.zincrby("unacked_index.api", -seconds, tag)


def record_of(client: redis.Redis, tag: str) -> bytes:
    record: Any = client.hget("unacked.api", tag)
    return bytes(record)


def queue(client: redis.Redis, name: str = QUEUE) -> list[bytes]:
    """Front first."""
    texts: Any = client.lrange(name, 0, -1)
    return list(reversed(texts))


class TestClaim:
    def test_takes_from_the_front_and_records_under_the_servers_clock(
        self, client: redis.Redis
    ) -> None:
        """A claim pops oldest first, at most as many as asked, and records each with one lease time
        of Redis."""
        for doc in "abc":
            client.lpush(QUEUE, message(doc))
        before: Any = client.time()
        held, _ = claim(client, 2)
        after: Any = client.time()
        assert [lease.tag for lease in held] == ["job:a", "job:b"]
        assert queue(client) == [message("c")]
        scores = {client.zscore("unacked_index.api", tag) for tag in ("job:a", "job:b")}
        assert scores == {float(held[0].seen)}
        assert before[0] + before[1] / 1e6 <= float(held[0].seen) <= after[0] + after[1] / 1e6

    @pytest.mark.parametrize(
        ("doc", "body"),
        [
            ("plain", b"{}"),
            ("d\u00e9j\u00e0 \u2603", b"{}"),
            ("x" * 512, b"{}"),
            ('a "quoted" \\ one', b"{}"),
            ("mimic", b'{"properties":{"correlation_id":"y","delivery_tag":"job:other"}}'),
            ("end", json.dumps({"text": '"priority":0,"delivery_tag":"job:other"}}'}).encode()),
        ],
    )
    def test_a_tag_is_read_from_the_end_of_a_message(
        self, client: redis.Redis, doc: str, body: bytes
    ) -> None:
        """Whatever an id or a body looks like, a claim finds the tag that a parser would find."""
        client.lpush(QUEUE, message(doc, body=body))
        held, _ = claim(client)
        assert [lease.tag for lease in held] == [item_tag(ItemKey("job", 1, doc))]

    @pytest.mark.parametrize("more", ["headers", "after"])
    def test_a_message_of_another_order_is_parsed(self, client: redis.Redis, more: str) -> None:
        """Only properties at the very end of a message are read without a parser: what another
        sender writes is parsed."""
        parsed = json.loads(message("d"))
        properties = parsed.pop("properties")
        mimic = {**properties, "correlation_id": "job:other", "delivery_tag": "job:other"}
        odd = {"properties": properties, **parsed, "headers": {"properties": mimic}}
        if more == "after":
            odd["more"] = {"properties": mimic}
        client.lpush(QUEUE, json.dumps(odd, separators=(",", ":")))
        held, _ = claim(client)
        assert [lease.tag for lease in held] == ["job:d"]

    def test_queues_are_emptied_in_their_order(self, client: redis.Redis) -> None:
        """The first queue comes first, whatever lies in the second."""
        client.lpush(QUEUE, message("item"))
        client.lpush("penstock.control", message("control"))
        held, _ = claim(client, 1, "penstock.control", QUEUE)
        assert [lease.tag for lease in held] == ["job:control"]

    @pytest.mark.parametrize(
        "body",
        [
            b'{"a":[],"b":{},"c":[[]]}',
            b'{"n":12345678901234567890123,"f":0.1000000000000000055511151231257827,"e":1e400}',
            '{"t":"Grüße \\u0000 \U0001f600 \\"delivery_info\\":{ \\\\","s":"a/b"}'.encode(),
            b'{"deep":' + b"[" * 200 + b"]" * 200 + b"}",
        ],
    )
    def test_the_text_is_never_written_anew(
        self, client: redis.Redis, scripts: LeaseScripts, body: bytes
    ) -> None:
        """Empty arrays, large numbers, odd characters and deep nesting survive claim, record and
        return byte by byte."""
        text = message("doc", body=body)
        client.lpush(QUEUE, text)
        held, reply = claim(client)
        assert reply[5] == text
        assert scripts.give_back(held) == []
        (returned,) = queue(client)
        assert returned == text.replace(
            b'"delivery_info":{', b'"delivery_info":{"redelivered":true,'
        )

    def test_a_duplicate_of_what_is_held_is_dropped(self, client: redis.Redis) -> None:
        """A second message of an item in flight is dropped and counted; its holder's record stays
        as it is."""
        client.lpush(QUEUE, message("a"))
        (lease,), _ = claim(client)
        record = record_of(client, lease.tag)
        client.lpush(QUEUE, message("a"), message("a", body=b'{"other":1}'))
        held, reply = claim(client)
        assert (held, reply[1:3]) == ([], [2, 0])
        assert record_of(client, lease.tag) == record
        assert client.zscore("unacked_index.api", lease.tag) == float(lease.seen)
        assert queue(client) == []

    def test_a_duplicate_within_one_claim_is_dropped(self, client: redis.Redis) -> None:
        """Two messages of one item in one claim are one item."""
        client.lpush(QUEUE, message("a"), message("a"))
        held, reply = claim(client)
        assert ([lease.tag for lease in held], reply[1]) == (["job:a"], 1)

    def test_a_later_try_waits_for_the_acknowledgement_of_the_earlier(
        self, client: redis.Redis, scripts: LeaseScripts
    ) -> None:
        """A promoted retry that arrives before the first try is acknowledged is not taken for a
        duplicate."""
        client.lpush(QUEUE, message("a"))
        first, _ = claim(client)
        client.lpush(QUEUE, message("a", retries=1))
        held, reply = claim(client)
        assert (held, reply[1:3]) == ([], [0, 1])
        scripts.ack(first)
        (second,), reply = claim(client)
        assert reply[5] == message("a", retries=1)
        assert second.tag == "job:a"

    def test_texts_that_are_no_messages_are_kept_aside(self, client: redis.Redis) -> None:
        """What has no delivery tag cannot be claimed; it is kept as it is, and the rest is
        claimed."""
        odd = [
            b"hello",
            b"[]",
            b'"x"',
            b"{}",
            b'{"properties":[]}',
            b'{"properties":{"delivery_tag":1}}',
            b"[" * 2000,
        ]
        client.lpush(QUEUE, *odd, message("a"))
        held, _ = claim(client)
        assert [lease.tag for lease in held] == ["job:a"]
        assert client.lrange(PARKED_KEY, 0, -1) == odd

    def test_a_full_redis_loses_nothing(self, client: redis.Redis, scripts: LeaseScripts) -> None:
        """At its memory limit Redis still lets a claim record what it pops, and take it back."""
        client.lpush(QUEUE, message("a"), message("b"))
        client.config_set("maxmemory", 1)
        try:
            held, _ = claim(client)
            assert client.hlen("unacked.api") == len(held) == 2
            assert scripts.give_back(held[:1]) == scripts.ack(held[1:]) == []
            assert client.llen(QUEUE) == 1
        finally:
            client.config_set("maxmemory", 0)

    def test_without_acknowledgement_nothing_is_recorded(self, client: redis.Redis) -> None:
        """Replies are handed out and forgotten."""
        client.lpush(QUEUE, message("a"))
        _, reply = claim(client, record=False)
        assert reply[5] == message("a")
        assert client.exists("unacked.api", "unacked_index.api") == 0


class TestFence:
    def test_the_holder_may_conclude_after_a_renewal_whose_answer_got_lost(
        self, client: redis.Redis, scripts: LeaseScripts
    ) -> None:
        """An acknowledgement with the lease time before a renewal counts."""
        client.lpush(QUEUE, message("a"))
        held, _ = claim(client)
        scripts.renew(held)
        assert scripts.ack(held) == []
        assert client.exists("unacked.api", "unacked_index.api") == 0

    @pytest.mark.parametrize("step", ["ack", "renew", "give_back", "set_aside"])
    def test_a_thawed_holder_changes_nothing_of_its_successors(
        self, client: redis.Redis, scripts: LeaseScripts, step: str
    ) -> None:
        """Once another worker holds the message, all that the first one does is answered with its
        tag as lost."""
        client.lpush(QUEUE, message("a"))
        (first,), _ = claim(client)
        frozen = Lease(first.tag, str(float(first.seen) - 31))  # as it saw it 31 s ago
        score, record = client.zscore("unacked_index.api", "job:a"), record_of(client, "job:a")
        lost = getattr(scripts, step)([frozen])
        assert (lost[1] if step == "renew" else lost) == ["job:a"]
        assert client.zscore("unacked_index.api", "job:a") == score
        assert record_of(client, "job:a") == record
        assert client.exists(QUEUE, PARKED_KEY) == 0

    def test_what_is_gone_is_lost(self, scripts: LeaseScripts) -> None:
        """A record that another worker has concluded is reported, not recreated."""
        gone = [Lease("job:gone", "1700000000.000000")]
        assert (
            scripts.renew(gone)[1] == scripts.ack(gone) == scripts.give_back(gone) == ["job:gone"]
        )

    def test_a_renewal_moves_the_lease(self, client: redis.Redis, scripts: LeaseScripts) -> None:
        """Renewed leases carry the present time of the server, in Redis and in the answer."""
        client.lpush(QUEUE, message("a"))
        held, _ = claim(client)
        age(client, 20, "job:a")
        score, lost = scripts.renew(held)
        assert lost == []
        assert client.zscore("unacked_index.api", "job:a") == float(score) > float(held[0].seen)


def test_after_redis_forgot_only_a_lease_as_it_was_seen_is_ones_own(
    client: redis.Redis, scripts: LeaseScripts
) -> None:
    """Redis forgets, and another worker claims the message that was fed again: its lease is of
    nearly the same time. The first one loses it, the other one keeps it."""
    client.lpush(QUEUE, message("a"))
    first, _ = claim(client)
    client.flushall()
    client.set(keys.EPOCH_REBUILT, "a rebuild", ex=keys.REBUILT_S)
    client.lpush(QUEUE, message("a"))
    second, _ = claim(client)
    before = [Lease("job:a", str(float(first[0].seen) - 1))]  # it was renewed since
    for held in (first, before):
        assert scripts.renew(held)[1] == ["job:a"]
        for conclude in (scripts.ack, scripts.give_back, scripts.set_aside):
            assert conclude(held) == ["job:a"]
    score, lost = scripts.renew(second)
    assert lost == []
    client.expire(keys.EPOCH_REBUILT, keys.REBUILT_S - 5)  # that was five seconds ago
    assert scripts.renew([Lease("job:a", score)])[1] == []
    assert scripts.ack([Lease("job:a", score)]) == [], "the answer to a renewal was lost"


class TestReturn:
    def test_what_is_given_back_is_next(self, client: redis.Redis, scripts: LeaseScripts) -> None:
        """Messages return to the front of their queue in the order they had, marked as redelivered,
        and only once so."""
        client.lpush(QUEUE, *(message(doc) for doc in "abc"))
        for _ in range(2):
            held, _reply = claim(client, 2)
            assert scripts.give_back(held) == []
        front = queue(client)
        assert [json.loads(text)["headers"]["id"] for text in front] == ["job:a", "job:b", "job:c"]
        assert [json.loads(t)["properties"]["delivery_info"].get("redelivered") for t in front] == [
            True,
            True,
            None,
        ]
        assert front[0].count(b"redelivered") == 1
        assert client.exists("unacked.api", "unacked_index.api") == 0

    def test_only_leases_that_have_run_out_are_restored(
        self, client: redis.Redis, scripts: LeaseScripts
    ) -> None:
        """A sweep leaves living leases alone, and the next one within its pause does nothing."""
        client.lpush(QUEUE, message("dead"), message("alive"))
        claim(client)
        age(client, 31, "job:dead")
        assert scripts.restore(10) == 1
        assert [json.loads(text)["headers"]["id"] for text in queue(client)] == ["job:dead"]
        assert client.hkeys("unacked.api") == [b"job:alive"]
        assert scripts.restore(10) == -1

    def test_a_clock_that_steps_back_holds_up_no_document(
        self, client: redis.Redis, scripts: LeaseScripts
    ) -> None:
        """Leases an hour ahead are returned once their holders have had a timeout to renew them;
        RabbitMQ's are not (A12)."""
        client.lpush(QUEUE, message("dead"), message("alive"), message("relayed"))
        held = {lease.tag: lease for lease in claim(client, 3)[0]}
        age(client, -3_600, "job:dead", "job:alive")
        client.zadd("unacked_index.api", {"job:relayed": "inf"})
        # a pause from before the step, on the server's clock
        client.set(KEYS.sweep, "1", px=3_600_000)
        assert scripts.restore(10) == 0, "the living must have the time to renew"
        ahead = str(client.zscore("unacked_index.api", "job:alive"))
        scripts.renew([Lease("job:alive", ahead)])
        client.delete(KEYS.sweep)
        assert scripts.restore(10) == 0
        noted: Any = client.get(f"{KEYS.sweep}:ahead")
        client.set(f"{KEYS.sweep}:ahead", float(noted) - 31)
        client.delete(KEYS.sweep)
        assert scripts.restore(10) == 1
        assert [json.loads(text)["headers"]["id"] for text in queue(client)] == ["job:dead"]
        client.delete(KEYS.sweep)
        assert (scripts.restore(10), client.exists(f"{KEYS.sweep}:ahead")) == (0, 0)
        assert held.keys() == {"job:dead", "job:alive", "job:relayed"}

    def test_a_sweep_is_bounded_and_goes_on_at_once(
        self, client: redis.Redis, scripts: LeaseScripts
    ) -> None:
        """500 messages at most per sweep; while more wait, the next sweep need not pause."""
        client.lpush(QUEUE, *(message(str(n)) for n in range(700)))
        held, _ = claim(client, 700)
        age(client, 31, *(lease.tag for lease in held))
        assert (scripts.restore(10), client.exists(KEYS.sweep)) == (500, 0)
        assert (scripts.restore(10), client.exists(KEYS.sweep)) == (200, 1)
        assert client.llen(QUEUE) == 700

    def test_a_record_that_cannot_be_routed_is_kept_aside(
        self, client: redis.Redis, scripts: LeaseScripts
    ) -> None:
        """A sweep never fails on a record it does not understand, nor drops it."""
        for tag, record in {"a": b"garbage", "b": b'[{"x":1}, "no.such.exchange", "key"]'}.items():
            client.hset("unacked.api", tag, record)
            client.zadd("unacked_index.api", {tag: 1})
        client.zadd("unacked_index.api", {"without record": 1})
        assert scripts.restore(10) == 3
        assert set(client.lrange(PARKED_KEY, 0, -1)) == {b"garbage", b'{"x":1}'}
        assert client.exists("unacked.api", "unacked_index.api") == 0

    def test_parked_messages_keep_their_text(
        self, client: redis.Redis, scripts: LeaseScripts
    ) -> None:
        """What no task wants is kept as it lay in the queue."""
        client.lpush(QUEUE, message("a"))
        held, _ = claim(client)
        assert scripts.set_aside(held) == []
        assert client.lrange(PARKED_KEY, 0, -1) == [message("a")]

    def test_priorities_return_to_their_list(self, client: redis.Redis) -> None:
        """With kombu's priority steps in use, a message returns to the list that its priority
        names."""
        steps = LeaseScripts(client, KEYS._replace(steps=(0, 3, 6, 9)))
        urgent = message("a").replace(b'"priority":0', b'"priority":7')
        name = QUEUE + "\x06\x166"
        client.lpush(name, urgent)
        arguments = ["unacked.api", "unacked_index.api", PARKED_KEY, name, "1", json.dumps(QUEUE)]
        reply: Any = client.eval(script_text("claim"), 4, *arguments)
        steps.give_back([Lease("job:a", reply[0].decode())])
        assert client.llen(name) == 1


class TestStockKombu:
    def test_it_restores_what_we_hold(self, client: redis.Redis, redis_server: RedisServer) -> None:
        """A stock worker's sweep returns our record to its queue."""
        client.lpush(QUEUE, message("a", body=b'{"empty":[]}'))
        claim(client)
        with Connection(redis_server.url, transport_options=KEY_OPTIONS) as connection:
            channel: Any = connection.default_channel
            channel.qos.restore_by_tag("job:a", client)
        (text,) = queue(client)
        restored = json.loads(text)
        assert restored["properties"]["delivery_info"]["redelivered"] is True
        assert restored["body"] == json.loads(message("a", body=b'{"empty":[]}'))["body"]

    @pytest.mark.parametrize("exchange", ["", "work"])
    def test_we_restore_what_it_held(
        self, client: redis.Redis, scripts: LeaseScripts, redis_server: RedisServer, exchange: str
    ) -> None:
        """Our sweep returns what a stock consumer held, sent through the default exchange or a
        bound one."""
        with Connection(redis_server.url, transport_options=KEY_OPTIONS) as connection:
            bound = Queue("stock", Exchange(exchange, type="direct"), routing_key="stock")
            with connection.SimpleQueue(bound) as simple:
                simple.put({"n": 1, "empty": []})
                held = simple.get(timeout=5)
                age(client, time.time(), held.delivery_tag)
                assert scripts.restore(10) == 1
                again = simple.get(timeout=5)
                assert again.payload == {"n": 1, "empty": []}
                assert again.delivery_info["redelivered"] is True
                again.ack()
