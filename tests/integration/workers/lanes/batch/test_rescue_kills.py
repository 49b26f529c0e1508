"""Control and workers of the batch lane that are killed at each step of a deadline's rescue, and of
a batch's cancel."""

from __future__ import annotations

import json
import signal
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fleet import Fleet, Process, until

from penstock_ledger import BatchState, LaneMoves, ProviderBatchStore
from penstock_ledger.model import Job, JobState

pytestmark = pytest.mark.long

DOCUMENTS = 400
WORK_S = 90.0
CONCURRENCY = 8
PRICED: dict[str, Any] = {
    "providers__default__usd_per_mtok_in": 1.0,
    "providers__default__usd_per_mtok_out": 2.0,
    "providers__default__batch_discount": 0.5,
    "providers__default__rpm": 1_200,
}
BATCH: dict[str, Any] = {
    "batch__poll_first_s": 0.1,
    "batch__poll_cap_s": 0.3,
    "batch__unclear_s": 0.2,
}
# 400 calls at 1,200 a minute, five times, leave 20 s to the batches and time for a dead process to
# be replaced, twice.
LANES: dict[str, Any] = {
    "lanes__look_s": 0.3,
    "lanes__moving_s": 2.0,
    "lanes__trouble_s": 2.0,
    "lanes__margin": 5,
}
DEADLINE_S = 120.0
# What each dies at, while the rescue is under way.
# `move_handing` is in test_lane_moves_fleet.py: it needs a batch that is not cancelled in time.
OF_CONTROL = ("move_leaving", "move_left", "move_arriving")
OF_WORKERS = (
    "batch_before_ended",
    "batch_ended",
    "batch_collecting",
    "batch_collected",
    "batch_before_settled",
    "before_commit",
)
OF_CANCEL = (*OF_WORKERS, "after_commit", "after_settle")


