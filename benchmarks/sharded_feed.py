"""One source read by 1, 2 and 4 feeders, each a process: `python -m benchmarks.sharded_feed [documents] [rounds]`.

Each feeder leads its part of the source's shards and publishes as the control loop does; all of them begin at the same moment, into
one real Redis, with cursors in one database (SQLite). Rounds of 1, 2 and 4 are interleaved. CPU per document is what a feeder costs; the
clock says what a machine with as many cores as this one makes of it.
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
import time
from pathlib import Path
from typing import Final, NamedTuple

import orjson

from benchmarks.ground import RunningRedis, end_in_order, folder, redis_server, usage, write_documents
from benchmarks.report import machine, median
from penstock_ledger import JobStore, Meta, RedisLedger, open_database
from penstock_producer import Producer
from penstock_producer.feed.leased_feed import open_feeder

FEEDERS: Final = (1, 2, 4)
STEP: Final = 5_000  # documents between two moves of the durable cursor, as the control loop does
LEASE_S: Final = 600.0


class Run(NamedTuple):
    wall_s: float  # from the start of all feeders to the end of the last
    cpu_s: float  # of all feeders together
    redis_s: float  # CPU


def measure(documents: int, rounds: int) -> None:
    with folder() as place, redis_server(place) as server:
        print(machine(server.client()))
        path = write_documents(place / "documents.jsonl", documents)
        runs: dict[int, list[Run]] = {number: [] for number in FEEDERS}
        for turn in range(rounds):
            for number in FEEDERS:
                runs[number].append(fed(place, path, server, number, f"round-{turn}-{number}", documents))
                server.client().flushall()
    one = runs[1]
    print(f"{documents:,} documents, {rounds} rounds\nfeeders  documents/s  over one  feeder us  redis us")
    for number, found in runs.items():
        rates = [documents / run.wall_s for run in found]
        over = [first.wall_s / run.wall_s for first, run in zip(one, found, strict=True)]
        cpu, redis = ([1e6 * getattr(run, part) / documents for run in found] for part in ("cpu_s", "redis_s"))
        print(f"{number}  {median(rates):,.0f}  {median(over):.2f}x  {median(cpu):.1f}  {median(redis):.1f}", flush=True)


def fed(place: Path, path: Path, server: RunningRedis, number: int, key: str, documents: int) -> Run:
    url = f"sqlite:///{place / 'ledger.db'}"
    with contextlib.closing(open_database(url)) as database:
        database.migrate()
        with Producer(database_url=url, database=database) as producer:
            job = producer.submit(path, {"feeders": number}, job_key=key)
        hot = RedisLedger(server.client(), Meta(database).epoch())
        hot.check_epoch()
        hot.install_epoch()
        command = [sys.executable, "-m", "benchmarks.sharded_feed", "--feeder", url, server.url, job.job_id]
        with contextlib.ExitStack() as stack:
            feeders = [
                stack.enter_context(
                    subprocess.Popen([*command, str(shard)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
                )
                for shard in (range(1, number + 1) if number > 1 else (0,))
            ]
            for feeder in feeders:
                assert feeder.stdout is not None
                feeder.stdout.readline()  # it is ready
            began, redis_s = time.monotonic(), usage(server.pid).cpu_s
            for feeder in feeders:
                _begin(feeder)
            ends = [orjson.loads(feeder.communicate()[0]) for feeder in feeders]
            run = Run(time.monotonic() - began, sum(end["cpu_s"] for end in ends), usage(server.pid).cpu_s - redis_s)
    assert sum(end["published"] for end in ends) == documents, "every document once"
    return run


def _begin(feeder: subprocess.Popen[bytes]) -> None:
    assert feeder.stdin is not None
    feeder.stdin.write(b"go\n")
    feeder.stdin.flush()


def feed(url: str, redis_url: str, job_id: str, shard: int) -> None:
    """One feeder: of a shard, or of the whole source (0)."""
    import redis

    with contextlib.closing(open_database(url)) as database:
        jobs = JobStore(database)
        owner = f"feeder-{shard}"
        leased = jobs.lease_shards([(job_id, 1, shard)], owner, LEASE_S) if shard else jobs.lease_feeds([(job_id, 1)], owner, LEASE_S)
        hot = RedisLedger(redis.Redis.from_url(redis_url), Meta(database).epoch())
        feeder = open_feeder(database, hot, jobs.get(job_id), leased[0], owner=owner)
        print("ready", flush=True)
        sys.stdin.readline()
        began, published = time.process_time(), 0
        while not feeder.feed.exhausted:
            published += feeder.step(STEP).published
        print(orjson.dumps({"published": published, "cpu_s": time.process_time() - began}).decode(), flush=True)


def main() -> None:
    end_in_order()
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sharded_feed", description=__doc__)
    parser.add_argument("documents", type=int, nargs="?", default=200_000)
    parser.add_argument("rounds", type=int, nargs="?", default=3)
    parser.add_argument("--feeder", nargs=4, metavar=("URL", "REDIS", "JOB", "SHARD"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.feeder:
        url, redis_url, job, shard = given.feeder
        feed(url, redis_url, job, int(shard))
    else:
        measure(given.documents, given.rounds)


if __name__ == "__main__":
    main()
