"""Workers that die at random moments: nothing is lost, and little is paid twice."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest
from fleet import LEASE_S, Fleet, Process

from penstock_ledger.model import JobState

WORKERS, CONCURRENCY, PREFETCH = 4, 8, 16
Pause = tuple[float, float]  # seconds between two kills: the least and the most


def storm(fleet: Fleet, kills: int, documents: int, *, pause_s: Pause, latency_ms: int, settle_s: float = 120) -> None:
    """Run a job while workers are killed at random, then hold it to the accounts."""
    seed = int(os.environ.get("STORM_SEED") or time.time_ns() % 1_000_000)
    luck = random.Random(seed)
    print(f"STORM_SEED={seed}")
    fleet.provider.start("--latency-ms", str(latency_ms))

    def start() -> Process:
        return fleet.worker(CONCURRENCY, control=True, window=documents)

    workers = [start() for _ in range(WORKERS)]
    job = fleet.submit(documents)
    fleet.ready(*workers)
    fleet.wait_for_outcomes(job, 1)
    began, killed = time.monotonic(), 0
    while killed < kills and fleet.state(job) is JobState.RUNNING:
        time.sleep(luck.uniform(*pause_s))
        working = sorted(
            (w for w in fleet.processes if w.alive and w.popen.pid in fleet.heard_of()), key=lambda w: w.name
        )
        if working:
            luck.choice(working).kill()
            killed += 1
        fleet.replace_dead(start)
    stormed = time.monotonic() - began
    fleet.wait_for(job, JobState.COMPLETED, settle_s, lambda: fleet.replace_dead(start))
    account = fleet.account(job, documents)
    print(
        f"{killed} kills in {stormed:.1f} s, job {time.monotonic() - began:.1f} s, lease {LEASE_S:g} s: "
        f"0 of {documents} lost, {account.extra_calls} calls twice ({account.extra_calls / killed:.1f} per kill)"
    )
    assert account.dead == {}
    assert killed >= kills * 3 // 4, "the job ended before the storm: give it more documents"
    assert account.extra_calls <= killed * PREFETCH
    assert fleet.deaths >= killed


def test_kill_storm_on_sqlite(tmp_path: Path) -> None:
    """Ten random SIGKILLs over 2,000 items lose nothing, and each item has exactly one result."""
    with Fleet(tmp_path) as fleet:
        storm(fleet, 10, 2_000, pause_s=(0.4, 1.6), latency_ms=200)


def test_kill_storm_on_postgresql(tmp_path: Path, postgres_url: str) -> None:
    """The same promise with the ledger on a server."""
    with Fleet(tmp_path, database_url=postgres_url) as fleet:
        storm(fleet, 6, 1_000, pause_s=(0.4, 1.6), latency_ms=200)


@pytest.mark.soak
def test_kill_storm_of_an_evening(tmp_path: Path) -> None:
    """Seventy kills over 20,000 items, where stock Celery loses a dozen: none is lost."""
    with Fleet(tmp_path) as fleet:
        storm(fleet, 70, 20_000, pause_s=(0.5, 2.5), latency_ms=150, settle_s=600)
