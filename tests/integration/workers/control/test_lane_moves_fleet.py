"""Jobs that change their lane in the middle, with real workers, the simulated provider and its
Batch API."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fleet import Fleet, Process, until

from penstock_ledger import LaneMoves, LiveJobs, ProviderBatchStore
from penstock_ledger.model import Job, JobState

WORK_S = 60.0
CONCURRENCY = 4
STORM_KILLS = 30
FAULTS = (
    "--batch-create-500-share",
    "0.15",
    "--batch-expired-share",
    "0.05",
    "--batch-upload-500-share",
    "0.1",
    "--batch-call-500-share",
    "0.05",
    "--batch-cut-share",
    "0.15",
    "--seed",
    "5",
)
PRICE = {"usd_per_mtok_in": 1.0, "usd_per_mtok_out": 2.0, "batch_discount": 0.5}
PRICED: dict[str, Any] = {f"providers__default__{name}": value for name, value in PRICE.items()}
# in which control dies, by the lane that the job moves to: what is in batches is handed over only
# to queues
STEPS = {
    "batch": ("move_leaving", "move_left") * 3,
    "api": (
        "move_leaving",
        "move_left",
        "move_handing",
        "move_arriving",
        "move_handing",
        "move_arriving",
    ),
}


class House:
    """A fleet of both lanes."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet

    def workers(self) -> None:
        self.api_worker()
        self.batch_worker()

    def api_worker(self) -> Process:
        return self.fleet.worker(CONCURRENCY, **PRICED)

    def batch_worker(self) -> Process:
        batch: dict[str, Any] = {
            "batch__folder": self.fleet.folder / "packed",
            "batch__poll_first_s": 0.1,
            "batch__poll_cap_s": 0.2,
            "batch__unclear_s": 0.2,
        }
        return self.fleet.worker(1, lane="batch", **batch, **PRICED)

    def control(self, **settings: object) -> Process:
        return self.fleet.control(**settings)

    def submit(self, documents: int, lane: str, **spec: object) -> Job:
        smaller = {"batch_max_requests": 100} if lane == "batch" else {}
        return self.fleet.submit(documents, key=f"first-in-{lane}", lane=lane, **smaller, **spec)

    def move(self, job: Job, lane: str) -> None:
        """At once: a command takes a second to start."""
        before = self.fleet.producer.status(job.job_id).job.lane
        moves = LaneMoves(self.fleet.producer._database)
        assert (
            moves.move(job.job_id, before, lane, "by_hand", "a test", {}, now=time.time())
            is not None
        )

    def arrive(self, job: Job) -> None:
        """Let the move that was made last come to its end, by a control process that lives no
        longer than that and leaves no lease behind."""
        moves = LaneMoves(self.fleet.producer._database)
        if not moves.of(job.job_id):
            return
        control = self.control(lanes__moving_s=1.0)
        until(
            lambda: moves.of(job.job_id)[-1].left_at is not None,
            WORK_S,
            "nothing waits in the lane before",
        )
        control.send(signal.SIGTERM)
        assert control.wait(WORK_S) == 0

    def leads(self, control: Process, job: Job) -> None:
        """Wait until nothing keeps a control process from the feed of the job: it runs, and the
        lease of a dead one is over."""
        until(
            lambda: not control.alive or "penstock.control" in control.log.read_text(),
            WORK_S,
            "control has begun",
        )
        jobs = LiveJobs(self.fleet.producer._database)

        def is_free() -> bool:
            [feed] = next(feeds for live, feeds in jobs.look() if live.job_id == job.job_id)
            return feed.free or (feed.owner or "").endswith(f"-{control.popen.pid}")

        until(is_free, WORK_S, "the feed has no other leader")

    def batches(self) -> dict[str, Any]:
        with urllib.request.urlopen(self.fleet.provider.root + "/stats", timeout=5) as answer:
            found: dict[str, Any] = json.load(answer)["batches"]
            return found

    def batches_run(self, number: int) -> None:
        until(
            lambda: self.batches()["by_status"].get("in_progress", 0) >= number,
            WORK_S,
            "batches run",
        )

    def report(self, job: Job) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.fleet.run("report", job.job_id, "--json").stdout)
        return found


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    with Fleet(tmp_path) as fleet:
        yield House(fleet)


