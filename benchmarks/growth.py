"""(g) What grows with a job: the same no-op documents in jobs of 100,000 to millions, and in a
thousand small jobs.

`python -m benchmarks.growth 100000 1000000 [--jobs 1000x100] [--postgres]`. All figures are per
document, so that flat means flat: CPU of each process, Redis, the database, the time to write a
job's files, and the feeder's memory. Beside each of them, at the same time, a second fleet runs one
job of 10,000 after the other: what else the machine does meets both.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.harness.fleet import Fleet, JobCost, fleet
from benchmarks.harness.ground import end_in_order, folder, redis_server, tests_on_path
from benchmarks.harness.report import Report, Row, show
from benchmarks.harness.targets import judge
from benchmarks.noop_path import CONCURRENCY, WORKER
from penstock_ledger import OutcomeStore, open_database
from penstock_producer.outputs import write_outputs

SMALL = 10_000  # documents of each job that runs beside
SIZES, QUICK_SIZES = (100_000, 1_000_000), (50_000,)
MANY_JOBS, EACH = 1_000, 100
QUICK_JOBS = 50
MIB = 2**20
GROWTH = "CPU per item, largest job / jobs of 10,000"
MANY = "CPU per item, many jobs of 100 / jobs of 10,000"
PARTS: Mapping[str, Callable[[JobCost], float]] = {
    "worker": lambda cost: cost.worker_ms,
    "redis": lambda cost: cost.redis_ms,
    "control and feeder": lambda cost: cost.control_ms,
    "submit and survey": lambda cost: cost.submit_ms,
}


@dataclass(frozen=True)
class Grown:
    """What one run left and took."""

    name: str
    items: int
    cost: JobCost
    redis_peak: int  # bytes above an idle fleet's
    redis_after: int  # of them still there when the job is complete
    database: int  # bytes, its log included
    # CPU of writing output.jsonl and errors.jsonl; 0 where no single job is written
    assembly_s: float

    @property
    def cpu_us(self) -> float:
        """Workers, Redis, control and feeder."""
        return 1000 * (self.cost.worker_ms + self.cost.redis_ms + self.cost.control_ms)

    def figures(self) -> Iterator[tuple[str, float, str]]:
        yield "CPU, all but submit", self.cpu_us, "us/item"
        yield "worker", 1000 * self.cost.worker_ms, "us/item"
        yield "redis", 1000 * self.cost.redis_ms, "us/item"
        yield "control and feeder", 1000 * self.cost.control_ms, "us/item"
        yield "submit and survey", 1000 * self.cost.submit_ms, "us/item"
        yield "writing the files", 1e6 * self.assembly_s / self.items, "us/item"
        yield "Redis at its fullest", self.redis_peak / MIB, "MiB"
        yield "Redis, job complete", self.redis_after / self.items, "bytes/item"
        yield "database", self.database / self.items, "bytes/item"
        yield "peak memory, control and feeder", self.cost.control_peak / MIB, "MiB"
        yield "peak memory, worker", self.cost.worker_peak / MIB, "MiB"
        yield "documents per second", self.items / self.cost.wall_s, "/s"

    def rows(self, small: Grown) -> Iterator[Row]:
        """Each figure beside that of the ``small`` jobs."""
        for (what, figure, unit), (_, beside, _) in zip(
            self.figures(), small.figures(), strict=True
        ):
            if figure:
                ratio = f"{figure / beside:.2f}x" if beside else ""
                yield Row(f"{self.name}: {what}", f"{figure:,.1f} {unit}", f"{beside:,.1f}", ratio)


def run(quick: bool) -> Report:
    sizes, jobs = (QUICK_SIZES, QUICK_JOBS) if quick else (SIZES, MANY_JOBS)
    return measure(sizes, (jobs, EACH), postgres=False)


def measure(sizes: Sequence[int], many: tuple[int, int] | None, *, postgres: bool) -> Report:
    rows: list[Row] = []
    ratios: dict[str, float] = {}
    for size in sizes:
        large, small = _beside_small_jobs(
            partial(_one_job, size, postgres=postgres), postgres=postgres
        )
        ratios[GROWTH] = large.cpu_us / small.cpu_us
        rows += large.rows(small)
    if many is not None:
        jobs, small = _beside_small_jobs(
            partial(_many_jobs, *many, postgres=postgres), postgres=postgres
        )
        ratios[MANY] = jobs.cpu_us / small.cpu_us
        rows += [*jobs.rows(small), *_price_of_a_job(jobs, small, many[1])]
    rows += [
        Row(name, "", "", f"{ratio:.2f}x").judged(judge(name, ratio))
        for name, ratio in ratios.items()
    ]
    database = "PostgreSQL" if postgres else "SQLite"
    title = (
        f"(g) growth, no-op lane, {database}, one worker; beside: jobs of {SMALL:,} at the same "
        "time"
    )
    return Report(title, rows, ratios=ratios)


def _price_of_a_job(jobs: Grown, small: Grown, each: int) -> Iterator[Row]:
    """What a job costs beside its documents: CPU of jobs of ``each`` beyond that of as many
    documents in ``small`` jobs."""
    for what, cost_of in PARTS.items():
        more = each * (cost_of(jobs.cost) - cost_of(small.cost))
        yield Row(f"a job's own price: {what}", f"{more:.1f} ms")


def _beside_small_jobs(run: Callable[[], Grown], *, postgres: bool) -> tuple[Grown, Grown]:
    """What ``run`` returns, and the mean of the jobs of ``SMALL`` that another fleet ran
    meanwhile."""
    with ThreadPoolExecutor(1) as thread, running_fleet(postgres) as (_, running, database):
        large = thread.submit(run)
        before = redis_memory(running)
        costs: list[JobCost] = []
        while not large.done():
            costs.append(running.run(SMALL))
        peak, after = running.redis_peak() - before, redis_memory(running) - before
        items = SMALL * len(costs)
        mean = replace(
            costs[-1],
            items=items,
            wall_s=sum(cost.wall_s for cost in costs),
            worker_ms=statistics.mean(cost.worker_ms for cost in costs),
            redis_ms=statistics.mean(cost.redis_ms for cost in costs),
            control_ms=statistics.mean(cost.control_ms for cost in costs),
        )
        return large.result(), Grown(
            "small jobs", items, mean, peak, after, database.size(running), 0.0
        )


def _one_job(items: int, *, postgres: bool) -> Grown:
    with running_fleet(postgres) as (place, running, database):
        before = redis_memory(running)
        cost = running.run(items)
        peak, after = running.redis_peak() - before, redis_memory(running) - before
        assembly_s = _assemble(running.database_url, running.last_job, place / "outputs", items)
        return Grown(
            f"{items:,} documents", items, cost, peak, after, database.size(running), assembly_s
        )


def _many_jobs(jobs: int, each: int, *, postgres: bool) -> Grown:
    with running_fleet(postgres) as (_, running, database):
        before = redis_memory(running)
        cost = running.run_many(jobs, each)
        peak, after = running.redis_peak() - before, redis_memory(running) - before
        return Grown(
            f"{jobs:,} jobs of {each}", jobs * each, cost, peak, after, database.size(running), 0.0
        )


class Database:
    """SQLite beside the fleet's other files, or a database of its own in a PostgreSQL."""

    def __init__(self, postgres: Any) -> None:
        self._postgres = postgres
        self.url: str | None = None if postgres is None else postgres.new_database()

    def size(self, running: Fleet) -> int:
        if self._postgres is None:
            path = Path(running.database_url.removeprefix("sqlite:///"))
            return sum(part.stat().st_size for part in path.parent.glob(path.name + "*"))
        with (
            contextlib.closing(open_database(running.database_url)) as database,
            database.engine.connect() as connection,
        ):
            return int(
                connection.exec_driver_sql(
                    "select pg_database_size(current_database())"
                ).scalar_one()
            )


