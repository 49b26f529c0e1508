"""A worker of the batch lane that dies at every failpoint, in one process: each document has one
outcome, on both databases."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue
from typing import Any

import aiohttp
import pytest
from batch_house import House, Memory, NoControl, batch_house, good, quick
from batch_servers import CLOUDS
from lost_replies import some_answers_lost
from servers import RedisServer

from penstock_ledger import BatchState
from penstock_simulate import SimulatorConfig
from penstock_simulate.web import running
from penstock_workers import failpoints
from penstock_workers.failpoints import PLACES, Failpoint
from penstock_workers.lanes.batch import engine as engine_module
from penstock_workers.lanes.batch import leader
from penstock_workers.lanes.batch.apis import open_batches
from penstock_workers.lanes.batch.apis.http import Times
from penstock_workers.lanes.batch.apis.provider import BatchAnswer, BatchProvider, Unclear
from penstock_workers.lanes.batch.engine import BatchEngine
from penstock_workers.lanes.batch.records import NoQueue

DOCUMENTS, SIZE = 160, 5
COMMITS = ("before_commit", "after_commit", "after_settle")
PLACES_HERE = [place for place in PLACES if place.startswith("batch_") or place in COMMITS]
PRICE_MICROUSD = (10 * 100 + 5 * 200) // 2  # of one answer


class Dead(BaseException):
    """In place of SIGKILL: nothing that runs in this process takes it for an error and goes on."""


@pytest.fixture(params=["sqlite", "postgresql"])
def house(
    request: pytest.FixtureRequest,
    redis_server: RedisServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[House]:
    memory = Memory()
    quick(monkeypatch, memory)
    url = None if request.param == "sqlite" else request.getfixturevalue("migrated_url")
    with batch_house(redis_server.url, tmp_path, memory, url) as made:
        yield made


def without_the_dead(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """The task that died is asked by none how it ended. asyncio would log that whenever its memory
    is collected; Python 3.11 reads source files for that, and fails where it is reading another one
    just then."""
    if not isinstance(context.get("exception"), Dead):
        loop.default_exception_handler(context)


async def die_at(house: House, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run an engine until it comes to ``place``, and leave everything as it is then."""
    died, loop = asyncio.Event(), asyncio.get_running_loop()
    loop.set_exception_handler(without_the_dead)

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


async def test_a_death_at_every_failpoint_costs_nothing(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One after the other, in one job, beside lines that fail, a batch that expires and creates
    that seem to fail: nothing is submitted twice, no answer is lost, no batch is left open, and
    money is counted once."""
    memory = house.provider
    memory.expired = lambda nth: nth == 4

    def first_fails(name: str, nth: int) -> BatchAnswer | None:
        """In the first batch that has it, whichever that is: several are created side by side."""
        is_first = name == "d3" and not any(name in names for names in memory.names[:nth])
        return BatchAnswer(name, 500, b"{}") if is_first else good(name)

    memory.answer = first_fails
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
    assert {batch.tag for batch in journal if batch.created_at is not None} == set(tags), (
        "a batch belongs to nothing"
    )
    times = Counter(name for names in memory.names for name in names)
    again = {name for name, number in times.items() if number > 1}
    assert again == {*memory.names[4], "d3"}


async def test_commits_of_an_engine_that_are_not_answered(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A quarter of them: the engine packs, creates, collects and settles on, and nothing is
    submitted twice, counted twice or left open."""
    monkeypatch.setattr(leader, "FAULT_CAP_S", 0.05)
    job = house.submit(8 * SIZE, batch_max_requests=SIZE)
    with some_answers_lost(monkeypatch, 0.25, seed=5) as lost:
        counts = await house.all_settled(job)
    assert len(lost) >= 8, "answers were lost"
    assert (counts.succeeded, counts.dead) == (8 * SIZE, 0)
    assert counts.cost_microusd == 8 * SIZE * PRICE_MICROUSD
    tags = [batch.tag for batch in house.provider.made]
    assert len(tags) == len(set(tags)), "a batch was created twice"
    assert {batch.state for batch in house.store.of_job(job.job_id)} == {BatchState.SETTLED}
    assert max(Counter(name for names in house.provider.names for name in names).values()) == 1


OF_OTHERS: dict[str, dict[str, Any]] = {
    "anthropic": {"endpoint": "/v1/messages", "params": {"max_tokens": 20}},
    "gemini": {"endpoint": "/v1beta/generateContent"},
    "together": {},
    "mistral": {},
    "xai": {},
    "bedrock": {"endpoint": "/model/converse"},
    "vertex": {"endpoint": "/v1beta/generateContent"},
}
AROUND_CREATE = [
    "batch_before_create",
    "batch_after_create",
    "batch_created",
    "batch_before_settled",
]


@contextlib.contextmanager
def simulated_apart(config: SimulatorConfig) -> Iterator[str]:
    """In a loop of its own: what ends the tasks of an engine must not end the provider's."""
    url, loop, over = Queue[str](), asyncio.new_event_loop(), asyncio.Event()

    async def serve() -> None:
        async with running(config) as at:
            url.put(at)
            await over.wait()

    with ThreadPoolExecutor(1) as thread:
        server = thread.submit(loop.run_until_complete, serve())
        try:
            yield url.get(timeout=10)
        finally:
            loop.call_soon_threadsafe(over.set)
            server.result(timeout=10)
            loop.close()


@contextlib.asynccontextmanager
async def house_of(
    kind: str, redis_url: str, folder: Path, monkeypatch: pytest.MonkeyPatch, **faults: Any
) -> AsyncIterator[House]:
    """Whose provider is the simulated one, over HTTP, in the form of ``kind``.

    It takes one batch or two at a time."""
    opened: list[BatchProvider] = []

    def opens(name: str, settings: Any) -> BatchProvider:
        opened.append(open_batches(name, settings, Times(pause_s=0.01)))
        return opened[-1]

    memory, like = Memory(), kind if kind in ("together", "mistral", "xai") else None
    quick(monkeypatch, memory)
    monkeypatch.setattr(engine_module, "open_batches", opens)
    with simulated_apart(
        SimulatorConfig(batch_s=0.0, batch_step_s=0.0, batch_min_records=1, like=like, **faults)
    ) as url:
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", f"{url}/s3")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAOFACRASHTEST")
        monkeypatch.setenv("TOKEN_OF_A_TEST", "a token")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a secret")
        given: dict[str, Any] = {
            **CLOUDS.get(kind, {}),
            "api_key_env": "TOKEN_OF_A_TEST" if kind == "vertex" else None,
            "kind": "openai" if like else kind,
            "profile": like,
            "base_url": url,
            "batch_enqueued_tokens": 60,
        }
        with batch_house(redis_url, folder, memory, **given) as house:
            try:
                yield house
            finally:
                for one in opened:
                    await one.close()


