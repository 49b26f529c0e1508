"""One worker that dies, freezes or gets SIGTERM at a named moment."""

from __future__ import annotations

import signal
import sqlite3
import time
from contextlib import closing
from pathlib import Path

from fleet import Fleet, Process, until

from penstock_ledger.model import JobState

LONG_S = 60.0


def test_deaths_around_the_commit(tmp_path: Path) -> None:
    """What was committed is never called again, however little was done after it; what was not is
    called once more."""
    with Fleet(tmp_path) as fleet:
        fleet.provider.start("--latency-ms", "50", "--latency-sigma", "0")
        fleet.control()

        def die_at(place: str) -> None:
            # Slots for both jobs' messages: where items wait for slots, a group is stored before it
            # is whole.
            assert (
                fleet.worker(16, failpoints=f"{place}:kill", commit_linger_s=2).wait(60)
                == -signal.SIGKILL
            )

        job = fleet.submit(8)
        die_at("before_commit")
        assert (fleet.finished(job), fleet.provider_calls()) == (0, 8)
        die_at("after_commit")
        assert (fleet.finished(job), fleet.provider_calls()) == (8, 16)
        second = fleet.submit(8, key="second")
        until(lambda: fleet.depths(second)["window"] == 8, 30, "the second job is fed")
        die_at("after_settle")
        fleet.worker(8)
        fleet.wait_for(job, JobState.COMPLETED, 60)
        fleet.wait_for(second, JobState.COMPLETED, 60)
        assert (fleet.account(job, 8).extra_calls, fleet.account(second, 8).extra_calls) == (8, 0)


def test_poison_is_buried_and_its_neighbours_live(tmp_path: Path) -> None:
    """A document that kills its process ends as `worker_crashed`; all others get results; the
    deaths are few."""
    with Fleet(tmp_path) as fleet:
        fleet.provider.start("--latency-ms", "50")
        fleet.control()

        def start() -> Process:
            return fleet.worker(8, failpoints="infer:doc-30:kill")

        fleet.ready(start(), start())
        job = fleet.submit(120)
        fleet.wait_for(job, JobState.COMPLETED, 90, lambda: fleet.replace_dead(start))
        account = fleet.account(job, 120)
        assert account.dead == {"doc-30": "worker_crashed"}
        assert "doc-30" not in account.calls
        assert fleet.deaths == 2
        # that doc-30 ended beside other suspects, which are called again; the next one it ends
        # alone
        children = 1
        assert account.extra_calls <= (fleet.deaths + children) * 16
        letter = next(fleet.producer.dead_letters(job.job_id))
        assert "alone" in letter.last_error


def test_two_kills_of_the_whole_fleet_cost_no_speed(tmp_path: Path) -> None:
    """What was in flight both times is under suspicion, and is cleared in groups: nothing dies, and
    nothing crawls (A6)."""
    documents, latency_s = 60, 2.0
    with Fleet(tmp_path, settings={"providers__default__adaptive": "false"}) as fleet:
        fleet.provider.start("--latency-ms", str(1000 * latency_s), "--latency-sigma", "0")
        fleet.control()
        job = fleet.submit(documents)
        for _ in range(2):
            fleets = [fleet.worker(35, prefetch_multiplier=1) for _ in range(2)]
            until(
                lambda: fleet.provider.in_flight() >= documents * 3 // 4,
                60,
                "most documents are in flight",
            )
            for worker in fleets:
                worker.kill()
            until(lambda: not fleet.provider.in_flight(), 30, "the provider has noticed")
        fleet.ready(fleet.worker(35), fleet.worker(35))
        began = time.monotonic()
        fleet.wait_for(job, JobState.COMPLETED, documents * latency_s / 4)
        assert fleet.account(job, documents).dead == {}
        assert time.monotonic() - began < documents * latency_s / 4, (
            "two at a time in each worker take longer than this"
        )


def test_sigterm_lets_calls_finish(tmp_path: Path) -> None:
    """A drain that has time ends with status 0 and every call's answer kept: nothing is called
    again."""
    with Fleet(tmp_path) as fleet:
        fleet.provider.start("--latency-ms", "1500", "--latency-sigma", "0")
        fleet.control()
        worker = fleet.worker(8, drain_seconds=20)
        job = fleet.submit(30)
        until(lambda: fleet.provider_calls() == 8, 60, "eight calls are in flight")
        worker.send(signal.SIGTERM)
        assert worker.wait(15) == 0
        assert fleet.finished(job) == fleet.provider_calls() == 8
        assert fleet.depths(job)["queued"] == 22
        fleet.worker(30)
        fleet.wait_for(job, JobState.COMPLETED, 60)
        assert fleet.account(job, 30).extra_calls == 0


