"""A job under faults, and the one account that holds after each of them.

`play` runs a job of its own under one fault or several and then holds the fleet to the promises:
every document has exactly one outcome; nothing was paid for twice beyond the slots of what died;
the books hold what the provider billed; work went on within `RESUME_S` of the fault's end without a
person, unless a person is what it waits for, and then `penstock status` says so.
"""

from __future__ import annotations

import re
import secrets
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from penstock_cli.chaos.fleet import Account, Fleet
from penstock_cli.chaos.injections import CannotBreak
from penstock_cli.chaos.processes import NotInTime, Process, until
from penstock_cli.chaos.proxy import Proxy
from penstock_cli.chaos.stage import BEGIN_S, END_S, LANES, Fault, Lane, Stage
from penstock_cli.errors import Interrupted
from penstock_ledger.model import JobState
from penstock_simulate.hostile import KINDS

BATCHES_S = 2.0  # in which the batches of a job are made
RESUME_S = 90.0  # from the fault's end to the next outcome
MAX_LOG_BYTES = 400_000  # that one process may write in one fault: a flood buries what matters
MAX_WORKER_MB = 700  # of memory, at its peak
GOOD = {"200", *(kind.name for kind in KINDS.values() if kind.answers)}


@dataclass(frozen=True)
class Verdict:
    """Holds what came of a job under faults."""

    faults: tuple[str, ...]
    seed: int
    did: str
    resumed_s: float | None
    took_s: float  # from the fault's end to the job's
    calls: Counter[str]
    twice: int  # calls beyond one for each document
    allowed: int
    billed: int | None  # tokens, or answers of batches; None where the provider has not kept it
    booked: int
    dead: int
    problems: tuple[str, ...]

    @property
    def holds(self) -> bool:
        return not self.problems

    @property
    def lost_tokens(self) -> int | None:
        """Return what was billed and is not in the books; None where the bill is not known."""
        return None if self.billed is None else self.billed - self.booked


def play(
    faults: Sequence[Fault],
    fleet: Fleet,
    seed: int,
    *,
    lane: Lane = LANES["api"],
    proxies: Mapping[str, Proxy] | None = None,
    documents: int | None = None,
) -> Verdict:
    """Run a job under faults, one after the other with no time between, then audit it."""
    number = documents or max(fault.documents for fault in faults)
    logged = {process.log: process.log.stat().st_size for process in fleet.processes}
    before = _billed(fleet, lane)
    spec = {"lane": lane.name, **lane.spec}
    for fault in faults:
        spec |= dict(fault.spec)
    name = "-".join(fault.name for fault in faults)
    key = f"{name}-{seed}-{secrets.token_hex(4)}"  # a database of yours may have seen the seed
    if any(fault.from_bucket for fault in faults):
        job = fleet.submit_from_bucket(number, key)
    else:
        job = fleet.submit(number, key=key, **spec)
    stage = Stage(fleet, seed, job, lane, proxies or {})
    problems = stage.problems
    resumed_s: float | None = None
    try:
        _wait_for_work(stage, number)
        for fault in faults:
            said = len(stage.did)
            fault.strike(stage)
            if len(stage.did) == said:
                stage.did.append(fault.does)
        stage.ended_at = time.monotonic()
        resumed_s = _resumes_in_time(faults, stage)
        fleet.wait_for(job, JobState.COMPLETED, END_S, lambda: _tend(faults, stage))
    except (CannotBreak, Interrupted):
        raise
    # of any driver: what was tried before is not to be lost with it
    except Exception as error:
        problems.append(str(error) or type(error).__name__)
    took_s = time.monotonic() - (stage.ended_at or time.monotonic())
    account = fleet.account(job, number)
    calls = fleet.provider.outcomes(job)
    problems += account.problems
    honest = all(fault.honest for fault in faults)
    billed = _billed(fleet, lane) - before if honest else None
    paid = sum(count for outcome, count in calls.items() if outcome in GOOD) + (
        (billed or 0) if lane.name == "batch" else 0
    )
    counts = fleet.producer.status(job.job_id).counts
    booked = (
        counts.calls if lane.name == "batch" else counts.prompt_tokens + counts.completion_tokens
    )
    if fleet.state(job) is JobState.COMPLETED:
        problems += _adds_up(faults, stage, account, paid, logged)
        problems += [] if billed is None else _money(stage, account, billed, booked)
    else:
        fleet.run("cancel", job.job_id)  # what comes next finds the fleet free
    return Verdict(
        tuple(fault.name for fault in faults),
        seed,
        "; ".join(stage.did),
        resumed_s,
        took_s,
        calls,
        max(paid - number, 0),
        stage.slots,
        billed,
        booked,
        len(account.dead),
        tuple(problems),
    )


