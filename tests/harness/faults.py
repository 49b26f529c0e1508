"""Faults as data: what is done to a real fleet, and the one account that holds after each of them.

A `Scenario` says what is done and when the fault is over. `play` runs a job of its own under it and
then holds the fleet to the promises: every document has exactly one outcome; nothing was paid for
twice beyond the slots of what died; work went on within `RESUME_S` of the fault's end without a
person, unless a person is what it waits for, and then `penstock status` says so.
"""

from __future__ import annotations

import json
import os
import random
import re
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fleet import Fleet, Process, until

from penstock_ledger.model import Job, JobState
from penstock_simulate.hostile import KINDS

WORKERS, CONCURRENCY = 2, 8
SLOTS = CONCURRENCY  # of one worker: in a call, or answered and not stored yet
RESUME_S = 90.0  # from the fault's end to the next outcome
END_S = 120.0  # from there to the job's end
MAX_LOG_BYTES = 400_000  # that one process may write in one scenario: a flood buries what matters
MAX_WORKER_MB = 700  # of memory, at its peak
GOOD = {"200", *(kind.name for kind in KINDS.values() if kind.answers)}


@dataclass
class Stage:
    """A fleet with one running job, and what the scenario has done to it."""

    fleet: Fleet
    seed: int
    job: Job
    died: int = 0  # workers whose slots may have been paid for twice
    ended_at: float = 0.0
    notes: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.luck = random.Random(self.seed)

    def start_worker(self) -> Process:
        return self.fleet.worker(CONCURRENCY, control=True)

    def workers(self) -> list[Process]:
        return [
            process
            for process in self.fleet.processes
            if process.alive and process.name.startswith("api")
        ]

    def kill(self, *workers: Process) -> None:
        for worker in workers:
            worker.kill()
            self.died += 1

    def replace_dead(self) -> None:
        """As a supervisor would; a worker that was not killed by the scenario died of the fault,
        and its slots count."""
        before = self.fleet.deaths
        self.fleet.replace_dead(self.start_worker)
        self.notes["deaths"] = self.notes.get("deaths", 0) + self.fleet.deaths - before

    def hold(self, seconds: float) -> None:
        """Let the fault last, with a supervisor at work."""
        until_at = time.monotonic() + seconds

        def over() -> bool:
            self.replace_dead()
            return time.monotonic() >= until_at

        until(over, seconds + 30, "the fault lasts")

    def hostile(self, kinds: str, seconds: float, share: float = 1.0) -> None:
        """The provider answers so for a while, and well afterwards."""
        self.fleet.provider.tell(hostile=kinds, hostile_share=share)
        self.hold(seconds)
        self.fleet.provider.tell(hostile=None)

    def shown(self) -> str:
        return self.fleet.penstock("status", self.job.job_id)

    def calls_of(self) -> Counter[str]:
        """What the provider did with the calls for this job, by its own log."""
        lines = (json.loads(line) for line in self.fleet.provider.call_log.read_text().splitlines())
        return Counter(
            line["outcome"] for line in lines if line["document"].startswith(f"{self.job.job_id}:")
        )


@dataclass(frozen=True)
class Scenario:
    """One fault. ``strike`` does it and returns when it is over."""

    name: str
    finding: str  # the findings that it proves
    strike: Callable[[Stage], None]
    documents: int = 240
    spec: tuple[tuple[str, Any], ...] = ()
    dead: frozenset[str] = frozenset()  # reasons that dead letters may have
    most_dead: int = 0
    waits_for: str | None = None  # a person: what `status` then says (a pattern)
    quick: bool = False  # in `make test` as well; it leaves the fleet as it was
    https: bool = False  # the provider has a certificate, which the fleet trusts

    def __str__(self) -> str:
        return self.name


LATENCY_MS = 400  # so that a job outlasts its fault
HOOKS = "fault_hooks"


