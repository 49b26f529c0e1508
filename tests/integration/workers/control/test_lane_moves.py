"""A job changes its lane while it runs: what the ledger promises of it, and what a control process
makes of it, tick by tick."""

from __future__ import annotations

import threading
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from attempts import make_attempt
from envelopes import decode_envelope
from fleet import until
from rows_of_before import paused_before
from servers import RedisServer, as_bytes

from penstock_ledger import (
    BatchFailure,
    BatchState,
    Begin,
    BeginReply,
    Database,
    DeadLetter,
    ItemKey,
    Job,
    JobState,
    JobStore,
    KeptDocument,
    LaneMoves,
    Meta,
    NewJob,
    NewProviderBatch,
    OutcomeStore,
    Paid,
    PaidBeside,
    ProviderBatchStore,
    RedisLedger,
    Remainder,
    RemainderStore,
    Result,
    SettleBatch,
    SettledDone,
    buckets_for,
    open_database,
    purge_job,
)
from penstock_ledger.keys import queues as queues_of
from penstock_ledger.keys import unacked, unacked_index
from penstock_ledger.reasons import By, Code, Reason
from penstock_producer import Producer
from penstock_producer.feed import leased_feed
from penstock_producer.feed.queues import queue_name
from penstock_producer.feed.wire import item_tag
from penstock_producer.rows import Document
from penstock_producer.sources.readers.jsonl import JsonlSource
from penstock_workers.control import leaving
from penstock_workers.control.feeds.specs import Specs
from penstock_workers.control.lanes.facts import LaneFacts
from penstock_workers.control.loop import Control
from penstock_workers.heartbeat import KNOWS_MOVES
from penstock_workers.item.attempt import Item, Settled
from penstock_workers.item.outcome import Dead, Retry, Skipped
from penstock_workers.item.settling.records import Records
from penstock_workers.item.spent import Spent, spent_before
from penstock_workers.settings import ProviderSettings, WorkerSettings

API, GPU = queue_name("api"), queue_name("gpu", "m")
ME = "me"


# -- the ledger ------------------------------------------------------------------------------------


