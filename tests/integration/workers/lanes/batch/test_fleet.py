"""The batch lane against the simulated provider: every document one outcome, nothing submitted
twice, no batch left open."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fleet import Fleet, Process, until

from penstock_ledger import BatchState, ProviderBatchStore
from penstock_ledger.model import Job, JobState
from penstock_workers.failpoints import PLACES

FAST = ("--batch-s", "0.2", "--batch-step-s", "0.05")
WORK_S = 60.0


class House:
    """A fleet whose one lane is `batch`."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.store = ProviderBatchStore(fleet.producer._database)

    def worker(self, **settings: object) -> Process:
        own = {
            "batch__folder": self.fleet.folder / "packed",
            "batch__poll_first_s": 0.1,
            "batch__unclear_s": 0.2,
            "batch__poll_cap_s": 0.3,
        }
        return self.fleet.worker(1, lane="batch", **own, **settings)

    def submit(self, documents: int, **spec: object) -> Job:
        chosen: dict[str, Any] = {"batch_max_requests": 100, "max_attempts": 8, **spec}
        return self.fleet.submit(documents, lane="batch", **chosen)

    def ask(self, path: str) -> Any:
        with urllib.request.urlopen(self.fleet.provider.root + path, timeout=5) as answer:
            return json.load(answer)

    def at_provider(self) -> dict[str, Any]:
        found: dict[str, Any] = self.ask("/stats")["batches"]
        return found

    def is_settled(self, job: Job) -> None:
        """Nothing is under way, here or at the provider, nothing was paid twice, and every output
        was read."""
        batches = self.store.of_job(job.job_id)
        assert {batch.state for batch in batches} == {BatchState.SETTLED}
        assert not self.store.is_busy(job.job_id)
        seen = self.at_provider()
        assert set(seen["by_status"]) <= {"completed", "expired", "cancelled", "failed"}, seen
        assert (seen["answered_more_than_once"], seen["unread"]) == (0, 0), seen
        tags = [json.dumps(batch["tag"]) for batch in self.ask("/batches")["batches"]]
        assert len(tags) == len(set(tags)), "a batch was created twice"

    def wait_until_swept(self) -> None:
        packed = self.fleet.folder / "packed"
        until(lambda: not list(packed.iterdir()), 10, "no packed file is left")


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    with Fleet(tmp_path) as fleet:
        fleet.control()
        yield House(fleet)


def test_a_job_goes_through_several_batches(house: House) -> None:
    """Faults of lines are tried again in a later batch; a batch that expires and creates that
    answer 500 though they worked cost nothing; money is counted once, at half the price."""
    fleet = house.fleet
    fleet.provider.start(
        *FAST,
        "--error-rate",
        "0.02",
        "--batch-create-500-share",
        "0.3",
        "--batch-expired-share",
        "0.2",
        "--seed",
        "3",
    )
    price = {"usd_per_mtok_in": 1.0, "usd_per_mtok_out": 2.0, "batch_discount": 0.5}
    house.worker(**{f"providers__default__{name}": value for name, value in price.items()})
    job = house.submit(500)
    fleet.wait_for(job, JobState.COMPLETED, WORK_S)
    account = fleet.producer.status(job.job_id).counts
    assert (account.succeeded, account.dead) == (500, 0)
    house.is_settled(job)
    house.wait_until_swept()
    seen = house.at_provider()
    assert (seen["documents"], seen["answered"]) == (500, 500)
    assert account.cost_microusd == pytest.approx(
        0.5 * (account.prompt_tokens * 1.0 + account.completion_tokens * 2.0), rel=0.05
    )


@pytest.mark.parametrize("place", ["batch_after_create", "batch_collecting"])
def test_a_worker_killed_in_a_step_leaves_nothing_behind(house: House, place: str) -> None:
    """Another goes on where the journal says."""
    fleet = house.fleet
    fleet.provider.start(*FAST)
    first = house.worker(failpoints=f"{place}:kill")
    job = house.submit(250)
    assert first.wait(WORK_S) == -signal.SIGKILL
    house.worker()
    fleet.wait_for(job, JobState.COMPLETED, WORK_S)
    assert fleet.producer.status(job.job_id).counts.succeeded == 250
    assert house.at_provider()["submitted_more_than_once"] == 0
    house.is_settled(job)


