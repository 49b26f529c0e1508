"""What results cost on their way out: `python -m benchmarks.sinks files|into|settle|bucket [--rows
N] [--rounds N]`.

Each figure stands beside the same work done by the library alone: pyarrow's writers, `executemany`,
a ledger without the index of commits. Every run is a process of its own, so that its peak memory is
its own, and the runs take turns; CPU time is compared, that of the database server included.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import orjson
import psutil

from benchmarks.harness.ground import end_in_order, folder, tests_on_path
from penstock_ledger import Database, JobStore, OutcomeStore, open_database
from penstock_ledger.model import ItemKey, Job, NewJob, Result

JOB: Final = "job_sinks"
GROUP: Final = 64  # outcomes that a busy worker settles together
BATCH: Final = 20_000  # rows of one Arrow batch, as penstock writes them
PORTION: Final = 500  # rows of one transaction, as penstock writes them
SPEC: Final = {
    "endpoint": "/v1/chat/completions",
    "response_schema": {"properties": {"label": {"type": "string"}, "score": {"type": "number"}}},
}
Figures = Mapping[str, float]


def result(n: int) -> Result:
    said = orjson.dumps({"label": f"label {n % 7}", "score": n / 1_000, "why": "x" * 200}).decode()
    body = orjson.dumps(
        {
            "id": f"chatcmpl-{n}",
            "choices": [{"message": {"content": said}, "finish_reason": "stop"}],
        }
    )
    return Result(
        ItemKey(JOB, 1, f"doc-{n:09}"), 200, body, "req", "sim-small", "stop", 80, 60, 12, 120, 1, 0
    )


def settle(database: Database, first: int, after: int, *, group: int = GROUP) -> None:
    outcomes = OutcomeStore(database)
    for start in range(first, after, group):
        outcomes.settle([result(n) for n in range(start, min(start + group, after))], [])


@contextmanager
def ledger(url: str) -> Iterator[tuple[Database, Job]]:
    with closing(open_database(url)) as database:
        database.migrate()
        yield (
            database,
            JobStore(database).create(NewJob(JOB, JOB, SPEC, {"kind": "spool"}, "", None))[0],
        )


def measured(work: Callable[[], object], server: psutil.Process | None = None) -> Figures:
    """CPU seconds of this process, and of a server's, and the peak of this process in MiB."""
    before, began = _cpu_of(server), time.process_time()
    work()
    own = time.process_time() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"cpu": own, "server": _cpu_of(server) - before, "peak": peak}


def _cpu_of(server: psutil.Process | None) -> float:
    if server is None:
        return 0.0
    ended = server.cpu_times()
    children = [process.cpu_times() for process in server.children(recursive=True)]
    return float(
        sum(one.user + one.system for one in [ended, *children])
        + ended.children_user
        + ended.children_system
    )


# -- one run each, in a process of its own ---------------------------------------------------------


def file_run(what: str, place: Path, rows: int) -> Figures:
    from penstock_producer.tables.reading import Lines, Reading
    from penstock_producer.tables.write import write_table

    with ledger(f"sqlite:///{place}/ledger.db") as (database, job):
        match what:
            case "lines":
                return measured(lambda: sum(map(len, Lines(database, job))))
            case "rows":
                return measured(lambda: sum(1 for _ in Reading(database, job)))
            case "csv" | "parquet":
                form: Any = what
                return measured(
                    lambda: write_table(Reading(database, job), place, f"penstock.{what}", form)
                )
            case _:
                return measured(lambda: _pyarrow_alone(what.removeprefix("pyarrow "), place, rows))


def _pyarrow_alone(form: str, place: Path, rows: int) -> None:
    """From Python's rows, which are made on the way as those of the ledger are, to the file."""
    import pyarrow as pa
    from pyarrow import csv, parquet

    from penstock_producer.tables.arrow import schema_of
    from penstock_producer.tables.columns import Table

    table = Table(SPEC)
    schema = schema_of(table.columns)
    kinds: dict[str, Any] = {"csv": csv.CSVWriter, "parquet": parquet.ParquetWriter}
    more = {"compression": "zstd"} if form == "parquet" else {}
    row = table.row(result(1))
    with kinds[form](str(place / f"alone.{form}"), schema, **more) as writer:
        for start in range(0, rows, BATCH):
            made = [[f"doc-{n:09}", *row[1:]] for n in range(start, min(start + BATCH, rows))]
            arrays = [
                pa.array(values, field.type)
                for values, field in zip(zip(*made, strict=True), schema, strict=True)
            ]
            writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=schema))


