"""What a database grows by, without a fleet: `python -m benchmarks.growth_stores 1000000
[--postgres]`.

Results as the no-op lane brings them are settled in groups, as a worker does it, and at each mark a
row is printed at once: bytes per document, CPU per document of settling since the mark before, CPU
per document of writing all answers so far as files, and the peak memory of this process. The
server's CPU is not in it.
"""

from __future__ import annotations

import argparse
import contextlib
import resource
import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

from benchmarks.harness.documents import doc_id
from benchmarks.harness.ground import end_in_order, folder, tests_on_path
from penstock_ledger import Database, JobStore, OutcomeStore, open_database
from penstock_ledger.model import ItemKey, NewJob, Result
from penstock_producer.outputs import write_outputs

MARKS = (10_000, 100_000, 300_000, 1_000_000, 2_000_000, 5_000_000)
GROUP = 64  # outcomes that a busy worker settles together
JOB = "job_grows"
BODY = (
    b'{"id":"chatcmpl-0","choices":[{"index":0,"message":{"content":"%b"},"finish_reason":"stop"}]}'
    % (b"x" * 200)
)


def measure(size: int, url: str, place: Path) -> None:
    print("documents  bytes/document  settling us  writing files us  peak MiB", flush=True)
    with contextlib.closing(open_database(url)) as database:
        database.migrate()
        JobStore(database).create(NewJob(JOB, JOB, {}, {}, "", size))
        outcomes, done = OutcomeStore(database), 0
        for mark in [*(mark for mark in MARKS if mark < size), size]:
            began, first = time.thread_time(), done
            while done < mark:
                group = range(done, min(done + GROUP, mark))
                outcomes.settle([_result(n) for n in group], [])
                done = group.stop
            settled_s = time.thread_time() - began
            began = time.thread_time()
            write_outputs(outcomes, JOB, place / "outputs")
            written_s = time.thread_time() - began
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            print(
                f"{done:,}",
                f"{_bytes(database, url) / done:.0f}",
                f"{1e6 * settled_s / (done - first):.1f}",
                f"{1e6 * written_s / done:.1f}",
                f"{peak:.0f}",
                sep="  ",
                flush=True,
            )


def _result(n: int) -> Result:
    return Result(
        ItemKey(JOB, 1, doc_id(n)), 200, BODY, "req_0", "sim-small", "stop", 1, 1, 0, 120, 8, 0
    )


def _bytes(database: Database, url: str) -> int:
    """Its log included, where it is SQLite."""
    if database.is_sqlite:
        path = Path(url.removeprefix("sqlite:///"))
        return sum(part.stat().st_size for part in path.parent.glob(path.name + "*"))
    with database.engine.connect() as connection:
        return int(
            connection.exec_driver_sql("select pg_database_size(current_database())").scalar_one()
        )


@contextlib.contextmanager
def _database_url(place: Path, *, postgres: bool) -> Iterator[str]:
    if not postgres:
        yield f"sqlite:///{place / 'ledger.db'}"
        return
    with tests_on_path():
        server = import_module("servers").Postgres.start(fsync=True)
    try:
        yield server.new_database()
    finally:
        server.stop()


def main() -> None:
    end_in_order()
    parser = argparse.ArgumentParser(prog="python -m benchmarks.growth_stores", description=__doc__)
    parser.add_argument("size", type=int, help="documents of the job")
    parser.add_argument("--postgres", action="store_true", help="a PostgreSQL in place of SQLite")
    given = parser.parse_args()
    with folder() as place, _database_url(place, postgres=given.postgres) as url:
        measure(given.size, url, place)


if __name__ == "__main__":
    main()
