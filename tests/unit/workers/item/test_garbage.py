"""An item that has ended is freed at once: it leaves nothing that only the collector of cycles
would find."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, cast

import orjson
import pytest
from attempts import make_host

from penstock_producer.job.spec import JobSpec
from penstock_ratelimit.local import LocalLimiter
from penstock_ratelimit.quota import Quota
from penstock_ratelimit.rates import PerMinute
from penstock_workers.item.answer import Answer, NoAnswer, Tried
from penstock_workers.item.attempt import Attempt, Item, Settled
from penstock_workers.item.deliveries import Delivery
from penstock_workers.item.failures import TurnedAway
from penstock_workers.item.job_view import JobView
from penstock_workers.item.lane import Prepared, Request
from penstock_workers.item.outcome import Outcome, Skipped
from penstock_workers.lanes.api.admission import Costs, QuotaAdmission
from penstock_workers.settings import ProviderSettings

ITEMS = 200
GOOD = Answer(
    200,
    {},
    b'{"choices":[{"message":{"content":"x"}}],"usage":{"prompt_tokens":5,"completion_tokens":1}}',
    1,
)
PROVIDER = ProviderSettings(base_url="http://127.0.0.1:9/v1")


class Around:
    """What stands around a runner: a lane that answers in turn with each of ``answers``, and stores
    that keep nothing."""

    def __init__(self, answers: list[Tried]) -> None:
        self.answers, self.asked, self.settled = answers, 0, Counter[str]()

    def known(self, job_id: str, endpoint: str | None = None) -> JobView:
        return JobView(job_id, JobSpec(), PROVIDER, 1)

    async def prepare(self, request: Request) -> Prepared:
        return Prepared(request)

    async def infer(self, prepared: Prepared) -> Tried:
        self.asked += 1
        await asyncio.sleep(0)
        return self.answers[self.asked % len(self.answers)]

    async def begin(self, attempt: Attempt, *, sends: bool = False) -> None:
        if not self.answers:
            raise TurnedAway(Skipped("finished already"))
        attempt.begun = True

    async def vouch(self, item: Item, job: JobView | None, outcome: Outcome) -> Outcome:
        return outcome

    async def sure(self, *, anew: bool = False) -> None:
        """It is."""

    def started(self, delivery: Delivery) -> None:
        """Celery hears nothing."""

    def put(self, settled: Settled) -> None:
        if isinstance(settled.item, Attempt) and settled.item.place is not None:
            settled.item.place.leave()  # as the settler does once the outcome is stored
        self.settled[type(settled.outcome).__name__] += 1


@pytest.fixture
def cycles() -> Iterator[Callable[[], Counter[str]]]:
    """What only the collector would find from here on: types and how many of each."""
    gc.collect()
    gc.disable()
    gc.freeze()  # what was there before is not walked

    def found() -> Counter[str]:
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        return Counter(type(thing).__qualname__ for thing in gc.garbage)

    yield found
    gc.set_debug(0)
    gc.garbage.clear()
    gc.unfreeze()
    gc.enable()


def run(main: Callable[[], Awaitable[None]]) -> None:
    with asyncio.Runner() as runner:
        runner.run(cast(Any, main()))


@pytest.mark.parametrize(
    ("answers", "outcome"),
    [
        ([GOOD], "Done"),
        ([Answer(500, {}, b"{}", 1)], "Retry"),
        ([Answer(400, {}, b"{}", 1)], "Dead"),
        ([NoAnswer("timeout", "no complete answer within 1 s", 1)], "Retry"),
        ([], "Skipped"),  # turned away at begin
    ],
)
def test_items_that_have_ended_leave_nothing_to_collect(
    answers: list[Tried], outcome: str, cycles: Callable[[], Counter[str]]
) -> None:
    """However an item's call ended, its message, its request and its answer are freed with its last
    reference (E1)."""
    around = Around(answers)

    async def main() -> None:
        limiter = LocalLimiter([Quota("default", {"requests": PerMinute(1e9)})])
        admission = QuotaAdmission(limiter, Costs({"default": PROVIDER}))
        host = make_host(around, admission=admission, concurrency=ITEMS, pause_after_run=10 * ITEMS)

        async def items() -> None:
            for n in range(ITEMS):
                kwargs = {"v": 1, "job": "j", "gen": 1, "doc": str(n), "body": {"messages": []}}
                host.accept(Delivery(f"j:{n}", orjson.loads(orjson.dumps(kwargs)), {}))
            await asyncio.gather(*host._tasks.values())

        await items()
        around.settled.clear()
        cycles()  # what comes with the first items, once
        gc.garbage.clear()
        await items()
        left = cycles()
        assert around.settled == {outcome: ITEMS}
        assert not left, left
        await admission.close()

    run(main)
