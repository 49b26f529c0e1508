"""The control loop over a real Redis and a real database, tick by tick, with no worker around."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import pytest
from envelopes import decode_envelope
from servers import RedisServer, as_bytes
from sqlalchemy import event, update

from penstock_ledger import (
    Begin,
    BeginReply,
    Database,
    JobStore,
    Lately,
    LiveJobs,
    Meta,
    OutcomeStore,
    RedisLedger,
    SettleBatch,
    SettledDone,
    buckets_for,
)
from penstock_ledger import open_database as open_ledger
from penstock_ledger.keys import job_state
from penstock_ledger.model import ItemKey, Job, JobState, Result
from penstock_ledger.reasons import by_hand
from penstock_ledger.sql.tables import feeds, jobs
from penstock_producer import JobSpec, Producer, ProducerSettings
from penstock_producer.operations import JobOperations
from penstock_producer.reporting.reasons import FIRST
from penstock_producer.settings import ProviderFacts
from penstock_ratelimit import PerSecond, Quota
from penstock_ratelimit.store.messages import ProviderReport, Reserve
from penstock_ratelimit.store.quota_hash import QuotaHash
from penstock_ratelimit.testing import BlockingScripts
from penstock_workers.control import feeding, fleet_figures, loop
from penstock_workers.control.feeding import FED, MORE_EVERY_S, PAUSED_WITHIN_S, FirstHundred
from penstock_workers.control.feeds import feed_windows
from penstock_workers.control.feeds.feed_windows import ACTIVE_S, LOOK_EVERY_S, FeedWindows
from penstock_workers.control.feeds.leadership import RENEW_BELOW_S
from penstock_workers.control.feeds.shares import TURNS, Share
from penstock_workers.control.feeds.specs import Specs
from penstock_workers.control.job.accounts import FIRST_DOCUMENTS
from penstock_workers.control.loop import REST, Control
from penstock_workers.control.resting import Bell
from penstock_workers.settings import WorkerSettings

QUEUE = "penstock.api"
# without a stop-loss, which would have its first hundred documents seen before windows fill up
SPEC = {"prompt": "Summarise: {text}", "model": "m", "stop_at_dead": "off"}


class House:
    """A ledger, a queue and one control loop."""

    def __init__(self, redis_server: RedisServer, folder: Path, **settings: Any) -> None:
        self.folder = folder
        self.redis = redis_server.client()
        self.settings = WorkerSettings(
            redis_url=redis_server.url,
            database_url=f"sqlite:///{folder}/ledger.db",
            **{"reconcile_interval_s": 0.001, **settings},
        )
        self.database: Database = open_ledger(self.settings.database_url)
        self.database.migrate()
        prices = {"default": ProviderFacts(usd_per_mtok_in=1.0)}  # for jobs with a budget
        self.producer = Producer(
            ProducerSettings(database_url=self.settings.database_url, providers=prices)
        )
        self.hot = RedisLedger(self.redis, Meta(self.database).epoch())
        self.jobs, self.outcomes = JobStore(self.database), OutcomeStore(self.database)
        self.control = Control(self.settings, self.database, self.hot, owner="test")

    def submit(self, documents: int, **spec: object) -> Job:
        path = self.folder / f"{documents}.jsonl"
        path.write_bytes(
            b"".join(
                orjson.dumps({"id": f"d{n}", "text": f"text {n}"}) + b"\n" for n in range(documents)
            )
        )
        return self.producer.submit(path, SPEC | spec)

    def queued(self) -> list[str]:
        return [
            decode_envelope(as_bytes(raw)).message.key.doc_id
            for raw in self.redis.lrange(QUEUE, 0, -1)
        ]

    def finish(self, job: Job, *docs: str) -> None:
        """What a worker does with documents that succeed."""
        keys = [ItemKey(job.job_id, 1, doc) for doc in docs]
        results = [Result(key, 200, b"{}", None, None, None, 1, 1, 5, 1, 1, 1) for key in keys]
        self.outcomes.settle(results, [])
        self.hot.settle(
            SettleBatch(done=[SettledDone(key, buckets_for(job), cost_microusd=5) for key in keys])
        )

    def update(self, windows: FeedWindows) -> None:
        """What the loop does before it feeds."""
        live = [job for job, _ in LiveJobs(self.database).look()]
        seen = self.hot.see(live)
        windows.update(
            live, {job.job_id: of_job.outstanding for job, of_job in zip(live, seen, strict=True)}
        )

    def state(self, job: Job) -> JobState:
        return self.jobs.get(job.job_id).state

    def close(self) -> None:
        self.producer.close()
        self.database.close()


@pytest.fixture
def house(redis_server: RedisServer, tmp_path: Path) -> Iterator[House]:
    made = House(redis_server, tmp_path)
    yield made
    made.close()


def test_feeding_keeps_to_its_window(redis_server: RedisServer, tmp_path: Path) -> None:
    """No more documents are queued than the window allows, and each is queued once however often we
    tick."""
    house = House(redis_server, tmp_path, window=10)
    job = house.submit(25)
    for _ in range(3):
        house.control.tick()
    assert sorted(house.queued()) == sorted(f"d{n}" for n in range(10))
    house.finish(job, "d0", "d1", "d2")
    house.control.tick()
    assert len(house.queued()) == 13
    assert len(set(house.queued())) == 13
    house.close()


@pytest.mark.parametrize("lane", ["api", "gpu", "embed"])
def test_no_more_than_the_first_hundred_is_fed_before_they_are_seen(
    redis_server: RedisServer, tmp_path: Path, lane: str
) -> None:
    """However large the window is, little more than a hundred documents start; what ends meanwhile
    makes no room, and with the hundredth outcome the window is filled. A loop that starts later
    knows that the hundred were seen."""
    house = House(redis_server, tmp_path, window=5_000)
    spec = {"endpoint": "/v1/embeddings"} if lane == "embed" else {}
    job = house.submit(2_000, lane=lane, stop_at_dead="50%", **spec)
    for _ in range(3):
        house.control.tick()
    assert house.hot.outstanding(job.job_id, 1) == FED
    house.finish(job, *(f"d{n}" for n in range(99)))
    house.control.tick()
    assert house.hot.outstanding(job.job_id, 1) == FED - 99
    house.finish(job, "d99")
    house.control.tick()
    assert house.hot.outstanding(job.job_id, 1) == 2_000 - 100
    house.close()


def test_what_stands_still_does_not_hold_up_the_first_hundred(house: House) -> None:
    """Documents that no worker can answer leave room for others after a minute, as in a file whose
    first lines name a model that no worker has."""
    now = 0.0
    first = FirstHundred(house.hot, clock=lambda: now)
    job = house.submit(5, stop_at_dead="50%")
    spec = JobSpec.accepted(job.spec)
    assert first.room(job, spec, 1, 0, 5_000) == FED
    assert first.room(job, spec, 1, FED, 5_000) == 0
    now = MORE_EVERY_S
    assert first.room(job, spec, 1, FED, 5_000) == FIRST
    off = JobSpec.accepted(job.spec | {"stop_at_dead": "off"})
    assert first.room(job, off, 1, FED, 5_000) == 5_000


@pytest.mark.parametrize(("lane", "fed"), [("api", FED), ("embed", 256)])
def test_engines_of_ours_are_filled_at_once(
    redis_server: RedisServer, tmp_path: Path, lane: str, fed: int
) -> None:
    """A worker that hosts its model gets as many documents as it holds before the first hundred are
    seen: it costs the same while it has less to do. Calls that are paid for are held back (H8)."""
    house = House(redis_server, tmp_path, window=5_000)
    spec = {"endpoint": "/v1/embeddings", "model": None} if lane == "embed" else {}
    job = house.submit(2_000, lane=lane, stop_at_dead="50%", **spec)
    house.hot.heartbeat("one", {"lane": lane, "concurrency": "256"})
    house.control.tick()
    assert house.hot.outstanding(job.job_id, 1) == fed
    house.close()


def test_a_job_that_has_to_stop_is_fed_no_more_until_its_worker_may_have_died(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker that stored the hundredth failure pauses it a moment later; a few more documents
    are fed where nothing is under way and no worker has done so for seconds."""
    now = 0.0
    first = FirstHundred(house.hot, clock=lambda: now)
    job = house.submit(5, stop_at_dead="50%")
    spec = JobSpec.accepted(job.spec)
    assert first.room(job, spec, 1, 0, 5_000) == FED
    bad = Lately(ended=110, dead=110)
    monkeypatch.setattr(house.hot, "lately", lambda *_: bad)
    assert first.room(job, spec, 1, 18, 5_000) == 0
    assert first.room(job, spec, 1, 0, 5_000) == 0
    now = PAUSED_WITHIN_S
    assert first.room(job, spec, 1, 18, 5_000) == 0
    assert first.room(job, spec, 1, 0, 5_000) == FED - FIRST