def into_run(what: str, place: Path, url: str, server: psutil.Process | None) -> Figures:
    from penstock_producer.tables.database import TableSink
    from penstock_producer.tables.reading import Reading

    with ledger(f"sqlite:///{place}/ledger.db") as (database, job):
        reading = Reading(database, job)
        with closing(TableSink(url, what, reading.table)) as sink:
            sink.prepare()
            if what.startswith("penstock"):
                return measured(lambda: sink.write(job.job_id, reading), server)
            # the same rows, made before the clock starts
            values = [sink._values(row, sink._fit.targets) for row in reading]
            work = {"alone, lists": _lists, "alone, COPY": _copy}.get(what, _executemany)
            return measured(lambda: _in_portions(work, sink, values), server)


def _in_portions(
    work: Callable[[Any, Any, Sequence[Any]], None], sink: Any, values: Sequence[Any]
) -> None:
    for start in range(0, len(values), PORTION):
        with sink._engine.begin() as connection:
            work(connection, sink, values[start : start + PORTION])


def _executemany(connection: Any, sink: Any, values: Sequence[Any]) -> None:
    connection.exec_driver_sql(sink._statements.upsert(sink._fit.targets), values)


def _lists(connection: Any, sink: Any, values: Sequence[Any]) -> None:
    """One statement with a list for each column."""
    targets = sink._fit.targets
    casts = ", ".join(f"CAST(c{at} AS {target.type})" for at, target in enumerate(targets))
    names, marks = (
        ", ".join(f"c{at}" for at in range(len(targets))),
        ", ".join(["CAST(%s AS text[])"] * len(targets)),
    )
    columns = tuple(map(list, zip(*values, strict=True)))
    statement = sink._statements._upsert(
        targets, f"SELECT {casts} FROM unnest({marks}) AS given ({names})"
    )
    connection.exec_driver_sql(statement, columns)


def _copy(connection: Any, sink: Any, values: Sequence[Any]) -> None:
    from penstock_producer.tables import sql

    sql.upsert(connection, sink._statements, sink._fit.targets, values)


def settle_run(what: str, url: str, rows: int, server: psutil.Process) -> Figures:
    with ledger(url) as (database, _):
        if what == "without the index":
            with database.engine.begin() as connection:
                connection.exec_driver_sql("DROP INDEX outcomes_seq")
        return measured(lambda: settle(database, 0, rows), server)


def bucket_run(place: Path, url: str, rows: int) -> Figures:
    """Parts while results come, as every five seconds at 2,000 a second; then the whole.

    The server's CPU is not in it."""
    import boto3

    from penstock_producer.bucket.s3 import Bucket
    from penstock_producer.parts import GrowingOutput

    options: dict[str, Any] = {
        "aws_access_key_id": "x",
        "aws_secret_access_key": "x",
        "region_name": "us-east-1",
    }
    client = boto3.client("s3", endpoint_url=url, **options)
    client.create_bucket(Bucket="sinks")
    puts = {"grow": 0, "all": 0}
    client.meta.events.register(
        "before-call.s3", lambda model, **_: puts.update(all=puts["all"] + (model.name in _WRITES))
    )
    grown: list[float] = []
    with ledger(f"sqlite:///{place}/bucket.db") as (database, job):
        leader = GrowingOutput(Bucket(client, "sinks", JOB), database, job, conditional=True)
        for first in range(0, rows, 10_000):
            settle(database, first, min(first + 10_000, rows), group=2_000)
            began = time.process_time()
            leader.grow(min(first + 10_000, rows))
            grown.append(time.process_time() - began)
        puts["grow"] = puts["all"]
        whole = measured(lambda: leader.complete(rows, keep=True))
    size = client.head_object(Bucket="sinks", Key=f"{JOB}/output.jsonl")["ContentLength"]
    return {
        **whole,
        "growing": sum(grown),
        "puts": puts["grow"],
        "puts_of_all": puts["all"],
        "mib": size / 2**20,
    }


_WRITES: Final = frozenset(
    {
        "PutObject",
        "CreateMultipartUpload",
        "UploadPart",
        "UploadPartCopy",
        "CompleteMultipartUpload",
    }
)


# -- rounds ----------------------------------------------------------------------------------------


def rounds(
    kinds: Sequence[str], number: int, command: Callable[[str, int], Sequence[str]]
) -> dict[str, list[Figures]]:
    """Each kind once per round, in turn."""
    found: dict[str, list[Figures]] = {kind: [] for kind in kinds}
    for turn in range(number):
        for kind in kinds:
            told = subprocess.run(
                [sys.executable, "-m", "benchmarks.sinks", *command(kind, turn)],
                capture_output=True,
                text=True,
                check=True,
            )
            found[kind].append(json.loads(told.stdout.splitlines()[-1]))
    return found


