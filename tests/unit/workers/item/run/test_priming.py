"""One request primes a shared beginning, and no trouble of it holds the others up for long."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import orjson
import pytest
import redis
from attempts import done, make_attempt

from penstock_ledger import Primed, WarmPrefixes
from penstock_producer.dialects.prompt_caches import rules_of
from penstock_producer.planning.prefixes import (
    CachedPrompts,
    Prefixes,
    PrefixFinder,
    kept_groups,
)
from penstock_ratelimit.testing import run_virtual
from penstock_workers.item.attempt import Attempt
from penstock_workers.item.failures import Reply
from penstock_workers.item.outcome import Outcome, Retry
from penstock_workers.item.run.priming import LOOK_S, PATIENCE_S, TRUSTED, Priming
from penstock_workers.item.slots import Waiting

CHAT = "/v1/chat/completions"
REPLY = Reply(b"{}", 200, None, "m", "stop", 1, 1, "text", 1)
LIFETIME_S = 300.0


def body(group: str, at: int) -> bytes:
    return orjson.dumps({"messages": [{"role": "user", "content": f"{group * 5_000} {at}"}]})


def cached(*groups: str) -> CachedPrompts:
    finder = PrefixFinder(CHAT)
    for group in groups:
        for at in range(3):
            finder.add(body(group, at))
    kept = kept_groups(finder.found(1, finder.chars / 4), None)
    return CachedPrompts(Prefixes.of(kept["groups"]), rules_of("openai", "", None), CHAT)


class House:
    """A worker's part for shared beginnings; the test plays the book and the provider."""

    def __init__(self) -> None:
        self.told: Primed | Exception = Primed.NOT
        self.given_up: list[str] = []
        self.warmed: list[str] = []
        self.asked = 0
        self.sent: list[str] = []
        self.answers: dict[str, asyncio.Future[Outcome]] = {}
        self.waiting = Waiting()
        self.cached = cached("a", "b")
        clock = asyncio.get_running_loop().time
        self.priming = Priming(cast(WarmPrefixes, self), self.waiting, clock=clock)
        # calls of the book in the loop, so that the virtual clock need not wait for a thread
        self.priming._ask = self._ask  # type: ignore[method-assign]
        self.priming._tell = self._tell  # type: ignore[method-assign]

    async def _ask(self, name: tuple[str, str]) -> Primed:
        self.asked += 1
        return self.told if isinstance(self.told, Primed) else Primed.NOT

    def _tell(self, tell: Callable[..., None], *what: Any) -> None:
        tell(*what)

    def warm(self, job_id: str, name: str, lifetime_s: float) -> None:
        self.warmed.append(name)

    def give_up(self, job_id: str, name: str) -> None:
        self.given_up.append(name)

    def item(self, doc: str, group: str = "a", number: int = 0) -> asyncio.Task[Outcome]:
        attempt = make_attempt(doc, body=body(group, number))
        attempt.job = replace(attempt.job, cached=self.cached)
        return asyncio.create_task(self._run(attempt))

    async def _run(self, attempt: Attempt) -> Outcome:
        return await self.priming.around(attempt, self._steps)(attempt)

    async def _steps(self, attempt: Attempt) -> Outcome:
        doc = attempt.key.doc_id
        self.sent.append(doc)
        self.answers[doc] = asyncio.get_running_loop().create_future()
        outcome = await self.answers[doc]
        if not isinstance(outcome, Retry):
            attempt.happened = REPLY
        return outcome

    async def answer(self, *docs: str, outcome: Outcome | None = None) -> None:
        for doc in docs:
            self.answers[doc].set_result(outcome or done())
        await settle()


async def settle() -> None:
    """Let everything run that can."""
    for _ in range(20):
        await asyncio.sleep(0)


async def _one_goes_alone() -> None:
    made = House()
    tasks = [made.item(f"a{at}", "a", at) for at in range(5)]
    tasks += [made.item("b0", "b"), made.item("alone", "c")]
    await settle()
    assert made.sent == ["a0", "b0", "alone"]
    await made.answer("a0")
    assert made.sent[3:] == ["a1", "a2", "a3", "a4"]
    assert (made.asked, len(made.warmed), made.given_up) == (2, 1, [])
    await made.answer("b0", "alone", "a1", "a2", "a3", "a4")
    await asyncio.gather(*tasks)
    # the cache keeps it from its last use on, and no longer than is trusted
    await asyncio.sleep(LIFETIME_S * TRUSTED - 1)
    late = [made.item(f"late{at}", "a", at) for at in range(2)]
    await settle()
    assert made.sent[-2:] == ["late0", "late1"]
    await made.answer("late0", "late1")
    await asyncio.sleep(LIFETIME_S * TRUSTED + 1)
    late += [made.item(f"cold{at}", "a", at) for at in range(2)]
    await settle()
    assert made.sent[-1] == "cold0"
    await made.answer("cold0")
    await made.answer("cold1")
    await asyncio.gather(*late)


