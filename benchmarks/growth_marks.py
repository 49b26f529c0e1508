"""What grows inside one large job: `python -m benchmarks.growth_marks 1000000 [--postgres]`.

One fleet works off one job of no-op documents, and at each mark (10,000, 100,000, … documents done)
a row is printed at once: CPU per document since the mark before, sizes, memory, and the price of
writing all answers so far. So a run that is stopped (Ctrl-C, SIGTERM) has printed what it measured.
A second fleet runs a job of 10,000 every now and then: what else the machine does meets both, and
each stretch is held against the small jobs of its own time.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import threading
import time
from pathlib import Path
from typing import NamedTuple

from benchmarks.growth import MIB, SMALL, Database, redis_memory, running_fleet
from benchmarks.harness.fleet import Fleet, JobCost
from benchmarks.harness.ground import end_in_order
from penstock_ledger import OutcomeStore, open_database
from penstock_producer.outputs import write_outputs

MARKS = (10_000, 100_000, 300_000, 1_000_000, 2_000_000, 3_000_000, 4_000_000, 5_000_000)
WRITTEN_FROM = 100_000  # fewer answers are written too quickly to be measured
LOOK_EACH_S = 0.5
REST = 4.0  # times the time of a small job: the second fleet takes a fifth of the machine at most
HEADINGS = (
    "done",
    "per s",
    "worker us",
    "redis us",
    "control us",
    "sum",
    "small jobs",
    "ratio",
    "redis MiB",
    "bytes/doc",
    "database bytes/doc",
    "writing us",
    "control MiB",
    "worker MiB",
)


class Point(NamedTuple):
    """Seconds of CPU so far, and when."""

    done: int
    at: float
    worker_s: float
    control_s: float
    redis_s: float
    worker_peak: int
    control_peak: int


class SmallJobs:
    """A second fleet that runs small jobs, one after the other with rests, in a thread that ends
    with this process."""

    def __init__(self, running: Fleet) -> None:
        self._running = running
        self._costs: list[JobCost] = []
        self._ended = threading.Event()

    def start(self) -> None:
        threading.Thread(target=self._run, daemon=True).start()

    def close(self) -> None:
        """The fleet is about to end; the job that runs now fails, and counts for nothing."""
        self._ended.set()

    def take(self) -> float:
        """Mean microseconds of CPU per document since the last call; 0 where no job has ended
        since."""
        costs, self._costs = self._costs, []
        return 1000 * statistics.mean(_cpu_ms(cost) for cost in costs) if costs else 0.0

    def _run(self) -> None:
        while not self._ended.is_set():
            try:
                cost = self._running.run(SMALL)
            except Exception:
                if self._ended.is_set():
                    return
                raise
            self._costs.append(cost)
            self._ended.wait(REST * cost.wall_s)


def measure(size: int, *, postgres: bool) -> None:
    print("  ".join(HEADINGS), flush=True)
    with (
        running_fleet(postgres) as (place, running, database),
        running_fleet(postgres) as (_, other, _),
        contextlib.closing(SmallJobs(other)) as small,
    ):
        small.start()
        idle = redis_memory(running)
        running.last_job = ""
        job = threading.Thread(target=running.run, args=(size,), daemon=True)
        job.start()
        # an idle fleet has a price per second, and the survey takes long
        while job.is_alive() and not running.done():
            time.sleep(LOOK_EACH_S)
        before = _point(running, running.done())
        for mark in [*(mark for mark in MARKS if mark < size), size]:
            while job.is_alive() and running.done() < mark:
                time.sleep(LOOK_EACH_S)
            point = _point(running, running.done())
            _show(
                before, point, small.take(), redis_memory(running) - idle, database, running, place
            )
            before = _point(running, running.done())


def _show(
    before: Point,
    now: Point,
    small_us: float,
    redis_bytes: int,
    database: Database,
    running: Fleet,
    place: Path,
) -> None:
    items = max(1, now.done - before.done)
    worker = 1e6 * (now.worker_s - before.worker_s) / items
    redis = 1e6 * (now.redis_s - before.redis_s) / items
    control = 1e6 * (now.control_s - before.control_s) / items
    whole = worker + redis + control
    print(
        f"{now.done:,}",
        f"{items / (now.at - before.at):.0f}",
        f"{worker:.0f}",
        f"{redis:.0f}",
        f"{control:.0f}",
        f"{whole:.0f}",
        f"{small_us:.0f}",
        f"{whole / small_us:.2f}x" if small_us else "",
        f"{redis_bytes / MIB:.1f}",
        f"{redis_bytes / now.done:.1f}",
        f"{database.size(running) / now.done:.0f}",
        _writing(running, place, now.done),
        f"{now.control_peak / MIB:.1f}",
        f"{now.worker_peak / MIB:.1f}",
        sep="  ",
        flush=True,
    )


def _writing(running: Fleet, place: Path, done: int) -> str:
    """Microseconds of CPU per answer for the files of all answers so far."""
    if done < WRITTEN_FROM:
        return "-"
    began = time.thread_time()
    with contextlib.closing(open_database(running.database_url)) as database:
        written = write_outputs(OutcomeStore(database), running.last_job, place / "outputs")
    return f"{1e6 * (time.thread_time() - began) / written.results:.1f}"


def _point(running: Fleet, done: int) -> Point:
    workers, control, redis = running.usages()
    return Point(
        done,
        time.monotonic(),
        workers.cpu_s,
        control.cpu_s,
        redis.cpu_s,
        workers.peak_bytes,
        control.peak_bytes,
    )


def _cpu_ms(cost: JobCost) -> float:
    return cost.worker_ms + cost.redis_ms + cost.control_ms


def main() -> None:
    end_in_order()
    parser = argparse.ArgumentParser(prog="python -m benchmarks.growth_marks", description=__doc__)
    parser.add_argument("size", type=int, help="documents of the job")
    parser.add_argument("--postgres", action="store_true", help="a PostgreSQL in place of SQLite")
    given = parser.parse_args()
    measure(given.size, postgres=given.postgres)


if __name__ == "__main__":
    main()