def show(found: Mapping[str, Sequence[Figures]], rows: int) -> None:
    base = next(iter(found))
    for kind, turns in found.items():
        spent = [one["cpu"] + one["server"] for one in turns]
        per = statistics.median(spent) / rows * 1e6
        ratios = [
            mine / (other["cpu"] + other["server"])
            for mine, other in zip(spent, found[base], strict=True)
        ]
        own = statistics.median(one["cpu"] for one in turns) / rows * 1e6
        peak = max(one["peak"] for one in turns)
        print(
            f"{kind:32} {per:8.1f} us/row (here {own:.1f})  {statistics.median(ratios):5.2f}x of "
            f"{base}  {1e6 / per:9,.0f} rows per CPU second  peak {peak:.0f} MiB",
            flush=True,
        )


def main() -> None:
    end_in_order()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("files", "into", "settle", "bucket"))
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--one", help="one run, which prints its figures")
    parser.add_argument("--place", type=Path)
    parser.add_argument("--url", default="")
    parser.add_argument("--server", type=int, help="process id of the database server")
    given = parser.parse_args()
    if given.one is not None:
        server = None if given.server is None else psutil.Process(given.server)
        print(json.dumps(_one(given, server)))
        return
    with folder() as place:
        _all(given, place)


def _one(given: argparse.Namespace, server: psutil.Process | None) -> Figures:
    match given.what:
        case "files":
            return file_run(given.one, given.place, given.rows)
        case "into":
            return into_run(given.one, given.place, given.url, server)
        case "settle":
            assert server is not None, "settling is measured on PostgreSQL"
            return settle_run(given.one, given.url, given.rows, server)
        case _:
            return bucket_run(given.place, given.url, given.rows)


def _all(given: argparse.Namespace, place: Path) -> None:
    rows = given.rows
    if given.what in ("files", "into"):
        with ledger(f"sqlite:///{place}/ledger.db") as (database, _):
            settle(database, 0, rows, group=2_000)
    common = ["--rows", str(rows), "--place", str(place)]
    with tests_on_path():
        servers = import_module("servers")
    if given.what == "files":
        kinds = ["rows", "lines", "pyarrow csv", "csv", "pyarrow parquet", "parquet"]
        show(rounds(kinds, given.rounds, lambda kind, _: ["files", "--one", kind, *common]), rows)
    elif given.what == "bucket":
        server = servers.S3Server.start()
        try:
            (told,) = rounds(
                ["bucket"],
                1,
                lambda kind, _: ["bucket", "--one", kind, "--url", server.url, *common],
            )["bucket"]
        finally:
            server.stop()
        print(json.dumps({"results": rows, "results_per_put": rows / told["puts"], **told}))
    else:
        with closing_server(servers) as (new_database, process):
            if given.what == "into":
                _show_into(given, place, common, new_database, process)
            else:
                kinds = ["without the index", "with the index"]
                show(
                    rounds(
                        kinds,
                        given.rounds,
                        lambda kind, _: [
                            "settle",
                            "--one",
                            kind,
                            "--url",
                            new_database(),
                            "--server",
                            str(process.pid),
                            *common,
                        ],
                    ),
                    rows,
                )


def _show_into(
    given: argparse.Namespace,
    place: Path,
    common: Sequence[str],
    new_database: Callable[[], str],
    process: psutil.Process,
) -> None:
    kinds = ["alone", "penstock"]
    print("SQLite")
    show(
        rounds(
            kinds,
            given.rounds,
            lambda kind, turn: [
                "into",
                "--one",
                kind,
                "--url",
                f"sqlite:///{place}/{kind}-{turn}.db",
                *common,
            ],
        ),
        given.rows,
    )
    print("PostgreSQL")
    kinds = ["alone", "alone, lists", "alone, COPY", "penstock"]
    show(
        rounds(
            kinds,
            given.rounds,
            lambda kind, _: [
                "into",
                "--one",
                kind,
                "--url",
                new_database(),
                "--server",
                str(process.pid),
                *common,
            ],
        ),
        given.rows,
    )


@contextmanager
def closing_server(servers: Any) -> Iterator[tuple[Callable[[], str], psutil.Process]]:
    server = servers.Postgres.start(fsync=True)
    try:
        pid = int((Path(server.handle.pgdata) / "postmaster.pid").read_text().split()[0])
        yield server.new_database, psutil.Process(pid)
    finally:
        server.stop()


if __name__ == "__main__":
    main()