def test_sigterm_gives_back_what_does_not_fit(tmp_path: Path) -> None:
    """A drain that runs out of time, or gets a second signal, ends; what was in flight is in the
    queue at once.

    No lease is waited for, and no attempt is counted.
    """
    with Fleet(tmp_path) as fleet:
        fleet.provider.start("--latency-ms", str(LONG_S * 1000), "--latency-sigma", "0")
        fleet.control()
        patient = fleet.worker(8, drain_seconds=2, visibility_timeout_s=600)
        job = fleet.submit(30)
        until(lambda: fleet.provider_calls() == 8, 60, "calls are in flight")
        told = time.monotonic()
        patient.send(signal.SIGTERM)
        assert patient.wait(15) == 0
        assert time.monotonic() - told < 2 + 8
        assert fleet.depths(job) == given_back(30)

        hurried = fleet.worker(8, drain_seconds=LONG_S, visibility_timeout_s=600)
        until(lambda: fleet.provider_calls() == 16, 60, "calls are in flight again")
        hurried.send(signal.SIGTERM)
        until(lambda: fleet.depths(job)["unacked"] == 8, 10, "what has not started is given back")
        assert hurried.alive
        hurried.send(signal.SIGTERM)
        hurried.wait(10)
        assert fleet.depths(job) == given_back(30)

        fleet.provider.kill()
        fleet.provider.start("--latency-ms", "20")
        fleet.worker(8, visibility_timeout_s=600)
        fleet.wait_for(job, JobState.COMPLETED, 60)
        account = fleet.account(job, 30)
        assert (account.extra_calls, account.dead) == (16, {})
        assert {result.attempts for result in fleet.producer.results(job.job_id)} == {1}


def given_back(documents: int) -> dict[str, int]:
    """Everything is in the queue and in the window, and nowhere else."""
    return {
        "queued": documents,
        "unacked": 0,
        "leases": 0,
        "delayed": 0,
        "window": documents,
        "starts": 0,
    }


def is_frozen_at_work(fleet: Fleet, worker: Process) -> bool:
    """Freeze it, unless it is in a transaction: that would hold SQLite for all."""
    worker.send(signal.SIGSTOP)
    path = fleet.database_url.removeprefix("sqlite:///")
    with closing(sqlite3.connect(path, timeout=1, isolation_level=None)) as database:
        try:
            database.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            worker.send(signal.SIGCONT)
            return False
        database.execute("ROLLBACK")
    return True


def test_frozen_worker_comes_back_late(tmp_path: Path) -> None:
    """A worker that sleeps through its leases and wakes up changes no result, and goes on
    working."""
    with Fleet(tmp_path) as fleet:
        fleet.provider.start("--latency-ms", "3000", "--latency-sigma", "0")
        fleet.control()
        sleeper = fleet.worker(8)
        job = fleet.submit(24)
        until(lambda: fleet.provider_calls() >= 8, 60, "calls are in flight")
        until(lambda: is_frozen_at_work(fleet, sleeper), 10, "it is frozen outside a transaction")
        fleet.provider.tell(latency_ms=200)  # of calls from here on
        finished = fleet.finished(job)
        other = fleet.worker(24)
        fleet.wait_for(job, JobState.COMPLETED, 60)
        before = {result.key.doc_id: result.body for result in fleet.producer.results(job.job_id)}
        other.send(signal.SIGTERM)
        other.wait(30)
        sleeper.send(signal.SIGCONT)
        second = fleet.submit(16, key="second")
        fleet.wait_for(second, JobState.COMPLETED, 60)
        assert {
            result.key.doc_id: result.body for result in fleet.producer.results(job.job_id)
        } == before
        account = fleet.account(job, 24)
        assert (account.dead, len(account.results)) == ({}, 24)
        assert account.extra_calls <= 16
        assert fleet.account(second, 16).extra_calls == 0
        print(f"{finished} finished before the freeze, {account.extra_calls} calls twice")
