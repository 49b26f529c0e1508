"""Forgetting a job."""

from __future__ import annotations

from pathlib import Path

import pytest
from servers import free_port
from sqlalchemy import func, select
from typer.testing import CliRunner

from penstock_cli.main import command_line
from penstock_ledger import (
    Database,
    DeadLetter,
    FeedKind,
    ItemKey,
    JobNotFound,
    JobState,
    JobStore,
    NewJob,
    NewProviderBatch,
    OutcomeStore,
    ProviderBatchStore,
    open_database,
    purge_job,
)
from penstock_ledger.reasons import by_hand
from penstock_ledger.sql.tables import metadata, spending


def letter(job_id: str, doc_id: str) -> DeadLetter:
    return DeadLetter(ItemKey(job_id, 1, doc_id), "bad_request", 1, 1, "no", 400, b"{}", None)


def job(database: Database, name: str, documents: int) -> None:
    JobStore(database).create(NewJob(f"job_{name}", name, {"lane": "api"}, {}, name, documents))
    OutcomeStore(database).settle(
        [], [letter(f"job_{name}", f"doc-{number}") for number in range(documents)]
    )


@pytest.mark.parametrize("backend", ["sqlite", "postgresql"])
def test_a_purged_job_leaves_no_row_and_others_stay(
    backend: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Every table forgets the job, however many outcomes it had, and keeps every other job."""
    url = (
        f"sqlite:///{tmp_path}/p.db"
        if backend == "sqlite"
        else request.getfixturevalue("migrated_url")
    )
    database = open_database(url)
    database.migrate()
    job(database, "gone", 2_345)
    job(database, "kept", 3)
    assert purge_job(database, "job_gone") == 2_345
    with pytest.raises(JobNotFound):
        JobStore(database).get("gone")
    for table in metadata.sorted_tables:
        if "job_id" in table.columns and table is not spending:  # what was spent stays in the books
            rows = select(func.count()).select_from(table).where(table.c.job_id == "job_gone")
            with database.engine.connect() as connection:
                assert connection.execute(rows).scalar_one() == 0, table.name
    assert OutcomeStore(database).counts("job_kept").dead == 3
    assert purge_job(database, "job_gone") == 0
    database.close()


def test_a_job_with_batches_at_a_provider_is_not_forgotten(tmp_path: Path) -> None:
    """They would run on and be paid for; --leave-batches forgets them all the same."""
    url = f"sqlite:///{tmp_path}/p.db"
    database = open_database(url)
    database.migrate()
    jobs = JobStore(database)
    jobs.create(NewJob("job_b", "b", {"lane": "batch"}, {"kind": "file"}, "b", 10, FeedKind.SOURCE))
    feed = jobs.lease_feed("job_b", 1, "w", 30.0)
    assert feed is not None
    batch = NewProviderBatch(
        "t", "job_b", 1, "openai-eu", "openai", "m", "/v1/x", {}, {}, 3, 90, 100, 0
    )
    ProviderBatchStore(database).add_of_feed(
        feed, "w", 30.0, [batch], cursor={}, exhausted=True, ids={"t": b"x"}
    )
    jobs.set_state(
        "job_b", JobState.FAILED, why=by_hand("its source changed"), expect={JobState.RUNNING}
    )
    settings = {
        "PENSTOCK_DATABASE_URL": url,
        "PENSTOCK_REDIS_URL": f"redis://127.0.0.1:{free_port()}/0",
    }
    refused = CliRunner().invoke(command_line(), ["purge", "b", "--yes"], env=settings)
    assert refused.exit_code != 0
    assert "1 batches at openai-eu that are not settled" in str(refused.exception or refused.output)
    assert jobs.get("b").job_id == "job_b"
    forgotten = CliRunner().invoke(
        command_line(), ["purge", "b", "--yes", "--leave-batches"], env=settings
    )
    assert forgotten.exit_code == 0, forgotten.output
    assert ProviderBatchStore(database).kept_ids("t") is None
    database.close()
