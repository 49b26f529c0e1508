"""The spool: documents that services push into an open job, durable before the push returns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection, Row, bindparam, func, select, update

from penstock_ledger.errors import JobClosed, JobNotFound, SpoolConflict
from penstock_ledger.sql.database import Database
from penstock_ledger.sql.sqlite_file import unindexed
from penstock_ledger.sql.tables import jobs, spool

# rows or ids per SQL statement: far below every driver's limit on parameters
STATEMENT_MAX: Final = 500

# Built once: calls that wait ask it one by one. The row stays share-locked until the commit.
_TOTAL: Final = (
    select(jobs.c.total).where(jobs.c.job_id == bindparam("job")).with_for_update(read=True)
)


class SpoolRow(NamedTuple):
    """One pushed document."""

    seq: int
    doc_id: str
    body: bytes


class Spool:
    """Rows are taken by flag, not by position.

    On PostgreSQL a lower number may become visible after a higher one."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def append(self, job_id: str, docs: Sequence[tuple[str, bytes]]) -> int:
        """Store documents in one transaction; returns how many are new.

        Pushing the same one again changes nothing.

        Raises JobNotFound, JobClosed after ``close``, and SpoolConflict when an id comes with
        another body: the first one stays, and all other documents of the call are stored.
        """
        wanted, conflicts = _distinct(docs)
        new, different = self._db.write(lambda connection: self._append(connection, job_id, wanted))
        conflicts |= dict.fromkeys(different)
        if conflicts:
            raise SpoolConflict(job_id, list(conflicts), new)
        return new

    def take(self, job_id: str, limit: int) -> list[SpoolRow]:
        """Return documents that were not fed yet, in the order of their arrival."""
        query = _rows(job_id).where(~spool.c.fed).order_by(spool.c.seq).limit(limit)
        return [_row(row) for row in self._db.rows(query)]

    def mark_fed(self, job_id: str, seqs: Iterable[int]) -> None:
        wanted = list(seqs)
        self._db.write(lambda connection: mark_fed(connection, job_id, wanted))

    def fetch(self, job_id: str, seq: int) -> SpoolRow | None:
        """Return one document by its number; None when there is none."""
        query = _rows(job_id).where(spool.c.seq == seq)
        row = self._db.read(lambda connection: connection.execute(query).first())
        return None if row is None else _row(row)

    def known(self, job_id: str, doc_ids: Sequence[str]) -> set[str]:
        """Return those of some documents that are there already."""
        found = set[str]()
        for start in range(0, len(doc_ids), STATEMENT_MAX):
            some = spool.c.doc_id.in_(doc_ids[start : start + STATEMENT_MAX])
            query = select(spool.c.doc_id).where(spool.c.job_id == job_id, some)
            found |= {row[0] for row in self._db.rows(query)}
        return found

    def bodies(self, job_id: str, doc_ids: Sequence[str]) -> dict[str, bytes]:
        """Return what is stored of some documents."""
        return (
            self._db.read(lambda connection: _bodies(connection, job_id, doc_ids))
            if doc_ids
            else {}
        )

    def count(self, job_id: str) -> int:
        """Count all documents of the job, fed or not."""
        query = select(func.count()).where(spool.c.job_id == job_id)
        return self._db.read(lambda connection: connection.execute(query).scalar_one())

    def _append(
        self, connection: Connection, job_id: str, docs: dict[str, bytes]
    ) -> tuple[int, list[str]]:
        """Return how many are new, and the ids that were there with another body."""
        check_open(connection, job_id, docs)
        rows = [
            {"job_id": job_id, "doc_id": doc_id, "body": docs[doc_id], "fed": False}
            for doc_id in sorted(docs)
        ]
        if not rows:
            return 0, []
        new: int = connection.execute(
            self._db.insert(spool).on_conflict_do_nothing(), rows
        ).rowcount
        return new, _different(connection, job_id, docs) if new < len(rows) else []


def mark_fed(connection: Connection, job_id: str, seqs: Sequence[int]) -> None:
    """Mark documents as fed, as part of a larger transaction."""
    fed = update(spool).where(unindexed(spool.c.job_id) == job_id).values(fed=True)
    for start in range(0, len(seqs), STATEMENT_MAX):
        connection.execute(fed.where(spool.c.seq.in_(seqs[start : start + STATEMENT_MAX])))


def _distinct(docs: Sequence[tuple[str, bytes]]) -> tuple[dict[str, bytes], dict[str, None]]:
    """Return the first body of each id, and the ids that came with another one, too."""
    distinct: dict[str, bytes] = {}
    conflicts: dict[str, None] = {}
    for doc_id, body in docs:
        if distinct.setdefault(doc_id, body) != body:
            conflicts[doc_id] = None
    return distinct, conflicts


def check_open(connection: Connection, job_id: str, docs: Iterable[str]) -> None:
    """Check that the job is open, and share-lock its row until the commit.

    So a concurrent close counts these documents too."""
    row = connection.execute(_TOTAL, {"job": job_id}).one_or_none()
    if row is None:
        raise JobNotFound(job_id)
    if row.total is not None:
        raise JobClosed(job_id, row.total, list(docs))


def _different(connection: Connection, job_id: str, docs: dict[str, bytes]) -> list[str]:
    ids = sorted(docs)
    stored = _bodies(connection, job_id, ids)
    return [doc_id for doc_id in ids if stored[doc_id] != docs[doc_id]]


def _bodies(connection: Connection, job_id: str, doc_ids: Sequence[str]) -> dict[str, bytes]:
    stored: dict[str, bytes] = {}
    for start in range(0, len(doc_ids), STATEMENT_MAX):
        query = select(spool.c.doc_id, spool.c.body).where(spool.c.job_id == job_id)
        rows = connection.execute(
            query.where(spool.c.doc_id.in_(doc_ids[start : start + STATEMENT_MAX]))
        )
        stored.update((row.doc_id, row.body) for row in rows)
    return stored


def _rows(job_id: str) -> Any:
    return select(spool.c.seq, spool.c.doc_id, spool.c.body).where(spool.c.job_id == job_id)


def _row(row: Row[Any]) -> SpoolRow:
    return SpoolRow(row.seq, row.doc_id, row.body)
