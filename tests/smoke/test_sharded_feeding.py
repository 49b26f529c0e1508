"""Two control processes that read one source, one of them killed in the middle: nothing is lost or
paid twice."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from fleet import Fleet, until

from penstock_ledger import JobStore
from penstock_ledger.model import Job, JobState

DOCUMENTS = 2_000
WINDOW = 400  # the source is read as fast as the documents are done, and no faster


def leaders(fleet: Fleet, job: Job) -> Counter[int]:
    """Shards that are read, by the pid of the process that leads them."""
    shards = JobStore(fleet.producer._database).shards(job.job_id)
    return Counter(
        int(owner.rpartition("-")[2]) for shard, owner in shards if owner and not shard.exhausted
    )


def test_a_control_process_killed_while_two_read(tmp_path: Path, postgres_url: str) -> None:
    """Its shards are taken over where their cursors were, each document is called once, and the
    counts are exact."""
    with Fleet(tmp_path, database_url=postgres_url) as fleet:
        fleet.provider.start("--latency-ms", "3000")  # the job lasts until both have their shards
        probes = [tmp_path / "probes-a", tmp_path / "probes-b"]
        controls = [
            fleet.control(window=WINDOW, control_interval_s=0.05, probe_dir=probe)
            for probe in probes
        ]
        pids = [control.popen.pid for control in controls]
        fleet.ready(fleet.worker(32))
        until(
            lambda: all((probe / "ready").exists() for probe in probes),
            30,
            "both control processes are ready",
        )
        job = fleet.submit(DOCUMENTS, feeders=4)
        until(
            lambda: leaders(fleet, job) == dict.fromkeys(pids, 2),
            30,
            "each leads two of the four shards",
        )
        fleet.provider.tell(latency_ms=50)
        fleet.wait_for_outcomes(job, 300)
        assert leaders(fleet, job)[pids[0]], "it dies while it reads"
        controls[0].kill()
        fleet.wait_for(job, JobState.COMPLETED, 120)
        account = fleet.account(job, DOCUMENTS)
        assert (len(account.results), account.dead, account.extra_calls) == (DOCUMENTS, {}, 0)
