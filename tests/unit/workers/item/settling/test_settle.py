"""What settle does with stores that are away, and with outcomes that a store will never take."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest
import redis
from attempts import make_attempt, make_runner
from sqlalchemy.exc import DataError, OperationalError

from penstock_ledger import Begin, BeginReply, Begun, ItemKey, SettleBatch, Trouble
from penstock_ledger.model import DeadLetter, Result
from penstock_ledger.reasons import By, Reason
from penstock_workers.failpoints import Failpoints
from penstock_workers.failure_log import REPEATED_EACH_S, FailureLog
from penstock_workers.item.attempt import Attempt, Item, Settled
from penstock_workers.item.deliveries import Delivery
from penstock_workers.item.failures import TurnedAway
from penstock_workers.item.job_view import JobView
from penstock_workers.item.outcome import Dead, Done, Outcome, Parked, Retry, Skipped, Unreadable
from penstock_workers.item.run.starts import Starts
from penstock_workers.item.settling import groups
from penstock_workers.item.settling.groups import (
    AWAY_FRESH_S,
    UNSETTLED_MAX_S,
    UNSTORABLE,
    Backlog,
    StoreOutage,
    StoreWriter,
)
from penstock_workers.item.settling.settle import LINGER_MAX_S, Settler
from penstock_workers.item.settling.tally import OutcomeTally
from penstock_workers.item.slots import Slots
from penstock_workers.metrics import catalogue
from penstock_workers.metrics.samples import Spread

AWAY = OperationalError("insert", None, Exception("connection refused"))
FOR_GOOD = DataError("insert", None, Exception("text fields cannot contain NUL"))


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "full_jitter", lambda *_, **__: 0.0)


def attempt(doc: str) -> Attempt:
    made = make_attempt(doc, job_id="job_a", body=b'{"asked": 1}', model="m")
    made.begun = True
    return made


def done(doc: str) -> Settled:
    made = attempt(doc)
    return Settled(
        made, Done(Result(made.key, 200, b'{"answer": 1}', None, "m", "stop", 1, 1, 0, 5, 1, 1))
    )


def key_of(settled: Settled) -> ItemKey:
    assert isinstance(settled.item, Item)
    return settled.item.key


class Stores:
    """Takes what it likes: ``sql`` and ``redis`` raise for what they refuse."""

    def __init__(self) -> None:
        self.sql: Callable[[Settled], object] = lambda _: None
        self.redis: Callable[[Settled], object] = lambda _: None
        self.rows: dict[str, Outcome] = {}
        self.transactions = 0

    def write_sql(self, group: Sequence[Settled]) -> None:
        self.transactions += 1
        for settled in group:
            self.sql(settled)
        self.rows |= {key_of(settled).doc_id: settled.outcome for settled in group}

    def write_redis(self, group: Sequence[Settled]) -> None:
        for settled in group:
            self.redis(settled)


class House:
    """A settler on stores that misbehave; hears outcomes as the pool does."""

    def __init__(self) -> None:
        self.stores = Stores()
        self.outcomes: dict[str, Outcome] = {}
        stores: Any = self.stores
        self.settler = Settler(
            self, stores, Failpoints(), OutcomeTally(("default",)), group_max=500, linger_s=0.0
        )

    async def sure(self, *, anew: bool = False) -> None: ...

    def started(self, delivery: Delivery) -> None:
        """Nothing waits for it here."""

    def conclude(self, pairs: Sequence[tuple[Delivery, Outcome]]) -> None:
        self.outcomes |= {delivery.task_id: outcome for delivery, outcome in pairs}

    async def settle(self, *group: Settled) -> None:
        for settled in group:
            self.settler.put(settled)
        await asyncio.wait_for(self.settler.flush(), 10)


@pytest.fixture
async def house() -> AsyncIterator[House]:
    house = House()
    house.settler.start()
    yield house
    await house.settler.close()


def refuse(doc: str, error: Exception, kind: type = object) -> Callable[[Settled], None]:
    def check(settled: Settled) -> None:
        if key_of(settled).doc_id == doc and isinstance(settled.outcome, kind):
            raise error

    return check


async def test_a_refused_result_is_found_and_becomes_a_dead_letter(house: House) -> None:
    """Of 400 outcomes one that SQL will never take becomes a dead letter with its reason; all
    others are stored (A4)."""
    house.stores.sql = refuse("d123", FOR_GOOD, Done)
    await house.settle(*(done(f"d{number}") for number in range(400)))
    assert len(house.stores.rows) == len(house.outcomes) == 400
    odd = house.stores.rows.pop("d123")
    assert all(isinstance(outcome, Done) for outcome in house.stores.rows.values())
    assert isinstance(odd, Dead)
    assert (odd.letter.reason, odd.letter.request, odd.letter.response) == (
        UNSTORABLE,
        b'{"asked": 1}',
        b'{"answer": 1}',
    )
    assert "cannot contain NUL" in odd.letter.last_error
    assert house.stores.transactions < 25, "found by halving"
    assert house.settler.backlog.oldest_s() == 0.0


async def test_no_message_ends_before_its_outcome_is_in_sql_and_in_redis(house: House) -> None:
    """In this order: SQL, Redis, acknowledgement. While a store is away the messages of a group
    stay recorded: one that counted as lost would be sent, and called, again."""
    ended = dict[str, set[str]]()
    failures = iter((AWAY, AWAY))

    def in_sql(_: Settled) -> None:
        ended["SQL"] = set(house.outcomes)
        if (error := next(failures, None)) is not None:
            raise error

    house.stores.sql = in_sql
    house.stores.redis = lambda _: ended.update(Redis=set(house.outcomes))
    await house.settle(done("a"), done("b"))
    assert ended == {"SQL": set(), "Redis": set()}
    assert set(house.outcomes) == {"job_a:a", "job_a:b"}


async def test_what_no_row_can_hold_is_set_aside(house: House) -> None:
    """An item whose very key is refused is kept for a person, with the reason, and holds up nothing
    (A4)."""
    house.stores.sql = refuse("odd", FOR_GOOD)
    await house.settle(done("a"), done("odd"), done("b"))
    assert set(house.stores.rows) == {"a", "b"}
    outcome = house.outcomes["job_a:odd"]
    assert isinstance(outcome, Unreadable)
    assert "cannot contain NUL" in outcome.why


async def test_a_retry_that_redis_never_takes_is_set_aside_and_a_result_stands(
    house: House,
) -> None:
    """Redis's refusal of one conclusion touches no other; what SQL holds is concluded, what only
    Redis would hold kept (A4)."""
    wrong = redis.ResponseError("WRONGTYPE Operation against a key holding the wrong kind of value")
    house.stores.redis = lambda settled: (
        (_ for _ in ()).throw(wrong) if "odd" in key_of(settled).doc_id else None
    )
    later = attempt("odd-retry")
    await house.settle(done("a"), done("odd-result"), Settled(later, Retry(1.0, "again")))
    assert isinstance(house.outcomes["job_a:a"], Done)
    assert isinstance(house.outcomes["job_a:odd-result"], Done)
    assert isinstance(house.outcomes["job_a:odd-retry"], Unreadable)


async def test_an_outage_is_waited_for_and_shown(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    """While SQL is away nothing is given up; its cause is in the stats and, once, in the log
    (A4)."""
    failures, seen = iter(range(50)), []

    def away(_: Settled) -> None:
        if next(failures, None) is not None:
            seen.append(house.settler.stats()["store-trouble"])
            raise AWAY

    house.stores.sql = away
    with caplog.at_level(logging.WARNING):
        await house.settle(done("a"), done("b"))
    assert set(house.stores.rows) == {"a", "b"}
    assert "SQL is away (Exception: connection refused; 49 tries" in str(seen[-1])
    assert len(caplog.records) == 1
    stats = house.settler.stats()
    assert (stats["store-failures"], stats["store-refusals"], stats["store-trouble"]) == (50, 0, "")


class Ledger:
    """Counts starts, unless an id is odd, or the job is in another lane."""

    def __init__(self) -> None:
        self.released: list[ItemKey] = []
        self.lane = ""  # that the job has moved to

    def last_rebuild(self) -> str:
        return ""

    def begin(self, items: Sequence[Begin], lane: str = "", *_: object) -> list[Begun]:
        for item in items:
            item.key.doc_id.encode()
        reply = BeginReply.ELSEWHERE if self.lane and self.lane != lane else BeginReply.GO
        return [Begun(reply, 0) for _ in items]

    def settle(self, batch: SettleBatch) -> None:
        self.released += batch.released


async def test_only_a_start_that_was_counted_is_taken_back() -> None:
    """Of an item that had not begun it would be a crash of an earlier start that is forgotten."""
    ledger = Ledger()
    starts = Starts(ledger, None, None)  # type: ignore[arg-type]  # SQL is not asked
    starts.start()
    begun, waiting = attempt("begun"), attempt("waiting")
    waiting.begun = False
    await starts.begin(begun)
    for one in (begun, waiting, begun):
        await starts.take_back(one)
    await starts.close()
    assert ledger.released == [begun.key]


async def test_an_item_whose_job_has_left_the_lane_is_dropped() -> None:
    """Its message is acknowledged without an outcome; where it waits for a quota, that pauses no
    job that is elsewhere. In the lane that the job has now it starts."""
    ledger = Ledger()
    ledger.lane = "batch"
    here, there = (Starts(ledger, None, None, lane) for lane in ("api", "batch"))  # type: ignore[arg-type]  # SQL is not asked
    for starts in (here, there):
        starts.start()
    with pytest.raises(TurnedAway) as away:
        await here.begin(attempt("a"))
    await there.begin(attempt("a"))
    vouched = await here.vouch(
        attempt("a"), attempt("a").job, Parked(pauses=Reason("out_of_credit", By.PROVIDER))
    )
    for starts in (here, there):
        await starts.close()
    for outcome in (away.value.outcome, vouched):
        assert isinstance(outcome, Skipped)
        assert outcome.left_lane
    assert ledger.released == []


async def test_a_start_that_cannot_be_counted_holds_up_no_other() -> None:
    """An id that no client can send is set aside at begin, and the items that began with it go
    (B5)."""
    starts = Starts(Ledger(), None, None)  # type: ignore[arg-type]  # SQL is not asked
    starts.start()
    begun = await asyncio.gather(
        *(starts.begin(attempt(doc)) for doc in ("a", "\ud800", "b")), return_exceptions=True
    )
    await starts.close()
    assert begun[0] is begun[2] is None
    assert isinstance(begun[1], TurnedAway)
    assert isinstance(begun[1].outcome, Unreadable)


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("trouble", "silent_s", "lives"),
    [
        (Trouble.AWAY, 10.0, True),
        (Trouble.AWAY, AWAY_FRESH_S + 1, False),  # the call after it never came back
        (Trouble.FAULTY, 10.0, False),
        (None, 0.0, False),  # the first call never came back
    ],
)
def test_liveness_fails_when_something_waits_too_long_for_a_store_that_answers(
    trouble: Trouble | None, silent_s: float, lives: bool
) -> None:
    """An outage ends no worker however long it lasts; a store that answers and takes nothing does,
    after the limit (B5)."""
    clock = Clock()
    writer = StoreWriter("SQL", ThreadPoolExecutor(1), FailureLog(logging.getLogger()), cap_s=1)
    backlog = Backlog("outcomes wait", (writer,), clock=clock)
    backlog.put()
    clock.now += UNSETTLED_MAX_S
    assert backlog.overdue() is None
    clock.now += 1
    if trouble is not None:
        writer.outage = StoreOutage(
            "SQL", trouble, "OperationalError: no", 1_000.0, 7, clock.now - silent_s
        )
    assert (backlog.overdue() is None) == lives
    backlog.take()
    backlog.done(more=True)
    assert backlog.overdue() is None, "what waits now came after that group was taken"


def test_a_cause_is_told_in_full_once_and_then_now_and_then(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Twenty jobs that fail alike, ten times a second for half a minute, make two lines and one
    traceback (A14)."""
    clock = Clock()
    failures = FailureLog(logging.getLogger("test"), clock=clock)
    with caplog.at_level(logging.WARNING):
        for _ in range(10 * int(REPEATED_EACH_S) + 1):
            for job in range(20):
                failures.tell(
                    "a job cannot be steered",
                    redis.ReadOnlyError(f"READONLY job_{job}"),
                    "next tick tries again",
                )
            clock.now += 0.1
    assert len(caplog.records) == 2
    assert [record.exc_info is not None for record in caplog.records] == [True, False]
    assert " times in 30 s" in caplog.records[1].getMessage()


