"""Who still reads the outcomes of a job that has ended, which is not purged before."""

from __future__ import annotations

from sqlalchemy import Connection, select

from penstock_ledger.door_stores.files import BATCHES_AT_WORK
from penstock_ledger.sql.database import Database
from penstock_ledger.sql.tables import door_batches, jobs
from penstock_ledger.stores.jobs import LIVE

__all__ = ["needed_by"]


def needed_by(database: Database, job_id: str) -> str | None:
    """The id of a job that has not ended and reads the outcomes of this one, or else of a batch of
    the HTTP doors that has not ended and is written from them."""
    live = jobs.c.state.in_(map(str, LIVE))
    reads = jobs.c.source.contains(job_id, autoescape=True), jobs.c.job_id != job_id
    readers = select(jobs.c.job_id).where(live, *reads).limit(1)
    written = door_batches.c.job_id == job_id, door_batches.c.state.in_(BATCHES_AT_WORK)
    batches = select(door_batches.c.batch_id).where(*written).limit(1)

    def look(connection: Connection) -> str | None:
        found = connection.execute(readers).scalar() or connection.execute(batches).scalar()
        return None if found is None else str(found)

    return database.read(look)
