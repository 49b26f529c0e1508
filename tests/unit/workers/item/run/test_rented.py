"""Workers share one explicit cache for each beginning, and do without where it cannot be had."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any, cast

import orjson
import redis
from attempts import done, make_attempt

from penstock_ledger import PaidBeside, Primed, WarmPrefixes
from penstock_ledger.model import JobState
from penstock_producer.planning.prefixes import Behind, CachedPrompts, held_as
from penstock_producer.planning.rented_caches import LIFETIME_S
from penstock_ratelimit.testing import run_virtual
from penstock_workers.failpoints import Failpoints
from penstock_workers.item.attempt import Attempt
from penstock_workers.item.failures import Failure
from penstock_workers.item.outcome import Outcome
from penstock_workers.item.run.cached_contents import CachedContents, CallFailed, KeptContent
from penstock_workers.item.run.cost import too_long, whole
from penstock_workers.item.run.fates import RetryPolicy
from penstock_workers.item.run.follow_ups import has_follow_up
from penstock_workers.item.run.rented import AGAIN_S, JOBS_EVERY_S, REFUSED_S, RentedCaches
from penstock_workers.item.slots import Waiting
from penstock_workers.settings import ProviderSettings

MODEL, HELD = "gemini-2.5-flash", b"{}"
TOKENS = 100_000
MADE, HOUR = 100_000, 300_000  # millionths of a dollar, at the prices below
SETTINGS = ProviderSettings.model_validate(
    {"kind": "gemini", "prices": {MODEL: {"input": 1.0, "cached_input": 0.1, "cache_hour": 3.0}}}
)


class Google:
    """An account with caches, as the API shows it; ``refuses`` is what it says instead."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.caches: dict[str, tuple[str, KeptContent]] = {}
        self.asked: list[str] = []
        self.refuses: CallFailed | None = None

    def _heard(self, call: str) -> None:
        self.asked.append(call)
        if self.refuses is not None:
            raise self.refuses

    def account(self, provider: str) -> str:
        return "account"

    async def find(self, provider: str, title: str) -> KeptContent | None:
        self._heard("find")
        named = (kept for its, kept in self.caches.values() if its == title)
        return next((kept for kept in named if kept.expires > self.clock()), None)

    async def make(
        self, provider: str, model: str, title: str, held: bytes, lifetime_s: float
    ) -> KeptContent:
        self._heard("make")
        name = f"cachedContents/{len(self.caches)}"
        kept = KeptContent(name, TOKENS, self.clock() + lifetime_s)
        self.caches[name] = (title, kept)
        await asyncio.sleep(1)  # until the answer has come
        return kept

    async def renew(self, provider: str, name: str, lifetime_s: float) -> KeptContent:
        self._heard("renew")
        title, kept = self.caches[name]
        renewed = kept._replace(expires=self.clock() + lifetime_s)
        self.caches[name] = (title, renewed)
        return renewed

    async def delete(self, provider: str, name: str) -> None:
        self._heard("delete")
        del self.caches[name]

    async def close(self) -> None:
        """Do nothing: there is nothing to close."""


class Book:
    """What Redis knows, for all workers of the test."""

    def __init__(self) -> None:
        self.kept_by_name: dict[tuple[str, str], str] = {}
        self.claimed: set[tuple[str, str]] = set()
        self.is_away = False

    def claim(self, *name: str) -> Primed:
        if self.is_away:
            raise redis.ConnectionError("gone")
        if name in self.kept_by_name:
            return Primed.WARM
        if name in self.claimed:
            return Primed.ELSEWHERE
        self.claimed.add(cast(Any, name))
        return Primed.NOT

    def kept(self, *name: str) -> str | None:
        return self.kept_by_name.get(cast(Any, name))

    def warm(self, job_id: str, name: str, lifetime_s: float, kept: str = "") -> None:
        self.kept_by_name[job_id, name] = kept
        self.give_up(job_id, name)

    def give_up(self, *name: str) -> None:
        self.claimed.discard(cast(Any, name))

    def forget(self, job_id: str, name: str, kept: str) -> None:
        if self.kept_by_name.get((job_id, name)) == kept:
            del self.kept_by_name[job_id, name]


