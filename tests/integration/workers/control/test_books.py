"""Items that no feed sent, books that do not balance, and a cancel that always ends."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import orjson
import pytest
import redis
from servers import RedisServer

from penstock_ledger import (
    JobNotFound,
    JobStore,
    Meta,
    OutcomeStore,
    RedisLedger,
    buckets_for,
    open_database,
)
from penstock_ledger.model import DeadLetter, ItemKey, Job, JobState, Result
from penstock_producer import Producer, ProducerSettings
from penstock_producer.feed.wire import ItemMessage
from penstock_workers.control.job import cancel
from penstock_workers.control.job.balance import REWINDS_MAX, Balance
from penstock_workers.control.loop import Control
from penstock_workers.item.attempt import Attempt, Item
from penstock_workers.item.deliveries import Delivery
from penstock_workers.item.failures import TurnedAway
from penstock_workers.item.outcome import Outcome, Skipped, Unreadable
from penstock_workers.item.run.reading import read_job
from penstock_workers.item.run.starts import Starts
from penstock_workers.settings import WorkerSettings

SPEC = {"lane": "api", "model": "m", "endpoint": "/v1/chat/completions", "prompt": "{text}"}


class House:
    """A ledger, a queue, and control loops by their owners' names."""

    def __init__(self, server: RedisServer, folder: Path) -> None:
        self.folder = folder
        self.redis = server.client()
        url = f"sqlite:///{folder}/ledger.db"
        self.settings = WorkerSettings(
            redis_url=server.url, database_url=url, reconcile_interval_s=1000
        )
        self.database = open_database(url)
        self.producer = Producer(ProducerSettings(database_url=url))
        self.hot = RedisLedger(self.redis, Meta(self.database).epoch())
        self.jobs, self.outcomes = JobStore(self.database), OutcomeStore(self.database)
        self.control = self.control_of("a")

    def control_of(self, owner: str) -> Control:
        return Control(self.settings, self.database, self.hot, owner=owner)

    def submit(self, documents: int) -> Job:
        path = self.folder / f"{documents}.jsonl"
        path.write_bytes(
            b"".join(orjson.dumps({"id": f"d{n}", "text": "t"}) + b"\n" for n in range(documents))
        )
        return self.producer.submit(path, SPEC)

    def settle(
        self, job: Job, docs: Sequence[str], generation: int = 1, *, dead: bool = False
    ) -> None:
        """As a worker does."""
        keys = [ItemKey(job.job_id, generation, doc) for doc in docs]
        results = (
            []
            if dead
            else [Result(key, 200, b"{}", None, None, None, 1, 1, 0, 1, 1, 1) for key in keys]
        )
        letters = (
            [DeadLetter(key, "http_400", 1, 1, "no", 400, b"{}", None) for key in keys]
            if dead
            else []
        )
        self.outcomes.settle(results, letters)
        self.hot.rehydrate(job.job_id, generation, [(doc, dead) for doc in docs], buckets_for(job))

    def fences(self, job: Job) -> list[int]:
        return [feed.fence for feed in self.jobs.feeds(job.job_id)]

    def now(self, job: Job) -> tuple[JobState, str]:
        found = self.jobs.get(job.job_id)
        return found.state, found.reason or ""


@pytest.fixture
def house(redis_server: RedisServer, tmp_path: Path) -> Iterator[House]:
    made = House(redis_server, tmp_path)
    yield made
    made.producer.close()
    made.database.close()


def test_more_outcomes_than_documents_fail_the_job_in_words(house: House) -> None:
    """Forged outcomes end the job in an error state with its figures, and its source is not read
    again and again (B6)."""
    job = house.submit(5)
    house.control.tick()
    house.settle(job, [f"d{n}" for n in range(5)])
    house.settle(job, ["x1", "x2"])
    house.settle(job, ["d1"], generation=7)
    before = house.fences(job)
    house.control.tick()
    state, reason = house.now(job)
    assert state is JobState.FAILED
    assert "8 outcomes for 5 documents" in reason
    assert house.fences(job) == before
    assert len(list(house.outcomes.results(job.job_id))) == 8, "what is stored stays readable"


