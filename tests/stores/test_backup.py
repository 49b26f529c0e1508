"""What docs/stores.md says of backup and restore, done."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from fleet import Fleet
from servers import Postgres, postgres_programs

from penstock_ledger.model import JobState
from penstock_producer import Producer

pytestmark = pytest.mark.servers

DOCUMENTS = 300


def test_a_restored_ledger_and_an_empty_redis_finish_the_job(
    tmp_path: Path, own_postgres: Postgres
) -> None:
    """pg_dump while workers run, then both stores are lost: what was in the dump is never paid for
    again."""
    tools, dump = postgres_programs(), tmp_path / "ledger.dump"
    with Fleet(tmp_path / "fleet", database_url=own_postgres.new_database()) as fleet:
        fleet.provider.start("--latency-ms", "200")
        fleet.ready(fleet.worker(8, control=True))
        job = fleet.submit(DOCUMENTS)
        fleet.wait_for_outcomes(job, DOCUMENTS // 3)
        subprocess.run(
            [tools / "pg_dump", "-Fc", "-f", dump, fleet.database_url], check=True, timeout=60
        )
        for process in fleet.processes:
            process.kill()
        fleet.redis.restart(wipe=True)
        fleet.database_url = own_postgres.new_database()
        subprocess.run(
            [tools / "pg_restore", "-d", fleet.database_url, dump], check=True, timeout=60
        )
        fleet.producer.close()
        fleet.producer = Producer(database_url=fleet.database_url)
        kept = {result.key.doc_id for result in fleet.producer.results(job.job_id)}
        assert DOCUMENTS // 3 <= len(kept) < DOCUMENTS
        fleet.ready(fleet.worker(8, control=True))
        fleet.wait_for(job, JobState.COMPLETED, 60)
        account = fleet.account(job, DOCUMENTS)
        print(f"{len(kept)} of {DOCUMENTS} in the dump, {account.extra_calls} calls twice")
        assert account.dead == {}
        assert {account.calls[doc] for doc in kept} == {1}
