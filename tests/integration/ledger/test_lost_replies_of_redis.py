"""A step in Redis that happened and whose answer was lost, at every method that writes: the caller
does it again, and everything is as after one plain call.

Clients of Redis do it again by themselves, so a caller may not even hear of it. What has no case
here fails the test: methods are found by looking at the classes.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any, cast

import pytest
from attempts import make_attempt
from lost_replies import LostRedisReplies, all_keys, without_clocks
from redis import ConnectionError as RedisConnectionError
from redis import asyncio as aioredis
from redis.backoff import NoBackoff
from redis.retry import Retry
from servers import RedisServer

from penstock_ledger import (
    AnswerBook,
    AskedAgain,
    Begin,
    BudgetBook,
    Cause,
    CauseBook,
    DatabaseUnavailable,
    Drained,
    ItemKey,
    Job,
    JobState,
    MayCost,
    Publish,
    PublishReport,
    QueueBook,
    RedisLedger,
    SettleBatch,
    SettledCrash,
    SettledDead,
    SettledDone,
    SettledRetry,
    SettleReport,
)
from penstock_ledger.in_redis.answer_book import Asked, RequestName
from penstock_ledger.in_redis.door_limits import DoorLimits
from penstock_producer.feed.wire import encode_item, item_tag
from penstock_ratelimit import PerSecond, Quota
from penstock_ratelimit.store.messages import Reserve
from penstock_ratelimit.store.quota_hash import QuotaHash
from penstock_ratelimit.testing import BlockingScripts
from penstock_workers.broker.lease_scripts import Keys, Lease, LeaseScripts
from penstock_workers.item.run.starts import Starts
from penstock_workers.item.settling import groups

QUEUE, JOB, BUCKETS = "penstock.api", "job-a", 7
MODELS = "penstock.api.m"
BUDGET = 1_000
QUOTA = Quota("q", {"requests": PerSecond(40)}, burst_s=0.5, horizon_s=1.0, margin=1.0)
NOW_US = 10**15
WHERE = Keys("unacked.api", "unacked_index.api", 60.0)
Call = Callable[[], Any]
Case = Callable[[Any], Call]  # a client, whose server it furnishes -> the call


def key(doc: str) -> ItemKey:
    return ItemKey(JOB, 1, doc)


def message(doc: str, queue: str = QUEUE) -> bytes:
    return encode_item(key(doc), queue=queue, body=b"{}", ref=None)


def ledger(client: Any) -> RedisLedger:
    """A ledger of which d1 to d4 are fed, d2 and d3 are begun, and d4 is done."""
    hot = RedisLedger(client, "epoch")
    hot.install_epoch()
    client.set("penstock:epoch:rebuilt", "one name", keepttl=True)
    client.set("penstock:epoch:name", "one name")
    for _ in range(2):
        hot.check_epoch()  # it has seen that name
    hot.publish(
        QUEUE, [Publish(key(f"d{n}"), f"at {n}", message(f"d{n}")) for n in (1, 2, 3, 4)], BUCKETS
    )
    hot.begin([Begin(key(doc), BUCKETS) for doc in ("d2", "d3", "d4")])
    hot.settle(SettleBatch(done=[SettledDone(key("d4"), BUCKETS, cost_microusd=5)]))
    return hot


def job(**more: Any) -> Job:
    return Job(JOB, JOB, {"lane": "api"}, {}, "d", JobState.RUNNING, None, 1, 4, 0.0, None, **more)


def retried(doc: str) -> SettledRetry:
    return SettledRetry(key(doc), BUCKETS, QUEUE, item_tag(key(doc)), message(doc), 0.0, reason="x")


def budgets(client: Any) -> BudgetBook:
    """A job with a budget, and a batch of it under way."""
    book = BudgetBook(client)
    book.look(JOB, BUDGET, spent=10, batches={"b1": 100})
    return book


def held(client: Any) -> tuple[LeaseScripts, list[Lease]]:
    """Two messages that a worker has claimed."""
    tags = [item_tag(key(doc)) for doc in ("d1", "d2")]
    for tag, doc in zip(tags, ("d1", "d2"), strict=True):
        client.hset(WHERE.unacked, tag, message(doc))
        client.zadd(WHERE.unacked_index, {tag: client.time()[0]})
    seen = [str(client.zscore(WHERE.unacked_index, tag)) for tag in tags]
    return LeaseScripts(client, WHERE), [Lease(*pair) for pair in zip(tags, seen, strict=True)]


def quota(client: Any) -> QuotaHash:
    made = QuotaHash(BlockingScripts(client), "q", clock_us=lambda: NOW_US)
    asyncio.run(made.install(QUOTA.terms()))
    return made


def awaited(make: Callable[[], Any]) -> Call:
    return lambda: asyncio.run(make())


def ask(client: Any, **more: Any) -> Reserve:
    version = client.hget("penstock:{q:q}", "v").decode()
    return Reserve(version, QUOTA.terms(), [(1.0,)], {}, 30.0, 0.0, **more)


def at_doors(client: Any, act: Callable[[DoorLimits], Any]) -> Call:
    """One call of the door's client, which lives in a loop of its own."""
    options = client.connection_pool.connection_kwargs | {"retry": Retry(NoBackoff(), 0)}

    async def called() -> Any:
        other = aioredis.Redis(**{name: options[name] for name in ("host", "port", "db", "retry")})
        async with other:
            return await act(DoorLimits(other))

    return lambda: asyncio.run(called())


