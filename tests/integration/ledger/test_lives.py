"""Random lives of items between queue, workers and delayed set, with crashes, losses and amnesia:
nothing is lost."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import pytest
from envelopes import decode_envelope
from servers import RedisServer

from penstock_ledger import (
    Begin,
    BeginReply,
    ItemKey,
    Publish,
    RedisLedger,
    SettleBatch,
    SettledDead,
    SettledDone,
    SettledRetry,
)
from penstock_producer.feed.wire import encode_item, item_tag

QUEUE = "penstock.api"
JOB = "job-a"
BUCKETS = 3
DOCS = [f"d{n}" for n in range(30)]


def key(doc: str) -> ItemKey:
    return ItemKey(JOB, 1, doc)


@dataclass
class Night:
    """A fleet in miniature: ``flying`` items were begun by some worker, ``finished`` is what SQL
    would hold."""

    client: Any
    hot: RedisLedger
    rng: random.Random
    flying: set[str] = field(default_factory=set)
    forgotten: set[str] = field(default_factory=set)  # flying, but begun before Redis forgot
    finished: dict[str, bool] = field(default_factory=dict)
    crashes: dict[str, int] = field(default_factory=dict)
    has_forgotten: bool = False

    def feed(self) -> None:
        items = [
            Publish(key(doc), doc, encode_item(key(doc), queue=QUEUE, body=b"{}", ref=None))
            for doc in DOCS
        ]
        self.hot.publish(QUEUE, items, BUCKETS)

    def work(self) -> None:
        """Claim like the transport does: a popped message whose tag is held already is a duplicate
        and dropped."""
        raw = self.client.rpop(QUEUE)
        if raw is None:
            return
        envelope = decode_envelope(raw)
        if not self.client.hsetnx("unacked.api", envelope.tag, raw):
            return
        doc = envelope.message.key.doc_id
        begun = self.hot.begin([Begin(key(doc), BUCKETS)])[0]
        if doc in self.finished:
            assert begun.reply is BeginReply.DONE, f"{doc} would be paid for twice"
            self.ack(doc)
            return
        if begun.reply is BeginReply.UNKNOWN_SINCE_REBUILT:
            assert self.has_forgotten, "what is fed is known, unless Redis forgot"
            self.ack(doc)  # the feed brings it again
            return
        assert begun[:2] == (BeginReply.GO, self.crashes.get(doc, 0)), doc
        self.flying.add(doc)

    def conclude(self) -> None:
        if not self.flying:
            return
        doc = self.rng.choice(sorted(self.flying))
        self.flying.discard(doc)
        self.forgotten.discard(doc)
        batch = self.rng.choice([self.done, self.dead, self.retry, self.retry, self.release])(doc)
        self.hot.settle(batch)
        if batch.released:
            self.client.lpush(QUEUE, self.client.hget("unacked.api", item_tag(key(doc))) or b"lost")
        self.ack(doc)

    def crash(self) -> None:
        """A worker dies; its lease ends and the message goes back, or is lost with it."""
        if not self.flying:
            return
        doc = self.rng.choice(sorted(self.flying))
        self.flying.discard(doc)
        if doc not in self.forgotten:
            self.crashes[doc] = self.crashes.get(doc, 0) + 1
        self.forgotten.discard(doc)
        raw = self.client.hget("unacked.api", item_tag(key(doc)))
        self.ack(doc)
        if raw is not None and self.rng.random() < 0.6:
            self.client.rpush(QUEUE, raw)

    def lose(self) -> None:
        self.client.rpop(QUEUE)

    def forget(self) -> None:
        if self.rng.random() < 0.8:
            return  # rarely
        self.client.flushall()
        self.has_forgotten = True
        self.crashes.clear()
        self.forgotten = set(self.flying)
        self.hot.rehydrate(JOB, 1, list(self.finished.items()), BUCKETS)
        self.hot.install_epoch()
        for doc in self.flying:  # leases are renewed by those who live
            raw = encode_item(key(doc), queue=QUEUE, body=b"{}", ref=None)
            self.client.hset("unacked.api", item_tag(key(doc)), raw)

    def promote(self) -> None:
        self.hot.promote(QUEUE)

    def reconcile(self) -> None:
        missing = self.hot.missing(QUEUE, JOB, 1, item_tag)
        self.hot.drop_from_window([key(doc) for doc, _ in missing])
        assert self.flying.isdisjoint(doc for doc, _ in missing)

    def done(self, doc: str) -> SettleBatch:
        self.finished[doc] = False
        return SettleBatch(done=[SettledDone(key(doc), BUCKETS)])

    def dead(self, doc: str) -> SettleBatch:
        self.finished[doc] = True
        return SettleBatch(dead=[SettledDead(key(doc), BUCKETS, "x")])

    def retry(self, doc: str) -> SettleBatch:
        raw = encode_item(key(doc), queue=QUEUE, body=b"{}", ref=None, retries=1)
        return SettleBatch(
            retries=[SettledRetry(key(doc), BUCKETS, QUEUE, item_tag(key(doc)), raw, 0.0)]
        )

    def release(self, doc: str) -> SettleBatch:
        return SettleBatch(released=[key(doc)])

    def ack(self, doc: str) -> None:
        self.client.hdel("unacked.api", item_tag(key(doc)))


@pytest.mark.parametrize("seed", range(8))
def test_every_item_ends_once_whatever_happens(redis_server: RedisServer, seed: int) -> None:
    """After any mixture of faults every document ends, none is started when it is finished, and
    crashes are exact."""
    client = redis_server.client()
    night = Night(client, RedisLedger(client, "epoch-1"), random.Random(seed))
    night.hot.install_epoch()
    faults = [night.crash, night.lose, night.forget]
    peace = [
        night.feed,
        night.work,
        night.work,
        night.work,
        night.conclude,
        night.conclude,
        night.promote,
        night.reconcile,
    ]
    for _ in range(400):
        night.rng.choice(peace + faults)()
    for _ in range(20_000):
        if len(night.finished) == len(DOCS):
            break
        night.rng.choice(peace)()
    assert sorted(night.finished) == sorted(DOCS)
    night.reconcile()
    assert night.hot.outstanding(JOB, 1) == 0
    assert client.hlen(f"penstock:{JOB}:1:starts") == 0
    assert all(value >= 0 for value in night.hot.stats(JOB).values())
