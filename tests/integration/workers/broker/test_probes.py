"""Promises of the probes on real workers, real Redis and the real program."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from celery_worker import QUEUE, Fleet, WorkerProcess, fleet_on, until
from servers import RedisServer

from penstock_workers.celery_app.app import create_app
from penstock_workers.celery_app.probe import note_of
from penstock_workers.settings import WorkerSettings

OLD_S = 1.0  # of `alive`, in tests; the workers here beat ten times per second


@pytest.fixture
def fleet(own_redis: RedisServer, tmp_path: Path) -> Iterator[Fleet]:
    with fleet_on(own_redis, tmp_path) as fleet:
        yield fleet


def ask(worker: WorkerProcess, state: str) -> bool:
    command = [
        sys.executable,
        "-m",
        "penstock_workers.celery_app.probe",
        state,
        "--dir",
        str(worker.settings.probe_dir),
    ]
    return (
        subprocess.run(
            [*command, "--max-age", str(OLD_S)], capture_output=True, check=False
        ).returncode
        == 0
    )


def states(worker: WorkerProcess) -> set[str]:
    return {state for state in ("started", "alive", "ready") if ask(worker, state)}


def grow_older() -> None:
    time.sleep(2 * OLD_S)


def test_a_worker_deaf_to_its_queue_grows_old_and_an_outage_ages_nobody(
    fleet: Fleet, tmp_path: Path
) -> None:
    """Through an outage of Redis a worker stays alive; one whose hub turns but claims nothing does
    not."""
    worker = fleet.start(probe_dir=tmp_path / "probes", stalled_s=1.0)
    assert states(worker) == {"started", "alive", "ready"}
    fleet.server.kill()
    grow_older()
    assert states(worker) == {"started", "alive", "ready"}
    fleet.server.restart()
    fleet.publish(1)
    until(lambda: len(fleet.done()) == 1, explain=worker.text)
    grow_older()
    assert ask(worker, "alive")

    app = create_app(WorkerSettings(redis_url=fleet.server.url, database_url="sqlite://"))
    app.send_task("test.go_deaf", queue="penstock.control")
    until(lambda: not ask(worker, "alive"), explain=worker.text)
    fleet.publish(1, first=1)
    grow_older()
    assert not ask(worker, "alive")
    assert fleet.server.client().llen(QUEUE) == 1, "it is alive, and consumes nothing"
    assert "nothing was claimed for 1 s" in worker.text()


def test_a_frozen_worker_grows_old_and_a_full_one_does_not(fleet: Fleet, tmp_path: Path) -> None:
    """A worker with all it can hold claims nothing and is alive; one whose hub stands still is
    not."""
    worker = fleet.start(
        probe_dir=tmp_path / "probes", stalled_s=0.5, concurrency=1, seconds=60, drain_seconds=3
    )
    fleet.publish(5)
    until(lambda: fleet.held() == 2, explain=worker.text)
    grow_older()
    assert ask(worker, "alive")
    worker.send(signal.SIGSTOP)
    until(lambda: not ask(worker, "alive"), explain=worker.text)
    worker.send(signal.SIGCONT)
    until(lambda: ask(worker, "alive"))
    worker.send(signal.SIGTERM)
    until(lambda: not ask(worker, "ready"), explain=worker.text)
    grow_older()
    assert states(worker) == {"started", "alive"}, (
        "a drain takes no more work, and is no reason to be killed"
    )
    assert worker.process.wait(30) == 0
    assert states(worker) == set()


def test_a_long_start_is_covered_by_started(fleet: Fleet, tmp_path: Path) -> None:
    """While a model loads, `started` says no, so `alive` is not asked yet."""
    worker = fleet.start(probe_dir=tmp_path / "probes", name="first")
    assert worker.end() == 0
    seen: list[set[str]] = []
    notes: set[str] = set()

    def is_up() -> bool:
        seen.append(states(slow))
        notes.add(note_of(str(tmp_path / "probes")))
        return "ready" in seen[-1]

    slow = fleet.launch(probe_dir=tmp_path / "probes", name="second", starts_s=2.0)
    until(is_up, 60, explain=slow.text)
    assert set() in seen
    assert {"alive"} not in seen
    assert "the model loads" in notes
    until(lambda: note_of(str(tmp_path / "probes")) == "")
