"""(r) What Redis spends on each step of an item: microseconds of its CPU, in groups as a busy
worker sends them.

Items go through as in a fleet: some thousand are fed ahead, 256 are in flight, and all of them are
settled before the next 256 begin. What a step costs depends on how much lies in the hashes that it
touches.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from itertools import count, islice
from typing import TypeVar

import orjson
import redis

from benchmarks.harness.documents import doc_id, request_body
from benchmarks.harness.ground import folder, redis_server
from benchmarks.harness.report import Report, Row, median
from penstock_ledger import Begin, Publish, RedisLedger, SettleBatch
from penstock_ledger.in_redis.batches import SettledDone
from penstock_ledger.keys import bucket_count
from penstock_ledger.model import ItemKey
from penstock_producer.feed.wire import encode_item
from penstock_workers.broker.lease_scripts import ClaimScript, Lease, LeaseScripts, lane_keys

JOB = "job_aaaaaaaaaaaaaaaaaaaa"  # as long as real ones
QUEUE = "penstock.api"
FED_AHEAD = 2_000
IN_FLIGHT = 256
CLAIMED, BEGUN, SETTLED = 41, 20, 64  # items per call, as a busy worker's figures tell
FED_AT_ONCE = 500
JOB_ITEMS = 100_000  # whose completed set stands in Redis meanwhile
PLAIN = "plain: LPUSH, RPOP, HSET, HDEL of the same message"

T = TypeVar("T")


def run(quick: bool) -> Report:
    turns, rounds = (40, 2) if quick else (80, 5)
    with (
        folder() as place,
        redis_server(place) as server,
        contextlib.closing(server.client()) as client,
    ):
        found: dict[str, list[float]] = defaultdict(list)
        for _ in range(rounds):
            client.flushall()
            for name, cpu_s in measure(client, turns).items():
                found[name].append(cpu_s * 1e6 / (turns * IN_FLIGHT))
    plain = median(found.pop(PLAIN))
    rows = [_row(name, median(figures), plain) for name, figures in found.items()]
    rows.append(_row("all steps", sum(map(median, found.values())), plain))
    title = (
        f"(r) Redis CPU per item of each step, {turns * IN_FLIGHT:,} items with {IN_FLIGHT} in "
        f"flight, {rounds} round(s)"
    )
    return Report(title, rows)


def measure(client: redis.Redis, turns: int) -> dict[str, float]:
    """Seconds of Redis's CPU by step, for ``turns`` times ``IN_FLIGHT`` items."""
    path = _Path(client)
    spent: dict[str, float] = defaultdict(float)
    for turn in range(turns):
        if turn * IN_FLIGHT % FED_AT_ONCE < IN_FLIGHT:
            spent["publish"] += _cpu(client, path.publish)
        for step in (path.claim, path.begin, path.settle, path.ack, path.plain):
            spent[PLAIN if step == path.plain else step.__name__] += _cpu(client, step)
    spent["publish"] *= turns * IN_FLIGHT / path.published  # the last group may be ahead
    return dict(spent)


class _Path:
    """The steps of the items in flight, each over all of them."""

    def __init__(self, client: redis.Redis) -> None:
        self.published = 0
        self._client = client
        self._hot = RedisLedger(client, "epoch")
        self._hot.check_epoch()
        self._hot.install_epoch()
        self._where, self._buckets = (
            lane_keys("api", visibility_timeout_s=60),
            bucket_count(JOB_ITEMS),
        )
        self._claims, self._leases = ClaimScript(), LeaseScripts(client, self._where)
        done = ((doc_id(10_000_000 + n), False) for n in range(JOB_ITEMS))
        self._hot.rehydrate(JOB, 1, done, self._buckets)
        self._numbers = count()
        self._waiting: deque[tuple[ItemKey, bytes]] = deque()
        self._held: list[Lease] = []
        self._keys: list[ItemKey] = []
        self._raws: list[bytes] = []
        for _ in range(FED_AHEAD // FED_AT_ONCE):
            self.publish()
        self.published = 0

    def publish(self) -> None:
        docs = [(n, ItemKey(JOB, 1, doc_id(n))) for n in islice(self._numbers, FED_AT_ONCE)]
        raws = [
            encode_item(key, queue=QUEUE, body=orjson.dumps(request_body(n)), ref=None)
            for n, key in docs
        ]
        self._waiting += zip((key for _, key in docs), raws, strict=True)
        found = [
            Publish(key, f"{n * 600}:600", raw) for (n, key), raw in zip(docs, raws, strict=True)
        ]
        self.published += self._hot.publish(QUEUE, found, self._buckets).published

    def claim(self) -> None:
        self._held = []
        while len(self._held) < IN_FLIGHT:
            room = min(CLAIMED, IN_FLIGHT - len(self._held))
            command = self._claims.command(self._where, [(QUEUE, QUEUE)], (), room)
            claimed = self._claims.read(self._client.execute_command(*command))  # type: ignore[no-untyped-call]  # redis-py's
            self._held += [Lease(message.tag, claimed.score) for message in claimed.messages]
        taken = [self._waiting.popleft() for _ in self._held]
        self._keys, self._raws = [key for key, _ in taken], [raw for _, raw in taken]

    def begin(self) -> None:
        for group in _groups(self._keys, BEGUN):
            self._hot.begin([Begin(key, self._buckets) for key in group])

    def settle(self) -> None:
        for group in _groups(self._keys, SETTLED):
            done = [SettledDone(key, self._buckets, False, 20, 8, 12) for key in group]
            self._hot.settle(SettleBatch(done=done))

    def ack(self) -> None:
        for group in _groups(self._held, SETTLED):
            lost = self._leases.ack(group)
            assert not lost, "no other process claims here"

    def plain(self) -> None:
        for group in _groups(self._raws, CLAIMED):
            self._client.lpush("plain", *group)
            self._client.rpop("plain", len(group))
            self._client.hset("plain:unacked", mapping={str(n): raw for n, raw in enumerate(group)})
            self._client.hdel("plain:unacked", *map(str, range(len(group))))


def _cpu(client: redis.Redis, step: Callable[[], None]) -> float:
    """Seconds of CPU that the server says it used, its own answer to that question included: some
    20 us each."""
    before = _used_s(client)
    step()
    return _used_s(client) - before


def _used_s(client: redis.Redis) -> float:
    used = client.info("cpu")
    return float(used["used_cpu_user"]) + float(used["used_cpu_sys"])


def _groups(things: Sequence[T], size: int) -> list[Sequence[T]]:
    return [things[n : n + size] for n in range(0, len(things), size)]


def _row(name: str, figure: float, plain: float) -> Row:
    return Row(name, f"{figure:.1f} us", f"{plain:.1f} us {PLAIN}", f"{figure / plain:.2f}x")