@pytest.fixture(params=["sqlite", "postgresql"])
def house_of_each(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[House]:
    url = None if request.param == "sqlite" else request.getfixturevalue("migrated_url")
    with Fleet(tmp_path, database_url=url) as fleet:
        yield House(fleet)


def test_jobs_go_on_in_the_other_lane_in_the_middle(house: House) -> None:
    """From real time to batches: what is in flight ends there, and each other document is in a
    batch. From batches to real time: they are cancelled, what they had answered is kept, and the
    rest is asked for once. Every document is paid for once, and what the jobs did is shown."""
    fleet = house.fleet
    fleet.provider.start(
        "--batch-s", "30", "--batch-step-s", "0.1", "--latency-ms", "150", "--latency-sigma", "0"
    )
    house.control()
    house.workers()
    slow = house.submit(250, "batch")
    house.batches_run(2)
    assert "goes on in lane api" in fleet.penstock("move", slow.job_id, "api")
    fleet.wait_for_outcomes(slow, 20)
    fleet.provider.tell(batch_s=0.3)
    job = house.submit(150, "api")
    fleet.wait_for_outcomes(job, 15)
    house.move(job, "batch")
    for one in (slow, job):
        fleet.wait_for(one, JobState.COMPLETED, WORK_S)
    of_slow, counts = (fleet.producer.status(one.job_id).counts for one in (slow, job))
    assert (of_slow.succeeded, of_slow.dead, of_slow.answered_twice, of_slow.calls) == (
        250,
        0,
        0,
        250,
    )
    assert (counts.succeeded, counts.dead, counts.answered_twice, counts.calls) == (150, 0, 0, 150)
    seen = house.batches()
    assert seen["by_status"]["cancelled"] >= 2
    assert fleet.provider_calls() + seen["answered"] == 400
    tokens_usd = counts.prompt_tokens * 1.0 + counts.completion_tokens * 2.0
    assert 0.5 * tokens_usd < counts.cost_microusd < tokens_usd, (
        "real time at the full price, batches at half"
    )
    [lane] = house.report(job)["lanes"]
    assert (lane["before"], lane["lane"], lane["reason"]) == ("api", "batch", "by_hand")
    assert "lane batch since" in fleet.penstock("status", job.job_id)
    refused = fleet.run("move", job.job_id, "api")
    assert (refused.returncode, "only one that is running" in refused.stderr) == (2, True)


@pytest.mark.long
def test_a_rescue_does_not_wait_for_a_slow_cancel(house: House) -> None:
    """Documents go on after the patience; what the provider answers all the same is paid for, and
    shown as such. The batch may still be the first to answer some: those are asked for once."""
    fleet = house.fleet
    fleet.provider.start("--batch-s", "8", "--batch-step-s", "8")
    house.control(lanes__moving_s=0.5)
    house.workers()
    job = house.submit(60, "batch")
    house.batches_run(1)
    until(lambda: _half_is_answered(house), 10, "it is half done")
    house.move(job, "api")
    fleet.wait_for(job, JobState.COMPLETED, WORK_S)
    journal = ProviderBatchStore(fleet.producer._database)
    until(
        lambda: not journal.open_of(job.job_id),
        WORK_S,
        "the batch is cancelled, and what it had answered is read",
    )
    answered, calls = house.batches()["answered"], fleet.provider_calls()
    first, twice = 60 - calls, answered - (60 - calls)
    assert 0 <= first <= answered, (
        "each document was asked for, and those that the batch answered first only there"
    )
    assert twice > 0, (
        "documents that the batch had answered were asked for while it was being cancelled"
    )
    until(
        lambda: fleet.producer.status(job.job_id).counts.answered_twice == twice,
        WORK_S,
        "its answers are counted",
    )
    counts = fleet.producer.status(job.job_id).counts
    assert (counts.succeeded, counts.dead, counts.calls) == (60, 0, calls + answered)
    report = house.report(job)
    assert (report["answered_twice"], report["twice_cost_usd"] > 0) == (counts.answered_twice, True)


def _half_is_answered(house: House) -> bool:
    with urllib.request.urlopen(house.fleet.provider.root + "/batches", timeout=5) as answer:
        [batch] = json.load(answer)["batches"]
    return bool(batch["answered"] > 10)


@pytest.mark.long
@pytest.mark.parametrize("first", ["api", "batch"])
def test_control_killed_at_every_step_of_a_move(house_of_each: House, first: str) -> None:
    """A job goes to and fro, and control dies in a step of each move, in each of them twice at
    least: each document has one outcome and is asked for in real time once at most, no batch is
    left open, and what the provider answers is counted once."""
    house, fleet = house_of_each, house_of_each.fleet
    other = {"api": "batch", "batch": "api"}
    fleet.provider.start(
        "--batch-s", "120", "--batch-step-s", "3", "--latency-ms", "300", "--latency-sigma", "0"
    )
    house.workers()
    job, lane, steps = (
        house.submit(6_000, first),
        first,
        {to: iter(places) for to, places in STEPS.items()},
    )
    for _ in range(sum(map(len, STEPS.values()))):
        lane = other[lane]
        place = next(steps[lane])
        # of a batch that runs while control leads: the job arrives in its lane first
        if place == "move_handing":
            house.arrive(job)
            house.batches_run(1)
        control = house.control(failpoints=f"{place}:kill", lanes__moving_s=1.0)
        if place == "move_handing":
            house.leads(control, job)
        house.move(job, lane)
        try:
            assert control.wait(WORK_S) == -signal.SIGKILL
        except subprocess.TimeoutExpired:
            raise AssertionError(
                f"no {place} of the move to lane {lane}: {fleet.describe(job)}"
            ) from None
    fleet.provider.tell(batch_s=0.3, latency_ms=10)
    house.control(lanes__moving_s=1.0)
    fleet.wait_for(job, JobState.COMPLETED, 3 * WORK_S)
    journal = ProviderBatchStore(fleet.producer._database)
    until(lambda: not journal.open_of(job.job_id), WORK_S, "no batch is open")
    counts, seen = fleet.producer.status(job.job_id).counts, house.batches()
    assert (counts.succeeded, counts.dead) == (6_000, 0)
    assert set(seen["by_status"]) <= {"cancelled", "completed"}, seen
    assert (counts.calls, seen["unread"]) == (fleet.provider_calls() + seen["answered"], 0)
    assert counts.calls == 6_000 + counts.answered_twice
    assert set(fleet.provider.calls(job).values()) == {1}


@pytest.mark.long
def test_processes_killed_at_random_moments_while_a_job_moves(house_of_each: House) -> None:
    """Thirty of them, of workers of both lanes and of control, under moves to and fro (STORM_SEED):
    each document has one outcome, every output is read, no batch is left open, and all that was
    paid is counted, but for calls of dead workers."""
    seed = int(os.environ.get("STORM_SEED") or time.time_ns() % 1_000_000)
    luck = random.Random(seed)
    print(f"STORM_SEED={seed}")
    house, fleet = house_of_each, house_of_each.fleet
    fleet.provider.start("--batch-s", "20", "--batch-step-s", "1", "--latency-ms", "300", *FAULTS)
    started: dict[str, Callable[[], Process]] = {
        "api": house.api_worker,
        "batch": house.batch_worker,
        "control": lambda: house.control(lanes__moving_s=3.0),
    }
    working = {name: start() for name, start in started.items()}
    job, lane = house.submit(4_000, "batch", max_attempts=10), "batch"
    held = 0  # calls that dead workers may have had under way
    for nth in range(STORM_KILLS):
        time.sleep(luck.uniform(0.5, 5.0))
        if nth % 3 == 2:
            lane = {"api": "batch", "batch": "api"}[lane]
            house.move(job, lane)
        name = luck.choice(sorted(working))
        working[name].kill()
        held += CONCURRENCY if name == "api" else 0
        working[name] = started[name]()
    fleet.provider.tell(batch_s=0.3, latency_ms=10)
    fleet.wait_for(job, JobState.COMPLETED, 5 * WORK_S)
    journal = ProviderBatchStore(fleet.producer._database)
    until(lambda: not journal.open_of(job.job_id), WORK_S, "no batch is open")
    counts, seen = fleet.producer.status(job.job_id).counts, house.batches()
    assert (counts.succeeded, counts.dead) == (4_000, 0)
    assert set(seen["by_status"]) <= {"cancelled", "completed", "expired"}, seen
    assert seen["unread"] == 0
    paid = fleet.provider_calls() + seen["answered"]
    print(
        f"{counts}, {fleet.provider_calls()} calls, {seen}, {held} in flight of dead workers at "
        "most"
    )
    assert paid - held <= counts.succeeded + counts.answered_twice <= paid