def jobs_queued(house: House) -> list[str]:
    """Jobs of the queued messages, in the order in which they will be claimed."""
    raws = map(as_bytes, reversed(house.redis.lrange(QUEUE, 0, -1)))
    return [decode_envelope(raw).message.key.job_id for raw in raws]


def claim(house: House, number: int) -> list[str]:
    """What the fleet takes next, gone from the queue but not finished."""
    popped: Any = house.redis.rpop(QUEUE, number)
    return [decode_envelope(raw).message.key.doc_id for raw in popped or []]


def test_an_urgent_job_passes_a_full_queue_and_never_fills_the_fleet(house: House) -> None:
    """Its documents are claimed next, in their order, and there are never more of them than three
    quarters of the slots."""
    house.hot.heartbeat("worker", {"lane": "api", "concurrency": "8"})
    house.hot.heartbeat("elsewhere", {"lane": "gpu", "concurrency": "100"})
    big = house.submit(5_000)
    house.control.tick()
    urgent = house.submit(50, priority="urgent")
    done: list[str] = []
    while house.state(urgent) is JobState.RUNNING:
        house.control.tick()
        waiting = house.hot.outstanding(urgent.job_id, 1)
        assert waiting <= 6
        assert jobs_queued(house)[: waiting + 1] == [urgent.job_id] * waiting + [big.job_id]
        docs = claim(house, min(waiting, 4))
        house.finish(urgent, *docs)
        done += docs
    assert done == [f"d{n}" for n in range(50)]
    assert house.hot.outstanding(big.job_id, 1) == 100