@pytest.fixture(params=["sqlite", "postgresql"])
def db(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    url = (
        f"sqlite:///{tmp_path}/ledger.db"
        if request.param == "sqlite"
        else request.getfixturevalue("postgres_url")
    )
    database = open_database(url)
    database.migrate()
    JobStore(database).create(
        NewJob("job-a", "key", {"lane": "batch"}, {"kind": "file"}, "digest", 10)
    )
    yield database
    database.close()


def key(doc: str) -> ItemKey:
    return ItemKey("job-a", 1, doc)


def result(doc: str, request_id: str = "r1", cost: int = 7) -> Result:
    return Result(key(doc), 200, b"{}", request_id, "m", "stop", 10, 5, cost, 1, 1, 1)


def test_of_two_movers_one_wins(db: Database) -> None:
    """The other one learns that it was late, and nothing of its move is noted; moves are numbered
    as they were made."""
    moves, jobs = LaneMoves(db), JobStore(db)
    assert (jobs.get("job-a").lane, jobs.get("job-a").moves) == ("batch", 0)
    first = moves.move("job-a", "batch", "api", "deadline", "it is late", {"left_s": 9.0}, now=5.0)
    assert moves.move("job-a", "batch", "gpu", "cheaper", "too late", {}, now=6.0) is None
    assert (jobs.get("job-a").lane, jobs.get("job-a").moves) == ("api", 1)
    second = moves.move("job-a", "api", "batch", "by_hand", "back", {}, now=7.0)
    assert first is not None
    assert moves.of("job-a") == [first, second]
    assert (first.number, first.figures, first.left_at) == (1, {"left_s": 9.0}, None)
    moves.note_left(first, 8.0)
    moves.note_left(first, 9.0)
    assert moves.of("job-a")[0].left_at == 8.0
    assert jobs.get("job-a").spec == {"lane": "batch"}, "what was asked for stays"
    purge_job(db, "job-a")
    assert moves.of("job-a") == []


@pytest.mark.parametrize(
    "state", [JobState.PAUSED, JobState.CANCELLING, JobState.COMPLETED, JobState.FAILED]
)
def test_a_job_that_does_not_run_is_not_moved(db: Database, state: JobState) -> None:
    """Nor is one that is over, nor one that there is not."""
    JobStore(db).set_state("job-a", state, expect={JobState.RUNNING})
    assert LaneMoves(db).move("job-a", "batch", "api", "deadline", "", {}, now=1.0) is None
    assert LaneMoves(db).move("job-x", "batch", "api", "deadline", "", {}, now=1.0) is None
    assert (JobStore(db).get("job-a").lane, LaneMoves(db).of("job-a")) == ("batch", [])


def test_a_job_that_its_lane_has_paused_runs_in_the_next_one(db: Database) -> None:
    """With the move, and only while it is paused with that reason."""
    JobStore(db).set_state(
        "job-a",
        JobState.PAUSED,
        why=Reason(Code.BATCH_REFUSED, By.LANE, {"detail": "no"}),
        expect={JobState.RUNNING},
    )
    for paused_for in (None, "batch_refused: another"):
        assert (
            LaneMoves(db).move(
                "job-a", "batch", "api", "stuck", "", {}, now=1.0, paused_for=paused_for
            )
            is None
        )
    assert (
        LaneMoves(db).move(
            "job-a", "batch", "api", "stuck", "", {}, now=1.0, paused_for="batch_refused: no"
        )
        is not None
    )
    now = JobStore(db).get("job-a")
    assert (now.lane, now.state, now.reason) == ("api", JobState.RUNNING, None)
    assert (
        LaneMoves(db).move(
            "job-a", "api", "batch", "stuck", "", {}, now=2.0, paused_for="batch_refused: no"
        )
        is None
    )


def test_a_first_choice_is_made_once(db: Database) -> None:
    """It says why the job is where it is; a move to the same lane, or for a reason that there is
    not, is none."""
    moves = LaneMoves(db)
    assert (
        moves.move("job-a", None, "batch", "chosen", "it is the cheapest", {}, now=1.0) is not None
    )
    assert moves.move("job-a", None, "api", "chosen", "again", {}, now=2.0) is None
    assert moves.move("job-a", "batch", "batch", "cheaper", "", {}, now=2.0) is None
    with pytest.raises(ValueError, match="one of chosen"):
        moves.move("job-a", "batch", "api", "because", "", {}, now=2.0)
    assert [move.why for move in moves.of("job-a")] == ["it is the cheapest"]


def test_a_second_answer_is_paid_and_is_no_outcome(db: Database) -> None:
    """The first one stays.

    The same answer that is written again is no second one, and a second one counts once however
    often it comes."""
    outcomes = OutcomeStore(db)
    outcomes.settle([result("a"), result("b")], [])
    assert outcomes.settle([result("a")], []) == {key("a")}
    assert outcomes.counts("job-a").answered_twice == 0
    for _ in range(2):
        assert key("a") in outcomes.settle([result("a", "r2", cost=9), result("c")], [])
    counts = outcomes.counts("job-a")
    assert (counts.succeeded, counts.answered_twice, counts.twice_microusd) == (3, 1, 9)
    assert (counts.calls, counts.cost_microusd, counts.prompt_tokens) == (4, 3 * 7 + 9, 40)
    assert outcomes.recount("job-a") == counts
    stored = outcomes.get("job-a", "a")
    assert isinstance(stored, Result)
    assert stored.request_id == "r1"


def test_what_was_used_up_in_a_lane_that_was_left_is_counted_once(
    db: Database, redis_server: RedisServer
) -> None:
    """A worker that drops the message of a retried document writes down what it had cost; the
    document had no outcome there."""
    records = Records(JobStore(db), OutcomeStore(db), RedisLedger(redis_server.client(), "e"), None)  # type: ignore[arg-type]  # no result
    dropped = Settled(
        an_item("a", calls=2, spent=[10, 5, 30]), Skipped("elsewhere", left_lane=True)
    )
    fresh = Settled(an_item("b"), Skipped("elsewhere", left_lane=True))
    for _ in range(2):
        records.write_sql([dropped, fresh])
    counts = OutcomeStore(db).counts("job-a")
    assert (counts.succeeded, counts.dead, counts.answered_twice) == (0, 0, 0)
    assert (counts.calls, counts.cost_microusd, counts.prompt_tokens) == (2, 30, 10)
    assert counts.beside == Paid(2, 10, 5, 30)


def test_a_redis_that_forgot_a_purge_gets_no_keys_of_it(
    db: Database, redis_server: RedisServer
) -> None:
    """A worker that slept through the purge of its job and through FLUSHALL keeps to what SQL
    has."""
    client = redis_server.client()
    records = Records(JobStore(db), OutcomeStore(db), RedisLedger(client, "e"), None)  # type: ignore[arg-type]  # no result
    attempt = make_attempt(job_id="job-a")
    letter = DeadLetter(attempt.key, "http_400", 1, 1, "no", 400, b"{}", None)
    purge_job(db, "job-a")
    client.flushall()
    group = [Settled(attempt, Dead(letter))]
    records.write_sql(group)
    records.write_redis(group)
    assert client.keys("penstock:job-a:*") == [b"penstock:job-a:state"]
    assert client.ttl("penstock:job-a:state") > 0


def an_item(doc: str, calls: int = 0, spent: list[int] | None = None) -> Item:
    from penstock_producer.feed.wire import CALLS_HEADER, SPENT_HEADER, ItemMessage
    from penstock_workers.item.deliveries import Delivery

    headers: dict[str, Any] = {} if spent is None else {CALLS_HEADER: calls, SPENT_HEADER: spent}
    return Item(
        Delivery(doc, None, headers, retries=1, queue=API),
        ItemMessage(key(doc), b"{}", None),
        key(doc),
    )


def test_a_batch_that_was_handed_over_keeps_its_job_from_nothing(db: Database) -> None:
    """Its documents wait for another lane; once they have their outcomes the job may end, whatever
    the provider does."""
    batches, remainders, jobs = ProviderBatchStore(db), RemainderStore(db), JobStore(db)
    feed = jobs.lease_feed("job-a", 1, ME, 30.0)
    assert feed is not None
    new = NewProviderBatch(
        "t1", "job-a", 1, "p", "openai", "m", "/v1/x", {}, {"offset": 9}, 2, 9, 9, 0
    )
    batches.add_of_feed(feed, ME, 30.0, [new], cursor={"offset": 9}, exhausted=True)
    [batch] = batches.to_hand_over("job-a")
    waiting = [Remainder(key(doc), doc, 0, 0, 0, 0, 0, "lane_left") for doc in ("a", "b")]
    OutcomeStore(db).settle([result("b")], [])
    for _ in range(2):
        remainders.add(waiting)
        batches.hand_over(batch)
    assert [one.key.doc_id for one in remainders.unclaimed("job-a", 1)] == ["a"]
    assert batches.is_handed_over("t1")
    assert (batches.to_hand_over("job-a"), batches.is_busy("job-a")) == ([], True)
    batches.passed_on([key("a")])
    assert not batches.is_busy("job-a")


def test_who_holds_a_document_is_asked_once_for_each_queue(redis_server: RedisServer) -> None:
    """However many models a lane has queues of: what their workers hold is found, and idle queues
    are not asked by document."""
    client = redis_server.client()
    hot = RedisLedger(client, "e")
    client.zadd(
        queues_of(queue_name("gpu")), {f"{queue_name('gpu')}.m{n}": time.time() for n in range(20)}
    )
    asked = [key(f"d{n}") for n in range(100)]
    client.hset(unacked(f"{queue_name('gpu')}.m3"), item_tag(asked[1]), b"x")
    client.hset(
        unacked(queue_name("gpu")), mapping={item_tag(key(f"o{n}")): b"x" for n in range(150)}
    )
    client.hset(unacked(queue_name("gpu")), item_tag(asked[2]), b"x")
    before = client.info("commandstats").get("cmdstat_hexists", {"calls": 0})["calls"]
    assert hot.held(queue_name("gpu"), asked, item_tag) == {asked[1], asked[2]}
    assert client.info("commandstats")["cmdstat_hexists"]["calls"] - before == 100


def a_batch(tag: str, doc_count: int = 2) -> NewProviderBatch:
    return NewProviderBatch(
        tag, "job-a", 1, "p", "openai", "m", "/v1/x", {}, {"offset": 9}, doc_count, 9, 9, 0
    )


def packed(db: Database, *tags: str) -> ProviderBatchStore:
    """A ledger whose only feed was packed into these batches, led by ``ME``."""
    batches = ProviderBatchStore(db)
    feed = JobStore(db).lease_feed("job-a", 1, ME, 30.0)
    assert feed is not None
    batches.add_of_feed(
        feed, ME, 30.0, [a_batch(tag) for tag in tags], cursor={"offset": 9}, exhausted=True
    )
    return batches


def test_a_batch_whose_answers_are_read_is_to_hand_over(db: Database) -> None:
    """A living worker stores them; one that died, or that reads for ever, leaves the documents to
    the other lane."""
    batches = packed(db, "t1", "t2")
    [first, second] = batches.to_hand_over("job-a")
    batches.step(first, ME, state="ended", ended_at=time.time())
    batches.step(second, ME, state="ended", ended_at=time.time() - 86_400.0)
    assert [batch.tag for batch in batches.to_hand_over("job-a")] == ["t2"]
    assert batches.holds_documents("job-a", 1)
    assert not batches.holds_documents("job-a", 2)
    batches.release_all(ME)
    assert [batch.tag for batch in batches.to_hand_over("job-a")] == ["t1", "t2"]


def test_what_went_on_has_still_cost_what_it_has(db: Database) -> None:
    """What a job has spent never falls, and grows once for each payment; a row that a batch has
    again stays as it is."""
    batches, remainders = packed(db, "t1"), RemainderStore(db)
    remainders.add([Remainder(key(doc), doc, 1, 2, 10, 5, 40, "timeout") for doc in ("a", "b")])
    again = NewProviderBatch("t2", "job-a", 1, "p", "openai", "m", "/v1/x", None, None, 1, 9, 9, 0)
    assert batches.add_of_remainders(ME, 30.0, [(again, [key("b")])])
    for _ in range(2):
        batches.passed_on([key("a"), key("b")])
        batches.settle("t1", [], [], [], [PaidBeside(key("c"), 1, 10, 5, 7)])
    assert batches.spent("job-a") == 40 + 40 + 7
    assert [one.key.doc_id for one in remainders.of_batch("t2")] == ["b"]
    counts = OutcomeStore(db).counts("job-a")
    assert (counts.calls, counts.cost_microusd, counts.prompt_tokens) == (3, 87, 30)
    assert counts.by_kind == {"lane_left": Paid(1, 20, 10, 47), "waiting": Paid(2, 10, 5, 40)}


def test_batches_that_were_cut_short_say_nothing_of_how_long_they_take(db: Database) -> None:
    """Their job or their provider cut them short, in whatever words and letters their provider says
    it."""
    tags = ["whole", "left", "cancelled", "handed", "refused", "open"]
    batches = packed(db, *tags)
    of_tag = {batch.tag: batch for batch in batches.to_hand_over("job-a")}
    for number, tag in enumerate(tags):
        batches.step(
            of_tag[tag],
            ME,
            created_at=100.0,
            ended_at=110.0 + number,
            status="ended",
            state="settled",
        )
    batches.step(of_tag["left"], ME, **BatchFailure("lane_left").columns())
    batches.step(of_tag["cancelled"], ME, status="JOB_STATE_CANCELLED")
    batches.step(of_tag["handed"], ME, handed_at=105.0)
    batches.step(of_tag["refused"], ME, why="batch_refused: no")  # of a release before
    batches.step(of_tag["open"], ME, state="ended")
    assert batches.lasted("p", 10) == [10.0]


# -- control ---------------------------------------------------------------------------------------


class House:
    """A ledger, queues, and control processes that tick when the test says so."""

    def __init__(self, redis_server: RedisServer, folder: Path) -> None:
        self.folder, self.redis = folder, redis_server.client()
        self.settings = WorkerSettings(
            redis_url=redis_server.url,
            database_url=f"sqlite:///{folder}/ledger.db",
            reconcile_interval_s=0.001,
            window=100,
        )
        self.database = open_database(self.settings.database_url)
        self.database.migrate()
        self.producer = Producer(self.settings, database=self.database)
        self.hot = RedisLedger(self.redis, Meta(self.database).epoch())
        self.jobs, self.outcomes, self.moves = (
            JobStore(self.database),
            OutcomeStore(self.database),
            LaneMoves(self.database),
        )
        self.remainders = RemainderStore(self.database)
        self.control = self.a_control()

    def a_control(self, **settings: Any) -> Control:
        chosen = self.settings.model_copy(update=settings)
        return Control(chosen, self.database, self.hot, owner="test")

    def submit(self, documents: int, **spec: object) -> Job:
        path = self.folder / "docs.jsonl"
        path.write_bytes(
            b"".join(
                orjson.dumps({"id": f"d{n}", "text": f"text {n}"}) + b"\n" for n in range(documents)
            )
        )
        return self.producer.submit(path, {"prompt": "{text}", "model": "m", **spec})

    def move(self, job: Job, lane: str) -> None:
        now = self.jobs.get(job.job_id)
        assert (
            self.moves.move(job.job_id, now.lane, lane, "by_hand", "a test", {}, now=time.time())
            is not None
        )

    def queued(self, queue: str) -> list[str]:
        return sorted(
            decode_envelope(as_bytes(raw)).message.key.doc_id
            for raw in self.redis.lrange(queue, 0, -1)
        )

    def hold(self, queue: str, doc: str, job: Job) -> None:
        """A worker of the lane has claimed a message."""
        for raw in self.redis.lrange(queue, 0, -1):
            if decode_envelope(as_bytes(raw)).message.key.doc_id == doc:
                self.redis.lrem(queue, 1, raw)  # type: ignore[arg-type]  # bytes are taken, too
                self.redis.hset(unacked(queue), item_tag(ItemKey(job.job_id, 1, doc)), raw)

    def finish(self, job: Job, docs: list[str]) -> None:
        """What a worker does with documents that succeed."""
        keys = [ItemKey(job.job_id, 1, doc) for doc in docs]
        self.outcomes.settle(
            [Result(one, 200, b"{}", None, None, None, 1, 1, 5, 1, 1, 1) for one in keys], []
        )
        self.hot.settle(SettleBatch(done=[SettledDone(one, buckets_for(job)) for one in keys]))
        for one in keys:
            for queue in (API, GPU, queue_name("gpu")):
                self.redis.hdel(unacked(queue), item_tag(one))

    def begin(self, job: Job, doc: str, lane: str) -> BeginReply:
        return self.hot.begin([Begin(ItemKey(job.job_id, 1, doc), buckets_for(job))], lane)[0].reply

    def tick_until(self, condition: Callable[[], bool]) -> None:
        for _ in range(200):
            if condition():
                return
            self.control.tick()
        raise AssertionError("200 ticks were not enough")

    def waiting(self, job: Job) -> list[str]:
        return [one.key.doc_id for one in self.remainders.unclaimed(job.job_id, 1)]

    def is_over(self, job: Job) -> bool:
        return self.jobs.get(job.job_id).state is JobState.COMPLETED


@pytest.fixture
def house(
    redis_server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[House]:
    monkeypatch.setattr(leaving, "LOOK_AGAIN_S", 0.0)
    made = House(redis_server, tmp_path)
    yield made
    made.producer.close()
    made.database.close()


def names(*numbers: int) -> list[str]:
    return sorted(f"d{n}" for n in numbers)


def test_documents_go_on_in_the_other_lanes_queue(house: House) -> None:
    """All but the one that a worker of the first lane holds: it ends there.

    Messages in the first queue are dropped when they are read, and each document has one
    outcome."""
    job = house.submit(150)
    house.control.tick()
    house.hold(API, "d3", job)
    house.finish(job, ["d0"])
    assert len(house.queued(API)) == 99
    house.move(job, "gpu")
    house.tick_until(lambda: len(house.queued(GPU)) >= 99)
    assert not {"d0", "d3"} & set(house.queued(GPU)), "one is done, the other in flight"
    assert house.begin(job, "d1", "api") is BeginReply.ELSEWHERE
    assert house.begin(job, "d1", "gpu") is BeginReply.GO
    done = {"d0"}
    house.finish(job, ["d3"])
    while not house.is_over(job):
        fresh = [doc for doc in house.queued(GPU) if doc not in done]
        house.redis.delete(GPU)
        house.finish(job, fresh)
        done |= {*fresh}
        house.control.tick()
    counts = house.outcomes.counts(job.job_id)
    assert (counts.succeeded, counts.calls, counts.answered_twice) == (150, 150, 0)


def test_a_cancel_waits_for_calls_in_the_lane_that_was_left(house: House) -> None:
    """What a worker of the first lane has paid for is a result, though its job is cancelled."""
    job = house.submit(3)
    house.control.tick()
    house.hold(API, "d1", job)
    house.redis.zadd(unacked_index(API), {item_tag(ItemKey(job.job_id, 1, "d1")): time.time()})
    assert house.begin(job, "d1", "api") is BeginReply.GO
    house.move(job, "gpu")
    house.control.tick()
    house.producer.cancel(job.job_id)
    for _ in range(5):
        house.control.tick()
    assert house.jobs.get(job.job_id).state is JobState.CANCELLING
    house.finish(job, ["d1"])
    house.tick_until(lambda: house.jobs.get(job.job_id).state is JobState.CANCELLED)
    counts = house.outcomes.counts(job.job_id)
    assert (counts.succeeded, counts.dead_by_reason) == (1, {"cancelled": 2})


def test_what_a_worker_holds_too_long_goes_on_as_well(house: House) -> None:
    """A worker of the first lane that waits for a quota, or hangs, keeps no document for ever."""
    house.settings = house.settings.model_copy(
        update={"lanes": house.settings.lanes.model_copy(update={"moving_s": 0.3})}
    )
    house.control = house.a_control()
    job = house.submit(5)
    house.control.tick()
    house.hold(API, "d3", job)
    house.move(job, "gpu")
    house.tick_until(lambda: len(house.queued(GPU)) == 4)
    assert "d3" not in house.queued(GPU)
    moved_at = house.moves.of(job.job_id)[-1].at
    until(lambda: time.time() > moved_at + house.settings.lanes.moving_s, 5, "the patience is over")
    house.tick_until(lambda: "d3" in house.queued(GPU))
    assert house.begin(job, "d3", "gpu") is BeginReply.GO


def test_documents_of_a_queue_wait_to_be_packed(house: House) -> None:
    """Those that were fed are rows of SQL, the rest of the source is for the packers, and nothing
    of the job stays in Redis but what a worker holds; when that ends without an outcome it waits,
    too."""
    job = house.submit(150)
    house.control.tick()
    house.hold(API, "d3", job)
    house.move(job, "batch")
    house.tick_until(lambda: house.moves.of(job.job_id)[-1].left_at is not None)
    assert sorted(house.waiting(job)) == [doc for doc in names(*range(100)) if doc != "d3"]
    assert [doc for doc, _ in house.hot.window(job.job_id, 1)] == ["d3"]
    assert house.jobs.feeds(job.job_id)[0].cursor != {}
    house.redis.delete(unacked(API))
    house.tick_until(lambda: "d3" in house.waiting(job))
    assert house.hot.outstanding(job.job_id, 1) == 0
    assert house.begin(job, "d3", "api") is BeginReply.ELSEWHERE
    assert house.jobs.lease_feed(job.job_id, 1, "a packer", 1.0) is not None, (
        "control has let go of the feed"
    )


def test_an_answer_that_had_gone_on_is_not_asked_for_again_in_a_batch(house: House) -> None:
    """A document whose cheap answer was paid, and whose better model was busy, is asked of that one
    when its job moves: its cheap answer is not paid for twice, however often its job moves."""
    rule = "label=unsure -> model=large"
    job = house.submit(3, escalate=rule)
    house.control.tick()
    one = make_attempt("d1", job_id=job.job_id, escalate=rule)
    one.spent = Spent(10, 5, 40, escalations=1)
    records = Records(house.jobs, house.outcomes, house.hot, None)  # type: ignore[arg-type]  # no result
    for _ in range(2):
        records.write_sql([Settled(one, Retry(0.0, "rate_limited"))])
    moves = house.moves.of
    for lane in ("batch", "api", "batch"):
        house.move(job, lane)
        house.tick_until(lambda: moves(job.job_id)[-1].left_at is not None)
        if lane == "api":
            house.tick_until(lambda: len(house.queued(API)) == 3)
        else:
            house.redis.delete(API)  # its workers drop what they find there
    waiting = house.remainders.unclaimed(job.job_id, 1)
    assert {one.key.doc_id: one.escalations for one in waiting} == {"d0": 0, "d1": 1, "d2": 0}
    assert house.outcomes.counts(job.job_id).cost_microusd == 40


def test_what_batches_left_is_fed_with_what_it_has_cost(house: House) -> None:
    """A document that waited for a batch comes into the queue once; its message says how often it
    was tried, and that its answer went on to a better model, and the job's figures what that has
    cost, before its outcome and after it."""
    job = house.submit(3, lane="batch")
    feed = house.jobs.lease_feed(job.job_id, 1, ME, 30.0)
    assert feed is not None
    packed = house.control  # the feed is read to its end by the packers
    ProviderBatchStore(house.database).add_of_feed(
        feed, ME, 30.0, [], cursor={"offset": 9}, exhausted=True
    )
    house.jobs.release_feed(feed, ME)
    source = Producer(house.settings, database=house.database)._jobs.get(job.job_id)
    positions = {"d0": "0", "d1": "1"} | _positions(house, source)
    house.remainders.add(
        [
            Remainder(
                ItemKey(job.job_id, 1, doc),
                positions[doc],
                *(2, 3, 10, 5, 40, "batch_expired"),
                escalations=int(doc == "d1"),
            )
            for doc in positions
        ]
    )
    packed.tick()
    house.move(job, "api")
    house.tick_until(lambda: len(house.queued(API)) == 3)
    found = [orjson.loads(as_bytes(one))["headers"] for one in house.redis.lrange(API, 0, -1)]
    assert {(one["retries"], one["x-penstock-calls"]) for one in found} == {(2, 3)}
    spent = [spent_before(one.get("x-penstock-spent")) for one in found]
    assert sorted(one.escalations for one in spent) == [0, 0, 1]
    assert not any(any(one[:3]) for one in spent), "it is counted already"
    assert ProviderBatchStore(house.database).spent(job.job_id) == 3 * 40
    assert house.waiting(job) == []
    for _ in range(5):
        house.control.tick()
    assert house.queued(API) == names(0, 1, 2)
    house.finish(job, names(0, 1, 2))
    house.tick_until(lambda: house.is_over(job))


def _positions(house: House, job: Job) -> dict[str, str]:
    from penstock_producer.rows import Document
    from penstock_producer.sources.of_feed import open_feed_source

    source = open_feed_source(house.database, job.job_id, 1, house.settings)
    return {row.doc_id: row.position for row in source.documents({}) if isinstance(row, Document)}


def test_documents_of_a_batch_that_does_not_end_are_fed(house: House) -> None:
    """After the patience of `lanes.moving_s`, or sooner where the deadline is near; before it the
    provider may still answer."""
    job = house.submit(4, lane="batch", deadline_s=3_600.0)
    feed = house.jobs.lease_feed(job.job_id, 1, ME, 30.0)
    assert feed is not None
    batches = ProviderBatchStore(house.database)
    end = _cursor_of_last(house, job)
    new = NewProviderBatch(
        "t1", job.job_id, 1, "default", "openai", "m", "/v1/x", {}, end, 4, 9, 9, 0
    )
    batches.add_of_feed(feed, ME, 30.0, [new], cursor=end, exhausted=True)
    house.jobs.release_feed(feed, ME)
    house.control.tick()
    house.move(job, "api")
    for _ in range(5):
        house.control.tick()
    assert (house.queued(API), house.is_over(job)) == ([], False)
    impatient = house.settings.lanes.model_copy(update={"moving_s": 0.0})
    house.settings = house.settings.model_copy(update={"lanes": impatient})
    house.control = house.a_control()
    house.tick_until(lambda: len(house.queued(API)) == 4)
    assert batches.is_handed_over("t1")
    house.finish(job, names(0, 1, 2, 3))
    house.tick_until(lambda: house.is_over(job))
    assert batches.of_job(job.job_id)[0].state is BatchState.PACKED, (
        "the provider's end is not waited for"
    )


def test_only_the_documents_of_a_batch_go_on_that_does_not_end(house: House) -> None:
    """Batches for two models lie between the same cursors: what is in the other one is not asked
    for twice."""
    house.settings = house.settings.model_copy(
        update={"lanes": house.settings.lanes.model_copy(update={"moving_s": 0.0})}
    )
    house.control = house.a_control()
    job = house.submit(4, lane="batch")
    feed = house.jobs.lease_feed(job.job_id, 1, ME, 30.0)
    assert feed is not None
    batches, end, positions = (
        ProviderBatchStore(house.database),
        _cursor_of_last(house, job),
        _positions(house, job),
    )
    of_tag = {"stuck": names(1, 3), "read": names(0, 2)}
    new = [
        NewProviderBatch(tag, job.job_id, 1, "default", "openai", tag, "/v1/x", {}, end, 2, 9, 9, 0)
        for tag in of_tag
    ]
    ids = {
        tag: zlib.compress(b"\n".join(KeptDocument(doc, positions[doc]).to_line() for doc in docs))
        for tag, docs in of_tag.items()
    }
    batches.add_of_feed(feed, ME, 30.0, new, cursor=end, exhausted=True, ids=ids)
    house.jobs.release_feed(feed, ME)
    read = next(one for one in batches.take(ME, 30.0, 9) if one.tag == "read")
    assert batches.end(read, ME, None)
    house.finish(job, names(0, 2))
    house.move(job, "api")
    house.tick_until(lambda: len(house.queued(API)) == 2)
    for _ in range(5):
        house.control.tick()
    assert house.queued(API) == names(1, 3)
    house.finish(job, names(1, 3))
    house.tick_until(lambda: house.is_over(job))


def _cursor_of_last(house: House, job: Job) -> dict[str, Any]:
    from penstock_producer.sources.of_feed import open_feed_source

    *_, last = open_feed_source(house.database, job.job_id, 1, house.settings).documents({})
    return dict(last.cursor)


@pytest.mark.parametrize("place", ["move_leaving", "move_left", "move_arriving"])
def test_a_control_process_that_dies_in_a_move_leaves_it_to_the_next(
    house: House, place: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is lost, and nothing comes into the queue twice."""
    job = house.submit(150)
    house.control.tick()
    house.move(job, "gpu")
    house.control = house.a_control(failpoints=f"{place}:raise")
    house.tick_until(lambda: f"failpoint {place}" in caplog.text)
    house.control = house.a_control()
    seen: list[str] = []
    while not house.is_over(job):
        fresh = house.queued(GPU)
        house.redis.delete(GPU)
        house.finish(job, fresh)
        seen += fresh
        house.control.tick()
    assert sorted(seen) == names(*range(150))
    assert house.outcomes.counts(job.job_id).succeeded == 150


def test_a_window_that_could_not_be_read_is_read_again(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    """A Redis that fails once while a lane is left does not hold the move up for ever."""
    job = house.submit(3)
    house.control.tick()
    house.move(job, "gpu")
    house.redis.acl_setuser("default", enabled=True, commands=["-hscan"])
    house.control.tick()
    house.redis.acl_setuser("default", enabled=True, commands=["+hscan"])
    assert "'hscan'" in caplog.text
    house.tick_until(lambda: house.queued(GPU) == names(0, 1, 2))


def test_what_is_pushed_into_an_open_job_does_not_wait_for_its_batches(house: House) -> None:
    """It is fed beside what batches have left; what is still in one is not, also after Redis has
    forgotten all."""
    opened = house.producer.open_job({"prompt": "{text}", "model": "m", "lane": "batch"})
    job = house.jobs.get(opened.job_id)
    for doc in ("d0", "d1"):
        house.producer.push(job.job_id, doc, {"text": "before"})
    feed = house.jobs.lease_feed(job.job_id, 1, ME, 30.0)
    assert feed is not None
    batches = ProviderBatchStore(house.database)
    old = [
        Remainder(ItemKey(job.job_id, 1, f"d{n}"), str(n + 1), 0, 0, 0, 0, 0, "new") for n in (0, 1)
    ]
    batches.add_of_spool(feed, ME, old, [1, 2], exhausted=False)
    new = NewProviderBatch(
        "t1", job.job_id, 1, "default", "openai", "m", "/v1/x", None, None, 1, 9, 9, 0
    )
    assert batches.add_of_remainders(ME, 30.0, [(new, [old[0].key])])
    house.jobs.release_feed(feed, ME)
    house.move(job, "api")
    house.producer.push(job.job_id, "d2", {"text": "after"})
    house.tick_until(lambda: house.queued(API) == names(1, 2))
    house.redis.flushall()
    house.tick_until(lambda: house.queued(API) == names(1, 2))
    for _ in range(5):
        house.control.tick()
    assert house.queued(API) == names(1, 2), "d0 is with the provider"


def test_documents_that_go_on_are_read_side_by_side(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each may be a request to a bucket: as many as the limit says are under way together, and
    never more."""
    under_way, most = 0, 0
    lock, together = threading.Lock(), threading.Barrier(leased_feed.FETCHES_AT_ONCE)
    read = JsonlSource.fetch

    def slow(source: JsonlSource, position: str) -> Document:
        nonlocal under_way, most
        with lock:
            under_way += 1
            most = max(most, under_way)
        together.wait(10)  # broken, unless so many are read at once
        with lock:
            under_way -= 1
        return read(source, position)

    job = house.submit(2 * leased_feed.FETCHES_AT_ONCE)
    house.control.tick()
    house.move(job, "gpu")
    monkeypatch.setattr(JsonlSource, "fetch", slow)
    house.tick_until(lambda: len(house.queued(GPU)) == 2 * leased_feed.FETCHES_AT_ONCE)
    assert most == leased_feed.FETCHES_AT_ONCE
    assert house.queued(GPU) == names(*range(2 * leased_feed.FETCHES_AT_ONCE))


def test_what_is_left_of_a_budget_is_without_what_all_lanes_have_cost(house: House) -> None:
    """Outcomes, documents that wait for another batch, and answers that came second: the choice of
    a lane knows them all."""
    priced = ProviderSettings.model_validate({"usd_per_mtok_in": 1, "usd_per_mtok_out": 2})
    settings = house.settings.model_copy(update={"providers": {"default": priced}})
    with Producer(settings, database=house.database) as producer:
        job = producer.submit(
            _three(house), {"prompt": "{text}", "model": "m", "budget_usd": 1.0}
        ).job_id
    house.finish(house.jobs.get(job), ["d0", "d1"])
    house.remainders.add(
        [Remainder(ItemKey(job, 1, "d2"), "0", 1, 1, 10, 5, 400_000, "batch_expired")]
    )
    facts = LaneFacts(settings, house.database, house.hot, house.redis, Specs())
    now, lanes = facts.of(house.jobs.get(job), [], 1)
    assert now.usd_left == pytest.approx(1.0 - 2 * 5e-6 - 0.4)
    assert [one.lane for one in lanes] == ["api"]


def test_a_job_with_a_budget_is_fed_after_it_has_moved(house: House) -> None:
    """What the budget pays for is shared by documents that wait for the lane and those that the
    feed reads; where none wait, the feed has all of it."""
    priced = ProviderSettings.model_validate({"usd_per_mtok_in": 1, "usd_per_mtok_out": 2})
    settings = house.settings.model_copy(update={"providers": {"default": priced}})
    with Producer(settings, database=house.database) as producer:
        job = house.jobs.get(
            producer.submit(
                _three(house), {"prompt": "{text}", "model": "m", "budget_usd": 1.0}
            ).job_id
        )
    house.move(job, "batch")
    house.tick_until(lambda: house.moves.of(job.job_id)[-1].left_at is not None)
    house.move(job, "api")
    house.tick_until(lambda: house.queued(API) == names(0, 1, 2))


def _three(house: House) -> Path:
    path = house.folder / "three.jsonl"
    path.write_text("".join(f'{{"id": "d{n}", "text": "x"}}\n' for n in range(3)))
    return path


def test_a_job_may_come_back(house: House) -> None:
    """What went to the second lane goes back to the first one, whose old messages are of no
    harm."""
    job = house.submit(20)
    house.control.tick()
    house.move(job, "gpu")
    house.tick_until(lambda: len(house.queued(GPU)) == 20)
    house.move(job, "api")
    house.tick_until(lambda: len(house.queued(API)) == 40)
    assert {house.begin(job, f"d{n}", "gpu") for n in range(20)} == {BeginReply.ELSEWHERE}
    assert {house.begin(job, f"d{n}", "api") for n in range(20)} == {BeginReply.GO}
    house.finish(job, names(*range(20)))
    house.tick_until(lambda: house.is_over(job))
    assert house.begin(job, "d1", "api") is BeginReply.DONE


def test_a_redis_that_forgets_during_a_move_is_rebuilt(house: House) -> None:
    """The lane is written again with the rest, and each document is fed to it."""
    job = house.submit(20)
    house.control.tick()
    house.finish(job, ["d0"])
    house.move(job, "gpu")
    house.control.tick()
    house.redis.flushall()
    house.tick_until(lambda: len(house.queued(GPU)) == 19)
    assert house.begin(job, "d1", "api") is BeginReply.ELSEWHERE
    assert house.begin(job, "d1", "gpu") is BeginReply.GO


def test_parked_messages_of_the_lane_that_was_left_are_not_taken_for_new_ones(house: House) -> None:
    """They go back where they came from, and are dropped there; those of the lane itself go into
    its queue."""
    job = house.submit(2)
    house.control.tick()
    [old, *_] = house.redis.lrange(API, 0, 0)
    house.move(job, "gpu")
    house.tick_until(lambda: len(house.queued(GPU)) == 2)
    [new, *_] = house.redis.lrange(GPU, 0, 0)
    house.redis.delete(API, GPU)
    house.hot.park(job.job_id, [as_bytes(old), as_bytes(new)])
    house.control.tick()
    assert (house.redis.lrange(API, 0, -1), house.redis.lrange(GPU, 0, -1)) == ([old], [new])


def test_a_refused_batch_pauses_no_job_that_another_lane_may_go_on_with(house: House) -> None:
    """Control moves it, once no worker runs that is of a release which does not look at a job's
    lane; a job of one lane waits for a person."""
    alone, job = (
        house.submit(4, lane="batch"),
        house.submit(3, lane="batch", lanes=["batch", "api"]),
    )
    for one in (job, alone):
        house.jobs.set_state(
            one.job_id,
            JobState.PAUSED,
            why=Reason(Code.BATCH_REFUSED, By.LANE, {"detail": "no"}),
            expect={JobState.RUNNING},
        )
    house.hot.heartbeat("new", {"lane": "api", KNOWS_MOVES: "yes"})
    house.hot.heartbeat("old", {"lane": "batch"})
    for _ in range(3):
        house.control.tick()
    assert (house.jobs.get(job.job_id).lane, house.jobs.get(job.job_id).state) == (
        "batch",
        JobState.PAUSED,
    )
    house.hot.heartbeat("old", {"lane": "batch", KNOWS_MOVES: "yes"})
    house.control = house.a_control()  # whose first look is due
    house.tick_until(lambda: house.jobs.get(job.job_id).lane == "api")
    assert (house.jobs.get(job.job_id).state, house.jobs.get(alone.job_id).state) == (
        JobState.RUNNING,
        JobState.PAUSED,
    )
    [move] = house.moves.of(job.job_id)
    assert (move.before, move.reason) == ("batch", "stuck")
    house.tick_until(lambda: len(house.queued(API)) == 3)


@pytest.mark.parametrize("code", ["batch_refused", "batch_stuck"])
def test_a_lane_at_fault_of_a_release_before_is_left_and_no_persons_pause_is(
    house: House, code: str
) -> None:
    """A person who writes of a batch that is stuck waits for it: control neither moves nor resumes
    their job."""
    ours, hers = (house.submit(2, lane="batch", lanes=["batch", "api"]) for _ in range(2))
    house.hot.heartbeat("new", {"lane": "api", KNOWS_MOVES: "yes"})
    paused_before(house.database, ours.job_id, f"{code}: the provider says no")
    words = f"{code}: paused by Ana while we ask the provider"
    assert house.producer.pause(hers.job_id, reason=words)
    house.control = house.a_control()
    house.tick_until(lambda: house.jobs.get(ours.job_id).lane == "api")
    for _ in range(3):
        house.control.tick()
    moved, stays = house.jobs.get(ours.job_id), house.jobs.get(hers.job_id)
    assert moved.state is JobState.RUNNING
    assert (stays.lane, stays.state, stays.reason) == ("batch", JobState.PAUSED, words)