CASES: dict[str, Case] = {}


def case(make: Case) -> Case:
    """Name a case after its function: RedisLedger__begin, or RedisLedger__begin__again."""
    cls, method, *what = make.__name__.split("__")
    CASES[", ".join([f"{cls}.{method}", *what])] = make
    return make


def of_ledger(act: Callable[[RedisLedger], Any]) -> Case:
    def made(client: Any) -> Call:
        hot = ledger(client)
        return lambda: act(hot)

    return made


def of_budgets(act: Callable[[BudgetBook], Any]) -> Case:
    def made(client: Any) -> Call:
        book = budgets(client)
        return lambda: act(book)

    return made


def of_leases(name: str) -> Case:
    def made(client: Any) -> Call:
        scripts, leases = held(client)
        return lambda: getattr(scripts, name)(leases)

    return made


CASES |= {
    "RedisLedger.publish": of_ledger(
        lambda hot: hot.publish(QUEUE, [Publish(key("d9"), "at 9", message("d9"))], BUCKETS)
    ),
    "RedisLedger.begin": of_ledger(
        lambda hot: hot.begin([Begin(key(doc), BUCKETS) for doc in ("d1", "d2")], "", ("w", "c1"))
    ),
    "RedisLedger.settle": of_ledger(
        lambda hot: hot.settle(
            SettleBatch(
                done=[SettledDone(key("d2"), BUCKETS, cost_microusd=7)],
                dead=[SettledDead(key("d3"), BUCKETS, "http_400", calls=1)],
            )
        )
    ),
    "RedisLedger.settle, retried": of_ledger(
        lambda hot: hot.settle(SettleBatch(retries=[retried("d2")]))
    ),
    "RedisLedger.settle, released": of_ledger(
        lambda hot: hot.settle(SettleBatch(released=[key("d2")]))
    ),
    "RedisLedger.settle, counted": of_ledger(
        lambda hot: hot.settle(
            SettleBatch(
                crashed=[SettledCrash(key("d2"), "engine")],
                asked_again=[AskedAgain(JOB, 1, 0)],
                tried_again=[SettledCrash(key("d2"), "x", refused_first=True)],
            )
        )
    ),
    "RedisLedger.tell_answered": of_ledger(lambda hot: hot.tell_answered([key("d4")])),
    "RedisLedger.park": of_ledger(lambda hot: hot.park(JOB, [message("d2"), message("d3")])),
    "RedisLedger.bind": of_ledger(lambda hot: hot.bind(JOB, MODELS)),
    "RedisLedger.drop_from_window": of_ledger(lambda hot: hot.drop_from_window([key("d1")])),
    "RedisLedger.reset_stats": of_ledger(lambda hot: hot.reset_stats(JOB, {"succeeded": 3})),
    "RedisLedger.note_drain": of_ledger(lambda hot: hot.note_drain(Drained("api", 2, 1))),
    "RedisLedger.heartbeat": of_ledger(lambda hot: hot.heartbeat("w", {"name": "w"})),
    "RedisLedger.controls": of_ledger(lambda hot: hot.controls("c", 60.0)),
    "RedisLedger.install_epoch": of_ledger(lambda hot: hot.install_epoch()),
    "RedisLedger.rehydrate": of_ledger(
        lambda hot: hot.rehydrate(JOB, 1, [("d1", False), ("d2", True)], BUCKETS)
    ),
    "RedisLedger.set_job_state": of_ledger(lambda hot: hot.set_job_state(JOB, JobState.PAUSED)),
    "RedisLedger.set_job_lane": of_ledger(
        lambda hot: hot.set_job_lane(job(lane_now="batch", moves=1))
    ),
    "RedisLedger.forget": of_ledger(lambda hot: hot.forget(JOB)),
    "RedisLedger.keep_out": of_ledger(lambda hot: hot.keep_out(JOB)),
    "BudgetBook.look": of_budgets(lambda book: book.look(JOB, BUDGET, spent=20)),
    "BudgetBook.look_with_tenant": of_budgets(
        lambda book: book.look_with_tenant(
            JOB, BUDGET, ("penstock:tenants:t:2026-11", 5_000), None, spent=20
        )
    ),
    "BudgetBook.reserve_batch": of_budgets(
        lambda book: book.reserve_batch(JOB, BUDGET, "b2", 200, spent=20)
    ),
    "BudgetBook.end_batch": of_budgets(lambda book: book.end_batch(JOB, "b1", spent=90)),
    "BudgetBook.tried_again": of_budgets(lambda book: book.tried_again(JOB)),
    "BudgetBook.lift": of_budgets(lambda book: book.lift(JOB)),
    "BudgetBook.relearn": of_budgets(lambda book: book.relearn(JOB)),
    "BudgetBook.renew": of_budgets(lambda book: book.renew("w")),
    "LeaseScripts.ack": of_leases("ack"),
    "LeaseScripts.give_back": of_leases("give_back"),
    "LeaseScripts.set_aside": of_leases("set_aside"),
    "LeaseScripts.renew": of_leases("renew"),
    "DoorLimits.admit": lambda client: at_doors(
        client, lambda doors: doors.admit("t", "r1", per_minute=60, at_once=5)
    ),
    "DoorLimits.renew": lambda client: at_doors(client, lambda doors: doors.renew([("t", "r1")])),
    "DoorLimits.end": lambda client: at_doors(client, lambda doors: doors.end("t", "r1")),
}


