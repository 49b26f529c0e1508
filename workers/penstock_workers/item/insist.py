"""Write a group until the store has it; what the store will never take is looked for in the group, and set apart.

Giving up would throw away answers that are paid for. Repeating what is refused for good would hold up everything behind
it for ever. So an outage is waited for, and a refused group is halved until the culprit is alone.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Generic, NamedTuple, TypeVar

from penstock_ledger import Trouble, in_words, trouble_of
from penstock_ratelimit import full_jitter
from penstock_workers.failure_log import FailureLog

RETRY_FIRST_S = 0.2

T = TypeVar("T")
R = TypeVar("R")


class Waiting(NamedTuple):
    """A store that does not take what it should, as told by its latest failure."""

    store: str
    trouble: Trouble
    words: str  # its class and first line
    since: float  # monotonic seconds of the first failure in a row
    failures: int  # in a row
    failed_at: float  # monotonic seconds of the latest


class Written(NamedTuple, Generic[T, R]):
    """What became of a group: the parts that were written, with their answers, and what was refused for good."""

    parts: list[tuple[Sequence[T], R]]
    refused: list[tuple[T, Exception]]


class Insistence:
    """One store's writer. Belongs to an event loop; the store is asked on ``thread``.

    ``waiting`` says what it waits for: written on the loop, read by any thread.
    """

    def __init__(self, store: str, thread: Executor, failure_log: FailureLog, *, cap_s: float) -> None:
        self.store = store
        self.waiting: Waiting | None = None
        self.refusals = 0  # things that the store will never take
        self.failures = 0  # tries that failed and were repeated
        self._thread = thread
        self._failure_log = failure_log
        self._cap_s = cap_s

    async def write(self, do: Callable[[Sequence[T]], R], group: Sequence[T]) -> Written[T, R]:
        """Everything of ``group`` is written, or refused for good, when this returns."""
        written: Written[T, R] = Written([], [])
        rest = [group] if group else []
        while rest:
            part = rest.pop()
            try:
                written.parts.append((part, await self._until_answered(do, part)))
            except Exception as error:
                if len(part) == 1:
                    self.refusals += 1
                    written.refused.append((part[0], error))
                else:
                    middle = len(part) // 2
                    rest += [part[middle:], part[:middle]]
        return written

    async def _until_answered(self, do: Callable[[Sequence[T]], R], part: Sequence[T]) -> R:
        """Raises what the store answers to a part that it will never take."""
        while True:
            try:
                answer = await asyncio.get_running_loop().run_in_executor(self._thread, do, part)
            except Exception as error:
                if trouble_of(error) is Trouble.REFUSED:
                    self.waiting = None
                    raise
                await self._wait(error, len(part))
            else:
                self.waiting = None
                return answer

    async def _wait(self, error: Exception, number: int) -> None:
        now = time.monotonic()
        failures, since = (0, now) if self.waiting is None else (self.waiting.failures, self.waiting.since)
        wait_s = full_jitter(failures, base_s=RETRY_FIRST_S, cap_s=self._cap_s)
        self.failures += 1
        self.waiting = Waiting(self.store, trouble_of(error), in_words(error), since, failures + 1, now)
        self._failure_log.tell(
            f"{self.store} does not take what it is told of items",
            error,
            f"{number} items wait here, next try in {wait_s:.1f} s",
        )
        await asyncio.sleep(wait_s)
