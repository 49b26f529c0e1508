"""One source read by 1, 2 and 4 feeders, each a process: `python -m benchmarks.sharded_feed
[documents] [rounds]`.

Each process leads its part of the source's shards and publishes as the control loop does; all of
them begin at the same moment, into one real Redis, with cursors in one database (SQLite). Rounds
are interleaved. CPU per document is what a feeder costs; the clock says what a machine with as many
cores as this one makes of it. One process that leads four shards is what one machine would do.
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import orjson
import redis

from benchmarks.harness.ground import (
    RunningRedis,
    end_in_order,
    folder,
    redis_server,
    usage,
    write_documents,
)
from benchmarks.harness.report import machine, median
from penstock_ledger import JobStore, Meta, RedisLedger, open_database
from penstock_producer import Producer
from penstock_producer.feed.leased_feed import open_feeder

STEP: Final = 5_000  # documents between two moves of the durable cursor, as the control loop does
LEASE_S: Final = 600.0


class Way(NamedTuple):
    processes: int
    shards: int


ONE: Final = Way(1, 1)
WAYS: Final = (ONE, Way(1, 4), Way(2, 2), Way(4, 4))


class Run(NamedTuple):
    wall_s: float  # from the start of all feeders to the end of the last
    cpu_s: float  # of all feeders together
    redis_s: float  # CPU


def measure(documents: int, rounds: int) -> None:
    with folder() as place, redis_server(place) as server:
        print(machine(server.client()))
        path = write_documents(place / "documents.jsonl", documents)
        runs: dict[Way, list[Run]] = {way: [] for way in WAYS}
        for turn in range(rounds):
            for way in WAYS:
                runs[way].append(
                    fed(
                        place,
                        path,
                        server,
                        way,
                        f"round-{turn}-{way.processes}-{way.shards}",
                        documents,
                    )
                )
                print(turn, *way, *(f"{part:.2f}" for part in runs[way][-1]), flush=True)
                server.client().flushall()
    print(f"{documents:,} documents, {rounds} rounds")
    print("processes  shards  documents/s  over one  feeder us  redis us")
    for way, found in runs.items():
        rate = median([documents / run.wall_s for run in found])
        over = median(
            [first.wall_s / run.wall_s for first, run in zip(runs[ONE], found, strict=True)]
        )
        feeder, server_us = (
            median([1e6 * part / documents for part in parts]) for parts in _cpu(found)
        )
        print(
            f"{way.processes}  {way.shards}  {rate:,.0f}  {over:.2f}x  {feeder:.1f}  "
            f"{server_us:.1f}"
        )


def _cpu(runs: Sequence[Run]) -> tuple[list[float], list[float]]:
    return [run.cpu_s for run in runs], [run.redis_s for run in runs]


def fed(place: Path, path: Path, server: RunningRedis, way: Way, key: str, documents: int) -> Run:
    url = f"sqlite:///{place / 'ledger.db'}"
    with contextlib.closing(open_database(url)) as database:
        database.migrate()
        with Producer(database_url=url, database=database) as producer:
            job = producer.submit(path, {"feeders": way.shards}, job_key=key)
        hot = RedisLedger(server.client(), Meta(database).epoch())
        hot.check_epoch()
        hot.install_epoch()
    shards = [*range(1, way.shards + 1)] if way.shards > 1 else [0]
    command = [
        sys.executable,
        "-m",
        "benchmarks.sharded_feed",
        "--feeder",
        url,
        server.url,
        job.job_id,
    ]
    with contextlib.ExitStack() as stack:
        feeders = [
            stack.enter_context(
                subprocess.Popen(
                    [*command, ",".join(map(str, shards[number :: way.processes]))],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                )
            )
            for number in range(way.processes)
        ]
        for feeder in feeders:
            _line(feeder)  # it is ready
        began, redis_s = time.monotonic(), usage(server.pid).cpu_s
        for feeder in feeders:
            _begin(feeder)
        ends = [orjson.loads(_line(feeder)) for feeder in feeders]
        run = Run(
            time.monotonic() - began,
            sum(end["cpu_s"] for end in ends),
            usage(server.pid).cpu_s - redis_s,
        )
    assert sum(end["published"] for end in ends) == documents, "every document once"
    return run


def _line(feeder: subprocess.Popen[bytes]) -> bytes:
    assert feeder.stdout is not None
    return feeder.stdout.readline()


def _begin(feeder: subprocess.Popen[bytes]) -> None:
    assert feeder.stdin is not None
    feeder.stdin.write(b"go\n")
    feeder.stdin.close()


def feed(url: str, redis_url: str, job_id: str, shards: Sequence[int]) -> None:
    """One process: it leads these shards, or the feed of a source that is not split (0), and steps
    them in turns."""
    with contextlib.closing(open_database(url)) as database:
        jobs, owner = JobStore(database), f"feeder-{shards[0]}"
        whole = jobs.lease_feeds([(job_id, 1)] if shards == [0] else [], owner, LEASE_S)
        parts = jobs.lease_shards([(job_id, 1, shard) for shard in shards if shard], owner, LEASE_S)
        hot = RedisLedger(redis.Redis.from_url(redis_url), Meta(database).epoch())
        job = jobs.get(job_id)
        feeders = [open_feeder(database, hot, job, feed, owner=owner) for feed in (*whole, *parts)]
        print("ready", flush=True)
        sys.stdin.readline()
        began, published = time.process_time(), 0
        while not all(feeder.feed.exhausted for feeder in feeders):
            published += sum(feeder.step(STEP // len(feeders)).published for feeder in feeders)
        print(
            orjson.dumps({"published": published, "cpu_s": time.process_time() - began}).decode(),
            flush=True,
        )


def main() -> None:
    end_in_order()
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sharded_feed", description=__doc__)
    parser.add_argument("documents", type=int, nargs="?", default=200_000)
    parser.add_argument("rounds", type=int, nargs="?", default=3)
    parser.add_argument(
        "--feeder", nargs=4, metavar=("URL", "REDIS", "JOB", "SHARDS"), help=argparse.SUPPRESS
    )
    given = parser.parse_args()
    if given.feeder:
        url, redis_url, job, shards = given.feeder
        feed(url, redis_url, job, [int(shard) for shard in shards.split(",")])
    else:
        measure(given.documents, given.rounds)


if __name__ == "__main__":
    main()
