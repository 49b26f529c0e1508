"""Jobs through the `batch` lane, at the simulated provider: what a document costs there, and
whether anything grows with a job.

`python -m benchmarks.batch_lane --documents 10000 100000 [--postgres]`: one job of each number,
each with a fleet of its own (a worker, a control process, Redis, a database), the smallest beside
the others. CPU is that of the fleet, not the simulator's.
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final

from sqlalchemy import func, select

from benchmarks.growth import Database, redis_memory
from benchmarks.harness.fleet import Fleet, JobCost, fleet
from benchmarks.harness.ground import end_in_order, folder, redis_server, simulator, tests_on_path
from benchmarks.harness.report import Report, Row, show
from penstock_ledger import open_database
from penstock_ledger.sql.tables import metadata

DOCUMENTS: Final = (10_000, 100_000)
BATCH_S: Final = 2.0  # that the simulated provider takes for a batch
TABLES: Final = ("provider_batches", "provider_batch_ids", "batch_remainders", "outcomes")
FLAT: Final = 1.3  # the largest job's peak over the smallest one's
MIB: Final = 2**20


@dataclass(frozen=True)
class Run:
    """What one job took and left."""

    documents: int
    cost: JobCost
    rows: Mapping[str, int]  # of each table, when the job is complete
    redis: int  # bytes that are there when the job is complete
    database: int  # bytes, its log included

    def figures(self) -> Iterator[tuple[str, float, str]]:
        cost = self.cost
        yield "CPU of all, submit included", 1000 * (cost.ours_ms + cost.redis_ms), "us/document"
        yield "worker: packing, sending, collecting", 1000 * cost.worker_ms, "us/document"
        yield "control", 1000 * cost.control_ms, "us/document"
        yield "Redis", 1000 * cost.redis_ms, "us/document"
        yield "submit and survey", 1000 * cost.submit_ms, "us/document"
        yield "peak memory, worker", cost.worker_peak / MIB, "MiB"
        yield "peak memory, control", cost.control_peak / MIB, "MiB"
        yield "Redis, job complete", self.redis / self.documents, "bytes/document"
        yield "database", self.database / self.documents, "bytes/document"
        for table, rows in self.rows.items():
            yield f"rows of {table}", float(rows), ""
        yield "documents per second", self.documents / cost.wall_s, "/s"


def measure(sizes: Sequence[int], *, batch: int, postgres: bool) -> Report:
    runs = [_one(size, batch=batch, postgres=postgres) for size in sorted(sizes)]
    small, rows = runs[0], list[Row]()
    for run in runs:
        for (what, figure, unit), (_, beside, _) in zip(
            run.figures(), small.figures(), strict=True
        ):
            ratio = f"{figure / beside:.2f}x" if beside and run is not small else ""
            is_flat = (
                figure <= FLAT * beside if what.startswith("peak") and run is not small else None
            )
            target = f"<= {FLAT}x" if is_flat is not None else ""
            rows.append(
                Row(
                    f"{run.documents:,}: {what}",
                    f"{figure:,.1f} {unit}".rstrip(),
                    f"{beside:,.1f}",
                    ratio,
                    target,
                    is_flat,
                )
            )
    database = "PostgreSQL" if postgres else "SQLite"
    notes = [
        f"batches of {batch:,}, which take the simulated provider {BATCH_S:g} s; one worker, one "
        "run each"
    ]
    return Report(f"the batch lane, {database}", rows, notes)


def _one(documents: int, *, batch: int, postgres: bool) -> Run:
    with contextlib.ExitStack() as stack:
        place = stack.enter_context(folder())
        server = stack.enter_context(redis_server(place))
        started: Any = None
        if postgres:
            with tests_on_path():
                started = import_module("servers").Postgres.start(fsync=True)
            stack.callback(started.stop)
        database = Database(started)
        simulated = stack.enter_context(simulator(0, 0, "--batch-s", str(BATCH_S)))
        own = {
            "PENSTOCK_BATCH__FOLDER": str(place / "packed"),
            "PENSTOCK_BATCH__POLL_FIRST_S": "0.5",
            "PENSTOCK_BATCH__POLL_CAP_S": "2",
        }
        spec = {"lane": "batch", "batch_max_requests": batch}
        running = stack.enter_context(
            fleet(
                place / "fleet",
                server,
                worker="penstock_workers",
                concurrency=1,
                base_url=simulated.url,
                lane="batch",
                settings=own,
                database_url=database.url,
                warm_up=spec,
            )
        )
        before = redis_memory(running)
        cost = running.run(documents, spec)
        left = redis_memory(running) - before
        return Run(documents, cost, _rows(running), left, database.size(running))


def _rows(running: Fleet) -> dict[str, int]:
    with (
        contextlib.closing(open_database(running.database_url)) as database,
        database.engine.connect() as connection,
    ):
        counts = {name: select(func.count()).select_from(metadata.tables[name]) for name in TABLES}
        return {name: int(connection.execute(count).scalar_one()) for name, count in counts.items()}


def main() -> None:
    end_in_order()
    parser = argparse.ArgumentParser(prog="python -m benchmarks.batch_lane", description=__doc__)
    parser.add_argument(
        "--documents", nargs="+", type=int, default=list(DOCUMENTS), help="of each job"
    )
    parser.add_argument("--batch", type=int, default=5_000, help="documents of one provider batch")
    parser.add_argument("--postgres", action="store_true", help="a PostgreSQL in place of SQLite")
    given = parser.parse_args()
    show(measure(given.documents, batch=given.batch, postgres=given.postgres))


if __name__ == "__main__":
    main()