@case
def RedisLedger__begin__with_a_budget(client: Any) -> Call:
    hot = ledger(client)
    hot.budgets.look(JOB, BUDGET, spent=10, batches={})
    begin = Begin(key("d1"), BUCKETS, MayCost(50, owner="w"))
    return lambda: hot.begin([begin], "", ("w", "c1"))


@case
def RedisLedger__unpark(client: Any) -> Call:
    hot = ledger(client)
    hot.park(JOB, [message("d2"), message("d3")])
    return lambda: hot.unpark(JOB, QUEUE)


@case
def RedisLedger__forget_ended(client: Any) -> Call:
    """Of a job that was purged after the backup that this is."""
    hot = ledger(client)
    hot.set_job_state("job_gone", JobState.PAUSED)
    hot.reset_stats("job_gone", {"succeeded": 3})
    return lambda: hot.forget_ended(lambda job_ids: {})


@case
def RedisLedger__promote(client: Any) -> Call:
    hot = ledger(client)
    hot.settle(SettleBatch(retries=[retried("d2"), retried("d3")]))
    return lambda: hot.promote(QUEUE)


@case
def RedisLedger__control_left(client: Any) -> Call:
    hot = ledger(client)
    hot.controls("c", 60.0)
    return lambda: hot.control_left("c")


def begun_with_a_budget(client: Any) -> RedisLedger:
    hot = ledger(client)
    hot.budgets.look(JOB, BUDGET, spent=10, batches={})
    hot.begin([Begin(key("d1"), BUCKETS, MayCost(50, owner="w"))])
    return hot


@case
def BudgetBook__end_calls(client: Any) -> Call:
    book = begun_with_a_budget(client).budgets
    calls = book.calls(JOB)
    assert calls
    return lambda: book.end_calls(JOB, calls)