class Fed:
    """A ledger in which one document was fed, and jobs of which all are known but one."""

    def last_rebuild(self) -> str:
        return ""

    def begin(self, items: Sequence[Begin], *_: object) -> list[Begun]:
        fed = [item.key.doc_id == "known" for item in items]
        return [Begun(BeginReply.GO if known else BeginReply.UNKNOWN, 0) for known in fed]

    def settle(self, batch: SettleBatch) -> None:
        """Takes starts back."""

    def terminal(self, keys: Sequence[ItemKey]) -> frozenset[ItemKey]:
        return frozenset()

    def feeds(self, job_id: str) -> list[object]:
        return []

    def known(self, job_id: str, endpoint: str | None = None) -> JobView | None:
        return None if job_id == "unheard" else attempt("x").job


async def test_a_stranger_gets_no_dead_letter_and_pauses_no_job() -> None:
    """What is decided before an item has begun counts for fed documents only; waiting outside the
    queue is for all (B6)."""
    fed: Any = Fed()
    starts = Starts(fed, fed, fed)
    starts.start()
    runner = make_runner(fed, starts=starts)

    async def ended(item: Item, outcome: Outcome) -> Outcome:
        return await runner._not_tried(item, TurnedAway(outcome))

    def new(doc: str, job_id: str = "job_a") -> Attempt:
        return make_attempt(doc, job_id=job_id)

    dead = Dead(DeadLetter(new("x").key, "request_too_large", 1, 0, "", None, b"", None))
    for outcome in (dead, Parked(pauses=Reason("source_unavailable", By.SOURCE))):
        assert await ended(new("known"), outcome) is outcome
        assert isinstance(await ended(new("forged"), outcome), Unreadable)
    waits = Parked("its job is paused")
    assert await ended(new("forged"), waits) is waits
    assert await ended(new("forged", "unheard"), dead) is dead, "no job, no books"
    begun = new("forged")
    begun.begun = True
    assert await ended(begun, dead) is dead, "what has begun was fed"
    await starts.close()