def test_the_first_of_each_group_goes_alone_and_the_others_once_it_has_come() -> None:
    """Groups do not wait for one another, a document of its own for none, and a beginning that was
    not used for its lifetime is primed again."""
    run_virtual(_one_goes_alone())


async def _failed_primer() -> None:
    made = House()
    tasks = [made.item(f"a{at}", "a", at) for at in range(4)]
    await settle()
    await made.answer("a0", outcome=Retry(1.0, "rate_limited", "429"))
    assert made.sent == ["a0", "a1"]
    assert len(made.given_up) == 1
    tasks[1].cancel()  # as by a drain, or by a worker that loses its lease
    await settle()
    assert made.sent == ["a0", "a1", "a2"]
    await made.answer("a2")
    assert made.sent == ["a0", "a1", "a2", "a3"]
    await made.answer("a3")
    await asyncio.gather(*tasks, return_exceptions=True)


def test_where_the_one_that_primes_fails_the_next_one_primes() -> None:
    """A 429 says nothing of the others, nor does a cancelled one."""
    run_virtual(_failed_primer())


async def _slow_primer() -> None:
    made = House()
    tasks = [made.item(f"a{at}", "a", at) for at in range(4)]
    await asyncio.sleep(PATIENCE_S - 0.1)
    assert made.sent == ["a0"]
    await asyncio.sleep(0.2)
    assert sorted(made.sent) == ["a0", "a1", "a2", "a3"]
    await made.answer("a0", "a1", "a2", "a3")
    await asyncio.gather(*tasks)


def test_one_that_takes_long_is_not_waited_for() -> None:
    """After ``PATIENCE_S`` all go."""
    run_virtual(_slow_primer())


async def _another_worker() -> None:
    made = House()
    made.told = Primed.ELSEWHERE
    tasks = [made.item(f"a{at}", "a", at) for at in range(3)]
    await asyncio.sleep(5)
    assert made.sent == []
    assert made.asked == pytest.approx(5 / LOOK_S, abs=2)  # one of the three looks
    made.told = Primed.WARM
    await asyncio.sleep(2 * LOOK_S)
    assert sorted(made.sent) == ["a0", "a1", "a2"]
    await made.answer("a0", "a1", "a2")
    await asyncio.gather(*tasks)
    made.told = Primed.ELSEWHERE  # and dies over it
    tasks = [made.item(f"b{at}", "b", at) for at in range(3)]
    await asyncio.sleep(PATIENCE_S + 2 * LOOK_S)
    assert sorted(made.sent[3:]) == ["b0", "b1", "b2"]
    await made.answer("b0", "b1", "b2")
    await asyncio.gather(*tasks)


def test_another_workers_request_is_waited_for_and_its_death_too_no_longer_than_that() -> None:
    """One of the waiting looks; when the other has its answer all go, or when patience ends."""
    run_virtual(_another_worker())


async def test_without_redis_the_worker_primes_for_itself() -> None:
    """That costs one more write of the beginning for each worker, and nothing else."""

    class Away:
        def claim(self, job_id: str, name: str) -> Primed:
            raise redis.ConnectionError("gone")

        def warm(self, job_id: str, name: str, lifetime_s: float) -> None:
            raise redis.ConnectionError("gone")

    priming = Priming(cast(WarmPrefixes, Away()), Waiting())
    sent: list[str] = []

    async def steps(attempt: Attempt) -> Outcome:
        sent.append(attempt.key.doc_id)
        attempt.happened = REPLY
        return done()

    attempts = [make_attempt(f"a{at}", body=body("a", at)) for at in range(3)]
    for attempt in attempts:
        attempt.job = replace(attempt.job, cached=cached("a"))
    await asyncio.gather(*(priming.around(attempt, steps)(attempt) for attempt in attempts))
    assert sorted(sent) == ["a0", "a1", "a2"]
    await priming.close()
