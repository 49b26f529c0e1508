"""PostgreSQL restarts under a fleet."""

from __future__ import annotations

from pathlib import Path

from fleet import Fleet
from servers import Postgres

from penstock_ledger.model import JobState

DOCUMENTS, WORKERS, CONCURRENCY = 300, 2, 8


def test_postgres_restarts_under_a_fleet(tmp_path: Path, own_postgres: Postgres) -> None:
    """Two immediate restarts cost time: each document has its one result, and no more calls are
    repeated than were held."""
    with Fleet(tmp_path / "fleet", database_url=own_postgres.new_database()) as fleet:
        fleet.provider.start("--latency-ms", "300")
        workers = [fleet.worker(CONCURRENCY, control=True) for _ in range(WORKERS)]
        fleet.ready(*workers)
        job = fleet.submit(DOCUMENTS)
        for share in (0.2, 0.5):
            fleet.wait_for_outcomes(job, int(share * DOCUMENTS))
            own_postgres.restart()
        fleet.wait_for(job, JobState.COMPLETED, 60)
        account = fleet.account(job, DOCUMENTS)
        print(f"2 restarts: {account.extra_calls} of {DOCUMENTS} calls twice")
        assert account.dead == {}
        assert account.extra_calls <= 2 * WORKERS * 2 * CONCURRENCY
        assert all(worker.alive for worker in workers)