async def test_what_is_settled_is_counted_once_it_is_stored(house: House) -> None:
    """In the tally, in the groups, and as waiting no more; with the figures of both stores
    together."""
    away: dict[str, list[Exception]] = {"sql": [AWAY], "redis": [redis.ConnectionError("gone")]}

    def check(store: str, refused: str, error: Exception) -> Callable[[Settled], None]:
        def call(settled: Settled) -> None:
            if away[store]:
                raise away[store].pop()
            refuse(refused, error, Done)(settled)

        return call

    house.stores.sql = check("sql", "a", FOR_GOOD)
    house.stores.redis = check("redis", "b", redis.ResponseError("WRONGTYPE"))
    house.settler.put(done("waits"))
    await asyncio.sleep(0)
    assert house.settler.backlog.oldest_s() > 0
    await house.settle(done("a"), done("b"), done("c"))
    figures = house.settler.stats()
    assert (figures["store-failures"], figures["store-refusals"]) == (2, 2)
    assert (house.settler.backlog.oldest_s(), house.settler.backlog.trouble()) == (0.0, None)
    tally = house.settler._tally
    assert (house.settler.groups, tally.items.total()) == (2, 4)
    spreads = {(one.metric, *one.labels): one.value for one in tally.figures("api")}
    for store in ("sql", "redis"):
        spread = cast(Spread, spreads[catalogue.STORE, "api", store])
        assert sum(spread.counts) == 2
        assert 0 < spread.total < 10