@case
def BudgetBook__give_back(client: Any) -> Call:
    book = begun_with_a_budget(client).budgets
    stray = book.stray(JOB, [])
    assert stray
    return lambda: book.give_back(JOB, stray)


@case
def AnswerBook__ask(client: Any) -> Call:
    """A claim, and one that is given up."""
    book = AnswerBook(client, "w")
    mine, other = (
        RequestName("penstock:job-a:answers", "x"),
        RequestName("penstock:job-a:answers", "y"),
    )
    book.ask([Asked(other, 60.0, 600)])
    return lambda: book.ask([Asked(mine, 60.0, 600)], [other])


@case
def QueueBook__note(client: Any) -> Call:
    return lambda: QueueBook(client).note(QUEUE, [MODELS])


@case
def QueueBook__forget_idle(client: Any) -> Call:
    client.zadd("penstock:queues:penstock.api", {MODELS: 1.0})
    return lambda: QueueBook(client).forget_idle(QUEUE)


@case
def QueueBook__note_found(client: Any) -> Call:
    return lambda: QueueBook(client).note_found(QUEUE, MODELS, [f"{MODELS}2"])


@case
def QueueBook__show_found(client: Any) -> Call:
    return lambda: QueueBook(client).show_found(MODELS, 3)


@case
def QueueBook__move(client: Any) -> Call:
    messages = [(item_tag(key("d1")), message("d1"))]
    return lambda: QueueBook(client).move(MODELS, messages)


@case
def CauseBook__note(client: Any) -> Call:
    cause = Cause("default", JOB, "timeout", "no answer", 3, 1.5e9, 1.5e9)
    return lambda: CauseBook(client).note([cause])


@case
def LeaseScripts__restore(client: Any) -> Call:
    """Of a worker that is gone."""
    scripts, leases = held(client)
    for lease in leases:
        client.zadd(WHERE.unacked_index, {lease.tag: 1.0})
    return lambda: scripts.restore(1.0)


def of_quota(act: Callable[[QuotaHash, Any], Any]) -> Case:
    def made(client: Any) -> Call:
        shared = quota(client)
        return lambda: asyncio.run(act(shared, client))

    return made


CASES |= {
    "QuotaHash.install": of_quota(lambda shared, _: shared.install(QUOTA.terms(), replaces="any")),
    "QuotaHash.reserve": of_quota(lambda shared, client: shared.reserve(ask(client))),
    "QuotaHash.heartbeat": of_quota(lambda shared, _: shared.heartbeat("p", 60.0, "{}")),
    "QuotaHash.confirm": of_quota(lambda shared, _: shared.confirm(["requests"], ["requests"])),
    "QuotaHash.lift": of_quota(lambda shared, _: shared.lift()),
}


# What the second call answers, where that is not what the first would have said, and who takes it
# for what it is.
SAYS_IT_IS_DONE: dict[str, Any] = {
    # they are in the window: the feeder's next look counts what is outstanding
    "RedisLedger.publish": PublishReport(0, 0, 1),
    # nothing is new; the stop-loss sees the figures with the next group
    "RedisLedger.settle": SettleReport(0, 0, {}),
    "RedisLedger.settle, retried": SettleReport(0, 0, {}),
    # they have moved: numbers are for the log
    "RedisLedger.promote": 0,
    "RedisLedger.unpark": 0,
    "RedisLedger.rehydrate": 0,
    "RedisLedger.forget_ended": 0,
    "BudgetBook.give_back": 0,
    "QueueBook.forget_idle": 0,
    "QueueBook.move": 0,
    # counted as if their leases had been lost, which delivers nothing again
    "LeaseScripts.ack": ["job-a:d1", "job-a:d2"],
    "LeaseScripts.give_back": ["job-a:d2", "job-a:d1"],
    "LeaseScripts.set_aside": ["job-a:d1", "job-a:d2"],
    "LeaseScripts.restore": -1,  # someone has just swept
}
# Keys that a second time changes, and why that harms nothing.
TWICE: dict[str, str | tuple[str, ...]] = {
    "CauseBook.note": "penstock:failing:default",  # a count for people
    "RedisLedger.note_drain": "penstock:drains:api",  # the same
    "RedisLedger.settle, counted": "penstock:job-a:",  # the same
    # another name for the same rebuild: workers renew their leases once more
    "RedisLedger.install_epoch": ("penstock:epoch:rebuilt", "penstock:epoch:name"),
    # a second message of a document is dropped where it is claimed
    "RedisLedger.park": "penstock:job-a:parked",
    # a charge given twice makes the next call wait; a refund is not given twice, see Reserving.call
    "QuotaHash.reserve": "penstock:{q:q}",
}

