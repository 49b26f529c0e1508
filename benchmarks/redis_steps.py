"""(r) What Redis spends on each step of an item: microseconds of its CPU, in groups as a busy worker sends them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import orjson
import redis

from benchmarks.documents import doc_id, request_body
from benchmarks.ground import folder, redis_server, usage
from benchmarks.report import Report, Row, median
from penstock_ledger import Begin, Publish, RedisLedger, SettleBatch
from penstock_ledger.batches import SettledDone
from penstock_ledger.keys import bucket_count
from penstock_ledger.model import ItemKey
from penstock_producer.wire import encode_item
from penstock_workers.broker.claim import ClaimScript
from penstock_workers.broker.lease_scripts import Lease, LeaseScripts, lane_keys

JOB = "job_aaaaaaaaaaaaaaaaaaaa"  # as long as real ones
QUEUE = "penstock.api"
GROUP = 64  # items per call at some hundred in flight
FED_AT_ONCE = 500
JOB_ITEMS = 100_000  # whose completed set stands in Redis meanwhile
PLAIN = "plain: LPUSH, RPOP, HSET, HDEL of the same message"


def run(quick: bool) -> Report:
    items, rounds = (10_000, 2) if quick else (20_000, 5)
    with folder() as place, redis_server(place) as server, contextlib.closing(server.client()) as client:
        found: dict[str, list[float]] = {}
        for number in range(rounds):
            client.flushall()
            for name, step in _steps(client, number * items, items):
                before = usage(server.pid).cpu_s
                step()
                found.setdefault(name, []).append((usage(server.pid).cpu_s - before) * 1e6 / items)
    plain = median(found.pop(PLAIN))
    rows = [_row(name, median(figures), plain) for name, figures in found.items()]
    rows.append(_row("all steps", sum(map(median, found.values())), plain))
    return Report(f"(r) Redis CPU per item of each step, {items:,} items in groups of {GROUP}, {rounds} round(s)", rows)


def _row(name: str, figure: float, plain: float) -> Row:
    return Row(name, f"{figure:.1f} us", f"{plain:.1f} us {PLAIN}", f"{figure / plain:.2f}x")


def _steps(client: redis.Redis, first: int, items: int) -> Iterator[tuple[str, Callable[[], None]]]:
    hot = RedisLedger(client, "epoch")
    hot.check_epoch()
    hot.install_epoch()
    where, buckets = lane_keys("api", visibility_timeout_s=60), bucket_count(JOB_ITEMS)
    hot.rehydrate(JOB, 1, ((doc_id(10_000_000 + n), False) for n in range(JOB_ITEMS)), buckets)
    keys = [ItemKey(JOB, 1, doc_id(n)) for n in range(first, first + items)]
    raws = [encode_item(key, queue=QUEUE, body=orjson.dumps(request_body(n)), ref=None) for n, key in enumerate(keys)]
    published = [Publish(key, f"{n * 600}:600", raw) for n, (key, raw) in enumerate(zip(keys, raws, strict=True))]
    held: list[Lease] = []

    def plain() -> None:
        for n in range(0, items, GROUP):
            group = raws[n : n + GROUP]
            client.lpush("plain", *group)
            client.rpop("plain", len(group))
            client.hset("plain:unacked", mapping={str(n): raw for n, raw in enumerate(group)})
            client.hdel("plain:unacked", *map(str, range(len(group))))

    def publish() -> None:
        for n in range(0, items, FED_AT_ONCE):
            hot.publish(QUEUE, published[n : n + FED_AT_ONCE], buckets)

    def claim() -> None:
        script = ClaimScript()
        while True:
            command = script.command(where, [(QUEUE, QUEUE)], (), GROUP)
            claimed = script.read(client.execute_command(*command))  # type: ignore[no-untyped-call]  # redis-py's
            if not claimed.messages:
                return
            held.extend(Lease(message.tag, claimed.score) for message in claimed.messages)

    def begin() -> None:
        for n in range(0, items, GROUP):
            hot.begin([Begin(key, buckets) for key in keys[n : n + GROUP]])

    def settle() -> None:
        for n in range(0, items, GROUP):
            hot.settle(SettleBatch(done=[SettledDone(key, buckets) for key in keys[n : n + GROUP]]))

    def ack() -> None:
        scripts = LeaseScripts(client, where)
        for n in range(0, items, GROUP):
            lost = scripts.ack(held[n : n + GROUP])
            assert not lost, "no other process claims here"

    yield from {PLAIN: plain, "publish": publish, "claim": claim, "begin": begin, "settle": settle, "ack": ack}.items()