async def test_a_settler_that_closes_stores_what_it_was_given() -> None:
    """All of it, and its thread ends."""
    house = House()
    house.settler.start()
    house.settler.put(done("last"))
    await house.settler.close()
    assert set(house.stores.rows) == {"last"}
    assert house.settler._thread._shutdown


async def test_a_slot_is_held_until_the_outcome_is_in_sql(house: House) -> None:
    """A death repeats the calls of what SQL does not have; for Redis, which can be rebuilt, no slot
    waits."""
    slots, may_store = Slots(2), threading.Event()
    at_sql = threading.Event()
    waiting = {doc: done(doc) for doc in ("d1", "d2")}
    for settled in waiting.values():
        assert isinstance(settled.item, Attempt)
        settled.item.place = await slots.place()
    seen_by_redis: list[int] = []

    def stored_late(_: object) -> None:
        at_sql.set()
        may_store.wait(10)

    house.stores.sql = stored_late
    house.stores.redis = lambda _: seen_by_redis.append(slots.taken)
    storing = asyncio.create_task(house.settle(*waiting.values()))
    assert await asyncio.to_thread(at_sql.wait, 10)
    assert slots.taken == 2
    may_store.set()
    await storing
    assert (seen_by_redis, slots.taken) == ([0, 0], 0)


async def test_a_group_does_not_linger_while_others_wait_for_what_it_holds() -> None:
    """Outcomes are stored as soon as the settler learns that their slots are wanted."""
    stores, held = Stores(), asyncio.Event()
    bridge, parts = House(), cast(Any, stores)
    settler = Settler(
        bridge,
        parts,
        Failpoints(),
        OutcomeTally(("default",)),
        group_max=500,
        linger_s=3600.0,
        on_durable=lambda _: held.set(),
        is_short=lambda waiting, _: waiting >= 3,
    )
    settler.start()
    for doc in ("d1", "d2", "d3"):
        assert not stores.transactions
        settler.put(done(doc))
    await asyncio.wait_for(held.wait(), 10)
    assert len(stores.rows) == 3
    await settler.close()


async def test_a_slow_disk_gets_what_the_slots_hold_at_once(house: House) -> None:
    """After a commit that took 3 s the next group waits for others for 0.75 s, and after one that
    took minutes for a second; after a quick one it is as it was."""
    now, took_s = [0.0], [0.0]
    house.settler._clock = lambda: now[0]

    def store_slowly(_: object) -> None:
        now[0] += took_s[0]

    house.stores.sql = store_slowly
    lingered: list[float] = []
    for took_s[0] in (3.0, 600.0, 0.0):
        await house.settle(done(f"d{took_s[0]}"))
        lingered.append(house.settler._gatherer.linger_s)
    assert lingered == [0.75, LINGER_MAX_S, 0.0]