def test_a_cancelled_job_cancels_its_batches(house: House) -> None:
    """What was answered by then is kept; all else is a dead letter `cancelled`, and no batch goes
    on."""
    fleet = house.fleet
    fleet.provider.start("--batch-s", "30", "--batch-step-s", "0.05")
    house.worker()
    job = house.submit(300)
    until(
        lambda: house.at_provider()["by_status"].get("in_progress", 0) >= 2, WORK_S, "batches run"
    )
    fleet.penstock("cancel", job.job_id)
    fleet.wait_for(job, JobState.CANCELLED, WORK_S)
    counts = fleet.producer.status(job.job_id).counts
    assert counts.succeeded + counts.dead == 300
    assert set(counts.dead_by_reason) == {"cancelled"}
    assert set(house.at_provider()["by_status"]) <= {"cancelled"}


PRICES = {
    "providers__default__usd_per_mtok_in": 1.0,
    "providers__default__usd_per_mtok_out": 2.0,
    "providers__default__batch_discount": 0.5,
}


def submit_equal(
    house: House, documents: int, texts: int, word: str = "review", **spec: object
) -> Job:
    """Documents of so many texts, whose repeats come last."""
    path = house.fleet.folder / f"{word}-{documents}.jsonl"
    path.write_text(
        "".join(f'{{"id":"d-{n}","text":"{word} {n % texts}"}}\n' for n in range(documents))
    )
    common = {"lane": "batch", "batch_max_requests": 100, "params": {"temperature": 0}}
    return house.fleet.producer.submit(path, house.fleet.spec(**{**common, **spec}))


@pytest.mark.parametrize(
    "place",
    [
        "batch_collecting",
        *(
            pytest.param(place, marks=pytest.mark.whole)
            for place in ("batch_packed", "after_commit")
        ),
    ],
)
def test_equal_requests_are_packed_once_whatever_happens_to_the_worker(
    house: House, place: str
) -> None:
    """1,000 documents, of which 200 ask what others do: 800 are paid for and all have their answer,
    also where the worker is killed and Redis lost in between. The books, the screen and the
    provider agree."""
    fleet = house.fleet
    fleet.provider.start(*FAST)
    first = house.worker(failpoints=f"{place}:kill", **PRICES)
    job = submit_equal(house, 1_000, 800, dedup="on")
    assert first.wait(WORK_S) == -signal.SIGKILL
    fleet.store.client().flushall()
    house.worker(**PRICES)
    fleet.wait_for(job, JobState.COMPLETED, WORK_S)
    counts = fleet.producer.status(job.job_id).counts
    assert (counts.succeeded, counts.dead) == (1_000, 0)
    assert (counts.calls, counts.reused) == (800, {"dedup": 200})
    seen = house.at_provider()
    assert (seen["documents"], seen["answered"]) == (800, 800)
    house.is_settled(job)
    assert counts.cost_microusd == pytest.approx(
        0.5 * (counts.prompt_tokens * 1.0 + counts.completion_tokens * 2.0), rel=0.05
    )
    answers = dict[int, set[bytes]]()
    for result in fleet.producer.results(job.job_id):
        if result.reason is not None:
            assert (result.cost_microusd, result.calls) == (0, 0)
        answers.setdefault(int(result.key.doc_id[2:]) % 800, set()).add(result.body)
    assert {len(bodies) for bodies in answers.values()} == {1}
    assert "200 answered by an equal request" in fleet.penstock("status", job.job_id)


