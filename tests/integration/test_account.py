"""The account of a job: what it has spent, which only grows."""

from __future__ import annotations

from sqlalchemy import Connection, select

from penstock_ledger import JobStore
from penstock_ledger.model import NewJob
from penstock_ledger.sql.database import Database
from penstock_ledger.sql.tables import spending
from penstock_ledger.stores.account import UNREAD, add_spent


def test_what_is_added_adds_up(either: Database) -> None:
    """Two payments of the same kind are one row with their sum, which names the job's tenant and when it was accepted."""
    job, _ = JobStore(either).create(NewJob("job", "job", {"tenant": "alpha"}, {"kind": "spool"}, "digest", None))

    def pay(connection: Connection) -> None:
        for calls in (1, 2):
            add_spent(
                connection, "job", kind=UNREAD, lane="batch", documents=calls, calls=calls, cost_microusd=10 * calls
            )

    either.write(pay)
    row = either.read(lambda connection: connection.execute(select(spending)).one())
    assert (row.kind, row.lane, row.documents, row.calls, row.cost_microusd) == ("unread", "batch", 3, 3, 30)
    assert (row.tenant, row.accepted_at) == ("alpha", job.created_at)