def test_a_cancel_ends_whatever_was_forged(house: House) -> None:
    """A job with more outcomes than documents can be cancelled, and says so in its reason (B6)."""
    job = house.submit(3)
    house.control.tick()
    house.settle(job, ["x1", "x2", "x3", "x4"])
    house.producer.cancel(job.job_id)
    for _ in range(6):
        house.control.tick()
    state, reason = house.now(job)
    assert state is JobState.CANCELLED
    assert "7 outcomes for 3 documents" in reason


def test_a_cancel_ends_while_a_worker_holds_an_item_for_ever(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call that never comes back is waited for no longer than the limit; then its document is
    written off (B6)."""
    job = house.submit(2)
    house.control.tick()
    house.redis.hset(f"penstock:{job.job_id}:1:starts", "d0", 1)
    tag = f"{job.job_id}:d0"
    house.redis.zadd("unacked_index.api", {tag: house.redis.time()[0]})
    house.producer.cancel(job.job_id)
    house.control.tick()
    assert house.now(job)[0] is JobState.CANCELLING
    monkeypatch.setattr(cancel, "CANCEL_WAIT_S", 0.0)
    for _ in range(4):
        house.control.tick()
    assert house.now(job)[0] is JobState.CANCELLED
    assert house.outcomes.counts(job.job_id).dead_by_reason == {"cancelled": 2}


def test_a_cancel_ends_when_two_processes_lead_its_feeds(house: House) -> None:
    """Each control loop writes off the generation that it leads, and the newest's leader closes the
    books (B6)."""
    other = house.control_of("b")
    job = house.submit(2)
    house.control.tick()
    house.settle(job, ["d0", "d1"], dead=True)
    house.producer.replay(job.job_id)
    other.tick()
    house.producer.cancel(job.job_id)
    for _ in range(6):
        house.control.tick()
        other.tick()
    assert house.now(job)[0] is JobState.CANCELLED


def test_books_that_never_balance_pause_the_job(house: House) -> None:
    """A job whose documents cannot all be found is read a few times, not for ever, and then waits
    for a person (B6)."""
    job = house.submit(2)
    with house.database.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE jobs SET total = 3")
    house.control.tick()
    house.settle(job, ["d0", "d1"])
    for _ in range(20):
        house.control.tick()
    state, reason = house.now(job)
    assert state is JobState.PAUSED
    assert "only 2 of 3 documents have an outcome" in reason
    assert house.fences(job)[0] <= 2 * (REWINDS_MAX + 1)


def test_a_replay_that_begins_while_its_job_is_completed_is_fed(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A person replays dead letters just after the last count of a job: it is not completed over
    them, since nothing would feed them any more."""
    job = house.submit(2)
    house.control.tick()
    house.settle(job, ["d0"])
    house.settle(job, ["d1"], dead=True)
    counted = Balance.close

    def replayed_after_the_count(balance: Balance, found: Job) -> object:
        counts = counted(balance, found)
        if house.jobs.get(job.job_id).generation == 1:
            house.producer.replay(job.job_id)
        return counts

    monkeypatch.setattr(Balance, "close", replayed_after_the_count)
    for _ in range(3):
        house.control.tick()
    assert house.now(job)[0] is JobState.RUNNING
    assert house.hot.outstanding(job.job_id, 2) == 1, "the document waits for a worker"
    house.settle(job, ["d1"], generation=2)
    for _ in range(3):
        house.control.tick()
    assert house.now(job)[0] is JobState.COMPLETED


def test_a_replay_that_begins_before_its_job_is_counted_reads_no_source_again(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A person replays dead letters between the look at a job and its count: that their outcomes
    are gone is no loss, and no million documents are read for it."""
    job = house.submit(2)
    house.control.tick()
    house.settle(job, ["d0", "d1"], dead=True)
    before, close = house.fences(job), Balance.close

    def replayed_before_the_count(balance: Balance, found: Job) -> object:
        if house.jobs.get(job.job_id).generation == 1:
            house.producer.replay(job.job_id)
        return close(balance, found)

    monkeypatch.setattr(Balance, "close", replayed_before_the_count)
    for _ in range(3):
        house.control.tick()
    assert house.fences(job)[:1] == before
    house.settle(job, ["d0", "d1"], generation=2)
    for _ in range(3):
        house.control.tick()
    assert house.now(job)[0] is JobState.COMPLETED


def test_a_read_only_redis_is_told_once_for_all_jobs(
    house: House, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Twenty jobs that cannot be worked on, tick after tick, make a line and a traceback (A14)."""
    jobs = [house.submit(number) for number in range(1, 21)]
    house.control.tick()
    for job in jobs:  # so that the loop has something to write for each
        house.redis.set(f"penstock:{job.job_id}:state", "paused")

    def refuse(*_: Any) -> None:
        raise redis.ReadOnlyError("READONLY You can't write against a read only replica.")

    monkeypatch.setattr(house.hot, "set_job_state", refuse)
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        for _ in range(10):
            house.control.tick()
    assert [record.exc_info is not None for record in caplog.records] == [True]
    assert "READONLY" in caplog.records[0].getMessage()


def begun(house: House, *keys: ItemKey) -> list[Outcome | None]:
    """What a worker hears of items at begin."""
    read = read_job(house.jobs, house.settings)

    def attempt(key: ItemKey) -> Attempt:
        message = ItemMessage(key, b"{}", None)
        return Attempt.at(
            Item.of(Delivery(f"t-{key.doc_id}", {}, {}), message), read(key.job_id), b"{}"
        )

    async def ask() -> list[Outcome | None]:
        starts = Starts(house.hot, house.outcomes, house.jobs)
        starts.start()
        begins = await asyncio.gather(
            *(starts.begin(attempt(key)) for key in keys), return_exceptions=True
        )
        await starts.close()
        return [begun.outcome if isinstance(begun, TurnedAway) else None for begun in begins]

    return asyncio.run(ask())


def test_what_no_feed_sent_is_set_aside_and_not_paid_for(house: House) -> None:
    """An unknown document and a generation that does not exist never start; fed and finished ones
    are what they were (B6)."""
    job = house.submit(2)
    house.control.tick()
    house.redis.delete("penstock:epoch:rebuilt")
    house.outcomes.settle(
        [Result(ItemKey(job.job_id, 1, "d1"), 200, b"{}", None, None, None, 1, 1, 0, 1, 1, 1)], []
    )
    # settled in SQL, and Redis remembers nothing of it
    house.redis.hdel(f"penstock:{job.job_id}:1:window", "d1")
    fed, finished, unknown, later = begun(
        house,
        *(ItemKey(job.job_id, *rest) for rest in ((1, "d0"), (1, "d1"), (1, "forged"), (7, "d0"))),
    )
    assert fed is None
    assert finished == Skipped("finished already")
    assert isinstance(unknown, Unreadable)
    assert "'forged' was not fed" in unknown.why
    assert isinstance(later, Unreadable)
    assert "has no generation 7" in later.why


def test_what_a_worker_held_when_redis_forgot_comes_again(house: House) -> None:
    """After a rebuild an item that the feed has not come to again is left to the feed, not set
    aside (B6)."""
    job = house.submit(2)
    house.control.tick()
    house.redis.flushall()
    assert begun(house, ItemKey(job.job_id, 1, "d0")) == [None], (
        "while Redis has forgotten, nothing is counted"
    )
    house.redis.flushall()
    house.hot.install_epoch()
    assert isinstance(begun(house, ItemKey(job.job_id, 1, "d0"))[0], Skipped)
    house.redis.flushall()
    house.control.tick()
    assert begun(house, ItemKey(job.job_id, 1, "d0")) == [None], "fed again"


def test_the_key_of_a_job_names_no_item(house: House) -> None:
    """Items name their job by its id: one that names it by its key would be settled under a job
    that does not exist (B6)."""
    job = house.producer.submit(
        house.submit(1).source["uri"], SPEC | {"model": "other"}, job_key="nightly"
    )
    assert read_job(house.jobs, house.settings)(job.job_id).job_id == job.job_id
    with pytest.raises(JobNotFound):
        read_job(house.jobs, house.settings)("nightly")
