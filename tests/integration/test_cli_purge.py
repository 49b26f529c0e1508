"""Forgetting a job."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import func, select

from penstock_ledger import (
    Database,
    DeadLetter,
    ItemKey,
    JobNotFound,
    JobStore,
    NewJob,
    OutcomeStore,
    open_database,
    purge_job,
)
from penstock_ledger.sql.tables import metadata


def letter(job_id: str, doc_id: str) -> DeadLetter:
    return DeadLetter(ItemKey(job_id, 1, doc_id), "bad_request", 1, 1, "no", 400, b"{}", None)


def job(database: Database, name: str, documents: int) -> None:
    JobStore(database).create(NewJob(f"job_{name}", name, {"lane": "api"}, {}, name, documents))
    OutcomeStore(database).settle([], [letter(f"job_{name}", f"doc-{number}") for number in range(documents)])


@pytest.mark.parametrize("backend", ["sqlite", "postgresql"])
def test_a_purged_job_leaves_no_row_and_others_stay(
    backend: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Every table forgets the job, however many outcomes it had, and keeps every other job."""
    url = f"sqlite:///{tmp_path}/p.db" if backend == "sqlite" else request.getfixturevalue("postgres_url")
    database = open_database(url)
    database.migrate()
    job(database, "gone", 2_345)
    job(database, "kept", 3)
    assert purge_job(database, "job_gone") == 2_345
    with pytest.raises(JobNotFound):
        JobStore(database).get("gone")
    for table in metadata.sorted_tables:
        if "job_id" in table.columns:
            rows = select(func.count()).select_from(table).where(table.c.job_id == "job_gone")
            with database.engine.connect() as connection:
                assert connection.execute(rows).scalar_one() == 0, table.name
    assert OutcomeStore(database).counts("job_kept").dead == 3
    assert purge_job(database, "job_gone") == 0
    database.close()
