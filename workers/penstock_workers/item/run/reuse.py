"""Equal requests are sent once: an item takes an equal one's answer, waits, or is the one sent.

An answer is looked for before the item waits for a slot or for the quota: in this process, where
the first asks and is sent and the others wait in a line behind it, then in the book in Redis, which
says whose result in SQL it is. Where another worker is at it, the message goes into the delayed set
and no attempt counts. Where the book or SQL cannot be asked, the request is sent: that costs a
call, and waiting would cost the job.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from enum import Enum
from functools import partial
from typing import Final, NamedTuple

from msgspec import structs

from penstock_ledger import AnswerBook, Asked, InFlight, Keep, OutcomeStore, RequestName
from penstock_ledger.model import ItemKey, Result
from penstock_workers.background import BackgroundTasks
from penstock_workers.failure_log import FailureLog
from penstock_workers.item.attempt import Attempt
from penstock_workers.item.outcome import Dead, Done, Outcome, Retry
from penstock_workers.item.same_request import SAME_REQUEST
from penstock_workers.item.settling.groups import Gatherer
from penstock_workers.item.slots import Waiting

WAIT_S: Final = 5.0
"""How long an item waits here: then its message goes into the delayed set, so that others find room
in this worker."""
KNOWN_S: Final = 60.0
"""How long an answer is kept in memory: until it is settled, and for the next equal ones."""
KNOWN_BYTES_MAX: Final = 16 * 1024 * 1024
KNOWN_MAX: Final = 4_096
"""Of answers in memory; the one that was learned first makes room."""


class Turn(Enum):
    """The facts that an item learns beside an answer."""

    LEAD = "send it, for all who wait"
    ALONE = (
        "send it, and do not wait for others: the request has failed, or its answer is too large "
        "to share"
    )


Found = Result | InFlight | Turn


class _Line:
    def __init__(self, began: float) -> None:
        self.began = began
        self.waiting: deque[asyncio.Future[Found]] = deque()  # bounded by what the worker holds


class Lines:
    """One line for each request that is on its way. On the item loop."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lines: dict[RequestName, _Line] = {}

    async def join(self, name: RequestName) -> Found:
        """Join those with the same request.

        Returns LEAD for the first, and for the next one when the first has given up."""
        line = self._lines.get(name)
        if line is None:
            self._lines[name] = _Line(self._clock())
            return Turn.LEAD
        future: asyncio.Future[Found] = asyncio.get_running_loop().create_future()
        line.waiting.append(future)
        try:
            await asyncio.wait((future,), timeout=WAIT_S)
        except asyncio.CancelledError:
            if future.done() and future.result() is Turn.LEAD:
                self.pass_on(name)
            raise
        finally:
            if not future.done():
                future.cancel()
        return InFlight(self._clock() - line.began) if future.cancelled() else future.result()

    def pass_on(self, name: RequestName) -> bool:
        """Let the next one lead, since this one gives up; return False when no one waits."""
        line = self._lines[name]
        while line.waiting:
            future = line.waiting.popleft()
            if not future.done():
                future.set_result(Turn.LEAD)
                return True
        del self._lines[name]
        return False

    def tell(self, name: RequestName, found: Found) -> None:
        """End the line: all who wait in it learn this."""
        for future in self._lines.pop(name).waiting:
            if not future.done():
                future.set_result(found)


