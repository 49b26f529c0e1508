"""Our fleet as a user runs it on one machine: Redis, a ledger in SQLite and one `penstock worker
--lane gpu`, which feeds too."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import orjson

from benchmarks.engines.items import Item, write
from benchmarks.engines.setup import SERVED_AS, Setup, variables
from benchmarks.engines.work import LOG_END, Work, cpu_seconds, end_group
from benchmarks.harness.ground import ROOT, GroundError, RunningRedis, redis_server
from penstock_ledger import Meta, QueueBook, RedisLedger, keys, open_database
from penstock_ledger.model import Job
from penstock_producer import Producer
from penstock_producer.feed.queues import LOADS
from penstock_producer.feed.wire import queue_name

START_TIMEOUT_S = 900.0  # compiling and capturing graphs for a large model takes minutes
STALLED_S = 120.0  # without a single outcome: something is broken
LOOK_EACH_S = 0.01
LEASE_S = 5.0  # how long a killed worker's items stay away; the default is a minute


class WorkerFleet:
    """One worker at a time, started, killed and started again over the same Redis and ledger."""

    def __init__(
        self, place: Path, server: RunningRedis, setup: Setup, concurrency: int | None
    ) -> None:
        self._place, self._setup = place, setup
        self.server, self._client = server, server.client()
        self.database_url = f"sqlite:///{place / 'ledger.db'}"
        with contextlib.closing(open_database(self.database_url)) as database:
            database.migrate()
            self._hot = RedisLedger(self._client, Meta(database).epoch())
        self._variables = _variables(setup, server, self.database_url, concurrency)
        self._worker: subprocess.Popen[bytes] | None = None
        self._jobs = 0
        self.producer = Producer(database_url=self.database_url)
        self.start_s = 0.0  # of the last worker, until it was ready

    def start(self, *, wait: bool = True) -> None:
        started = time.monotonic()
        with (self._place / "worker.log").open("ab") as log:
            self._worker = subprocess.Popen(
                [sys.executable, "-m", "penstock_cli", "worker", "--lane", "gpu"],
                env=os.environ | self._variables,
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        if not wait:
            return
        while not self._heard():
            if time.monotonic() - started > START_TIMEOUT_S:
                raise GroundError(f"no worker after {START_TIMEOUT_S:.0f} s:\n{self._log_end()}")
            self._check_alive()
            time.sleep(LOOK_EACH_S)
        self.start_s = time.monotonic() - started

    def kill(self) -> None:
        """kill -9, the worker only: its engine must end by itself."""
        assert self._worker is not None, "start() comes first"
        self._worker.kill()
        self._worker.wait()

    def stop(self) -> None:
        """Ask it to end; whatever is left of its process group is killed."""
        if self._worker is not None:
            self._worker.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._worker.wait(30)
            end_group(self._worker)
            self._worker = None

    # -- jobs --------------------------------------------------------------------------------------

    def submit(self, lines: list[Item], **spec: object) -> Job:
        self._jobs += 1
        path = write(self._place / f"job-{self._jobs}.jsonl", lines)
        return self.producer.submit(path, {"lane": "gpu"} | spec)

    def run(self, lines: list[Item], **spec: object) -> Work:
        """From the moment when the worker takes the first item to the last outcome, stored and
        counted."""
        job = self.submit(lines, **spec)
        while not self.taken():
            self._check_alive()
            time.sleep(LOOK_EACH_S)
        started, cpu_s = time.monotonic(), self.cpu_s()
        self.wait(job, len(lines))
        return self._work(job, time.monotonic() - started, self.cpu_s() - cpu_s)

    def wait(self, job: Job, outcomes: int) -> None:
        """Looks at one counter in Redis, which moves after the ledger has the outcome: it costs the
        worker nothing."""
        last, moved_at, patience_s = -1, time.monotonic(), START_TIMEOUT_S
        while (done := self.done(job)) < outcomes:
            if patience_s != STALLED_S and self._heard():
                last, patience_s = -1, STALLED_S  # from now on: the time of a start is no silence
            if done != last:
                last, moved_at = done, time.monotonic()
            elif time.monotonic() - moved_at > patience_s:
                raise GroundError(
                    f"{done} of {outcomes} outcomes, then silence:\n{self._log_end()}"
                )
            self._check_alive()
            time.sleep(LOOK_EACH_S)

    def done(self, job: Job) -> int:
        stats = self._hot.stats(job.job_id)
        return stats.get("succeeded", 0) + stats.get("dead", 0)

    def taken(self) -> int:
        """Items that workers hold now."""
        queues = QueueBook(self._client).of(queue_name("gpu"))
        return sum(int(self._client.hlen(keys.unacked(queue))) for queue in queues)

    def _work(self, job: Job, seconds: float, cpu_s: float) -> Work:
        counts = self.producer.status(job.job_id).counts
        if counts.dead_by_reason:
            raise GroundError(f"dead letters: {counts.dead_by_reason}")
        return Work(counts.succeeded, seconds, cpu_s)

    # -- the worker --------------------------------------------------------------------------------

    def _heard(self) -> bool:
        assert self._worker is not None, "start() comes first"
        name = f"-{self._worker.pid}"
        return any(
            seen.name.endswith(name) and LOADS not in seen.info for seen in self._hot.workers()
        )

    def _check_alive(self) -> None:
        if self._worker is None or self._worker.poll() is not None:
            raise GroundError(f"the worker has ended:\n{self._log_end()}")

    def cpu_s(self) -> float:
        """Of worker, engine and Redis, so far."""
        assert self._worker is not None, "start() comes first"
        return cpu_seconds(self._worker.pid, self.server.pid)

    def _log_end(self) -> str:
        return (self._place / "worker.log").read_text(errors="replace")[-LOG_END:]


@contextlib.contextmanager
def worker_fleet(
    place: Path, setup: Setup, *, concurrency: int | None = None
) -> Iterator[WorkerFleet]:
    """Redis and ledger of their own in ``place``; no worker yet.

    ``concurrency`` None = what the lane chooses."""
    place.mkdir(parents=True)
    with redis_server(place) as server:
        fleet = WorkerFleet(place, server, setup, concurrency)
        try:
            yield fleet
        finally:
            fleet.stop()
            fleet.producer.close()


def _variables(
    setup: Setup, server: RunningRedis, database_url: str, concurrency: int | None
) -> dict[str, str]:
    chosen = {
        "PENSTOCK_REDIS_URL": server.url,
        "PENSTOCK_DATABASE_URL": database_url,
        "PENSTOCK_VISIBILITY_TIMEOUT_S": f"{LEASE_S:g}",
        "PENSTOCK_GPU__MODEL": setup.model,
        "PENSTOCK_GPU__NAMES": orjson.dumps([SERVED_AS]).decode(),
        "PENSTOCK_GPU__MAX_NUM_SEQS": str(setup.max_num_seqs),
        "PENSTOCK_GPU__MAX_NUM_BATCHED_TOKENS": str(setup.max_num_batched_tokens),
        "PENSTOCK_GPU__ENGINE": orjson.dumps(setup.engine).decode(),
    }
    more = {} if concurrency is None else {"PENSTOCK_CONCURRENCY": str(concurrency)}
    return variables(setup, **chosen, **more)
