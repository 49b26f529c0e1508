"""The outbox: what must be told to others once a transaction has committed (at least once; readers dedupe)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import orjson
from sqlalchemy import Connection, insert, select, update

from penstock_ledger.database import Database
from penstock_ledger.tables import outbox

FEED: Final = "feed"  # a generation of a job waits to be fed; payload: {"generation": n}


class OutboxRow(NamedTuple):
    """One thing to tell."""

    id: int
    kind: str
    job_id: str
    payload: dict[str, Any]


class Outbox:
    """Read it, do it, mark it: in this order, so that a crash repeats and never forgets."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def pending(self, limit: int = 100) -> list[OutboxRow]:
        """Oldest first."""
        query = select(outbox).where(outbox.c.sent_at.is_(None)).order_by(outbox.c.id).limit(limit)
        rows = self._db.read(lambda connection: connection.execute(query).all())
        return [OutboxRow(row.id, row.kind, row.job_id, orjson.loads(row.payload)) for row in rows]

    def mark_sent(self, ids: Sequence[int]) -> None:
        query = update(outbox).where(outbox.c.id.in_(ids), outbox.c.sent_at.is_(None)).values(sent_at=time.time())
        self._db.write(lambda connection: connection.execute(query))


def add_to_outbox(connection: Connection, kind: str, job_id: str, payload: dict[str, Any]) -> None:
    """Part of the transaction that makes it true."""
    row = {"kind": kind, "job_id": job_id, "payload": orjson.dumps(payload).decode(), "created_at": time.time()}
    connection.execute(insert(outbox).values(row))
