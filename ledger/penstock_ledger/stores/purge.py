"""Forget a job: every row of it, in small transactions so that others write in between."""

from __future__ import annotations

from functools import partial
from typing import Final

from sqlalchemy import Connection, Delete, Table, delete, select, tuple_, update

from penstock_ledger.sql.database import Database
from penstock_ledger.sql.tables import (
    batch_remainders,
    door_batches,
    door_files,
    jobs,
    metadata,
    outcomes,
    paid_beside,
    spending,
)
from penstock_ledger.stores.account import keep_account, kept_step, mend_replays
from penstock_ledger.stores.provenance import forget_provenance

ROWS_PER_STEP: Final = (
    1_000  # with bodies of some kilobytes, a step writes some megabytes of journal
)


def purge_job(database: Database, job_id: str) -> int:
    """Delete all of a job but its account; returns how many outcomes it had.

    Only for jobs that are final, which the caller has to see to.

    The job's own row goes last, so that an interrupted purge can be repeated.
    """
    database.write(
        lambda connection: mend_replays(connection, job_id)
    )  # while its dead letters are there
    outcomes_deleted = _empty(database, outcomes, job_id)
    _keep_account(database, job_id)
    for table in metadata.sorted_tables:
        if "job_id" in table.columns and table not in (
            outcomes,
            jobs,
            spending,
            door_batches,
            door_files,
        ):
            _empty(database, table, job_id)
    database.write(lambda connection: forget_provenance(connection, job_id))
    database.write(lambda connection: _expire_files(connection, job_id))
    _empty(database, jobs, job_id)
    # Outcomes are inserted only where their job is. Those that came between their table's turn and
    # the job's go now.
    _keep_account(database, job_id)
    _empty(database, outcomes, job_id)
    return outcomes_deleted


def _keep_account(database: Database, job_id: str) -> None:
    """What the job has spent stays counted: forgetting it must make no room in the budget of its
    tenant's month."""
    database.write(lambda connection: keep_account(connection, job_id))
    for table in (paid_beside, batch_remainders):
        while database.write(partial(kept_step, table=table, job_id=job_id, most=ROWS_PER_STEP)):
            pass


def _expire_files(connection: Connection, job_id: str) -> None:
    """Files of the HTTP doors that hold its answers have expired now: the doors remove their bytes,
    and then the rows."""
    connection.execute(
        update(door_files).where(door_files.c.job_id == job_id).values(expires_at=0.0)
    )


def _empty(database: Database, table: Table, job_id: str) -> int:
    deleted = 0
    while found := _step(database, _delete_some(table, job_id)):
        deleted += found
    return deleted


def _delete_some(table: Table, job_id: str) -> Delete:
    key = list(table.primary_key.columns)
    some = select(*key).where(table.c.job_id == job_id).limit(ROWS_PER_STEP)
    return delete(table).where(tuple_(*key).in_(some))


def _step(database: Database, statement: Delete) -> int:
    def work(connection: Connection) -> int:
        return connection.execute(statement).rowcount

    return database.write(work)
