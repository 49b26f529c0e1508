"""Equal requests in one worker: one is sent, the others wait for it, and lead when it gives up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
from attempts import dead, make_attempt

from penstock_ledger import AnswerBook, Asked, InFlight, OutcomeStore, RequestName
from penstock_ledger.model import ItemKey, Result
from penstock_ratelimit.testing import run_virtual
from penstock_workers.item.attempt import Attempt
from penstock_workers.item.failures import TurnedAway
from penstock_workers.item.outcome import Dead, Done, Outcome, Parked, Released, Retry
from penstock_workers.item.run.reuse import (
    ANSWER_BYTES_MAX,
    KNOWN_BYTES_MAX,
    KNOWN_MAX,
    KNOWN_S,
    PATIENCE_S,
    WAIT_S,
    KnownAnswers,
    Lines,
    Reuse,
    Turn,
)
from penstock_workers.item.slots import Waiting

NAME = RequestName("book", "digest")
BODY = b'{"model":"m","temperature":0,"messages":[]}'
FIRST = ItemKey("job", 1, "first")
ANSWER = b'{"choices":[]}'


def result(key: ItemKey = FIRST, body: bytes = ANSWER) -> Result:
    return Result(key, 200, body, "req", "m", "stop", 11, 7, 500, 1234, 1, 1)


class House:
    """A worker's part for equal requests, on stores that the test plays."""

    def __init__(self, lease_s: float) -> None:
        self.lease_s = lease_s
        self.told: Any = None  # what the book says; an exception is raised
        self.results: dict[ItemKey, Result] = {}
        self.released: list[RequestName] = []
        self.asks = 0
        self.begun: list[str] = []
        self.sent: list[str] = []
        self._changed, self._loop = asyncio.Condition(), asyncio.get_running_loop()
        self.asked_often = asyncio.Event()
        self.answers: asyncio.Queue[Outcome | BaseException] = asyncio.Queue()
        self.waiting = Waiting()
        self.reuse = Reuse(
            cast(AnswerBook, self), cast(OutcomeStore, self), self.begin, self.waiting
        )

    # the book and the outcomes, in the thread
    def ask(self, asked: Sequence[Asked], released: Sequence[RequestName] = ()) -> list[Any]:
        self.released += released
        self.asks += len(asked)
        if self.asks > 3:
            self._loop.call_soon_threadsafe(self.asked_often.set)
        if isinstance(self.told, Exception):
            raise self.told
        return [self.told] * len(asked)

    def stored_results(self, keys: Sequence[ItemKey]) -> dict[ItemKey, Result]:
        return {key: self.results[key] for key in keys if key in self.results}

    # the runner
    async def begin(self, attempt: Attempt) -> None:
        self.begun.append(attempt.key.doc_id)

    async def steps(self, attempt: Attempt) -> Outcome:
        self.sent.append(attempt.key.doc_id)
        async with self._changed:
            self._changed.notify_all()
        outcome = await self.answers.get()
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    def item(self, doc: str, **more: Any) -> asyncio.Task[Outcome]:
        attempt = make_attempt(doc, **({"body": BODY, "dedup": "on"} | more))
        return asyncio.create_task(self.reuse.once(attempt, self.steps))

    async def until_sent(self, number: int) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: len(self.sent) >= number)

    async def until_idle(self) -> None:
        """What was put before is with the stores."""
        await self.reuse._looks.flush()


@asynccontextmanager
async def house(lease_s: float = 60.0) -> AsyncIterator[House]:
    made = House(lease_s)
    made.reuse.start()
    try:
        yield made
    finally:
        await made.reuse.close()


async def test_equal_requests_are_sent_once_and_all_get_the_answer_as_their_own() -> None:
    """The others cost nothing, show the tokens, and say that no call was made for them."""
    async with house() as made:
        tasks = [made.item(f"doc-{number}") for number in range(5)]
        await made.until_sent(1)
        first = Done(result(ItemKey("job", 1, "doc-0")))
        made.answers.put_nowait(first)
        outcomes = await asyncio.gather(*tasks)
        assert (made.sent, made.asks) == (["doc-0"], 1)
        assert outcomes[0] is first
        for number, outcome in enumerate(outcomes[1:], 1):
            assert isinstance(outcome, Done)
            took = outcome.result
            assert took.key == ItemKey("job", 1, f"doc-{number}")
            assert (took.body, took.prompt_tokens, took.completion_tokens) == (ANSWER, 11, 7)
            assert (took.cost_microusd, took.calls, took.latency_ms, took.reason) == (
                0,
                0,
                0,
                "dedup",
            )
        assert made.begun == [f"doc-{number}" for number in range(1, 5)], (
            "one may be finished, or its job paused"
        )