class House:
    """A fleet of both lanes, whose provider never comes to the end of a batch unless it is
    cancelled."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.journal = ProviderBatchStore(fleet.producer._database)

    def api_worker(self) -> Process:
        return self.fleet.worker(CONCURRENCY, **PRICED)

    def batch_worker(self, **settings: object) -> Process:
        return self.fleet.worker(
            1,
            lane="batch",
            batch__folder=self.fleet.folder / "packed",
            **BATCH,
            **PRICED,
            **settings,
        )

    def control(self, **settings: object) -> Process:
        return self.fleet.control(**LANES, **PRICED, **settings)

    def batches(self) -> dict[str, Any]:
        with urllib.request.urlopen(self.fleet.provider.root + "/stats", timeout=5) as answer:
            found: dict[str, Any] = json.load(answer)["batches"]
            return found

    def half_answered(self, least: int) -> None:
        def answered() -> int:
            with urllib.request.urlopen(self.fleet.provider.root + "/batches", timeout=5) as answer:
                return sum(int(batch["answered"]) for batch in json.load(answer)["batches"])

        until(lambda: answered() >= least, WORK_S, "the provider has answered some of it")

    def dies(self, process: Process, place: str, job: Job, within_s: float = WORK_S) -> None:
        try:
            assert process.wait(within_s) == -signal.SIGKILL, process.tail()
        except subprocess.TimeoutExpired:
            raise AssertionError(f"nothing died at {place}: {self.fleet.describe(job)}") from None

    def check(self, job: Job, *, held: int = 0) -> None:
        """Each document has one outcome, no output is left unread, and all that was paid is
        counted, but for calls that a dead worker had under way."""
        until(lambda: not self.journal.open_of(job.job_id), WORK_S, "no batch is open")
        counts, seen = self.fleet.producer.status(job.job_id).counts, self.batches()
        account = self.fleet.account(job, DOCUMENTS)
        paid = self.fleet.provider_calls() + seen["answered"]
        print(f"{counts}; {self.fleet.provider_calls()} calls, {seen}")
        assert seen["unread"] == 0, seen
        assert len(account.results) == counts.succeeded
        assert paid - held <= counts.succeeded + counts.answered_twice <= paid
        assert {batch.state for batch in self.journal.of_job(job.job_id)} == {BatchState.SETTLED}


@pytest.fixture(params=["sqlite", "postgresql"])
def house(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[House]:
    url = None if request.param == "sqlite" else request.getfixturevalue("migrated_url")
    with Fleet(tmp_path, database_url=url) as fleet:
        yield House(fleet)


def submit(house: House, **spec: Any) -> Job:
    return house.fleet.submit(DOCUMENTS, batch_max_requests=100, max_attempts=5, **spec)


def rescue(house: House, job: Job) -> Callable[[], bool]:
    moves = LaneMoves(house.fleet.producer._database)
    return lambda: any(move.reason == "deadline" for move in moves.of(job.job_id))


@pytest.mark.parametrize("place", OF_CONTROL)
def test_control_dies_in_a_rescue(house: House, place: str) -> None:
    """Control chooses to leave the batches for the deadline and is killed in a step of that, twice;
    the next one goes on. In time each document has one outcome, and what was paid twice is counted
    as such."""
    fleet = house.fleet
    fleet.provider.start(
        "--batch-s", "120", "--batch-step-s", "1", "--latency-ms", "50", "--latency-sigma", "0"
    )
    house.api_worker()
    house.batch_worker()
    job = submit(house, lane="batch", lanes=["batch", "api"], deadline_s=DEADLINE_S)
    house.dies(house.control(failpoints=f"{place}:kill"), place, job)
    assert rescue(house, job)(), "it was the deadline"
    # as long as there is such a step left
    _until_it_dies(house, job, house.control(failpoints=f"{place}:kill"))
    house.control()
    fleet.wait_for(job, JobState.COMPLETED, WORK_S)
    house.check(job)
    assert fleet.producer.status(job.job_id).counts.dead == 0


def _until_it_dies(house: House, job: Job, process: Process) -> None:
    def is_over() -> bool:
        return not process.alive or house.fleet.finished(job) == DOCUMENTS

    until(is_over, WORK_S, "it dies, or nothing is left to do")
    process.kill()


@pytest.mark.parametrize("place", OF_WORKERS)
def test_a_batch_worker_dies_in_a_rescue(house: House, place: str) -> None:
    """While its batches are cancelled for the deadline and what they have answered is read: another
    one goes on where the journal says, beside the lane that answers the rest."""
    fleet = house.fleet
    fleet.provider.start(
        "--batch-s", "120", "--batch-step-s", "1", "--latency-ms", "50", "--latency-sigma", "0"
    )
    house.api_worker()
    worker = house.batch_worker(failpoints=f"{place}:kill")
    house.control()
    job = submit(house, lane="batch", lanes=["batch", "api"], deadline_s=DEADLINE_S)
    house.dies(worker, place, job)
    assert rescue(house, job)(), "it was the deadline"
    house.dies(
        house.batch_worker(failpoints=f"{place}:kill"), place, job, 30.0
    ) if place != "batch_before_settled" else None
    house.batch_worker()
    fleet.wait_for(job, JobState.COMPLETED, WORK_S)
    house.check(job)
    assert fleet.producer.status(job.job_id).counts.dead == 0


@pytest.mark.parametrize("place", ["cancel_waiting", "cancel_writing_off", "cancel_ending"])
def test_control_dies_in_a_cancel(house: House, place: str) -> None:
    """It is killed in each step of a cancel, twice: the next one ends the job, with what was
    answered until then and a dead letter `cancelled` for all else."""
    fleet = house.fleet
    fleet.provider.start("--batch-s", "120", "--batch-step-s", "1")
    house.batch_worker()
    control = house.control(failpoints=f"{place}:kill")
    job = submit(house, lane="batch")
    house.half_answered(20)
    fleet.producer.cancel(job.job_id)
    house.dies(control, place, job)
    if place != "cancel_waiting":  # by now it may be over
        house.dies(house.control(failpoints=f"{place}:kill"), place, job)
    house.control()
    fleet.wait_for(job, JobState.CANCELLED, WORK_S)
    house.check(job)
    counts = fleet.producer.status(job.job_id).counts
    assert (counts.succeeded >= 20, counts.succeeded + counts.dead) == (True, DOCUMENTS)
    assert set(counts.dead_by_reason) == {"cancelled"}


@pytest.mark.parametrize("place", OF_CANCEL)
def test_a_batch_worker_dies_in_a_cancel(house: House, place: str) -> None:
    """What was answered until the cancel is stored, all else is a dead letter `cancelled`, and
    nothing is asked for again."""
    fleet = house.fleet
    fleet.provider.start("--batch-s", "120", "--batch-step-s", "1")
    worker, control = house.batch_worker(failpoints=f"{place}:kill"), house.control()
    job = submit(house, lane="batch")
    house.half_answered(20)
    began = time.monotonic()
    fleet.producer.cancel(job.job_id)
    control.kill()  # it dies as well, as soon as it may have begun
    house.control()
    house.dies(worker, place, job)
    house.batch_worker()
    fleet.wait_for(job, JobState.CANCELLED, WORK_S)
    house.check(job)
    counts = fleet.producer.status(job.job_id).counts
    print(f"{place}: {time.monotonic() - began:.1f} s, {counts}")
    assert (counts.succeeded >= 20, counts.succeeded + counts.dead) == (True, DOCUMENTS)
    assert set(counts.dead_by_reason) == {"cancelled"}
    assert house.batches()["answered"] == counts.succeeded, "all that was paid is there"
