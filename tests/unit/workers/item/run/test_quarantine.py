"""Suspects: how narrow their groups are, that no two lines run together, and that crashes have an
end."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from attempts import make_runner

from penstock_producer.job.spec import JobSpec
from penstock_workers.item.answer import Answer, NoAnswer, Tried
from penstock_workers.item.attempt import Attempt
from penstock_workers.item.deliveries import Delivery
from penstock_workers.item.job_view import JobView
from penstock_workers.item.lane import Prepared, Request
from penstock_workers.item.outcome import Dead, Done, Outcome
from penstock_workers.item.run.quarantine import (
    CRASHES_MAX,
    SUSPECT_AFTER_CRASHES,
    Cells,
    died_alone,
    line_of,
)
from penstock_workers.settings import ProviderSettings

GOOD = Answer(200, {}, b'{"choices":[{"message":{"content":"x"}}]}', 1)


class Books:
    """Counts starts as begin.lua and settle.lua do, and notes in which order."""

    def __init__(self, crashes: int) -> None:
        self.crashes, self.open = crashes, 0
        self.steps: list[str] = []

    async def begin(self, attempt: Attempt, *, sends: bool = False) -> None:
        self.open += 1
        self.steps.append("begin")
        attempt.begun, attempt.crashes = True, self.crashes

    async def take_back(self, attempt: Attempt) -> None:
        self.open -= 1
        self.steps.append("take back")
        attempt.begun = False


class Parts:
    """What stands around a runner, noting what it is asked for."""

    job: JobView

    def __init__(self, crashes: int, tried: Answer | None = GOOD) -> None:
        self.books, self.tried = Books(crashes), tried
        self.cells = Cells([64, 8, 1])

    def place(self, attempt: Attempt) -> Any:
        self.books.steps.append("wait apart" if not self.books.open else "wait, counted")
        return self.cells.place(line_of(attempt.crashes))

    async def infer(self, what: object, *apart: object) -> Tried:
        self.books.steps.append("infer apart" if apart else "infer")
        return self.tried or died_alone(self.books.crashes)

    async def prepare(self, request: Request) -> Prepared:
        return Prepared(request)

    def known(self, job_id: str, endpoint: str | None = None) -> JobView:
        return self.job

    def at_once(self, attempt: Attempt) -> None:
        """Never: the steps of waiting are what is looked at."""

    async def turn(self, attempt: Attempt, prepared: Prepared) -> Any:
        self.books.steps.append("admit" if not self.books.open else "admit, counted")
        return self

    def start(self) -> None: ...
    def conclude(self, tried: Answer | NoAnswer, happened: object) -> None: ...
    def release(self) -> None: ...
    async def sure(self, *, anew: bool = False) -> None: ...

    def started(self, delivery: Delivery) -> None: ...

    def may_retry(self, attempt: Attempt) -> bool:
        return True

    async def ready(self, attempt: Attempt) -> None:
        self.books.steps.append("ready")

    async def preprocess(self, attempt: Attempt) -> None:
        self.books.steps.append("preprocess, counted" if self.books.open else "preprocess")


async def outcome(parts: Parts, **spec: object) -> Outcome:
    parts.job = JobView("job", JobSpec.from_json(spec), ProviderSettings(), 1)
    runner = make_runner(parts, starts=parts.books)
    kwargs = {"v": 1, "job": "job", "gen": 1, "doc": "doc", "body": {}}
    return (await runner.run(Delivery("job:doc", kwargs, {}, queue="penstock.api"))).outcome


async def test_an_item_without_hooks_is_counted_once_when_its_turn_has_come() -> None:
    """The way that nearly every item takes: no more calls of Redis than before there was anything
    to isolate (A1)."""
    parts = Parts(crashes=0)
    assert isinstance(await outcome(parts), Done)
    assert parts.books.steps == ["admit", "begin", "infer"]


async def test_a_hook_before_the_call_runs_while_the_start_is_counted() -> None:
    """And waiting for a turn is not counted: no death is held against an item that only waits (A1,
    B7)."""
    parts = Parts(crashes=0)
    assert isinstance(await outcome(parts, preprocess="m:f"), Done)
    assert parts.books.steps == [
        "ready",
        "begin",
        "preprocess, counted",
        "take back",
        "admit",
        "begin",
        "infer",
    ]


async def test_a_suspect_waits_uncounted_and_is_tried_apart() -> None:
    """Its whole try is made in its group: hook, call and all (A1, A6)."""
    parts = Parts(SUSPECT_AFTER_CRASHES)
    assert isinstance(await outcome(parts, preprocess="m:f"), Done)
    assert parts.books.steps == [
        "ready",
        "begin",
        "take back",
        "wait apart",
        "ready",
        "begin",
        "preprocess, counted",
        "take back",
        "admit",
        "begin",
        "infer apart",
    ]


async def test_a_suspect_that_ends_its_process_is_a_dead_letter() -> None:
    """Found alone in a child (A1)."""
    ended = await outcome(Parts(SUSPECT_AFTER_CRASHES, tried=None))
    assert isinstance(ended, Dead)
    assert ended.letter.reason == "worker_crashed"


async def test_crashes_have_an_end() -> None:
    """What is started again and again without a conclusion is a dead letter before it runs,
    whatever a child says (A1, B7)."""
    parts = Parts(CRASHES_MAX)
    ended = await outcome(parts, preprocess="m:f")
    assert isinstance(ended, Dead)
    assert (ended.letter.reason, ended.letter.calls) == ("worker_crashed", 0)
    assert f"{CRASHES_MAX} times its worker died" in ended.letter.last_error
    assert parts.books.steps == ["ready", "begin"]


def test_groups_are_wide_until_deaths_from_outside_are_unlikely() -> None:
    """Two kills of a whole fleet cost no speed; who goes on crashing ends up alone before it is
    given up (A6)."""
    assert [line_of(crashes) for crashes in range(CRASHES_MAX)] == [0, 0, 0, 0, 1, 2, 2]


class Crowd:
    """Suspects who enter cells and stay until the test lets them leave."""

    def __init__(self, *widths: int) -> None:
        self.cells = Cells(widths)
        self.inside: list[int] = []
        self._leave = asyncio.Event()
        self.tasks: list[asyncio.Task[None]] = []

    async def come(self, line: int, number: int = 1) -> None:
        self.tasks += [asyncio.create_task(self._stay(line)) for _ in range(number)]
        await self.settle()

    async def _stay(self, line: int) -> None:
        async with self.cells.place(line):
            self.inside.append(line)
            await self._leave.wait()
            self.inside.remove(line)

    async def all_leave(self) -> None:
        leave, self._leave = self._leave, asyncio.Event()
        leave.set()
        await self.settle()

    @staticmethod
    async def settle() -> None:
        for _ in range(10):
            await asyncio.sleep(0)


@pytest.fixture
async def crowd() -> Any:
    made = Crowd(3, 2, 1)
    yield made
    for task in made.tasks:
        task.cancel()
    await asyncio.gather(*made.tasks, return_exceptions=True)


async def test_no_two_lines_run_together_and_each_has_its_turn(crowd: Crowd) -> None:
    """Whatever is under heavier suspicion cannot take others with it; a busy line does not shut out
    the next (A6)."""
    await crowd.come(0, 5)
    assert crowd.inside == [0, 0, 0]
    await crowd.come(2, 2)
    await crowd.come(1, 3)
    await crowd.all_leave()
    assert crowd.inside == [1, 1]
    await crowd.all_leave()
    assert crowd.inside == [2]
    await crowd.all_leave()
    assert crowd.inside == [0, 0]
    await crowd.all_leave()
    assert crowd.inside == [1]
    await crowd.all_leave()
    assert crowd.inside == [2]
    await crowd.all_leave()
    assert crowd.inside == []


async def test_a_suspect_that_is_given_up_leaves_no_hole(crowd: Crowd) -> None:
    """Cancelled while it waits, or inside: the next one comes in (A6)."""
    await crowd.come(2, 3)
    crowd.tasks[1].cancel()
    await crowd.settle()
    assert crowd.inside == [2]
    crowd.tasks[0].cancel()
    await crowd.settle()
    await crowd.all_leave()
    assert all(task.done() for task in crowd.tasks)