@contextlib.contextmanager
def running_fleet(postgres: bool) -> Iterator[tuple[Path, Fleet, Database]]:
    with contextlib.ExitStack() as stack:
        place = stack.enter_context(folder())
        server = stack.enter_context(redis_server(place))
        started: Any = None
        if postgres:
            with tests_on_path():
                started = import_module("servers").Postgres.start(fsync=True)
            stack.callback(started.stop)
        database = Database(started)
        running = stack.enter_context(
            fleet(
                place / "fleet",
                server,
                worker=WORKER,
                concurrency=CONCURRENCY,
                database_url=database.url,
            )
        )
        yield place, running, database


def redis_memory(running: Fleet) -> int:
    return int(running.redis_info("memory")["used_memory"])


def _assemble(database_url: str, job_id: str, destination: Path, items: int) -> float:
    started = time.thread_time()
    with contextlib.closing(open_database(database_url)) as database:
        written = write_outputs(OutcomeStore(database), job_id, destination)
    assert written.results + written.dead_letters == items, "each document has one outcome"
    return time.thread_time() - started


def main() -> None:
    end_in_order()
    parser = argparse.ArgumentParser(prog="python -m benchmarks.growth", description=__doc__)
    parser.add_argument(
        "sizes", nargs="*", type=int, default=list(SIZES), help="documents of each job"
    )
    parser.add_argument(
        "--jobs", metavar="JOBSxDOCUMENTS", help="also so many jobs at once, such as 1000x100"
    )
    parser.add_argument("--postgres", action="store_true", help="a PostgreSQL in place of SQLite")
    given = parser.parse_args()
    jobs, _, each = (given.jobs or "").partition("x")
    show(
        measure(
            given.sizes, (int(jobs), int(each)) if given.jobs else None, postgres=given.postgres
        )
    )


if __name__ == "__main__":
    main()