def make_fleet(folder: Path, database_url: str | None) -> Fleet:
    """Its workers find the hooks of this folder, and trust the provider's authority."""
    path = os.pathsep.join(filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH")]))
    variables = {"PYTHONPATH": path, "SSL_CERT_FILE": str(authority(folder))}
    settings = {"hook_modules": json.dumps([HOOKS])}
    return Fleet(folder, database_url=database_url, settings=settings, variables=variables)


def authority(folder: Path) -> Path:
    return folder / "authority.pem"


def start_provider(fleet: Fleet, certificate: str | None, seed: int) -> None:
    flags = (
        ()
        if certificate is None
        else ("--certificate", certificate, "--authority", str(authority(fleet.folder)))
    )
    fleet.provider.scheme = "http" if certificate is None else "https"
    fleet.provider.start("--latency-ms", str(LATENCY_MS), "--seed", str(seed), *flags)


def begin(fleet: Fleet, seed: int, *, https: bool = False) -> None:
    """The fleet that all scenarios have: a provider, and two workers that also control."""
    start_provider(fleet, "good" if https else None, seed)
    fleet.ready(*(fleet.worker(CONCURRENCY, control=True) for _ in range(WORKERS)))


def play(scenario: Scenario, fleet: Fleet, seed: int) -> Stage:
    """Run a job under the fault, then hold the fleet to its promises."""
    before = {process.name: process.log.stat().st_size for process in fleet.processes}
    job = fleet.submit(scenario.documents, key=f"{scenario.name}-{seed}", **dict(scenario.spec))
    stage = Stage(fleet, seed, job)
    print(f"{scenario.name}: FAULT_SEEDS={seed}")
    fleet.wait_for_outcomes(job, stage.luck.randrange(1, scenario.documents // 8))
    scenario.strike(stage)
    stage.ended_at = time.monotonic()
    lift_what_waits_for_a_person(scenario, stage)
    resumes_in_time(stage)
    fleet.wait_for(job, JobState.COMPLETED, END_S, stage.replace_dead)
    took_s = time.monotonic() - stage.ended_at
    adds_up(scenario, stage, before)
    print(
        f"{scenario.name} seed {seed}: {took_s:.1f} s after the fault, {dict(stage.calls_of())}, "
        f"{stage.died} died"
    )
    return stage


def lift_what_waits_for_a_person(scenario: Scenario, stage: Stage) -> None:
    """A job that is paused waits for a person only where the scenario says so; it shows, with the
    command to type."""
    if scenario.waits_for is None:
        return
    shown = stage.shown()
    if stage.fleet.state(stage.job) is JobState.PAUSED:
        assert re.search(scenario.waits_for, shown), (
            f"it waits for a person and does not say so: {shown}"
        )
        assert "penstock resume" in shown, f"it does not say what the person is to do: {shown}"
        stage.fleet.penstock("resume", stage.job.job_id)
        stage.ended_at = time.monotonic()


def resumes_in_time(stage: Stage) -> None:
    fleet, job = stage.fleet, stage.job
    finished = fleet.finished(job)

    def goes_on() -> bool:
        stage.replace_dead()
        return fleet.state(job).final or fleet.finished(job) > finished

    try:
        until(goes_on, RESUME_S, "work goes on after the fault")
    except AssertionError as error:
        raise AssertionError(f"{error}; {fleet.describe(job)}\n{stage.shown()}") from None


def adds_up(scenario: Scenario, stage: Stage, logged: dict[str, int]) -> None:
    """The account: outcomes, money, memory, logs, and that no redirect was followed."""
    fleet, job = stage.fleet, stage.job
    account = fleet.account(job, scenario.documents)
    assert set(account.dead.values()) <= scenario.dead, Counter(account.dead.values())
    assert len(account.dead) <= scenario.most_dead, Counter(account.dead.values())
    calls = stage.calls_of()
    paid = sum(count for outcome, count in calls.items() if outcome in GOOD)
    slots = (stage.died + stage.notes.get("deaths", 0)) * SLOTS + stage.notes.get("ambiguous", 0)
    assert paid <= scenario.documents + slots, (
        f"{paid} answers paid for {scenario.documents} documents: {calls}"
    )
    assert fleet.provider._stats()["trapped"] == {}, "a redirect was followed"
    for process in fleet.processes:
        grown = process.log.stat().st_size - logged.get(process.name.removeprefix("dead-"), 0)
        assert grown <= MAX_LOG_BYTES, f"{process.name} logged {grown:,} bytes"
    for worker in stage.workers():
        assert peak_mb(worker) <= MAX_WORKER_MB, f"{worker.name} took {peak_mb(worker)} MB"


def peak_mb(process: Process) -> int:
    status = Path(f"/proc/{process.popen.pid}/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    return int(found[1]) // 1024 if found else 0
