"""(a) Feeding: a JSONL file through the real Feeder into a real Redis and SQLite, beside
`apply_async`."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness.documents import request_body
from benchmarks.harness.ground import RunningRedis, folder, redis_server, usage, write_documents
from benchmarks.harness.report import Report, Row, median
from benchmarks.harness.targets import judge
from penstock_ledger import Database, JobStore, Meta, RedisLedger, open_database
from penstock_ledger.model import Feed
from penstock_producer import Producer
from penstock_producer.feed.leased_feed import open_feeder

STEP = 5_000  # documents between two moves of the durable cursor, as the control loop does
LEASE_S = 600.0
ROUNDS = 3
TARGET_PER_S = 20_000
TARGET_RATIO = 16
FED = "fed per CPU second / apply_async"  # in targets.py
# of the plain rate: a GPU asks for hundreds of items per second, not for tens of thousands
ORDERED_SHARE = 0.75


@dataclass(frozen=True)
class Rate:
    """Items per second of wall clock, of this process's CPU, and of this process's and Redis's CPU
    together."""

    wall: float
    cpu: float
    all_cpu: float


@dataclass(frozen=True)
class Watch:
    """Clocks at one moment."""

    wall: float
    cpu: float
    redis_cpu: float

    @classmethod
    def look(cls, server: RunningRedis) -> Watch:
        return cls(time.monotonic(), time.process_time(), usage(server.pid).cpu_s)

    def rate(self, items: int, end: Watch) -> Rate:
        cpu = end.cpu - self.cpu
        return Rate(
            items / (end.wall - self.wall),
            items / cpu,
            items / (cpu + end.redis_cpu - self.redis_cpu),
        )


def run(quick: bool) -> Report:
    items, calls = (20_000, 1_000) if quick else (100_000, 4_000)
    fed: list[Rate] = []
    ordered: list[Rate] = []
    sent: list[Rate] = []
    with folder() as place, redis_server(place) as server:
        path = write_documents(place / "documents.jsonl", items)
        for number in range(1 if quick else ROUNDS):
            sent.append(send(server, calls))
            server.client().flushall()
            fed.append(feed(place, path, server, f"round-{number}"))
            server.client().flushall()
            ordered.append(feed(place, path, server, f"ordered-{number}", prefix_order=True))
            server.client().flushall()
    rows = [*_rows(fed, sent), _ordered_row(ordered, fed)]
    title = f"(a) feed, {items:,} items against {calls:,} calls, {len(fed)} round(s)"
    return Report(
        title, rows, ratios={FED: _ratio([rate.cpu for rate in fed], [rate.cpu for rate in sent])}
    )


def feed(place: Path, path: Path, server: RunningRedis, key: str, **spec: object) -> Rate:
    """The durable cursor and the queue message of every document; the survey at submit is not
    counted."""
    with contextlib.closing(open_database(f"sqlite:///{place / 'ledger.db'}")) as database:
        database.migrate()
        with Producer(database_url=f"sqlite:///{place / 'ledger.db'}") as producer:
            job = producer.submit(path, spec, job_key=key)
        hot = RedisLedger(server.client(), Meta(database).epoch())
        hot.check_epoch()
        hot.install_epoch()
        feeder = open_feeder(database, hot, job, _lease(database, job.job_id), owner="bench")
        started, published = Watch.look(server), 0
        while not feeder.feed.exhausted:
            published += feeder.step(STEP).published
        return started.rate(published, Watch.look(server))


def send(server: RunningRedis, calls: int) -> Rate:
    """The same request bodies with Celery's own call, over one open connection."""
    from celery import Celery

    app = Celery("bench", broker=server.url, set_as_current=False)
    app.conf.update(task_ignore_result=True, task_send_sent_event=False)

    @app.task(name="bench.item")  # type: ignore[untyped-decorator]  # Celery is untyped
    def item(body: dict[str, object]) -> None:
        """Never run: only sent."""

    bodies = [request_body(n) for n in range(calls)]
    with app.connection_for_write() as connection, app.amqp.Producer(connection) as producer:
        item.apply_async((bodies[0],), producer=producer)
        started = Watch.look(server)
        for body in bodies:
            item.apply_async((body,), producer=producer)
        return started.rate(calls, Watch.look(server))


def _lease(database: Database, job_id: str) -> Feed:
    leased = JobStore(database).lease_feed(job_id, 1, "bench", LEASE_S)
    assert leased is not None, "no other process feeds from this database"
    return leased


def _rows(fed: list[Rate], sent: list[Rate]) -> list[Row]:
    return [
        _row("per second of wall clock", [rate.wall for rate in fed], [rate.wall for rate in sent]),
        _by_cpu([rate.cpu for rate in fed], [rate.cpu for rate in sent]),
        _row(
            "per CPU second of feeder and Redis",
            [rate.all_cpu for rate in fed],
            [rate.all_cpu for rate in sent],
        ),
    ]


def _ordered_row(ordered: list[Rate], fed: list[Rate]) -> Row:
    mine, plain = median([rate.cpu for rate in ordered]), median([rate.cpu for rate in fed])
    return Row(
        "in prefix order, items per CPU second",
        f"{mine:,.0f}",
        f"file's order {plain:,.0f}",
        f"{mine / plain:.2f}x",
        f">= {ORDERED_SHARE:.2f}x",
        mine >= ORDERED_SHARE * plain,
    )


def _by_cpu(fed: list[float], sent: list[float]) -> Row:
    """What `--check` holds: wall clock says something on a quiet machine only."""
    return _row("per CPU second of the feeder", fed, sent).judged(judge(FED, _ratio(fed, sent)))


def _ratio(fed: list[float], sent: list[float]) -> float:
    return median(fed) / median(sent)


def _row(what: str, fed: list[float], sent: list[float]) -> Row:
    ours, ratio = median(fed), _ratio(fed, sent)
    return Row(
        f"items {what}",
        f"{ours:,.0f}",
        f"apply_async {median(sent):,.0f}",
        f"{ratio:.1f}x",
        f">= {TARGET_PER_S:,} and >= {TARGET_RATIO}x",
        ours >= TARGET_PER_S and ratio >= TARGET_RATIO,
    )
