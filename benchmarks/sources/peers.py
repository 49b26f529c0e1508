"""What others read the same files with, into one Python dictionary per row.

None of them holds more than a batch."""

from __future__ import annotations

import csv
import gzip
import json
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, Final, NamedTuple

from benchmarks.sources.forms import BUCKET, COLUMNS, POSTGRESQL, PREFIX, TABLE

BATCH: Final = 5_000  # rows, as a feeder holds

Record = Mapping[str, Any]


class Peer(NamedTuple):
    read: Callable[[Path], Iterable[Record]]
    needs: tuple[str, ...] = ()  # modules, which are imported before the clock starts


def _json_lines(path: Path) -> Iterator[Record]:
    with path.open("rb") as file:
        yield from map(json.loads, file)


def _orjson_lines(path: Path) -> Iterator[Record]:
    import orjson

    with path.open("rb") as file:
        yield from map(orjson.loads, file)


def _gzip_lines(path: Path) -> Iterator[Record]:
    import orjson

    with gzip.open(path, "rb") as file:
        yield from map(orjson.loads, file)


def _csv_module(path: Path) -> Iterator[Record]:
    with path.open(encoding="utf-8", newline="") as file:
        yield from csv.DictReader(file)


def _pyarrow_json(path: Path) -> Iterator[Record]:
    import pyarrow as pa
    from pyarrow import json as arrow_json

    # unpacks by the file's name
    with pa.input_stream(str(path)) as stream, arrow_json.open_json(stream) as reader:
        for batch in reader:
            yield from batch.to_pylist()


def _pyarrow_csv(path: Path) -> Iterator[Record]:
    from pyarrow import csv as arrow_csv

    with arrow_csv.open_csv(str(path)) as reader:
        for batch in reader:
            yield from batch.to_pylist()


def _pyarrow_parquet(path: Path) -> Iterator[Record]:
    from pyarrow import parquet

    with parquet.ParquetFile(str(path)) as file:
        for batch in file.iter_batches(BATCH):
            yield from batch.to_pylist()


def _polars(scan: str) -> Callable[[Path], Iterator[Record]]:
    def read(path: Path) -> Iterator[Record]:
        import polars

        for frame in getattr(polars, scan)(path).collect_batches(chunk_size=BATCH):
            yield from frame.iter_rows(named=True)

    return read


def _duckdb(function: str) -> Callable[[Path], Iterator[Record]]:
    def read(path: Path) -> Iterator[Record]:
        import duckdb

        named = f"{path}/*.txt" if path.is_dir() else str(path)
        with duckdb.connect() as database:
            cursor = database.execute(f"SELECT * FROM {function}(?)", [named])
            columns = [column[0] for column in cursor.description]
            while rows := cursor.fetchmany(BATCH):
                yield from (dict(zip(columns, row, strict=True)) for row in rows)

    return read


def _sqlite_module(path: Path) -> Iterator[Record]:
    with closing(sqlite3.connect(path)) as database:
        for row in database.execute(f"SELECT {', '.join(COLUMNS)} FROM {TABLE} ORDER BY id"):
            yield dict(zip(COLUMNS, row, strict=True))


def _psycopg(_: Path) -> Iterator[Record]:
    import psycopg
    from psycopg.rows import dict_row

    with (
        psycopg.connect(os.environ[POSTGRESQL]) as database,
        database.cursor("bench", row_factory=dict_row) as cursor,
    ):
        cursor.itersize = BATCH
        cursor.execute(f"SELECT {', '.join(COLUMNS)} FROM {TABLE} ORDER BY id")
        yield from cursor


def _sqlalchemy_server(_: Path) -> Iterator[Record]:
    return _of_url(os.environ[POSTGRESQL].replace("postgresql:", "postgresql+psycopg:", 1))


def _sqlalchemy(path: Path) -> Iterator[Record]:
    return _of_url(f"sqlite:///{path}")


def _of_url(url: str) -> Iterator[Record]:
    from sqlalchemy import create_engine, text

    engine = create_engine(url)
    with engine.connect().execution_options(yield_per=BATCH) as connection:
        found = connection.execute(text(f"SELECT {', '.join(COLUMNS)} FROM {TABLE} ORDER BY id"))
        yield from map(dict, found.mappings())


def _open_each(path: Path) -> Iterator[Record]:
    """By sorted names, as every resumable reading needs them."""
    for name in sorted(entry.name for entry in os.scandir(path)):
        with open(os.path.join(path, name), encoding="utf-8") as file:
            yield {"id": name, "text": file.read()}


def _get_each(_: Path) -> Iterator[Record]:
    """One object after the other, over one kept connection."""
    import boto3

    client = boto3.client("s3")
    for page in client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=PREFIX):
        for entry in page["Contents"]:
            body = client.get_object(Bucket=BUCKET, Key=entry["Key"])["Body"]
            yield {"id": entry["Key"], "text": body.read().decode()}


PEERS: Final[Mapping[str, Mapping[str, Peer]]] = {
    "jsonl": {
        "json": Peer(_json_lines),
        "orjson": Peer(_orjson_lines, ("orjson",)),
        "pyarrow": Peer(_pyarrow_json, ("pyarrow.json",)),
        "polars": Peer(_polars("scan_ndjson"), ("polars",)),
        "duckdb": Peer(_duckdb("read_json"), ("duckdb",)),
    },
    "gz": {
        "gzip and orjson": Peer(_gzip_lines, ("orjson",)),
        "pyarrow": Peer(_pyarrow_json, ("pyarrow.json",)),
        "polars": Peer(_polars("scan_ndjson"), ("polars",)),
        "duckdb": Peer(_duckdb("read_json"), ("duckdb",)),
    },
    "csv": {
        "csv": Peer(_csv_module),
        "pyarrow": Peer(_pyarrow_csv, ("pyarrow.csv",)),
        "polars": Peer(_polars("scan_csv"), ("polars",)),
        "duckdb": Peer(_duckdb("read_csv"), ("duckdb",)),
    },
    "parquet": {
        "pyarrow": Peer(_pyarrow_parquet, ("pyarrow.parquet",)),
        "polars": Peer(_polars("scan_parquet"), ("polars",)),
        "duckdb": Peer(_duckdb("read_parquet"), ("duckdb",)),
    },
    "table": {
        "sqlite3": Peer(_sqlite_module),
        "sqlalchemy": Peer(_sqlalchemy, ("sqlalchemy",)),
    },
    "postgresql": {
        "psycopg": Peer(_psycopg, ("psycopg",)),
        "sqlalchemy": Peer(_sqlalchemy_server, ("sqlalchemy", "psycopg")),
    },
    "folder": {
        "open each": Peer(_open_each),
        "duckdb": Peer(_duckdb("read_text"), ("duckdb",)),
    },
    "bucket": {
        "boto3": Peer(_get_each, ("boto3",)),
    },
}
