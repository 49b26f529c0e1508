"""The keys of the rows that a job reads from a table, as they were when it was submitted.

A table changes while its job runs. So which rows a job has is kept here, in pages that the producer
packs and unpacks.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Final

from sqlalchemy import Connection, insert, select

from penstock_ledger.sql.database import Database
from penstock_ledger.sql.tables import source_keys

__all__ = ["SourceKeys", "insert_pages"]

PAGES_PER_INSERT: Final = 100  # some megabytes at most


class SourceKeys:
    """Read page by page; written with the job."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def page(self, job_id: str, number: int) -> bytes | None:
        """Return a page of keys; None where there is none."""
        query = select(source_keys.c.packed).where(
            source_keys.c.job_id == job_id, source_keys.c.page == number
        )
        found: bytes | None = self._db.read(lambda connection: connection.execute(query).scalar())
        return found


def insert_pages(connection: Connection, job_id: str, pages: Iterable[bytes]) -> None:
    """Store the pages in the transaction that makes the job."""
    numbered = enumerate(pages)
    while some := list(islice(numbered, PAGES_PER_INSERT)):
        rows = [{"job_id": job_id, "page": number, "packed": packed} for number, packed in some]
        connection.execute(insert(source_keys), rows)
