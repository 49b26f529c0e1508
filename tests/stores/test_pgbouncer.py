"""A fleet on PostgreSQL behind a pooler."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from fleet import Fleet
from stores.pgbouncer import SERVER_CONNECTIONS, PgBouncer

from penstock_ledger.model import JobState

pytestmark = pytest.mark.servers

DOCUMENTS = 600


@pytest.fixture
def pooler(tmp_path: Path, postgres_url: str) -> Iterator[PgBouncer]:
    pooler = PgBouncer.start(tmp_path / "pgbouncer", postgres_url)
    yield pooler
    pooler.stop()


def test_a_job_through_pgbouncer_in_transaction_mode(tmp_path: Path, pooler: PgBouncer) -> None:
    """Migration, feeding, work and reports share three server connections, and leave nothing behind
    in them."""
    with Fleet(tmp_path / "fleet", database_url=pooler.url) as fleet:
        fleet.provider.start("--latency-ms", "200")
        workers = [fleet.worker(8, control=True) for _ in range(3)]
        fleet.ready(*workers)
        job = fleet.submit(DOCUMENTS)
        fleet.wait_for_outcomes(job, DOCUMENTS // 3)
        clients = pooler.show("CLIENTS")
        fleet.wait_for(job, JobState.COMPLETED, 60)
        assert fleet.account(job, DOCUMENTS).dead == {}
        assert str(DOCUMENTS) in fleet.penstock("status", job.job_id)
        assert len(clients) > SERVER_CONNECTIONS >= len(pooler.show("SERVERS"))
    assert left_in_sessions(pooler) == {("0", "0", 0, 0)}


def left_in_sessions(pooler: PgBouncer) -> set[tuple[str, str, int, int]]:
    """Timeouts, prepared statements and advisory locks of each server connection: one transaction
    holds each open."""
    clients = [
        psycopg.connect(pooler.url, prepare_threshold=None) for _ in range(SERVER_CONNECTIONS)
    ]
    try:
        return {
            client.execute(
                "SELECT current_setting('statement_timeout'), current_setting('lock_timeout'),"
                " (SELECT count(*) FROM pg_prepared_statements),"
                " (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory')"
            ).fetchone()  # type: ignore[misc]  # always a row
            for client in clients
        }
    finally:
        for client in clients:
            client.close()
