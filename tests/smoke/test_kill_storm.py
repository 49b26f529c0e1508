"""Workers that die at random moments: nothing is lost, and little is paid twice."""

from __future__ import annotations

import contextlib
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from fleet import LEASE_S, Fleet, Process, until

from penstock_cli.chaos.injections import standing_still
from penstock_ledger.model import JobState

WORKERS, CONCURRENCY = 4, 8
SLOTS = 40  # of one worker, where the database stands still
Pause = tuple[float, float]  # seconds between two kills: the least and the most


def storm(
    fleet: Fleet,
    kills: int,
    documents: int,
    *,
    pause_s: Pause,
    latency_ms: int,
    settle_s: float = 120,
) -> None:
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
            (w for w in fleet.processes if w.alive and w.popen.pid in fleet.heard_of()),
            key=lambda w: w.name,
        )
        if working:
            luck.choice(working).kill()
            killed += 1
        fleet.replace_dead(start)
    stormed = time.monotonic() - began
    fleet.wait_for(job, JobState.COMPLETED, settle_s, lambda: fleet.replace_dead(start))
    account = fleet.account(job, documents)
    print(
        f"{killed} kills in {stormed:.1f} s, job {time.monotonic() - began:.1f} s, lease "
        f"{LEASE_S:g} s: 0 of {documents} lost, {account.extra_calls} calls twice "
        f"({account.extra_calls / killed:.1f} per kill)"
    )
    assert account.dead == {}
    assert killed >= kills * 3 // 4, "the job ended before the storm: give it more documents"
    assert account.extra_calls <= killed * CONCURRENCY
    assert fleet.deaths >= killed


@pytest.mark.parametrize("kills", [5, pytest.param(10, marks=pytest.mark.whole)])
def test_kill_storm_on_sqlite(tmp_path: Path, kills: int) -> None:
    """Random SIGKILLs, one for 200 items, lose nothing, and each item has exactly one result."""
    with Fleet(tmp_path) as fleet:
        storm(fleet, kills, 200 * kills, pause_s=(0.4, 1.6), latency_ms=200)


def test_kill_storm_on_postgresql(tmp_path: Path, postgres_url: str) -> None:
    """The same promise with the ledger on a server."""
    with Fleet(tmp_path, database_url=postgres_url) as fleet:
        storm(fleet, 6, 1_000, pause_s=(0.4, 1.6), latency_ms=200)


@pytest.mark.long
def test_kill_storm_of_an_evening(tmp_path: Path) -> None:
    """Seventy kills over 20,000 items, where stock Celery loses a dozen: none is lost."""
    with Fleet(tmp_path) as fleet:
        storm(fleet, 70, 20_000, pause_s=(0.5, 2.5), latency_ms=150, settle_s=600)


@pytest.fixture(params=["sqlite", "postgresql"])
def still_fleet(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Fleet]:
    """A fleet whose database the test makes stand still, on each of both.

    Nothing limits its calls but the slots."""
    url = None if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    with Fleet(
        tmp_path, database_url=url, settings={"providers__default__adaptive": "false"}
    ) as fleet:
        yield fleet


def test_answers_that_no_database_takes_are_no_more_than_the_slots(still_fleet: Fleet) -> None:
    """However fast the answers come: a worker that cannot store them makes no further calls, so its
    death repeats none."""
    documents, fleet = 160, still_fleet
    fleet.provider.start("--latency-ms", "20", "--latency-sigma", "0")
    worker = fleet.worker(SLOTS, control=True, window=documents)
    job = fleet.submit(documents)
    fleet.wait_for_outcomes(job, 1)
    with standing_still(fleet.database_url):
        until(
            lambda: fleet.provider_calls() - fleet.finished(job) >= SLOTS,
            30,
            "all slots hold answers",
        )
        time.sleep(1)  # for what goes on being called all the same
        at_risk = fleet.provider_calls() - fleet.finished(job)
        worker.kill()
    fleet.worker(SLOTS, control=True)
    fleet.wait_for(job, JobState.COMPLETED, 60)
    assert at_risk == SLOTS
    assert fleet.account(job, documents).extra_calls <= SLOTS


@pytest.mark.long
@pytest.mark.parametrize("latency_ms", [5, 200])
def test_no_kill_repeats_more_calls_than_there_were_slots(
    still_fleet: Fleet, latency_ms: int
) -> None:
    """Of one worker or of both, at random moments, with a database that stands still for 3 s in
    every second round."""
    fleet, slots, documents, rounds = still_fleet, 200, 6_000 if latency_ms < 50 else 3_000, 12
    seed = int(os.environ.get("STORM_SEED") or time.time_ns() % 1_000_000)
    luck = random.Random(seed)
    print(f"STORM_SEED={seed}")
    fleet.provider.start("--latency-ms", str(latency_ms))
    fleet.control(window=documents)

    def start() -> Process:
        return fleet.worker(slots)

    fleet.ready(start(), start())
    for number in range(rounds):
        job = fleet.submit(documents, key=f"round-{number}")
        fleet.wait_for_outcomes(job, luck.randrange(1, documents // 3))
        working = [
            worker for worker in fleet.processes if worker.alive and worker.name.startswith("api")
        ]
        victims = working if luck.random() < 0.5 else [luck.choice(working)]
        with standing_still(fleet.database_url) if number % 2 else contextlib.nullcontext():
            time.sleep(luck.uniform(0, 3.0 if number % 2 else 0.3))
            for victim in victims:
                victim.kill()
        before = fleet.finished(job)
        fleet.replace_dead(start)
        fleet.wait_for(job, JobState.COMPLETED, 120, lambda: fleet.replace_dead(start))
        extra = fleet.account(job, documents).extra_calls
        print(
            f"round {number}: {len(victims)} killed at {before} of {documents}, {extra} calls twice"
        )
        assert before < documents, "the job ended before the kill: give it more documents"
        assert extra <= len(victims) * slots