class House:
    """Workers, one account, one Redis and one ledger, and the beginning that all prompts share."""

    model = MODEL

    def __init__(self) -> None:
        self.clock = asyncio.get_running_loop().time
        self.google, self.book = Google(self.clock), Book()
        self.state = JobState.RUNNING
        self.paid: dict[tuple[str, str], int] = {}
        self.sent: list[str | None] = []

    def worker(self) -> RentedCaches:
        made = RentedCaches(
            cast(WarmPrefixes, self.book),
            cast(CachedContents, self.google),
            self._note,
            self._states,
            Waiting(),
            Failpoints(),
            self.clock,
        )
        # stores are asked in the loop, so that the virtual clock need not wait for a thread
        made._ask = self._ask  # type: ignore[method-assign]
        made._thread = cast(Any, self)
        return made

    async def _ask(self, ask: Callable[..., Any], *what: Any) -> Any:
        return ask(*what)

    def submit(self, tell: Callable[..., None], *what: Any) -> None:
        tell(*what)

    def shutdown(self) -> None:
        """Do nothing: there is no thread."""

    def _note(self, spent: PaidBeside, answer: str, cause: str) -> None:
        self.paid.setdefault((spent.key.doc_id, answer), spent.cost_microusd)

    def _states(self, job_ids: Collection[str]) -> Mapping[str, JobState]:
        return dict.fromkeys(job_ids, self.state)

    def parted(self, body: bytes, levels: object) -> tuple[bytes, bytes]:
        return HELD, body

    async def item(
        self, worker: RentedCaches, *, is_gone: bool = False, takes_s: float = 0
    ) -> None:
        attempt = make_attempt(body=orjson.dumps({"model": MODEL}), settings=SETTINGS)
        attempt.job = replace(attempt.job, provider=SETTINGS)

        async def steps(attempt: Attempt) -> Outcome:
            await asyncio.sleep(takes_s)
            behind = attempt.behind
            if behind is not None:
                body = behind.asked(cast(Any, self), attempt.body, ())
                self.sent.append(orjson.loads(body)["cachedContent"])
                behind.is_gone = is_gone
            else:
                self.sent.append(None)
            return done()

        await worker.once(cast(CachedPrompts, self), steps, attempt)


async def _two_workers() -> None:
    house = House()
    workers = [house.worker(), house.worker()]
    await asyncio.gather(*(house.item(workers[at % 2]) for at in range(8)))
    assert house.sent == ["cachedContents/0"] * 8
    assert house.google.asked == ["find", "make"]
    assert house.paid == {("cachedContents/0", "made"): MADE + HOUR * LIFETIME_S / 3_600}
    # used in its second half it is renewed, by one of them, and what is paid is the time beyond
    await asyncio.sleep(LIFETIME_S * 0.7)
    await asyncio.gather(*(house.item(worker) for worker in workers))
    assert house.google.asked[2:] == ["renew"]
    paid = MADE + HOUR * (LIFETIME_S + 0.7 * LIFETIME_S) / 3_600
    assert abs(sum(house.paid.values()) - paid) < HOUR * 2 / 3_600
    # and is not where no document comes: it ends by itself, and is made anew
    await asyncio.sleep(LIFETIME_S + 1)
    house.book.kept_by_name.clear()  # it expires in Redis, too
    await house.item(workers[0])
    assert house.sent[-1] == "cachedContents/1"
    for worker in workers:
        await worker.close()


def test_one_of_all_workers_makes_it_and_one_renews_it() -> None:
    """It is paid for as input once, and for the time that it is kept."""
    run_virtual(_two_workers())


async def _killed() -> None:
    house = House()
    dead, alive = house.worker(), house.worker()
    making = asyncio.create_task(house.item(dead))
    await asyncio.sleep(0.5)
    making.cancel()  # the provider has made it, and nothing is noted
    house.book.claimed.clear()  # as its claim has ended
    await asyncio.gather(making, return_exceptions=True)
    house.paid.clear()
    house.book.kept_by_name.clear()
    await house.item(alive)
    assert house.sent[-1] == "cachedContents/0"
    assert house.google.asked.count("make") == 1
    assert list(house.paid) == [("cachedContents/0", "made")]
    for worker in (dead, alive):
        await worker.close()


def test_a_cache_whose_maker_died_is_found_by_its_title_and_booked_once() -> None:
    """It is not paid for twice."""
    run_virtual(_killed())


async def _gone() -> None:
    house = House()
    worker = house.worker()
    await house.item(worker, is_gone=True)
    house.google.caches.clear()
    assert not house.book.kept_by_name
    await house.item(worker)
    assert house.google.asked == ["find", "make"] * 2
    # a key that makes caches which it may not read would pay for one after the other
    await house.item(worker, is_gone=True)
    other = house.worker()
    for one in (worker, other):
        await house.item(one)
    assert house.sent[-2:] == [None, None]
    assert house.google.asked.count("make") == 2
    for one in (worker, other):
        await one.close()


def test_a_cache_that_the_provider_has_lost_is_made_anew_once() -> None:
    """As soon as a document has learned that it is gone; lost again, none is made for an hour."""
    run_virtual(_gone())


