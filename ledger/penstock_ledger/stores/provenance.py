"""What the results of a job were made with: releases, engines, providers and prices, by generation.

The same for thousands of rows, so nothing of it lies in a row: each combination is one entry of the table `meta`, written
before the first result that was made with it. Of one result the row has the model as answered, and the rest is the entries of
its generation: one, unless the fleet was changed while it ran.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import orjson
from sqlalchemy import Connection, delete, select
from sqlalchemy.dialects import postgresql, sqlite

from penstock_ledger.sql.database import Database
from penstock_ledger.sql.tables import meta

ENTRIES_READ: Final = 1_000  # of one job; a combination more is a change of release or price while it ran


class MadeWith(NamedTuple):
    """One combination. Prices are in US dollars."""

    generation: int
    lane: str
    provider: str
    penstock: str  # the worker's release
    engine: str  # name and version of what computes in the worker, or where its server is; empty for a provider
    usd_per_mtok_in: float | None = None  # None: no price is known; releases before wrote 0 for that
    usd_per_mtok_out: float | None = None
    usd_per_hour: float = 0.0  # of a worker that hosts a model
    batch_discount: float | None = (
        None  # of what came in batches: 0.5 is half the price; None: none is known, or none came so
    )


class Provenance:
    """Entries are only ever added; purging a job deletes its own."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def note(self, made: Iterable[tuple[str, MadeWith]]) -> None:
        """(job, combination); what is there stays."""
        rows = [_row(job_id, one) for job_id, one in made]
        dialect = sqlite if self._db.is_sqlite else postgresql
        insert = dialect.insert(meta).on_conflict_do_nothing()
        if rows:
            self._db.write(lambda connection: connection.execute(insert, rows))

    def of(self, job_id: str) -> list[MadeWith]:
        """Of all generations, in the order in which they came into use."""
        query = select(meta.c.value).where(_is_of(job_id)).limit(ENTRIES_READ)
        found = [orjson.loads(value) for value in self._db.read(lambda one: list(one.execute(query).scalars()))]
        found.sort(key=lambda entry: (entry["generation"], entry["since"]))
        return [MadeWith(**{name: entry[name] for name in MadeWith._fields if name in entry}) for entry in found]


def forget_provenance(connection: Connection, job_id: str) -> None:
    connection.execute(delete(meta).where(_is_of(job_id)))


def _row(job_id: str, made: MadeWith) -> dict[str, Any]:
    facts = made._asdict()
    mark = hashlib.sha256(orjson.dumps(facts)).hexdigest()[:16]
    return {"name": f"{_prefix(job_id)}{mark}", "value": orjson.dumps(facts | {"since": time.time()}).decode()}


def _prefix(job_id: str) -> str:
    return f"made:{job_id}:"


def _is_of(job_id: str) -> Any:
    return meta.c.name.startswith(_prefix(job_id), autoescape=True)
