"""The same documents in every form that is measured.

They are written a row at a time, so that a million takes no memory."""

from __future__ import annotations

import csv
import gzip
import os
import random
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple

import orjson

from benchmarks.harness.documents import doc_id

TABLE: Final = "documents"
BUCKET: Final = "documents"
PREFIX: Final = "texts/"
POSTGRESQL: Final = "BENCH_POSTGRESQL_URL"  # the variable that holds where a server's table is
BATCH: Final = 10_000  # rows of one row group of Parquet, and of one call of executemany
_TEXTS: Final = 997  # different ones, further apart in a file than gzip looks back
_WORDS: Final = (
    "river",
    "bank",
    "quick",
    "brown",
    "fox",
    "lazy",
    "dog",
    "answer",
    "invoice",
    "parcel",
    "late",
    "refund",
    "order",
    "morning",
    "broken",
    "screen",
    "charger",
    "polite",
    "angry",
    "never",
    "again",
    "thank",
    "you",
    "please",
    "waiting",
    "since",
    "Tuesday",
    "delivery",
    "number",
    "street",
    "wrong",
    "colour",
    "returned",
    "money",
    "account",
    "closed",
)
COLUMNS: Final = ("id", "text", "kind", "score")

Record = dict[str, Any]


class Form(NamedTuple):
    """``share``: one file of a folder, object, or row of a server's table for so many rows of the
    other forms."""

    write: Callable[[Path, int], None]
    name: str  # below the folder of a run; objects are not there
    share: int = 1


def records(rows: int) -> Iterator[Record]:
    drawn = texts()
    for n in range(rows):
        yield {
            "id": doc_id(n),
            "text": f"[{n}] {drawn[n % _TEXTS]}",
            "kind": f"kind {n % 7}",
            "score": n % 1_000 / 8,
        }


def texts() -> list[str]:
    """What documents hold behind their number."""
    chosen = random.Random(13)
    return [" ".join(chosen.choices(_WORDS, k=70)) for _ in range(_TEXTS)]


def _write_lines(path: Path, rows: int) -> None:
    with path.open("wb") as file:
        file.writelines(orjson.dumps(record) + b"\n" for record in records(rows))


def _write_packed_lines(path: Path, rows: int) -> None:
    with gzip.open(path, "wb", compresslevel=6) as file:
        for record in records(rows):
            file.write(orjson.dumps(record) + b"\n")


def _write_csv(path: Path, rows: int) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(records(rows))


def _write_parquet(path: Path, rows: int) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    schema = pa.schema(
        [("id", pa.string()), ("text", pa.string()), ("kind", pa.string()), ("score", pa.float64())]
    )
    with parquet.ParquetWriter(str(path), schema) as writer:
        for batch in _batches(rows):
            writer.write_batch(pa.RecordBatch.from_pylist(batch, schema=schema))


def _write_table(path: Path, rows: int) -> None:
    with closing(sqlite3.connect(path)) as database:
        database.execute(
            f"CREATE TABLE {TABLE} (id TEXT PRIMARY KEY, text TEXT, kind TEXT, score REAL)"
        )
        for batch in _batches(rows):
            database.executemany(f"INSERT INTO {TABLE} VALUES (:id, :text, :kind, :score)", batch)
            database.commit()


def _write_postgresql(_: Path, rows: int) -> None:
    import psycopg

    with psycopg.connect(os.environ[POSTGRESQL]) as database, database.cursor() as cursor:
        cursor.execute(
            f"CREATE TABLE {TABLE} (id TEXT PRIMARY KEY, text TEXT, kind TEXT, score DOUBLE "
            "PRECISION)"
        )
        with cursor.copy(f"COPY {TABLE} ({', '.join(COLUMNS)}) FROM STDIN") as copy:
            for record in records(rows):
                copy.write_row([record[name] for name in COLUMNS])
        cursor.execute(f"ANALYZE {TABLE}")


def _write_folder(path: Path, rows: int) -> None:
    path.mkdir()
    for record in records(rows):
        Path(os.path.join(path, f"{record['id']}.txt")).write_text(record["text"], encoding="utf-8")


def _write_nothing(_: Path, __: int) -> None:
    """Objects are made while they are read (objects.py)."""


def _batches(rows: int) -> Iterator[list[Record]]:
    made = records(rows)
    while batch := list(islice(made, BATCH)):
        yield batch


FORMS: Final[Mapping[str, Form]] = {
    "jsonl": Form(_write_lines, "documents.jsonl"),
    "gz": Form(_write_packed_lines, "documents.jsonl.gz"),
    "csv": Form(_write_csv, "documents.csv"),
    "parquet": Form(_write_parquet, "documents.parquet"),
    "table": Form(_write_table, "documents.db"),
    "postgresql": Form(_write_postgresql, "postgresql", 5),
    "folder": Form(_write_folder, "documents", 10),
    "bucket": Form(_write_nothing, "objects", 10),
}
