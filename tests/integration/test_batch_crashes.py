"""A worker of the batch lane that dies at every failpoint, in one process: each document has one outcome, on both databases."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from batch_house import House, Memory, NoControl, batch_house, good, quick
from servers import RedisServer

from penstock_ledger import BatchState
from penstock_workers import failpoints
from penstock_workers.failpoints import PLACES, Failpoint
from penstock_workers.lanes.batch.engine import BatchEngine
from penstock_workers.lanes.batch.provider import BatchAnswer, Unclear
from penstock_workers.lanes.batch.records import NoQueue

DOCUMENTS, SIZE = 160, 5
COMMITS = ("before_commit", "after_commit", "after_settle")
PLACES_HERE = [place for place in PLACES if place.startswith("batch_") or place in COMMITS]
PRICE_MICROUSD = (10 * 100 + 5 * 200) // 2  # of one answer


class Dead(BaseException):
    """In place of SIGKILL: nothing that runs in this process takes it for an error and goes on."""


@pytest.fixture(params=["sqlite", "postgresql"])
def house(
    request: pytest.FixtureRequest, redis_server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[House]:
    memory = Memory()
    quick(monkeypatch, memory)
    url = None if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    with batch_house(redis_server.url, tmp_path, memory, url) as made:
        yield made


async def die_at(house: House, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run an engine until it comes to ``place``, and leave everything as it is then."""
    died, loop = asyncio.Event(), asyncio.get_running_loop()

    def act(_: Failpoint) -> None:
        loop.call_soon_threadsafe(died.set)
        raise Dead

    monkeypatch.setattr(failpoints, "_act", act)
    settings = house.settings.model_copy(update={"failpoints": f"{place}:kill"})
    engine = BatchEngine(settings, lambda settings: contextlib.nullcontext(NoControl()))
    before = asyncio.all_tasks()
    await engine.start(NoQueue())
    async with asyncio.timeout(20):
        await died.wait()
    tasks = asyncio.all_tasks() - before
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    engine._closing.close()


async def test_a_death_at_every_failpoint_costs_nothing(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """One after the other, in one job, beside lines that fail, a batch that expires and creates that seem to fail: nothing is
    submitted twice, no answer is lost, no batch is left open, and money is counted once."""
    memory = house.provider
    memory.expired = lambda nth: nth == 4
    memory.answer = lambda name, nth: BatchAnswer(name, 500, b"{}") if (name, nth) == ("d3", 0) else good(name)
    memory.works_all_the_same, memory.errors = True, {"create": [Unclear("500")] * 3}
    job = house.submit(DOCUMENTS, batch_max_requests=SIZE, max_attempts=5)
    for place in PLACES_HERE:
        await die_at(house, place, monkeypatch)
    counts = await house.all_settled(job)
    assert (counts.succeeded, counts.dead) == (DOCUMENTS, 0)
    assert counts.cost_microusd == DOCUMENTS * PRICE_MICROUSD
    tags = [batch.tag for batch in memory.made]
    assert len(tags) == len(set(tags)), "a batch was created twice"
    journal = house.store.of_job(job.job_id)
    assert {batch.state for batch in journal} == {BatchState.SETTLED}
    assert {batch.tag for batch in journal if batch.created_at is not None} == set(tags), "a batch belongs to nothing"
    times = Counter(name for names in memory.names for name in names)
    again = {name for name, number in times.items() if number > 1}
    assert again == {*memory.names[4], "d3"}