def _wait_for_work(stage: Stage, documents: int) -> None:
    """Wait until the job is under way, at a moment that the seed chooses."""
    if stage.lane.name == "batch":
        # all its batches are made and looked at within seconds: before, between or after
        stage.hold(stage.luck.uniform(0, BATCHES_S))
        return
    stage.fleet.wait_for_outcomes(
        stage.job, stage.luck.randrange(1, max(documents // 8, 2)), BEGIN_S
    )


def _tend(faults: Sequence[Fault], stage: Stage) -> None:
    """Do what an operator does: replace what died, and resume a job that waits for a person.

    A job may wait so where a fault says it, and has to show why, with the command to type. It may
    come to that after the fault: answers of its time are still on their way."""
    stage.replace_dead()
    patterns = [fault.waits_for for fault in faults if fault.waits_for is not None]
    if not patterns or stage.fleet.state(stage.job) is not JobState.PAUSED:
        return
    shown = stage.shown()
    if not any(re.search(pattern, shown) for pattern in patterns):
        stage.problems.append(f"it waits for a person and does not say so: {shown}")
    if "penstock resume" not in shown:
        stage.problems.append(f"it does not say what the person is to do: {shown}")
    stage.fleet.penstock("resume", stage.job.job_id)
    stage.ended_at = time.monotonic()


def _resumes_in_time(faults: Sequence[Fault], stage: Stage) -> float:
    """Wait for the next outcome; return how long it took."""
    fleet, job = stage.fleet, stage.job
    finished = fleet.finished(job)

    def goes_on() -> bool:
        _tend(faults, stage)
        return fleet.state(job).final or fleet.finished(job) > finished

    try:
        until(goes_on, RESUME_S, "work goes on after the fault")
    except NotInTime as error:
        raise NotInTime(f"{error}; {fleet.describe(job)}\n{stage.shown()}") from None
    return time.monotonic() - stage.ended_at


def _adds_up(
    faults: Sequence[Fault], stage: Stage, account: Account, paid: int, logged: Mapping[Path, int]
) -> list[str]:
    """Audit a job that has ended: its dead letters, what was paid twice, memory and logs."""
    problems = []
    reasons = Counter(account.dead.values())
    if not set(reasons) <= frozenset[str]().union(*(fault.dead for fault in faults)):
        problems.append(f"dead letters that the fault does not explain: {dict(reasons)}")
    if len(account.dead) > (most := sum(fault.most_dead for fault in faults)):
        problems.append(f"{len(account.dead)} dead letters, at most {most}: {dict(reasons)}")
    documents = len(account.results) + len(account.dead)
    if paid > documents + stage.slots:
        problems.append(
            f"{paid} answers were paid for {documents} documents, and {stage.slots} calls may be "
            f"repeated: {dict(stage.fleet.provider.outcomes(stage.job))}"
        )
    if stage.fleet.provider.stats()["trapped"]:
        problems.append("a redirect was followed")
    for process in stage.fleet.processes:
        grown = process.log.stat().st_size - logged.get(process.log, 0)
        if grown > MAX_LOG_BYTES:
            problems.append(f"{process.name} logged {grown:,} bytes")
    for worker in stage.workers():
        if (peak := peak_mb(worker)) > MAX_WORKER_MB:
            problems.append(f"{worker.name} took {peak} MB")
    return problems


def _billed(fleet: Fleet, lane: Lane) -> int:
    """Return what the provider has billed since its start.

    In tokens, or in answers of batches, whose tokens it does not sum up."""
    stats = fleet.provider.stats()
    if lane.name == "batch":
        return int(stats["batches"]["answered"])
    return int(stats["prompt_tokens"] + stats["completion_tokens"])


def _money(stage: Stage, account: Account, billed: int, booked: int) -> list[str]:
    """Compare what the provider billed with what the books hold.

    They differ by calls that died on the way to the books, and by nothing else."""
    largest = 1
    if stage.lane.name != "batch":
        largest = max(
            (
                (result.prompt_tokens or 0) + (result.completion_tokens or 0)
                for result in stage.fleet.producer.results(stage.job.job_id)
            ),
            default=0,
        )
    if booked > billed:
        return [f"the books hold {booked:,} of {billed:,} that were billed: money was invented"]
    if billed - booked > stage.slots * largest:
        return [f"the books hold {booked:,} of {billed:,} that were billed"]
    return []


def peak_mb(process: Process) -> int:
    """Return the most memory that a process has had."""
    status = Path(f"/proc/{process.popen.pid}/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    return int(found[1]) // 1024 if found else 0