@pytest.mark.whole
def test_equal_requests_stay_packed_once_where_the_packed_files_are_lost(
    house_of_each: House,
) -> None:
    """Repeats follow what they repeat, and the worker and its disk are gone before anything was
    sent: another packs the same documents from the source, without those that wait."""
    house, fleet = house_of_each, house_of_each.fleet
    fleet.provider.start(*FAST)
    path = fleet.folder / "repeats.jsonl"
    path.write_text("".join(f'{{"id":"d-{n}","text":"review {n - n // 5}"}}\n' for n in range(500)))
    spec = fleet.spec(lane="batch", batch_max_requests=100, params={"temperature": 0}, dedup="on")
    first = house.worker(failpoints="batch_before_upload:kill", **PRICES)
    job = fleet.producer.submit(path, spec)
    assert first.wait(WORK_S) == -signal.SIGKILL
    shutil.rmtree(fleet.folder / "packed")
    for _ in range(2):
        house.worker(**PRICES)
    fleet.wait_for(job, JobState.COMPLETED, WORK_S)
    counts = fleet.producer.status(job.job_id).counts
    repeats = 500 - len({n - n // 5 for n in range(500)})
    assert (counts.succeeded, counts.reused) == (500, {"dedup": repeats})
    assert (counts.calls, house.at_provider()["documents"]) == (500 - repeats, 500 - repeats)
    house.is_settled(job)


def test_where_the_one_that_was_sent_fails_the_others_try_by_themselves(house: House) -> None:
    """A dead letter is its own document's: equal ones are packed as well, once each."""
    fleet = house.fleet
    fleet.provider.start(*FAST, "--error-rate", "1")
    house.worker()
    job = submit_equal(house, 12, 4, dedup="on", max_attempts=1, stop_at_dead="off")
    fleet.wait_for(job, JobState.COMPLETED, WORK_S)
    counts = fleet.producer.status(job.job_id).counts
    assert (counts.succeeded, counts.dead, counts.calls) == (0, 12, 12)
    house.is_settled(job)
    fleet.provider.tell(error_rate=0.0)
    fleet.producer.replay(job.job_id)
    fleet.wait_for(job, JobState.COMPLETED, WORK_S)
    counts = fleet.producer.status(job.job_id).counts
    assert (counts.succeeded, counts.calls, counts.reused) == (12, 12 + 4, {"dedup": 8})


def test_a_cache_serves_later_batches_of_its_tenant(house: House) -> None:
    """The same file a day later, with a few more rows: these are packed, and nothing else is. A job
    whose every document is known makes no batch at all."""
    fleet = house.fleet
    fleet.provider.start(*FAST)
    house.worker()
    for documents, texts, calls in ((40, 20, 20), (60, 30, 10), (30, 30, 0)):
        job = submit_equal(house, documents, texts, cache_s=3600.0, tenant="red")
        fleet.wait_for(job, JobState.COMPLETED, WORK_S)
        counts = fleet.producer.status(job.job_id).counts
        assert (counts.succeeded, counts.calls) == (documents, calls)
        of_others = {40: 0, 60: 40, 30: 30}[documents]
        assert counts.reused.get("cache", 0) >= of_others - calls
        assert sum(counts.reused.values()) == documents - calls


def test_documents_that_wait_for_equal_ones_go_where_their_job_goes(house: House) -> None:
    """A job is moved to real time while its batches run: those that wait are asked there, and each
    document has one outcome. A job that is cancelled leaves none of them waiting."""
    fleet = house.fleet
    fleet.provider.start("--batch-s", "3600", "--batch-step-s", "0.05")
    fleet.ready(house.worker(), fleet.worker(8))
    moved = submit_equal(house, 40, 20, "moved", dedup="on", lanes=["batch", "api"])
    until(
        lambda: house.at_provider()["by_status"].get("in_progress", 0) >= 1, WORK_S, "batches run"
    )
    fleet.penstock("move", moved.job_id, "api")
    fleet.wait_for(moved, JobState.COMPLETED, WORK_S)
    counts = fleet.producer.status(moved.job_id).counts
    assert (counts.succeeded, counts.calls) == (40, 20)
    cancelled = submit_equal(house, 40, 20, "cancelled", dedup="on")
    until(lambda: bool(house.store.of_job(cancelled.job_id)), WORK_S, "a batch is packed")
    waits = "waiting for the answers to equal requests that are in batches: 20 documents"
    assert waits in fleet.penstock("status", cancelled.job_id)
    fleet.penstock("cancel", cancelled.job_id)
    fleet.wait_for(cancelled, JobState.CANCELLED, WORK_S)
    counts = fleet.producer.status(cancelled.job_id).counts
    assert (counts.succeeded, counts.dead_by_reason) == (0, {"cancelled": 40})


FAULTS = (
    "--error-rate",
    "0.02",
    "--batch-create-500-share",
    "0.15",
    "--batch-expired-share",
    "0.05",
    "--seed",
    "5",
    "--batch-upload-500-share",
    "0.1",
    "--batch-call-500-share",
    "0.05",
    "--batch-cut-share",
    "0.15",
)


@pytest.fixture(params=["sqlite", "postgresql"])
def house_of_each(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[House]:
    url = None if request.param == "sqlite" else request.getfixturevalue("migrated_url")
    with Fleet(tmp_path, database_url=url) as fleet:
        fleet.control()
        yield House(fleet)


@pytest.mark.long
def test_a_worker_killed_at_every_failpoint(house_of_each: House) -> None:
    """One after the other, in one job of 5,000 documents with faults of every kind: each document
    has one outcome."""
    house, fleet = house_of_each, house_of_each.fleet
    fleet.provider.start(*FAST, *FAULTS)
    job = house.submit(5_000, batch_max_requests=250)
    for place in PLACES:
        if place.startswith("batch_") or place in ("before_commit", "after_commit", "after_settle"):
            worker = house.worker(failpoints=f"{place}:kill")
            assert worker.wait(WORK_S) == -signal.SIGKILL, place
    house.worker()
    fleet.wait_for(job, JobState.COMPLETED, 5 * WORK_S)
    counts = fleet.producer.status(job.job_id).counts
    assert (counts.succeeded, counts.dead) == (5_000, 0)
    house.is_settled(job)


@pytest.mark.long
def test_workers_killed_at_random_moments(house_of_each: House) -> None:
    """Thirty of them (STORM_KILLS), under 5,000 documents (STORM_DOCUMENTS) with faults of every
    kind: each document has one outcome, nothing is submitted twice, no output is left unread, no
    batch is left open, and money is counted once."""
    kills, documents = (
        int(os.environ.get("STORM_KILLS") or 30),
        int(os.environ.get("STORM_DOCUMENTS") or 5_000),
    )
    seed = int(os.environ.get("STORM_SEED") or time.time_ns() % 1_000_000)
    luck = random.Random(seed)
    print(f"STORM_SEED={seed}")
    house, fleet = house_of_each, house_of_each.fleet
    fleet.provider.start("--batch-s", "6", "--batch-step-s", "0.5", *FAULTS)
    price = {"usd_per_mtok_in": 1.0, "usd_per_mtok_out": 2.0, "batch_discount": 0.5}
    priced = {f"providers__default__{name}": value for name, value in price.items()}
    job = house.submit(documents, batch_max_requests=100)
    workers = [house.worker(**priced) for _ in range(2)]
    fleet.ready(*workers)
    killed = 0
    while killed < kills and fleet.state(job) is JobState.RUNNING:
        time.sleep(luck.uniform(0.1, 3.0))
        dying = luck.choice(workers)
        dying.kill()
        killed += 1
        workers[workers.index(dying)] = house.worker(**priced)
    fleet.wait_for(job, JobState.COMPLETED, 5 * WORK_S)
    print(f"{killed} kills, {documents} documents")
    assert killed >= kills // 2, "the job ended before the storm: give it more documents"
    account = fleet.producer.status(job.job_id).counts
    assert (account.succeeded, account.dead) == (documents, 0)
    house.is_settled(job)
    seen = house.at_provider()
    assert (seen["documents"], seen["answered"]) == (documents, documents)
    paid = 0.5 * (account.prompt_tokens * 1.0 + account.completion_tokens * 2.0)
    assert account.cost_microusd == pytest.approx(paid, rel=0.05)