class KnownAnswers:
    """The answers that this process has learned lately, or that they are not to be waited for."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._known: OrderedDict[RequestName, tuple[Result | Turn, float]] = OrderedDict()
        self._bytes = 0

    def get(self, name: RequestName) -> Result | Turn | None:
        found = self._known.get(name)
        if found is None:
            return None
        if found[1] < self._clock():
            self._forget(name)
            return None
        return found[0]

    def put(self, name: RequestName, found: Result | Turn) -> None:
        if name in self._known:
            self._forget(name)
        self._known[name] = (found, self._clock() + KNOWN_S)
        self._bytes += _size(found)
        while self._bytes > KNOWN_BYTES_MAX or len(self._known) > KNOWN_MAX:
            self._forget(next(iter(self._known)))

    def _forget(self, name: RequestName) -> None:
        self._bytes -= _size(self._known.pop(name)[0])


def _size(found: Result | Turn) -> int:
    return len(found.body) if isinstance(found, Result) else 0


log = logging.getLogger(__name__)

GROUP_MAX: Final = 500  # requests per look into the book
ANSWER_BYTES_MAX: Final = 1024 * 1024
"""Larger answers are no one else's: each would be in memory once more for every item that takes
it."""
AGAIN_MIN_S: Final = 1.0
PATIENCE_S: Final = 3_600.0
"""An equal request that has been on its way for longer, such as one of a job that gets little of
the quota, is sent again."""
RENEWALS_PER_LEASE: Final = 3

Steps = Callable[[Attempt], Awaitable[Outcome]]
Begin = Callable[[Attempt], Awaitable[None]]


class _Look(NamedTuple):
    """A question to the book, or what it shall know of a claim."""

    asked: Asked
    answer: asyncio.Future[Found] | None = None
    is_over: bool = False  # of a claim; else it goes on


class Reuse:
    """Reuses answers to equal requests, on the item loop; stores are asked in a thread."""

    def __init__(
        self, book: AnswerBook, outcomes: OutcomeStore, begin: Begin, waiting: Waiting
    ) -> None:
        clock = asyncio.get_running_loop().time
        self._book, self._outcomes, self._begin, self._waiting = book, outcomes, begin, waiting
        self._lines, self._known = Lines(clock), KnownAnswers(clock)
        # claims of this process; bounded by what it holds
        self._leading: dict[RequestName, Asked] = {}
        self._looks: Gatherer[_Look] = Gatherer(self._look, group_max=GROUP_MAX, linger_s=0)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="reuse")
        self._failure_log = FailureLog(log)
        self._tasks = BackgroundTasks()

    def start(self) -> None:
        self._looks.start()
        self._tasks.start(self._renew(), "claims of requests")

    async def close(self) -> None:
        await self._tasks.close()
        await self._looks.close()
        self._thread.shutdown()

    async def once(self, attempt: Attempt, steps: Steps) -> Outcome:
        """Return the outcome of ``steps``, or of an equal request in their place.

        Raises what they do, and TurnedAway."""
        policy = attempt.job.reuse
        asked = None if policy is None else policy.asked(attempt.given)
        found = Turn.ALONE if asked is None else await self._find(asked)
        if (
            asked is None
            or found is Turn.ALONE
            or (isinstance(found, InFlight) and found.age_s > PATIENCE_S)
        ):
            return await steps(attempt)
        if found is Turn.LEAD:
            return await self._lead(asked, attempt, steps)
        # it may be finished, or its job paused; and earlier crashes stay counted
        await self._begin(attempt)
        if isinstance(found, Result):
            return Done(taken(attempt, found))
        assert isinstance(found, InFlight), found
        # It has taken this long already, and may take as long again.
        after_s = min(max(AGAIN_MIN_S, found.age_s), self._book.lease_s)
        return Retry(
            after_s,
            SAME_REQUEST,
            "an equal request is being sent; its answer is waited for",
            counted=False,
        )

    # -- what is known of the request --------------------------------------------------------------

    async def _find(self, asked: Asked) -> Found:
        name = asked.name
        known = self._known.get(name)
        if known is not None:
            return known
        with self._waiting:
            told = await self._lines.join(name)
            if told is not Turn.LEAD:
                return told
            try:
                found = await self._ask(asked)
            except BaseException:
                self._give_up(asked)
                raise
        if found is Turn.LEAD:
            self._leading[name] = asked
        else:
            self._learn(name, found)
        return found

    async def _ask(self, asked: Asked) -> Found:
        answer: asyncio.Future[Found] = asyncio.get_running_loop().create_future()
        self._looks.put(_Look(asked, answer))
        return await answer

    def _learn(self, name: RequestName, found: Found) -> None:
        if not isinstance(found, InFlight):
            self._known.put(name, found)
        self._lines.tell(name, found)

    # -- the one that is sent ----------------------------------------------------------------------

    async def _lead(self, asked: Asked, attempt: Attempt, steps: Steps) -> Outcome:
        attempt.keep = Keep(*asked.name, asked.oldest_s)
        try:
            outcome = await steps(attempt)
        except BaseException:
            self._give_up(asked)
            raise
        match outcome:
            case Done(result) if len(result.body) <= ANSWER_BYTES_MAX:
                # the claim stays until it is settled, or its lease ends
                self._leading.pop(asked.name, None)
                self._learn(asked.name, result)
            # waiting for one another, they would fail one after the other
            case Done() | Dead() | Retry(counted=True):
                attempt.keep = None
                self._release(asked)
                self._learn(asked.name, Turn.ALONE)
            case _:
                self._give_up(asked)
        return outcome

    def _give_up(self, asked: Asked) -> None:
        """Let the next one here lead with the same claim, or any worker: it was not tried."""
        if not self._lines.pass_on(asked.name):
            self._release(asked)

    def _release(self, asked: Asked) -> None:
        self._leading.pop(asked.name, None)
        self._looks.put(_Look(asked, is_over=True))

    # -- the stores --------------------------------------------------------------------------------

    async def _look(self, group: Sequence[_Look]) -> None:
        asked = [
            one
            for one in group
            if not one.is_over and (one.answer is not None or one.asked.name in self._leading)
        ]
        released = [one.asked.name for one in group if one.is_over]
        look_up = partial(self._look_up, [one.asked for one in asked], released)
        try:
            found = await asyncio.get_running_loop().run_in_executor(self._thread, look_up)
        except Exception as error:
            self._failure_log.tell(
                "answers to equal requests cannot be looked up", error, "the requests are sent"
            )
            found = [Turn.LEAD] * len(asked)
        for one, told in zip(asked, found, strict=True):
            if one.answer is not None and not one.answer.done():
                one.answer.set_result(told)

    def _look_up(self, asked: Sequence[Asked], released: Sequence[RequestName]) -> list[Found]:
        """Look requests up, in the thread: one script call, and for answers one look into SQL."""
        told = self._book.ask(asked, released)
        wanted = [one for one in told if isinstance(one, ItemKey)]
        results = self._outcomes.stored_results(wanted) if wanted else {}
        return [_found(one, results) for one in told]

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(self._book.lease_s / RENEWALS_PER_LEASE)
            for asked in self._leading.values():
                self._looks.put(_Look(asked))


def _found(told: ItemKey | InFlight | None, results: dict[ItemKey, Result]) -> Found:
    """Return what is known; a result that is gone with its purged job is asked for again."""
    if told is None:
        return Turn.LEAD
    return results.get(told, Turn.LEAD) if isinstance(told, ItemKey) else told


def taken(attempt: Attempt, result: Result) -> Result:
    """Return the answer as this item's result, at no cost but that of earlier attempts."""
    spent = attempt.spent_in_all
    return structs.replace(
        result,
        key=attempt.key,
        prompt_tokens=spent.prompt_tokens or result.prompt_tokens,
        completion_tokens=spent.completion_tokens or result.completion_tokens,
        cost_microusd=spent.cost_microusd,
        latency_ms=0,
        attempts=attempt.number,
        calls=attempt.calls_in_all,
        reason="dedup" if result.key.job_id == attempt.key.job_id else "cache",
    )
