"""Penstock's two passes over a source: the one at submit, and the feeder's from the pin into
request bodies."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any, Final

from benchmarks.sources.forms import BUCKET, POSTGRESQL, PREFIX, TABLE
from penstock_ledger import JobStore, open_database
from penstock_producer import Producer
from penstock_producer.rows import Document
from penstock_producer.sources.of_feed import source_of

ROWS_HELD: Final = 5_000  # by a feeder, which queues them together
LEASE_S: Final = 3_600.0
PROMPT: Final = {"model": "sim-small", "prompt": "Summarise in one sentence: {text}"}


def submit(form: str, path: Path, url: str, job_key: str) -> int:
    """The number of documents. Nothing is queued."""
    where, spec = _source(form, path)
    with Producer(database_url=url) as producer:
        return producer.submit(where, spec, job_key=job_key).total or 0


def feed(url: str, job_key: str) -> int:
    """The number of documents. Neither Redis nor the moves of the durable cursor are in it."""
    with closing(open_database(url)) as database:
        jobs = JobStore(database)
        job = jobs.get(job_key)
        leased = jobs.lease_feed(job.job_id, 1, "bench", LEASE_S)
        assert leased is not None, "no other process feeds from this database"
        rows = iter(source_of(database, job, leased).documents(leased.cursor))
        number = 0
        while portion := list(islice(rows, ROWS_HELD)):
            number += _documents(portion)
        return number


def _documents(rows: Iterable[object]) -> int:
    return sum(isinstance(row, Document) and bool(row.body) for row in rows)


def _source(form: str, path: Path) -> tuple[str, dict[str, Any]]:
    match form:
        case "table":
            return f"sqlite:///{path}", {**PROMPT, "table": TABLE}
        case "postgresql":
            return f"env:{POSTGRESQL}", {**PROMPT, "table": TABLE}
        case "folder":
            return f"{path}/", dict(PROMPT)
        case "bucket":
            return f"s3://{BUCKET}/{PREFIX}", dict(PROMPT)
        case _:
            return str(path), dict(PROMPT)