@pytest.mark.parametrize("kind", ["openai", *OF_OTHERS])
async def test_a_provider_that_errs_for_a_while_is_paid_once(
    kind: str, redis_server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Polls that answer 403 and 404, uploads that fail, outputs that are not there yet and then too
    short: no document is submitted twice, in no dialect, and the job never pauses."""
    faults: dict[str, Any] = {
        "batch_look_403s": 1,
        "batch_look_404_s": 0.4,
        "batch_file_404_s": 0.4,
        "batch_short_reads": 2,
        "batch_no_upload_share": 0.5,
        "seed": 3,
    }
    async with house_of(kind, redis_server.url, tmp_path, monkeypatch, **faults) as house:
        house.set_batch(lost_after_s=20.0)
        job = house.submit(8, batch_max_requests=4, **OF_OTHERS.get(kind, {}))
        counts = await house.all_settled(job)
        url = house.settings.providers["default"].base_url.removesuffix("/v1")
        async with aiohttp.ClientSession(url) as client:
            twice = await (await client.get("/batches/requests?min_submitted=2")).json()
    assert (counts.succeeded, counts.dead, counts.calls) == (8, 0, 8)
    assert twice == {}
    left = {(one.unread, one.trouble, one.missing) for one in house.store.of_job(job.job_id)}
    assert left == {(None, None, None)}


@pytest.mark.parametrize("kind", OF_OTHERS)
async def test_deaths_around_a_create_submit_nothing_twice(
    kind: str, redis_server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the dialects that find their batches in another way than OpenAI's: by custom ids
    (Anthropic), a name (Gemini, xAI, Bedrock, Vertex AI), the file (Together), or in pages with numbers
    (Mistral)."""
    async with house_of(kind, redis_server.url, tmp_path, monkeypatch) as house:
        job = house.submit(12, batch_max_requests=1, **OF_OTHERS[kind])
        for place in AROUND_CREATE:
            await die_at(house, place, monkeypatch)
        counts = await house.all_settled(job)
        url = house.settings.providers["default"].base_url.removesuffix("/v1")
        async with aiohttp.ClientSession(url) as client:
            twice = await (await client.get("/batches/requests?min_submitted=2")).json()
            stats = await (await client.get("/stats")).json()
    assert (counts.succeeded, counts.dead) == (12, 0)
    assert twice == {}
    assert stats["batches"]["unread"] == 0
    assert sum(stats["batches"]["by_status"].values()) == 12
