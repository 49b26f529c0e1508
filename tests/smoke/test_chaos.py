"""Faults in any order and at once, drawn from a printed seed: the accounts add up all the same."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest
from fleet import Fleet, Process

from penstock_ledger.model import JobState

WORKERS, CONCURRENCY = 3, 8
PREFETCH = 2 * CONCURRENCY
FAULTS = 25
PROVIDER = (
    "--latency-ms",
    "250",
    "--error-rate",
    "0.02",
    "--throttle-rate",
    "0.01",
    "--retry-after-s",
    "0.3",
)


class Chaos:
    """Draws faults and does them; ``ambiguous`` bounds the calls that they may have made
    worthless."""

    def __init__(self, fleet: Fleet, seed: int) -> None:
        self.fleet = fleet
        self.luck = random.Random(seed)
        self.ambiguous = 0
        self.done: list[str] = []
        self._frozen: list[Process] = []

    def start_worker(self) -> Process:
        return self.fleet.worker(CONCURRENCY, control=True, window=500)

    def strike(self) -> None:
        faults = (
            [self.kill_worker] * 4
            + [self.freeze_worker] * 2
            + [
                self.drain_worker,
                self.restart_redis,
                self.wipe_redis,
                self.flush_redis,
                self.restart_provider,
            ]
        )
        fault = self.luck.choice(faults)
        self.done.append(fault.__name__)
        fault()

    def kill_worker(self) -> None:
        if workers := self._working():
            self.luck.choice(workers).kill()
            self.ambiguous += PREFETCH

    def freeze_worker(self) -> None:
        if workers := self._working():
            victim = self.luck.choice(workers)
            victim.send(signal.SIGSTOP)
            self._frozen.append(victim)
            self.ambiguous += PREFETCH

    def thaw(self, share: float) -> None:
        for process in [frozen for frozen in self._frozen if self.luck.random() < share]:
            process.send(signal.SIGCONT)
            self._frozen.remove(process)

    def drain_worker(self) -> None:
        if workers := self._working():
            self.luck.choice(workers).send(signal.SIGTERM)

    def restart_redis(self) -> None:
        self.fleet.redis.restart()
        self.ambiguous += WORKERS * PREFETCH

    def wipe_redis(self) -> None:
        self.fleet.redis.restart(wipe=True)
        self.ambiguous += WORKERS * PREFETCH

    def flush_redis(self) -> None:
        self.fleet.redis.flush()
        self.ambiguous += WORKERS * PREFETCH

    def restart_provider(self) -> None:
        self.fleet.provider.kill()
        self.fleet.provider.start(*PROVIDER)
        self.ambiguous += WORKERS * PREFETCH

    def _working(self) -> list[Process]:
        heard_of = self.fleet.heard_of()
        ours = [
            worker for worker in self.fleet.processes if worker.alive and worker not in self._frozen
        ]
        return sorted(
            (worker for worker in ours if worker.popen.pid in heard_of),
            key=lambda worker: worker.name,
        )


def run_chaos(folder: Path, documents: int, faults: int) -> None:
    seed = int(os.environ.get("CHAOS_SEED") or time.time_ns() % 1_000_000)
    print(f"CHAOS_SEED={seed}")
    with Fleet(folder) as fleet:
        fleet.provider.start(*PROVIDER)
        chaos = Chaos(fleet, seed)
        fleet.ready(*(chaos.start_worker() for _ in range(WORKERS)))
        job = fleet.submit(documents, max_attempts=30)
        fleet.wait_for_outcomes(job, 1)
        while len(chaos.done) < faults and fleet.state(job) is JobState.RUNNING:
            time.sleep(chaos.luck.uniform(0.3, 2.5))
            chaos.strike()
            chaos.thaw(0.3)
            fleet.replace_dead(chaos.start_worker)
        chaos.thaw(1.0)
        finished = fleet.finished(job)
        fleet.wait_for(job, JobState.COMPLETED, 150, lambda: fleet.replace_dead(chaos.start_worker))
        account = fleet.account(job, documents)
        retries = sum(result.attempts - 1 for result in fleet.producer.results(job.job_id))
        print(
            f"{chaos.done}: {finished} finished by then, {account.extra_calls} calls twice, "
            f"{retries} of them retries"
        )
        assert account.dead == {}
        # the last: throttled calls
        assert account.extra_calls <= chaos.ambiguous + retries + documents // 20
        assert fleet.counters(job)["succeeded"] == documents


@pytest.mark.soak
def test_chaos(tmp_path: Path) -> None:
    """Kills, freezes, drains, a Redis that dies and forgets, a provider that is gone: one result
    for every document."""
    run_chaos(tmp_path, 3_000, FAULTS)