async def test_the_book_answers_with_a_result_of_another_job() -> None:
    """An earlier job's result is the answer, at no cost; what this item's failed attempts cost
    stays in its books."""
    async with house() as made:
        earlier = ItemKey("before", 1, "x")
        made.told, made.results = earlier, {earlier: result(earlier)}
        outcome = await made.item(
            "doc", cache_s=3600.0, headers={"calls": 2, "spent": [5, 1, 90]}, retries=1
        )
        assert isinstance(outcome, Done)
        assert (outcome.result.reason, outcome.result.attempts, made.sent) == ("cache", 2, [])
        assert isinstance(await made.item("doc-2", cache_s=3600.0), Done)
        assert made.asks == 1, "what was learned is known for a while"


async def test_a_result_that_is_gone_is_asked_for_again() -> None:
    """Its job was purged between the look and the read: the request is sent."""
    async with house() as made:
        made.told = ItemKey("purged", 1, "x")
        made.answers.put_nowait(Done(result()))
        assert isinstance(await made.item("doc"), Done)
        assert made.sent == ["doc"]


async def test_one_who_finds_another_worker_at_it_is_put_off_uncounted() -> None:
    """No slot, no attempt and no call; it comes back after as long as the other has been at it, at
    most a lease."""
    async with house() as made:
        for age_s, after_s in ((0.2, 1.0), (17.0, 17.0), (999.0, 60.0)):
            made.told = InFlight(age_s)
            outcome = await made.item("doc")
            assert isinstance(outcome, Retry)
            assert (outcome.after_s, outcome.counted, outcome.error[:13]) == (
                after_s,
                False,
                "same_request:",
            )
        assert made.sent == []
        assert made.begun == ["doc"] * 3, (
            "so that earlier crashes stay counted when its start is given back"
        )


async def test_no_one_waits_for_an_equal_request_for_ever() -> None:
    """One that is on its way for more than an hour, as in a job that gets no quota, is sent once
    more."""
    async with house() as made:
        made.told = InFlight(PATIENCE_S + 1)
        made.answers.put_nowait(Done(result()))
        assert isinstance(await made.item("doc"), Done)
        assert made.sent == ["doc"]


@pytest.mark.parametrize(
    "end",
    [
        Released("drain"),
        Parked("paused"),
        Retry(1.0, "rate_limited", "x", counted=False),
        TurnedAway(None),
    ],
)
async def test_the_next_leads_when_the_first_was_not_tried(end: Any) -> None:
    """One that gives up before the request was tried hands it to the next one here, without a
    moment between."""
    async with house() as made:
        tasks = [made.item("first"), made.item("second"), made.item("third")]
        await made.until_sent(1)
        made.answers.put_nowait(end)
        await made.until_sent(2)
        made.answers.put_nowait(Done(result()))
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert made.sent == ["first", "second"]
        assert [type(one) for one in outcomes[1:]] == [Done, Done]
        await made.until_idle()
        assert made.released == [], "the claim was handed on"


async def test_a_leader_that_is_cancelled_hands_over() -> None:
    """A worker that lost the first one's message goes on with the others."""
    async with house() as made:
        first, second = made.item("first"), made.item("second")
        await made.until_sent(1)
        first.cancel()
        await made.until_sent(2)
        made.answers.put_nowait(Done(result()))
        assert isinstance(await second, Done)


async def test_one_that_waits_may_be_cancelled() -> None:
    """It leaves the line, and the next one still gets its turn."""
    async with house() as made:
        first, second, third = (made.item(doc) for doc in ("first", "second", "third"))
        await made.until_sent(1)
        second.cancel()
        made.answers.put_nowait(Released("drain"))
        await made.until_sent(2)
        made.answers.put_nowait(Done(result()))
        await asyncio.gather(first, second, third, return_exceptions=True)
        assert made.sent == ["first", "third"]