def test_a_fleet_of_unknown_size_gets_urgent_documents_one_by_one(house: House) -> None:
    """Without a worker's heartbeat one urgent document at a time goes to the front of the queue."""
    house.submit(10)
    urgent = house.submit(3, priority="urgent")
    house.control.tick()
    house.control.tick()
    assert house.hot.outstanding(urgent.job_id, 1) == 1
    assert jobs_queued(house)[0] == urgent.job_id


def test_jobs_share_the_queue_by_tenant_weight_and_priority(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    """Shares hold before any document is finished, and from the first step on the documents of all
    jobs mix."""
    house = House(redis_server, tmp_path, window=900)
    specs: list[dict[str, object]] = [
        {"tenant": "a", "weight": 1.0},
        {"tenant": "a", "weight": 3.0},
        {"tenant": "b"},
        {"priority": "low"},
    ]
    jobs = [house.submit(2_000, **spec) for spec in specs]
    house.control.tick()
    assert set(jobs_queued(house)[:200]) == {job.job_id for job in jobs}
    for _ in range(20):
        house.control.tick()
    assert [house.hot.outstanding(job.job_id, 1) for job in jobs] == [100, 300, 400, 100]
    house.close()


def test_a_job_that_has_nothing_in_the_queue_leaves_its_share_to_the_others(house: House) -> None:
    """An open job without new documents takes no room; once it has documents it has its share again
    at once."""
    now = 100.0
    windows = FeedWindows(house.hot, 30, Specs(), clock=lambda: now)
    busy, idle = house.submit(1), house.submit(2, weight=1.5)
    house.update(windows)
    assert windows.for_feed(busy, 1) == Share(12, False)
    house.control.tick()
    house.hot.drop_from_window([ItemKey(idle.job_id, 1, doc) for doc in ("d0", "d1")])
    now += ACTIVE_S
    house.update(windows)
    assert windows.for_feed(busy, 1) == Share(29, False)
    assert windows.for_feed(idle, 1) == Share(18, False)


def test_many_jobs_take_turns_and_never_fill_more_than_the_window(house: House) -> None:
    """Whole steps of a few jobs fill the queue; those that wait for their turn for long do not pass
    the others."""
    now = 100.0
    windows = FeedWindows(house.hot, 80, Specs(), clock=lambda: now)
    jobs = [house.submit(30) for _ in range(20)]
    for _ in range(10):
        house.update(windows)
        for job in jobs:
            room = windows.for_feed(job, 1).documents
            assert room in (0, 80 // TURNS)
            for number in range(room):
                house.redis.hset(f"penstock:{job.job_id}:1:window", f"d{number}", "0:1")
            windows.note_fed(job, room)
        now += ACTIVE_S / 4
    assert sum(house.hot.outstanding_of([(job.job_id, 1) for job in jobs])) == 80


def test_processes_that_lead_some_of_many_jobs_feed_into_parts_of_their_own(house: House) -> None:
    """Two processes that each lead half of the jobs fill half of the window each, not the whole of
    it twice."""
    jobs = [house.submit(30) for _ in range(20)]
    fed = 0
    live = [job for job, _ in LiveJobs(house.database).look()]
    for half in (jobs[:10], jobs[10:]):
        windows = FeedWindows(house.hot, 80, Specs())
        windows.update(live, {job.job_id: (0,) for job in jobs}, {job.job_id for job in half})
        for job in half:
            room = windows.for_feed(job, 1).documents
            windows.note_fed(job, room)
            fed += room
    assert fed == 80


def test_a_control_loop_that_has_much_to_look_at_rests_in_proportion(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wait after a round is at least nine times the CPU that looking at all live jobs took."""
    house.submit(1)
    stop, waited = threading.Event(), list[float]()

    class AtOnce(Bell):
        """Does not wait, and ends the loop."""

        def wait(self, seconds: float, *_: int) -> list[int]:
            waited.append(seconds)
            stop.set()
            return [0]

    clock = iter(range(1_000))
    # each look takes a second, and there are two
    monkeypatch.setattr(time, "thread_time", lambda: float(next(clock)))
    monkeypatch.setattr(house.control._rest, "_bell", AtOnce())
    house.control.run(stop)
    assert waited == [2 * REST]


@pytest.mark.parametrize("is_reported", [True, False], ids=["reported", "looked for"])
def test_a_control_loop_with_nothing_to_do_rests_until_something_is_committed(
    house: House, monkeypatch: pytest.MonkeyPatch, is_reported: bool
) -> None:
    """Where the system reports writes to the file it waits for one; else it looks as often as it
    made rounds before. What is committed meanwhile is fed in the round behind."""
    job = house.producer.open_job(SPEC).job
    stop, rounds = threading.Event(), list[int]()
    ticks = house.control._figures.counters.ticks

    class AtOnce(Bell):
        """Waits for reports alone; brings a document when nothing was done for a while."""

        def wait(self, seconds: float, *others: int) -> list[int]:
            rounds.append(ticks["ok"])
            if len(rounds) == 30:
                house.producer.push(job.job_id, "d1", {"text": "late"})
            if house.queued() or len(rounds) == 60:
                stop.set()
            return super().wait(0.0, *others)

    monkeypatch.setattr(loop, "AT_REST_S", 600.0)
    rest = house.control._rest
    if not is_reported:
        monkeypatch.setattr(rest._commits, "descriptor", lambda: None)
    monkeypatch.setattr(rest, "_bell", AtOnce())
    house.control.run(stop)
    assert house.queued() == ["d1"]
    assert rounds[10] == rounds[29], "it made rounds while nothing happened"
    assert rounds[-1] == rounds[29] + 1


def test_a_rewound_feed_walks_over_what_is_finished_at_once(
    redis_server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With room for few documents, too: a round goes on while it finds none that is new."""
    house = House(redis_server, tmp_path, window=2)
    job = house.producer.open_job(SPEC).job
    for number in range(41):
        house.producer.push(job.job_id, f"d{number:02}", {"text": "x"})
    for number in range(40):
        while not house.queued():
            house.control.tick()
        house.finish(job, f"d{number:02}")
        house.redis.rpop(QUEUE)
    house.redis.flushall()
    monkeypatch.setattr(feeding, "WALK_S", 600.0)
    house.control.tick()
    house.control.tick()
    assert house.queued() == ["d40"]
    house.close()


def test_a_job_in_prefix_order_is_fed_in_steps_worth_ordering(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    """Alone in its queue it waits until half the window is room; others are fed as much as there
    is."""
    house = House(redis_server, tmp_path, window=30)
    windows = FeedWindows(house.hot, 30, Specs())
    job = house.submit(100, prefix_order=True)
    house.update(windows)
    assert windows.for_feed(job, 1, ordered=True) == Share(30, False)
    house.control.tick()
    settled = iter(range(30))

    def finish(number: int) -> None:
        house.hot.drop_from_window(
            [ItemKey(job.job_id, 1, f"d{next(settled)}") for _ in range(number)]
        )
        house.update(windows)

    finish(14)
    assert (
        windows.for_feed(job, 1, ordered=True).documents,
        windows.for_feed(job, 1).documents,
    ) == (0, 14)
    finish(1)
    assert windows.for_feed(job, 1, ordered=True).documents == 15
    house.close()


def test_the_window_is_seconds_of_work_at_the_pace_of_the_fleet(house: House) -> None:
    """A paced fleet of many slots keeps little in its queue, so that a new job soon has its turn; a
    quick one keeps more."""
    now = 100.0
    windows = FeedWindows(house.hot, None, Specs(), clock=lambda: now)
    job = house.submit(10)

    def window_at(documents_per_s: int) -> int:
        nonlocal now
        for _ in range(30):  # what was higher before has faded by then
            now += LOOK_EVERY_S
            house.redis.hincrby(
                f"penstock:{job.job_id}:stats", "succeeded", int(LOOK_EVERY_S) * documents_per_s
            )
            house.update(windows)
        return windows.for_feed(job, 1).documents

    house.hot.heartbeat("worker", {"lane": "api", "concurrency": "8"})
    assert [window_at(pace) for pace in (1, 50, 100_000)] == [100, 1_000, 2_000]
    house.hot.heartbeat("worker", {"lane": "api", "concurrency": "1000"})
    assert [window_at(pace) for pace in (1, 500, 100_000)] == [3_000, 10_000, 20_000]


def test_a_lost_urgent_message_comes_back_urgent(house: House) -> None:
    """An urgent document whose message was lost is published again at the front."""
    house.hot.heartbeat("worker", {"lane": "api", "concurrency": "8"})
    house.submit(10)
    urgent = house.submit(1, priority="urgent")
    house.control.tick()
    assert claim(house, 1) == ["d0"]
    for _ in range(4):
        house.control.tick()
    assert jobs_queued(house)[0] == urgent.job_id


def test_a_job_completes_when_sql_counts_every_outcome(house: House) -> None:
    """Nothing but outcomes in SQL completes a job."""
    job = house.submit(3)
    house.control.tick()
    house.finish(job, "d0", "d1")
    house.control.tick()
    assert house.state(job) is JobState.RUNNING
    house.finish(job, "d2")
    house.control.tick()
    assert house.state(job) is JobState.COMPLETED


def test_who_waits_for_the_end_of_a_job_is_woken_by_it(house: House) -> None:
    """Behind the commit, and not by a round that found nothing."""
    ended = list[JobState]()
    control = Control(
        house.settings,
        house.database,
        house.hot,
        owner="another",
        on_move=lambda: ended.append(house.state(job)),
    )
    job = house.submit(1)
    control.tick()
    assert ended == []
    house.finish(job, "d0")
    control.tick()
    assert ended == [JobState.COMPLETED]


def test_a_lost_message_is_published_again(house: House) -> None:
    """A document whose message vanished from the queue comes back after two rounds; the others are
    left alone."""
    house.submit(5)
    house.control.tick()
    house.redis.rpop(QUEUE)
    for _ in range(4):
        house.control.tick()
    assert sorted(house.queued()) == [f"d{n}" for n in range(5)]


def test_a_message_that_one_look_misses_is_not_lost(house: House) -> None:
    """It may just be moving from one place to another: it is there at the next look, and is not
    there twice."""
    house.submit(5)
    house.control.tick()
    moving = as_bytes(house.redis.rpop(QUEUE))
    house.control.tick()
    house.redis.rpush(QUEUE, moving)
    for _ in range(4):
        house.control.tick()
    assert sorted(house.queued()) == [f"d{n}" for n in range(5)]


def test_a_leased_message_is_not_taken_for_lost(house: House) -> None:
    """What a worker holds is where it should be."""
    house.submit(5)
    house.control.tick()
    raw = as_bytes(house.redis.rpop(QUEUE))
    tag = decode_envelope(raw).tag
    house.redis.hset("unacked.api", tag, raw)
    house.redis.zadd("unacked_index.api", {tag: 1})
    for _ in range(4):
        house.control.tick()
    assert len(house.queued()) == 4


def test_settled_in_sql_but_not_in_redis_is_mended(house: House) -> None:
    """A worker that died between SQL and Redis leaves a document in the window: it is closed, not
    run again."""
    job = house.submit(2)
    house.control.tick()
    house.redis.delete(QUEUE)
    house.outcomes.settle(
        [Result(ItemKey(job.job_id, 1, "d0"), 200, b"{}", None, None, None, 1, 1, 0, 1, 1, 1)], []
    )
    for _ in range(4):
        house.control.tick()
    assert house.queued() == ["d1"]
    assert house.hot.outstanding(job.job_id, 1) == 1


def test_flushall_costs_no_finished_document(house: House) -> None:
    """After FLUSHALL the completed set is rebuilt before anything is fed: only unfinished documents
    come back."""
    job = house.submit(6)
    house.control.tick()
    house.finish(job, "d0", "d1", "d2", "d3")
    house.redis.flushall()
    house.control.tick()
    assert sorted(house.queued()) == ["d4", "d5"]
    assert house.hot.stats(job.job_id)["succeeded"] == 4
    begun = house.hot.begin([Begin(ItemKey(job.job_id, 1, "d0"), buckets_for(job))])
    assert begun[0].reply.name == "DONE"


def test_an_old_copy_of_redis_keeps_nothing_of_purged_jobs(house: House) -> None:
    """A job was purged after the backup that Redis came back with: its keys are deleted, and what
    keeps late workers out is there again; those of jobs that have ended and are known stay."""
    purged, ended = house.submit(2), house.submit(3)
    house.control.tick()
    house.finish(purged, "d0", "d1")
    house.finish(ended, "d0", "d1", "d2")
    house.control.tick()
    copy = {name: house.redis.dump(name) for name in house.redis.scan_iter()}
    JobOperations(house.database, ProducerSettings(), house.hot).purge(
        house.jobs.get(purged.job_id)
    )
    house.redis.flushall()
    for name, value in copy.items():
        house.redis.restore(name, 0, value or b"")
    house.redis.delete("penstock:epoch:run")  # it is another server
    house.control.tick()
    left = {name.decode() for name in house.redis.scan_iter(f"penstock:{purged.job_id}:*")}
    assert left == {f"penstock:{purged.job_id}:state"}
    assert house.redis.get(f"penstock:{purged.job_id}:state") == b"purged"
    assert house.hot.stats(ended.job_id)["succeeded"] == 3


def test_nothing_starts_that_an_old_copy_of_redis_has_of_jobs_that_are_over(house: House) -> None:
    """One has completed since the backup and one has failed: once Redis is rebuilt, messages of
    both that are in its queue again do not start."""
    completed, failed = house.submit(2), house.submit(3)
    house.control.tick()
    copy = {name: house.redis.dump(name) for name in house.redis.scan_iter()}
    house.finish(completed, "d0", "d1")
    house.jobs.set_state(failed.job_id, JobState.FAILED, expect={JobState.RUNNING})
    house.control.tick()
    assert house.state(completed) is JobState.COMPLETED
    house.redis.flushall()
    for name, value in copy.items():
        house.redis.restore(name, 0, value or b"")
    house.redis.delete("penstock:epoch:run")  # it is another server
    asked = [
        Begin(ItemKey(job.job_id, 1, "d0"), buckets_for(job), None) for job in (completed, failed)
    ]
    assert [(one.reply, one.is_sure) for one in house.hot.begin(asked)] == [
        (BeginReply.GO, False)
    ] * 2
    house.control.tick()
    assert [one.reply for one in house.hot.begin(asked)] == [
        BeginReply.UNKNOWN_SINCE_REBUILT,
        BeginReply.CANCELLED,
    ]
    assert house.hot.outstanding(completed.job_id, 1) == 0


def test_redis_is_rebuilt_with_the_jobs_of_when_the_rebuild_begins(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A control process that stood still between its look at the jobs and its look at Redis does
    not declare whole what it has rebuilt of the jobs of before."""
    look, job = house.control._live.look, house.submit(2)
    house.control.tick()
    house.finish(job, "d0")
    house.redis.flushall()
    looks = iter([list])  # it saw none
    monkeypatch.setattr(house.control._live, "look", lambda: next(looks, look)())
    house.control._rounds.steps.leading.leadership.concerns = lambda live: True  # type: ignore[method-assign]
    house.control.tick()
    assert house.hot.check_epoch()
    (begun,) = house.hot.begin([Begin(ItemKey(job.job_id, 1, "d0"), buckets_for(job), None)])
    assert begun.reply is BeginReply.DONE


def test_a_job_with_an_option_that_came_later_stops_no_other(house: House) -> None:
    """Its row is of a release to come: this one leaves it as it is, says so once, and feeds the
    others; a control process that knows the option goes on with it."""
    later, known = house.submit(2), house.submit(3)
    with house.database.engine.begin() as connection:
        spec = {**later.spec, "of_a_release_to_come": 1}
        where = jobs.c.job_id == later.job_id
        connection.execute(update(jobs).where(where).values(spec=orjson.dumps(spec).decode()))
    for _ in range(3):
        house.control.tick()
    assert len(house.queued()) == 3
    assert house.hot.outstanding(known.job_id, 1) == 3
    assert house.state(later) is JobState.RUNNING
    with house.database.engine.begin() as connection:
        before = orjson.dumps(later.spec).decode()
        connection.execute(update(jobs).where(where).values(spec=before))
    house.control.tick()
    assert len(house.queued()) == 5


def test_the_budget_pauses_the_job(house: House) -> None:
    """A job that has spent its budget stops feeding, says why, and is resumable."""
    job = house.submit(10, budget_usd=0.000014)
    house.control.tick()
    house.finish(job, "d0", "d1", "d2")  # 5 microdollars each
    house.control.tick()
    paused = house.jobs.get(job.job_id)
    assert paused.state is JobState.PAUSED
    assert paused.reason is not None
    assert paused.reason.startswith("budget_exhausted")


def test_a_pause_with_a_stated_end_is_over_by_itself(house: House) -> None:
    """A job that paused until a time goes on when it has come, whichever process ticks then, and
    lifts no hold (A2)."""
    job = house.submit(3)
    paused: dict[str, Any] = {"why": by_hand("x"), "expect": {JobState.RUNNING}}
    house.jobs.set_state(job.job_id, JobState.PAUSED, **paused, resume_at=time.time() + 1000)
    hold_quota(house, "another job's account")
    house.control.tick()
    assert house.state(job) is JobState.PAUSED
    house.jobs.set_state(
        job.job_id,
        JobState.PAUSED,
        why=by_hand(""),
        expect={JobState.PAUSED},
        resume_at=time.time() - 1,
    )
    newly_started = Control(house.settings, house.database, house.hot, owner="after a restart")
    newly_started.tick()
    assert house.state(job) is JobState.RUNNING
    assert house.jobs.get(job.job_id).resume_at is None
    newly_started.tick()
    newly_started.tick()
    assert house.redis.hget("penstock:{q:default}", "hold") == b"another job's account"


@pytest.mark.parametrize("ends_in_s", [None, 1000.0], ids=["until a person acts", "until a time"])
def test_resuming_by_hand_ends_the_providers_pause(house: House, ends_in_s: float | None) -> None:
    """Who resumes a job before its time says that its provider may be asked again: pause and hold
    are gone (A2)."""
    job = house.submit(3)
    resume_at = None if ends_in_s is None else time.time() + ends_in_s
    house.jobs.set_state(
        job.job_id, JobState.PAUSED, why=by_hand(""), expect={JobState.RUNNING}, resume_at=resume_at
    )
    hold_quota(house, "an empty wallet", pause_s=1000)
    house.control.tick()
    house.jobs.set_state(job.job_id, JobState.RUNNING, expect={JobState.PAUSED})
    house.control.tick()
    assert house.redis.hmget("penstock:{q:default}", "hold", "nb") == [None, None]


def test_a_control_process_that_started_during_a_pause_lifts_the_hold(house: House) -> None:
    """A job that is resumed after its control process was replaced does not pause again over the
    old hold, though the dead one still has the lease of its feed (A2)."""
    job = house.submit(3)
    house.control.tick()
    house.jobs.set_state(job.job_id, JobState.PAUSED, why=by_hand(""), expect={JobState.RUNNING})
    hold_quota(house, "an empty wallet")
    house.control.tick()
    house.jobs.set_state(job.job_id, JobState.RUNNING, expect={JobState.PAUSED})
    newly_started = Control(house.settings, house.database, house.hot, owner="after a crash")
    newly_started.tick()
    assert house.redis.hget("penstock:{q:default}", "hold") is None


def test_a_resume_lifts_the_hold_though_control_never_saw_the_pause(house: House) -> None:
    """A job that pauses and is resumed between two looks of control, at a door that reaches Redis,
    does not pause again over the old hold (A2)."""
    operations = JobOperations(house.database, ProducerSettings(), house.hot)
    job = house.submit(3)
    house.control.tick()
    hold_quota(house, "an empty wallet")
    operations.pause(job, "")
    operations.resume(house.jobs.get(job.job_id))
    assert house.redis.get(job_state(job.job_id)) == b"paused"
    house.control.tick()
    assert house.redis.hget("penstock:{q:default}", "hold") is None
    assert house.redis.get(job_state(job.job_id)) is None  # it runs


def test_documents_of_a_resumed_job_come_back_after_the_hold_is_lifted(house: House) -> None:
    """Another control process that sees the resume first brings nothing back, which the hold would
    pause again (A2)."""
    other = Control(house.settings, house.database, house.hot, owner="other")
    job = house.submit(3)
    house.control.tick()
    other.tick()
    parked = f"penstock:{job.job_id}:parked"
    while house.redis.rpoplpush(QUEUE, parked):
        pass
    house.jobs.set_state(job.job_id, JobState.PAUSED, why=by_hand(""), expect={JobState.RUNNING})
    hold_quota(house, "an empty wallet")
    house.control.tick()
    other.tick()
    house.jobs.set_state(job.job_id, JobState.RUNNING, expect={JobState.PAUSED})
    other.tick()
    assert (house.queued(), house.redis.llen(parked)) == ([], 3)
    house.control.tick()
    assert house.redis.hget("penstock:{q:default}", "hold") is None
    assert (len(house.queued()), house.redis.llen(parked)) == (3, 0)


def hold_quota(house: House, why: str, pause_s: float = 0.0) -> None:
    """What a worker leaves in the quota of the default provider when its account is refused, or
    asked to wait."""
    quota = Quota("default", {"requests": PerSecond(10)})
    quota_hash = QuotaHash(BlockingScripts(house.redis), "default")

    async def report() -> None:
        in_force = await quota_hash.install(quota.terms())
        ask = Reserve(
            in_force.version,
            quota.terms(),
            [],
            {},
            1.0,
            0.0,
            pause_s=pause_s,
            report=ProviderReport(hold=why),
        )
        await quota_hash.reserve(ask)

    asyncio.run(report())


def test_the_deadline_writes_off_what_is_left(house: House) -> None:
    """A job past its deadline ends with a dead letter for every document that has no result."""
    job = house.submit(4, deadline_s=0.001)
    for _ in range(6):
        house.control.tick()
    assert house.state(job) is JobState.CANCELLED
    assert house.outcomes.counts(job.job_id).dead == 4


def test_cancelling_gives_every_document_an_outcome(house: House) -> None:
    """Cancel after feeding: results stay, everything else is the dead letter `cancelled`, and the
    sum is the total."""
    job = house.submit(8)
    house.control.tick()
    house.finish(job, "d0", "d1")
    house.producer.cancel(job.job_id)
    for _ in range(6):
        house.control.tick()
    counts = house.outcomes.counts(job.job_id)
    assert house.state(job) is JobState.CANCELLED
    assert (counts.succeeded, counts.dead_by_reason) == (2, {"cancelled": 6})


def test_cancelling_an_open_job_closes_it(house: House) -> None:
    """A job that documents are still pushed into ends when it is cancelled, each pushed document
    with its outcome."""
    with house.producer.open_job(SPEC) as live:
        live.enqueue("a", {"text": "one"})
        live.flush()
        house.control.tick()
        house.producer.cancel(live.job.job_id)
        for _ in range(6):
            house.control.tick()
        assert house.state(live.job) is JobState.CANCELLED
        assert house.outcomes.counts(live.job.job_id).dead_by_reason == {"cancelled": 1}


def test_a_changed_source_fails_the_job(house: House) -> None:
    """A source that is not what was pinned is never mixed into the job: it fails, with the
    reason."""
    job = house.submit(3)
    (house.folder / "3.jsonl").write_text("{}")
    house.control.tick()
    failed = house.jobs.get(job.job_id)
    assert failed.state is JobState.FAILED
    assert failed.reason is not None
    assert failed.reason.startswith("source_changed")


def test_a_redis_that_refuses_for_a_moment_lets_no_document_of_a_failed_job_be_called(
    house: House,
) -> None:
    """Workers hear that a job has failed although Redis refused it at first."""
    job = house.submit(feed_windows.WINDOW_MIN + 1)
    house.control.tick()
    house.finish(job, house.queued()[0])
    (house.folder / f"{feed_windows.WINDOW_MIN + 1}.jsonl").write_text("{}")
    house.redis.acl_setuser("default", enabled=True, commands=["-set"])
    house.control.tick()
    house.redis.acl_setuser("default", enabled=True, commands=["+set"])
    house.control.tick()
    assert house.state(job) is JobState.FAILED
    assert house.redis.get(job_state(job.job_id)) == b"cancelled"


def test_cancelling_ends_even_when_the_source_is_gone(house: House) -> None:
    """A cancelled job whose file was deleted ends, and says which documents have no dead letter."""
    job = house.submit(3)
    (house.folder / "3.jsonl").unlink()
    house.producer.cancel(job.job_id)
    house.control.tick()
    cancelled = house.jobs.get(job.job_id)
    assert cancelled.state is JobState.CANCELLED
    assert cancelled.reason is not None
    assert "source_unavailable" in cancelled.reason


def test_outputs_are_written_before_a_job_is_called_complete(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    """With results_url set, a completed job has its files."""
    house = House(redis_server, tmp_path, results_url=str(tmp_path / "results"))
    job = house.submit(2)
    house.control.tick()
    house.finish(job, "d0", "d1")
    house.control.tick()
    for _ in range(200):
        house.control.tick()
        if house.state(job) is JobState.COMPLETED:
            break
    lines = (tmp_path / "results" / job.job_id / "output.jsonl").read_bytes().splitlines()
    assert sorted(orjson.loads(line)["custom_id"] for line in lines) == ["d0", "d1"]
    house.close()


def test_no_more_is_under_way_than_the_budget_pays_for(house: House) -> None:
    """A few documents until a cost is known, then as many as the rest of the budget pays for, and a
    pause at its end (D15)."""
    job = house.submit(100, budget_usd=0.000050)  # ten documents of 5 microusd
    house.control.tick()
    first = house.queued()
    assert len(first) == FIRST_DOCUMENTS
    house.control.tick()
    assert house.queued() == first, "no cost is known yet"
    house.finish(job, *first)
    house.control.tick()
    fed = [doc for doc in house.queued() if doc not in first]
    assert len(fed) == 10 - FIRST_DOCUMENTS
    house.finish(job, *fed)
    house.control.tick()
    assert house.jobs.get(job.job_id).state is JobState.PAUSED


def test_a_budget_that_pays_for_all_ends_with_the_job(house: House) -> None:
    """A job whose last document takes the last of the budget is complete, not paused at 100 %
    (D15)."""
    job = house.submit(10, budget_usd=0.000050)
    for _ in range(12):
        house.control.tick()
        house.finish(job, *house.queued())
    house.control.tick()
    assert house.state(job) is JobState.COMPLETED


# -- what a round costs, and who leads -------------------------------------------------------------


@dataclass
class Statements:
    """What was asked of SQL and of Redis."""

    sql: Counter[str]  # by first word
    redis: int = 0


@contextlib.contextmanager
def counted(house: House) -> Iterator[Statements]:
    found = Statements(Counter())

    def count(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        found.sql[statement.split()[0]] += 1

    event.listen(house.database.engine, "before_cursor_execute", count)
    before = house.redis.info("stats")["total_commands_processed"]
    try:
        yield found
    finally:
        event.remove(house.database.engine, "before_cursor_execute", count)
        found.redis = house.redis.info("stats")["total_commands_processed"] - before


def leases_end_in(house: House, seconds: float) -> None:
    """As if time had passed: all leases of feeds end so many seconds from now."""
    with house.database.engine.begin() as connection:
        connection.execute(update(feeds).values(lease_until=time.time() + seconds))


@pytest.mark.parametrize("jobs", [1, 20])
def test_an_idle_control_only_looks(
    redis_server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jobs: int
) -> None:
    """With feeds that have nothing to feed, a tick is one read of two statements in SQL however
    many feeds there are, and in Redis at most nine commands beside three for each feed; a process
    that leads none of them asks Redis nothing (C9)."""
    for module, name in (
        (loop, "ASIDE_S"),
        (fleet_figures, "REFRESH_S"),
        (feed_windows, "LOOK_EVERY_S"),
    ):
        # what comes every few seconds does not come by chance while we count
        monkeypatch.setattr(module, name, 1000.0)
    house = House(redis_server, tmp_path, window=1, reconcile_interval_s=1000.0)
    house.hot.heartbeat("worker", {"lane": "api", "concurrency": "8"})
    for number in range(jobs):
        house.submit(number + 2)
    other = Control(house.settings, house.database, house.hot, owner="other")
    for control in (house.control, other):
        control.tick()
        control.tick()
    with counted(house) as by_leader:
        for _ in range(10):
            house.control.tick()
    assert by_leader.sql == {"BEGIN": 10, "SELECT": 20}
    assert by_leader.redis <= 10 * (9 + 3 * jobs)
    with counted(house) as by_other:
        for _ in range(10):
            other.tick()
    assert by_other.sql == {"BEGIN": 10, "SELECT": 20}
    assert by_other.redis <= 2
    house.close()


def test_leases_are_renewed_by_one_write_at_a_third_of_their_time(house: House) -> None:
    """Twenty feeds cost one write every five seconds, and two renewals may fail before a leader
    loses them (C9)."""
    for number in range(20):
        house.submit(number + 1)
    house.control.tick()
    leases_end_in(house, RENEW_BELOW_S + 1)
    with counted(house) as early:
        house.control.tick()
    leases_end_in(house, RENEW_BELOW_S - 1)
    with counted(house) as late:
        house.control.tick()
    assert (early.sql["UPDATE"], late.sql["UPDATE"]) == (0, 1)
    left = [feed.lease_s for _, of_job in LiveJobs(house.database).look() for feed in of_job]
    assert len(left) == 20
    assert min(left) > RENEW_BELOW_S


def test_another_process_leads_in_the_first_tick_after_a_lease_has_ended(house: House) -> None:
    """A leader that died is replaced when its lease is over, and not before; one that only slept
    finds that it lost (C9)."""
    job = house.submit(300)
    other = Control(house.settings, house.database, house.hot, owner="other")
    house.control.tick()
    fed = len(house.queued())
    house.finish(job, *house.queued()[:50])
    leases_end_in(house, 0.5)
    other.tick()
    assert len(house.queued()) == fed, "the lease of the first still holds"
    leases_end_in(house, -0.1)
    other.tick()
    assert len(house.queued()) == fed + 50
    (live,) = LiveJobs(house.database).look()
    assert live.feeds[0].led_by("other")
    house.finish(job, *house.queued()[50:60])
    house.control.tick()
    assert len(house.queued()) == fed + 50, "the first feeds no more"
