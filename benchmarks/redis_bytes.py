"""(d) What one document costs in Redis while it is queued, and once it is finished; and that the
completed set is exact."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import redis

from benchmarks.harness.documents import doc_id, request_body
from benchmarks.harness.ground import folder, redis_server
from benchmarks.harness.report import Report, Row
from penstock_ledger import Publish, RedisLedger
from penstock_ledger.keys import bucket_count
from penstock_ledger.model import ItemKey
from penstock_producer.feed.wire import encode_item

JOB = "job_aaaaaaaaaaaaaaaaaaaa"  # as long as real ones
QUEUE = "penstock.api"
STEP = 5_000
TARGET_BYTES = 24


def run(quick: bool) -> Report:
    finished, queued = (100_000, 5_000) if quick else (1_000_000, 20_000)
    with (
        folder() as place,
        redis_server(place) as server,
        contextlib.closing(server.client()) as client,
    ):
        hot = RedisLedger(client, "epoch")
        hot.check_epoch()
        hot.install_epoch()
        per_finished = _completed_set(client, hot, finished)
        wrong = _wrong_answers(hot, finished)
        client.flushall()
        hot.install_epoch()
        per_queued, body = _queued(client, hot, queued)
    return Report(
        f"(d) bytes of Redis, {finished:,} finished and {queued:,} queued",
        [
            Row(
                "per finished document (16-byte id)",
                f"{per_finished:.1f} bytes",
                "16 bytes of id",
                f"{per_finished / 16:.2f}x",
                f"<= {TARGET_BYTES}",
                per_finished <= TARGET_BYTES,
            ),
            Row(f"wrong answers of {2 * finished:,} look-ups", str(wrong), "", "", "0", wrong == 0),
            Row(
                "per queued document",
                f"{per_queued:,.0f} bytes",
                f"{body:,.0f} bytes of request body",
                f"{per_queued / body:.2f}x",
            ),
        ],
    )


def _completed_set(client: redis.Redis, hot: RedisLedger, number: int) -> float:
    before = _used(client)
    hot.rehydrate(JOB, 1, ((doc_id(n), False) for n in range(number)), bucket_count(number))
    return (_used(client) - before) / number


def _wrong_answers(hot: RedisLedger, number: int) -> int:
    """Publishing asks the completed set: all that is in it must be dropped as done, and nothing
    else may be."""
    wrong = 0
    for group in _groups(2 * number):
        done = sum(n < number for n in group)
        report = hot.publish(QUEUE, [_publish(n, b"{}") for n in group], bucket_count(number))
        wrong += abs(report.done - done) + abs(report.published - (len(group) - done))
    return wrong


def _queued(client: redis.Redis, hot: RedisLedger, number: int) -> tuple[float, float]:
    """Queue message and window entry of documents with the bodies that the other benchmarks
    send."""
    import orjson

    bodies = [orjson.dumps(request_body(n)) for n in range(number)]
    before = _used(client)
    for group in _groups(number):
        hot.publish(QUEUE, [_publish(n, bodies[n]) for n in group], bucket_count(number))
    return (_used(client) - before) / number, sum(map(len, bodies)) / number


def _publish(n: int, body: bytes) -> Publish:
    key = ItemKey(JOB, 1, doc_id(n))
    return Publish(key, f"{n * 600}:600", encode_item(key, queue=QUEUE, body=body, ref=None))


def _groups(number: int) -> Iterator[range]:
    return (range(start, min(start + STEP, number)) for start in range(0, number, STEP))


def _used(client: redis.Redis) -> int:
    return int(client.info("memory")["used_memory"])