# What only reads, class by class. Claims come by kombu's channel (`broker/test_transport.py` loses the
# answer to one), and messages for RabbitMQ by its shovel: what they hold comes back with its lease.
READS = {
    AnswerBook: set[str](),
    BudgetBook: {"calls", "is_known", "jobs_of_tenant", "seen", "stray"},
    CauseBook: {"of"},
    DoorLimits: set[str](),
    LeaseScripts: set[str](),
    QueueBook: {"found", "is_of", "of"},
    QuotaHash: set[str](),
    RedisLedger: {
        "begin_rebuild",  # a mark that only this process reads, and that expires
        *("begun", "bound", "check_epoch", "depth", "depths", "drains", "finished_of", "front"),
        *("in_window", "last_rebuild"),
        *("held", "lately", "memory", "missing", "next_of", "outstanding", "outstanding_of"),
        *("parked", "parked_unknown", "preflight", "see", "stats", "under_way", "window"),
        "workers",
    },
}


def test_every_method_that_writes_has_a_case() -> None:
    """A new one fails here until it says what becomes of it when its answer is lost."""
    writing = {
        f"{cls.__name__}.{name}"
        for cls, reads in READS.items()
        for name, method in vars(cls).items()
        if inspect.isfunction(method) and not name.startswith("_") and name not in reads
    }
    assert len(writing) > 40, "the classes were not found"
    assert {name.partition(",")[0] for name in CASES} == writing
    assert CASES.keys() >= SAYS_IT_IS_DONE.keys() | TWICE.keys()


@pytest.fixture
def client(redis_server: RedisServer) -> Any:
    """A client that does nothing again by itself, so that its caller hears of each loss."""
    return redis_server.client(retry=Retry(NoBackoff(), 0))


@pytest.mark.parametrize("name", sorted(CASES))
def test_a_lost_answer_changes_nothing(name: str, client: Any) -> None:
    """Done and not answered, at each of its questions, then called again: the same keys as after
    one call that was answered, and an answer that says so."""
    CASES[name](client)()  # the server has its scripts from now on
    client.flushall()
    call = CASES[name](client)
    with LostRedisReplies().losing(-1) as replies:
        plain_answer = call()
    plain = all_keys(client)
    assert replies.answers >= 1
    for place in range(replies.answers):
        client.flushall()
        call = CASES[name](client)
        with LostRedisReplies().losing(place), pytest.raises(RedisConnectionError):
            call()
        answer, found = call(), all_keys(client)
        for key_name in found:
            if key_name.startswith(TWICE.get(name, "-")):
                plain[key_name] = found[key_name]
        assert found == plain, f"answer {place} was lost"
        if place == replies.answers - 1 and name not in TWICE:
            assert without_clocks(answer) == without_clocks(SAYS_IT_IS_DONE.get(name, plain_answer))


def test_a_start_is_counted_once_however_often_sql_is_asked(client: Any) -> None:
    """Messages come again while the database is away, and each is looked up before it is begun:
    what is repeated until SQL answers is no death of a worker."""
    hot, away = ledger(client), iter([True] * 8)

    class Outcomes:
        def terminal(self, _: object) -> frozenset[ItemKey]:
            if next(away, False):
                raise DatabaseUnavailable("at h", "it is away")
            return frozenset()

    async def crashes() -> int:
        none: Any = None
        starts = Starts(hot, cast(Any, Outcomes()), none)
        starts.start()
        attempt = make_attempt("d1", job_id=JOB)
        attempt.delivery.redelivered = True
        await starts.begin(attempt)
        await starts.close()
        return attempt.crashes

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(groups, "full_jitter", lambda *_, **__: 0.0)
        assert asyncio.run(crashes()) == 0
    assert next(away, None) is None
    assert client.hget("penstock:job-a:1:starts", "d1") == b"1"