@pytest.mark.parametrize("end", [dead("no"), Retry(1.0, "timeout", "x")])
async def test_after_a_failure_each_tries_by_itself(end: Dead | Retry) -> None:
    """A failure is no one else's: a thousand equal documents must not fail one after the other, and
    none takes a dead letter."""
    async with house() as made:
        tasks = [made.item(f"doc-{number}") for number in range(4)]
        await made.until_sent(1)
        made.answers.put_nowait(end)
        await made.until_sent(4)  # at once, not one by one
        for _ in range(3):
            made.answers.put_nowait(Done(result()))
        outcomes = await asyncio.gather(*tasks)
        assert outcomes[0] is end
        assert all(isinstance(one, Done) and one.result.reason is None for one in outcomes[1:])
        await made.until_idle()
        assert len(made.released) == 1


async def test_an_answer_too_large_to_share_is_no_one_elses() -> None:
    """It would be in memory once for each who takes it; they are sent side by side."""
    async with house() as made:
        tasks = [made.item(f"doc-{number}") for number in range(3)]
        await made.until_sent(1)
        made.answers.put_nowait(Done(result(body=b"x" * (ANSWER_BYTES_MAX + 1))))
        await made.until_sent(3)
        for _ in range(2):
            made.answers.put_nowait(Done(result()))
        outcomes = await asyncio.gather(*tasks)
        assert all(isinstance(one, Done) for one in outcomes)


async def test_stores_that_cannot_be_asked_let_the_request_be_sent() -> None:
    """Redis away, full, or without memory of it: a call is cheaper than a job that stands still."""
    async with house() as made:
        made.told = ConnectionError("Redis is away")
        made.answers.put_nowait(Done(result()))
        assert isinstance(await made.item("doc"), Done)
        assert made.sent == ["doc"]


async def test_a_request_that_may_not_be_shared_is_sent_without_a_look() -> None:
    """At temperature 1 each document gets an answer of its own."""
    async with house() as made:
        for _ in range(2):
            made.answers.put_nowait(Done(result()))
        hot = BODY.replace(b":0", b":1")
        await asyncio.gather(made.item("a", body=hot), made.item("b", body=hot))
        assert (sorted(made.sent), made.asks) == (["a", "b"], 0)


async def test_a_drain_ends_the_waiting() -> None:
    """Those who wait go back to the queue; the one that is sent may end."""
    async with house() as made:
        first, second = made.item("first"), made.item("second")
        await made.until_sent(1)
        made.waiting.close()
        with pytest.raises(asyncio.CancelledError):
            await second
        made.answers.put_nowait(Done(result()))
        assert isinstance(await first, Done)
        with pytest.raises(TurnedAway):
            await made.item(
                "third",
                body=BODY + b" ",
                generation=2,
                dedup="always",
                params={"x.n": 1},
                job_id="other",
            )


async def test_claims_are_renewed_while_their_items_run() -> None:
    """A call that takes longer than the lease keeps its claim; one that has ended is asked for no
    more."""
    async with house(lease_s=0.003) as made:
        task = made.item("doc")
        await made.until_sent(1)
        async with asyncio.timeout(10):
            await made.asked_often.wait()
        made.answers.put_nowait(Done(result()))
        await task
        await made.until_idle()
        assert (made.released, made.reuse._leading) == ([], {}), (
            "what has ended is renewed no more, until it is settled"
        )


def test_none_waits_here_for_ever() -> None:
    """After a while the message goes into the delayed set, with how long the first has been at
    it."""

    async def run() -> None:
        lines = Lines(asyncio.get_running_loop().time)
        assert await lines.join(NAME) is Turn.LEAD
        told = await lines.join(NAME)
        assert isinstance(told, InFlight)
        assert told.age_s == pytest.approx(WAIT_S)
        assert lines.pass_on(NAME) is False
        assert await lines.join(NAME) is Turn.LEAD

    run_virtual(run())


def test_what_is_known_is_bounded_and_forgotten() -> None:
    """By number, by bytes and by age: a worker's memory does not grow with its job."""
    now = [0.0]
    known = KnownAnswers(lambda: now[0])
    for number in range(KNOWN_MAX + 10):
        known.put(RequestName("book", str(number)), Turn.ALONE)
    assert known.get(RequestName("book", "9")) is None
    assert known.get(RequestName("book", "10")) is Turn.ALONE
    large = result(body=b"x" * (KNOWN_BYTES_MAX // 2 + 1))
    known.put(NAME, large)
    known.put(NAME, large)
    assert known.get(NAME) is large
    known.put(RequestName("book", "other"), large)
    assert known.get(NAME) is None
    now[0] = KNOWN_S + 1
    assert known.get(RequestName("book", "other")) is None
