"""Control loops that read one source together: every document once, whatever becomes of one of
them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from envelopes import decode_envelope
from servers import RedisServer, as_bytes
from sqlalchemy import update

from penstock_ledger import JobStore, Meta, OutcomeStore, RedisLedger, buckets_for, open_database
from penstock_ledger.model import DeadLetter, ItemKey, Job, JobState, Result
from penstock_ledger.sql.tables import feeds, shards
from penstock_producer import Producer, ProducerSettings
from penstock_producer.feed.leased_feed import open_feeder
from penstock_producer.settings import ProviderFacts
from penstock_workers.control import feeding
from penstock_workers.control.feeds import shares
from penstock_workers.control.job.accounts import FIRST_DOCUMENTS
from penstock_workers.control.loop import Control
from penstock_workers.settings import WorkerSettings

QUEUE = "penstock.api"
# no stop-loss: it would have all shards wait for the first hundred documents
SPEC = {"prompt": "{text}", "model": "m", "max_bad_rows": 10, "stop_at_dead": "off"}
STEP = 40  # documents that one loop feeds in a round


class House:
    """A ledger, a queue, and control loops by their owners' names."""

    def __init__(self, server: RedisServer, url: str, folder: Path) -> None:
        self.folder = folder
        self.redis: Any = server.client()
        self.settings = WorkerSettings(
            redis_url=server.url, database_url=url, reconcile_interval_s=1000, window=100_000
        )
        self.database = open_database(url)
        self.database.migrate()
        prices = {"default": ProviderFacts(usd_per_mtok_in=1.0)}
        self.producer = Producer(
            ProducerSettings(database_url=url, providers=prices), database=self.database
        )
        self.hot = RedisLedger(self.redis, Meta(self.database).epoch())
        self.jobs, self.outcomes = JobStore(self.database), OutcomeStore(self.database)

    def control(self, owner: str, **settings: Any) -> Control:
        return Control(
            self.settings.model_copy(update=settings), self.database, self.hot, owner=owner
        )

    def submit(self, documents: int, feeders: int = 4, *, faults: bool = True) -> Job:
        """With ``faults`` there are one line that is no document, and one id twice, among them."""
        rows = [orjson.dumps({"id": f"d{n}", "text": "t"}) for n in range(documents)]
        if faults:
            rows[documents // 2 : documents // 2] = [b"oops", rows[3]]
        path = self.folder / "in.jsonl"
        path.write_bytes(b"\n".join(rows))
        return self.producer.submit(path, SPEC | {"feeders": feeders})

    def queued(self) -> list[str]:
        return [
            decode_envelope(as_bytes(raw)).message.key.doc_id
            for raw in self.redis.lrange(QUEUE, 0, -1)
        ]

    def settle(self, job: Job, docs: list[str], generation: int = 1, *, dead: bool = False) -> None:
        """As workers do."""
        keys = [ItemKey(job.job_id, generation, doc) for doc in docs]
        results = (
            []
            if dead
            else [Result(key, 200, b"{}", None, None, None, 1, 1, 5, 1, 1, 1) for key in keys]
        )
        letters = (
            [DeadLetter(key, "http_400", 1, 1, "no", 400, b"{}", None) for key in keys]
            if dead
            else []
        )
        self.outcomes.settle(results, letters)
        self.hot.rehydrate(job.job_id, generation, [(doc, dead) for doc in docs], buckets_for(job))

    def leaders(self, job: Job) -> Counter[str | None]:
        return Counter(
            owner for shard, owner in self.jobs.shards(job.job_id) if not shard.exhausted
        )

    def kill(self, owner: str) -> None:
        """It says nothing more, and its leases are over."""
        with self.database.engine.begin() as connection:
            for table in (feeds, shards):
                connection.execute(
                    update(table).where(table.c.owner == owner).values(lease_until=0.0)
                )
        self.redis.zrem("penstock:controls", owner)

    def state(self, job: Job) -> JobState:
        return self.jobs.get(job.job_id).state


@pytest.fixture(params=["sqlite", "postgresql"])
def house(
    request: pytest.FixtureRequest,
    redis_server: RedisServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[House]:
    monkeypatch.setattr(feeding, "FEED_MAX", STEP)
    monkeypatch.setattr(shares, "SAID_EVERY_S", 0.0)
    url = (
        f"sqlite:///{tmp_path}/ledger.db"
        if request.param == "sqlite"
        else request.getfixturevalue("migrated_url")
    )
    made = House(redis_server, url, tmp_path)
    yield made
    made.database.close()


def turn(*controls: Control, rounds: int = 1) -> None:
    for _ in range(rounds):
        for control in controls:
            control.tick()


def everything(documents: int) -> list[str]:
    return sorted(f"d{n}" for n in range(documents))


def test_two_loops_read_a_source_together(house: House) -> None:
    """Each leads half of the shards, every document is queued once, and the job is complete with
    all of its outcomes."""
    a, b = house.control("a"), house.control("b")
    job = house.submit(800)
    assert (job.total, job.spec["feeders"]) == (802, 4)
    turn(a, b, rounds=3)
    assert house.leaders(job) == {"a": 2, "b": 2}
    turn(a, b, rounds=12)
    assert house.jobs.feeds(job.job_id)[0].exhausted
    assert sorted(house.queued()) == everything(800)
    house.settle(job, house.queued())
    turn(b, a, rounds=2)
    assert house.state(job) is JobState.COMPLETED
    counts = house.outcomes.counts(job.job_id)
    assert (counts.succeeded, counts.dead_by_reason) == (
        800,
        {"duplicate_custom_id": 1, "invalid_json_line": 1},
    )


def test_the_shards_of_a_dead_loop_are_read_by_the_other(house: House) -> None:
    """It goes on after the last durable cursors; the dead one, if it only slept, moves nothing and
    queues nothing twice."""
    a, b = house.control("a"), house.control("b")
    job = house.submit(800)
    turn(a, b, rounds=4)
    house.kill("b")
    turn(a, rounds=4)
    assert house.leaders(job) == {"a": 4}
    turn(b, a, rounds=30)
    assert house.jobs.feeds(job.job_id)[0].exhausted
    assert sorted(house.queued()) == everything(800)


def test_a_loop_that_joins_gets_its_part_and_one_that_ends_hands_it_over(house: House) -> None:
    """Without a lease that has to run out, and without a document queued twice."""
    a, b = house.control("a"), house.control("b")
    job = house.submit(1_200)
    turn(a, rounds=5)
    assert house.leaders(job) == {"a": 4}
    turn(b, a, rounds=5)
    assert house.leaders(job) == {"a": 2, "b": 2}
    b.release_all()
    turn(a, rounds=3)
    assert house.leaders(job) == {"a": 4}
    turn(a, rounds=40)
    assert sorted(house.queued()) == everything(1_200)


def test_a_loop_that_dies_before_its_cursor_moves_queues_nothing_twice(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it published is in the window, so the next leader of the shard finds it there."""
    job = house.submit(200, feeders=2)
    (shard,) = house.jobs.lease_shards([(job.job_id, 1, 2)], "dies", 0.0)
    house.hot.install_epoch()
    feeder = open_feeder(house.database, house.hot, job, shard, owner="dies")
    with monkeypatch.context() as patch:
        patch.setattr(
            JobStore, "advance_feed", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt)
        )
        with pytest.raises(KeyboardInterrupt):
            feeder.step(60)
    assert len(house.queued()) == 59
    turn(house.control("next"), rounds=12)
    assert sorted(house.queued()) == everything(200)


def test_a_cancel_ends_with_one_outcome_for_each_document(house: House) -> None:
    """Whatever shard was how far: what is done stays, and the rest is written off by the loops that
    lead it."""
    a, b = house.control("a"), house.control("b")
    job = house.submit(400)
    turn(a, b, rounds=2)
    done = house.queued()[:100]
    house.settle(job, done)
    house.producer.cancel(job.job_id)
    turn(a, b, rounds=12)
    assert house.state(job) is JobState.CANCELLED
    counts = house.outcomes.counts(job.job_id)
    assert (counts.succeeded, counts.dead_by_reason["cancelled"]) == (100, 300)


def test_a_redis_that_forgot_is_filled_again_by_all_loops(house: House) -> None:
    """All shards start again, what is finished is dropped, and the rest is queued once."""
    a, b = house.control("a"), house.control("b")
    job = house.submit(600)
    turn(a, b, rounds=4)
    done = house.queued()[:100]
    house.settle(job, done)
    house.redis.flushall()
    turn(a, b, rounds=25)
    assert sorted([*house.queued(), *done]) == everything(600)
    house.settle(job, house.queued())
    turn(a, b, rounds=2)
    assert house.state(job) is JobState.COMPLETED


def test_a_lost_message_is_published_again(house: House) -> None:
    """The feed's leader looks after what all shards have fed, by positions that any reader of the
    source can fetch."""
    a, b = (house.control(owner, reconcile_interval_s=0.001) for owner in "ab")
    job = house.submit(400)
    turn(a, b, rounds=10)
    for _ in range(3):
        house.redis.rpop(QUEUE)
        house.redis.lpop(QUEUE)
    assert len(house.queued()) == 394
    turn(a, b, rounds=3)
    assert sorted(house.queued()) == everything(400)
    assert house.state(job) is JobState.RUNNING


def test_dead_letters_are_replayed_beside_shards(house: House) -> None:
    """A replay is a feed of one reader; the job is complete when both are."""
    a, b = house.control("a"), house.control("b")
    job = house.submit(400)
    turn(a, b, rounds=2)
    dead = house.queued()[:10]
    house.settle(job, dead, dead=True)
    house.redis.ltrim(QUEUE, 10, -1)
    house.producer.replay(job.job_id, reason="http_400")
    turn(a, b, rounds=12)
    assert sorted(house.queued()) == everything(400)
    house.settle(job, [doc for doc in house.queued() if doc not in dead])
    house.settle(job, dead, generation=2)
    turn(a, b, rounds=3)
    assert house.state(job) is JobState.COMPLETED


def test_all_shards_together_keep_to_one_window(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Loops that see the same room fill it once, all of them while there is much of it."""
    monkeypatch.setattr(shares, "WORTH_A_STEP", 50)
    a, b = house.control("a", window=300), house.control("b", window=300)
    job = house.submit(800)
    for _ in range(20):
        turn(a, b)
        assert house.hot.outstanding(job.job_id, 1) <= 300
    assert house.hot.outstanding(job.job_id, 1) == 300


def test_a_budget_given_later_is_kept_by_all_shards(house: House) -> None:
    """What it still pays for is fed by one of them, not by each."""
    a, b = house.control("a"), house.control("b")
    job = house.submit(800, faults=False)
    house.producer.limit(job.job_id, budget_usd=1.0, deadline_s=None)
    turn(a, b, rounds=6)
    assert house.hot.outstanding(job.job_id, 1) == FIRST_DOCUMENTS


def test_a_pause_holds_all_shards(house: House) -> None:
    """Nothing more is fed by any loop until the job is resumed."""
    a, b = house.control("a"), house.control("b")
    job = house.submit(800)
    turn(a, b, rounds=3)
    house.producer.pause(job.job_id)
    before = len(house.queued())
    turn(a, b, rounds=3)
    assert len(house.queued()) == before
    house.producer.resume(job.job_id)
    turn(a, b, rounds=15)
    assert sorted(house.queued()) == everything(800)


def test_a_process_of_the_release_before_reads_all_of_it(house: House) -> None:
    """It leads the feed and knows no shards: what others have fed is dropped, and the job ends by
    its counts."""
    a = house.control("a")
    job = house.submit(200)
    turn(a)
    house.kill("a")
    older = house.jobs.lease_feed(job.job_id, 1, "older", 60)
    assert older is not None
    feeder = open_feeder(house.database, house.hot, job, older, owner="older")
    while not feeder.step(60).exhausted:
        pass
    assert sorted(house.queued()) == everything(200)
    house.settle(job, house.queued())
    house.kill("older")
    turn(a, rounds=3)
    assert house.state(job) is JobState.COMPLETED


def test_the_number_of_feeders_is_no_part_of_what_a_job_is(house: House) -> None:
    """The same key with another number is the same job: it says how a source is read, not what
    comes of it."""
    path = house.folder / "in.jsonl"
    path.write_text('{"id": "a", "text": "t"}\n{"id": "b", "text": "t"}\n')
    first = house.producer.submit(path, SPEC | {"feeders": 2}, job_key="night")
    assert house.producer.submit(path, SPEC, job_key="night") == first
    assert len(house.jobs.shards(first.job_id)) == 2
