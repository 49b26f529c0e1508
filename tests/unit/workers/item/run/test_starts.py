"""What a start comes to: by the ledger's reply, by SQL where it is in doubt, and for money."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Collection, Iterable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
from attempts import make_attempt

from penstock_ledger import (
    Begin,
    BeginReply,
    Begun,
    DatabaseUnavailable,
    ItemKey,
    JobNotFound,
    SettleBatch,
)
from penstock_ledger.model import JobState
from penstock_workers.item.attempt import Attempt
from penstock_workers.item.failures import TurnedAway
from penstock_workers.item.outcome import Outcome, Parked, Skipped, Unreadable
from penstock_workers.item.run import starts as subject
from penstock_workers.item.run.starts import Starts


class Ledger:
    """Redis and SQL, as a test has set them; ``called`` is what they had to do, in order."""

    def __init__(self) -> None:
        self.reply = Begun(BeginReply.GO, 0)
        self.finished: set[str] = set()
        self.generations = [1]
        self.job: Any = SimpleNamespace(state=JobState.RUNNING, lane="api")
        self.asked: list[Begin] = []
        self.calls: list[object] = []  # their names
        self.called: list[tuple[object, ...]] = []
        self.looked: list[str] = []  # into SQL
        self.errors: list[Exception] = []  # of these looks
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.renewed: list[str] = []
        self.rebuilt = ""
        self.budgets = SimpleNamespace(renew=self.renewed.append)

    def begin(self, items: Sequence[Begin], lane: str, call: object, rebuilt: str) -> list[Begun]:
        assert self.may_answer.wait(10)
        self.calls.append(call)
        self.asked += items
        if rebuilt != self.rebuilt:
            return [Begun(BeginReply.REBUILT, 0, rebuilt=self.rebuilt) for _ in items]
        return [self.reply for _ in items]

    def last_rebuild(self) -> str:
        return ""

    def settle(self, batch: SettleBatch) -> None:
        released = [key.doc_id for key in batch.released]
        self.called.append(("settle", released, {one.doc_id: n for one, n in batch.paid.items()}))

    def terminal(self, keys: Collection[ItemKey]) -> frozenset[ItemKey]:
        self.looked += [key.doc_id for key in keys]
        if self.errors:
            raise self.errors.pop()
        return frozenset(key for key in keys if key.doc_id in self.finished)

    def rehydrate(self, *done: object) -> None:
        self.called.append(("done", *done))

    def drop_from_window(self, keys: Iterable[ItemKey]) -> None:
        self.called.append(("dropped", [key.doc_id for key in keys]))

    def get(self, job_id: str) -> Any:
        if self.job is None:
            raise JobNotFound(job_id)
        return self.job

    def feeds(self, _: str) -> list[Any]:
        return [SimpleNamespace(generation=number) for number in self.generations]


class House:
    def __init__(self) -> None:
        self.ledger, self.changed = Ledger(), list[str]()
        parts = cast(Any, self.ledger)
        self.renewals = 0
        self.finds_lost: asyncio.Task[Any] | None = None
        self.starts = Starts(parts, parts, parts, "api", self.changed.append, self.renew)

    async def renew(self) -> None:
        self.renewals += 1
        if self.finds_lost is not None:
            self.finds_lost.cancel()
        await asyncio.sleep(0)

    async def ended(self, attempt: Attempt) -> Outcome | None:
        """Begin, and return what the attempt ends in; None where it may start."""
        try:
            await asyncio.wait_for(self.starts.begin(attempt), 10)
        except TurnedAway as away:
            return away.outcome
        return None


@pytest.fixture
async def house() -> AsyncIterator[House]:
    made = House()
    made.starts.start()
    yield made
    await made.starts.close()


def paid(doc: str, microusd: int) -> Attempt:
    """An attempt in a job with a budget, whose earlier calls have cost so much."""
    made = make_attempt(doc, budget_usd=1.0)
    made.spent = made.spent._replace(cost_microusd=microusd)
    return made


def redelivered(doc: str) -> Attempt:
    made = make_attempt(doc)
    made.delivery.redelivered = True
    return made


async def test_an_item_that_may_start_has_begun(house: House) -> None:
    """It knows how often it has crashed a worker, and SQL is not asked about a new message."""
    attempt = make_attempt("a")
    assert await house.ended(attempt) is None
    assert (attempt.begun, attempt.crashes) == (True, 0)
    assert house.ledger.looked == []
    assert house.starts.backlog.oldest_s() == 0.0


@pytest.mark.parametrize(
    ("reply", "kind", "says"),
    [
        (BeginReply.DONE, Skipped, "finished already"),
        (BeginReply.CANCELLED, Skipped, "is cancelled"),
        (BeginReply.ELSEWHERE, Skipped, "in another lane"),
        (BeginReply.PAUSED, Parked, "is paused"),
        (BeginReply.NO_ROOM, Parked, "may be needed for calls"),
        (BeginReply.BUDGET_CHANGED, Parked, "has changed"),
        (BeginReply.UNKNOWN, Unreadable, "was not fed to generation 1"),
        (BeginReply.UNKNOWN_SINCE_REBUILT, Skipped, "the feed of its job sends it again"),
    ],
)
async def test_every_reply_but_go_has_an_outcome(
    house: House, reply: BeginReply, kind: type, says: str
) -> None:
    """No start is taken back, as none was counted."""
    house.ledger.reply = Begun(reply, 0)
    attempt = make_attempt("a")
    outcome = await house.ended(attempt)
    assert isinstance(outcome, kind)
    assert says in str(outcome)
    assert not attempt.begun
    assert house.ledger.called == []
    assert house.changed == (["job"] if reply is BeginReply.BUDGET_CHANGED else [])


async def test_sql_that_is_away_makes_no_suspect(house: House) -> None:
    """Each time that SQL does not answer the start is asked for by the same name, which counts it
    once."""
    house.ledger.errors = [DatabaseUnavailable("here", "it is away") for _ in range(3)]
    attempt = redelivered("a")
    assert await house.ended(attempt) is None
    assert len(house.ledger.asked) == 4
    assert len(house.ledger.calls) == 4
    assert len(set(house.ledger.calls)) == 1
    assert house.ledger.called == []


@pytest.mark.parametrize("reply", [BeginReply.UNKNOWN, BeginReply.UNKNOWN_SINCE_REBUILT])
async def test_a_generation_that_does_not_exist_is_named(house: House, reply: BeginReply) -> None:
    """Whether or not Redis was rebuilt lately: it comes from no feed."""
    house.ledger.reply, house.ledger.generations = Begun(reply, 0), [2, 3]
    outcome = await house.ended(make_attempt("a"))
    assert isinstance(outcome, Unreadable)
    assert "has no generation 1" in outcome.why


@pytest.mark.parametrize(
    ("attempt", "reply"),
    [
        (redelivered("a"), Begun(BeginReply.GO, 0)),
        (make_attempt("a"), Begun(BeginReply.GO, 1)),
        (make_attempt("a"), Begun(BeginReply.GO, 0, is_sure=False)),
        (make_attempt("a"), Begun(BeginReply.UNKNOWN, 0)),
    ],
)
async def test_nothing_that_sql_has_finished_is_paid_again(
    house: House, attempt: Attempt, reply: Begun
) -> None:
    """A message that was seen before, that a worker died over, that an old copy of Redis has or that
    Redis does not know: Redis learns what SQL has, and the start is taken back."""
    house.ledger.reply, house.ledger.finished = reply, {"a"}
    outcome = await house.ended(attempt)
    assert isinstance(outcome, Skipped)
    assert house.ledger.looked == ["a"]
    assert house.ledger.called == [
        ("done", "job", 1, [("a", False)], 1),
        ("settle", ["a"], {}),
        ("dropped", ["a"]),
    ]


@pytest.mark.parametrize(
    ("state", "lane", "says"),
    [
        (None, "api", "is cancelled"),
        (JobState.CANCELLING, "api", "is cancelled"),
        (JobState.CANCELLED, "api", "is cancelled"),
        (JobState.FAILED, "api", "is cancelled"),
        (JobState.PAUSED, "api", "is paused"),
        (JobState.RUNNING, "batch", "in another lane"),
    ],
    ids=str,
)
async def test_sql_says_what_became_of_a_job_of_which_redis_has_an_old_copy(
    house: House, state: JobState | None, lane: str, says: str
) -> None:
    """What it does not let start, since the job was purged for example, is not called, and its start
    is taken back; a Redis that is sure is believed."""
    house.ledger.reply = Begun(BeginReply.GO, 0, is_sure=False)
    assert await house.ended(make_attempt("a")) is None
    house.ledger.job = None if state is None else SimpleNamespace(state=state, lane=lane)
    attempt = paid("a", 7)
    assert says in str(await house.ended(attempt))
    assert not attempt.begun
    assert house.ledger.called == [("settle", ["a"], {"a": 7})]
    house.ledger.reply = Begun(BeginReply.GO, 0)
    assert await house.ended(make_attempt("a")) is None


async def test_leases_are_renewed_once_after_a_rebuild_of_redis(house: House) -> None:
    """Before anything starts: what waited in this worker may lie in the queue a second time. An item
    whose lease was lost is aborted meanwhile, and is not asked for again."""
    house.ledger.rebuilt = "a rebuild"
    some = [make_attempt(doc) for doc in "abc"]
    assert await asyncio.gather(*map(house.ended, some)) == [None] * 3
    assert [attempt.begun for attempt in some] == [True] * 3
    assert (house.renewals, house.ledger.called) == (1, [])
    house.ledger.rebuilt = "the next"
    lost = asyncio.create_task(house.ended(make_attempt("lost")))

    house.finds_lost = lost
    with pytest.raises(asyncio.CancelledError):
        await lost
    assert [key.doc_id for key, *_ in house.ledger.asked].count("lost") == 1
    assert house.ledger.called == []


async def test_an_item_that_has_crashed_a_worker_and_is_not_finished_starts(house: House) -> None:
    """With the number of its crashes, by which suspects are found."""
    house.ledger.reply = Begun(BeginReply.GO, 2)
    attempt = make_attempt("a")
    assert await house.ended(attempt) is None
    assert (attempt.begun, attempt.crashes) == (True, 2)
    assert house.ledger.looked == ["a"]


async def test_a_start_that_is_not_wanted_any_more_is_taken_back(house: House) -> None:
    """Of an item that was cancelled while it was counted; what it has paid stays reserved."""
    house.ledger.may_answer.clear()
    waiting = asyncio.create_task(house.starts.begin(paid("a", 7)))
    stays = asyncio.create_task(house.starts.begin(paid("b", 8)))
    await asyncio.sleep(0)
    assert house.starts.backlog.oldest_s() > 0
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    house.ledger.may_answer.set()
    await asyncio.wait_for(stays, 10)
    await house.starts.close()
    assert house.ledger.called == [("settle", ["a"], {"a": 7})]


async def test_a_start_that_waits_for_a_quota_is_taken_back_with_what_it_paid(
    house: House,
) -> None:
    """Where its job has a budget; without one nothing is reserved."""
    for attempt in (paid("a", 7), make_attempt("b")):
        await house.ended(attempt)
        await house.starts.take_back(attempt)
        assert not attempt.begun
    assert house.ledger.called == [("settle", ["a"], {"a": 7}), ("settle", ["b"], {})]


async def test_a_call_for_a_budget_is_made_in_the_name_of_a_worker_that_lives(
    house: House,
) -> None:
    """It says so before what it reserves can be seen, and not for each call again; of a job without
    a budget it says nothing."""
    await house.ended(make_attempt("a"))
    assert house.ledger.renewed == []
    for doc in ("b", "c"):
        await house.ended(paid(doc, 5))
    (owner,) = house.ledger.renewed
    free, *bound = house.ledger.asked
    assert free.may_cost is None
    assert [(one.may_cost.owner, one.may_cost.paid) for one in bound if one.may_cost] == [
        (owner, 5)
    ] * 2


async def test_a_worker_with_reservations_says_again_and_again_that_it_lives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One that has none is not heard of."""
    monkeypatch.setattr(subject, "RENEW_S", 0.0)
    house, loop, again = House(), asyncio.get_running_loop(), asyncio.Event()

    def renew(owner: str) -> None:
        house.ledger.renewed.append(owner)
        if len(house.ledger.renewed) == 3:
            loop.call_soon_threadsafe(again.set)

    house.ledger.budgets.renew = renew
    house.starts.start()
    await house.ended(make_attempt("a"))
    assert house.ledger.renewed == []
    await house.ended(paid("b", 5))
    await asyncio.wait_for(again.wait(), 10)
    await house.starts.close()
    assert len(set(house.ledger.renewed)) == 1