async def _refused(refusal: CallFailed, again_s: float) -> None:
    house = House()
    worker, other = house.worker(), house.worker()
    house.google.refuses = refusal
    await house.item(worker)
    await house.item(other)
    assert house.sent == [None, None]
    assert house.google.asked == ["find"]
    assert not house.paid
    house.google.refuses = None
    await asyncio.sleep(again_s + 1)
    house.book.kept_by_name.clear()
    await house.item(worker)
    assert house.sent[-1] == "cachedContents/0"
    for one in (worker, other):
        await one.close()


def test_without_a_cache_documents_are_sent_whole_and_the_next_try_waits() -> None:
    """A minute after a limit, an hour after what would be refused again: for all workers."""
    run_virtual(_refused(CallFailed("slow down", 429), AGAIN_S))
    run_virtual(_refused(CallFailed("too small", 400), REFUSED_S))


async def _away() -> None:
    house = House()
    worker = house.worker()
    house.book.is_away = True
    await house.item(worker)
    assert (house.sent, house.google.asked) == ([None], [])
    await worker.close()


def test_without_redis_none_is_made() -> None:
    """Each worker would make one of its own."""
    run_virtual(_away())


async def _ended(state: JobState) -> None:
    house = House()
    worker = house.worker()
    await house.item(worker)
    house.state = state
    await asyncio.sleep(JOBS_EVERY_S + 1)
    assert not house.google.caches
    assert not house.book.kept_by_name
    await asyncio.sleep(JOBS_EVERY_S)
    await house.item(worker)  # of a paused job, which is turned away later
    assert house.google.asked.count("make") == 1
    await worker.close()


def test_the_caches_of_a_job_that_does_not_run_are_deleted_and_not_made() -> None:
    """Whether it has ended, is cancelled or paused."""
    for state in (JobState.COMPLETED, JobState.PAUSED, JobState.CANCELLING):
        run_virtual(_ended(state))


async def _waits() -> None:
    house = House()
    worker = house.worker()
    await house.item(worker, takes_s=3 * LIFETIME_S)
    assert house.sent == ["cachedContents/0"]
    assert house.google.asked.count("renew") >= 3
    assert house.google.asked.count("make") == 1
    await worker.close()


def test_it_is_renewed_while_a_document_waits_behind_it() -> None:
    """Its turn in a quota may come long after its cache was made."""
    run_virtual(_waits())


async def _closed() -> None:
    house = House()
    worker = house.worker()
    await house.item(worker)
    house.state = JobState.COMPLETED
    await worker.close()
    assert not house.google.caches


def test_a_worker_that_ends_deletes_the_caches_of_jobs_that_have_ended() -> None:
    """As that of `penstock run` does, which ends with its job."""
    run_virtual(_closed())


BODY = orjson.dumps({"model": MODEL, "contents": [{"role": "user", "parts": [{"text": "MQ"}]}]})
FORBIDDEN = "HTTP 403: CachedContent not found (or permission denied)"


def behind_one() -> Attempt:
    """An attempt whose request was sent behind a cache."""
    attempt = make_attempt(body=BODY, endpoint="/v1beta/generateContent", model=MODEL)
    attempt.behind = Behind(lambda: "cachedContents/a", held_as(HELD))
    cached = cast(CachedPrompts, type("Cached", (), {"parted": lambda *_: (HELD, b"{}")})())
    attempt.body = attempt.behind.asked(cached, BODY, ())
    assert orjson.loads(attempt.body) == {"cachedContent": "cachedContents/a"}
    return attempt


def test_a_document_whose_cache_is_gone_is_asked_again_whole() -> None:
    """Once, and without an attempt: the whole request's own refusal stands."""
    attempt = behind_one()
    behind, policy = attempt.behind, RetryPolicy(1.0, 1.0, 1.0)
    assert behind is not None
    assert has_follow_up(attempt, Failure("forbidden", FORBIDDEN, 403), policy)
    assert (attempt.next_body, behind.is_gone, attempt.behind) == (BODY, True, None)
    assert attempt.spent == make_attempt().spent
    assert not has_follow_up(attempt, Failure("forbidden", FORBIDDEN, 403), policy)


def test_another_refusal_says_nothing_of_the_cache() -> None:
    """The document is asked whole all the same; what passes by itself is waited for."""
    policy = RetryPolicy(1.0, 1.0, 1.0)
    attempt = behind_one()
    behind = attempt.behind
    assert has_follow_up(attempt, Failure("bad_request", "no such field", 400), policy)
    assert behind is not None
    assert (attempt.next_body, behind.is_gone) == (BODY, False)
    assert not has_follow_up(behind_one(), Failure("rate_limited", "slow down", 429), policy)


def test_what_a_cache_holds_is_of_the_request() -> None:
    """Where budgets, bounds on prompts and other models look at it."""
    attempt = behind_one()
    assert whole(attempt) == BODY
    assert too_long(whole(attempt), 1) is not None
    assert whole(make_attempt(body=BODY)) == BODY
