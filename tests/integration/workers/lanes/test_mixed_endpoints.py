"""A file whose lines name several endpoints: each goes to its own, in every lane that can, and no
line costs another."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from batch_house import USAGE, House, Memory, batch_house, good, quick
from fleet import Fleet
from servers import RedisServer

from penstock_ledger import BatchState, OutcomeStore
from penstock_ledger.model import DeadLetter, Job, JobState, Result
from penstock_producer import Producer
from penstock_workers.lanes.batch.apis.provider import BatchAnswer

CHAT, EMBEDDINGS = "/v1/chat/completions", "/v1/embeddings"
TALK = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
TEXT = {"model": "m", "input": "some text"}


def line(doc: str, url: str, body: dict[str, Any]) -> str:
    return json.dumps({"custom_id": doc, "method": "POST", "url": url, "body": body}) + "\n"


def mixed(folder: Path) -> Path:
    """Two for the job's endpoint, three for another, and one for a path that is none."""
    source = folder / "mixed.jsonl"
    source.write_text(
        line("a", CHAT, TALK)
        + line("b", EMBEDDINGS, TEXT)
        + line("c", "/v1/files", TEXT)
        + line("d", CHAT, TALK)
        + line("e", EMBEDDINGS, TEXT)
        + line("f", EMBEDDINGS, TEXT)
    )
    return source


def outcome(producer: Producer, job: Job, doc: str) -> Result | DeadLetter | None:
    return OutcomeStore(producer._database).get(job.job_id, doc)


def endpoints(producer: Producer, job: Job) -> dict[str, str | None]:
    found = {doc: outcome(producer, job, doc) for doc in "abdef"}
    return {doc: None if one is None else one.endpoint for doc, one in found.items()}


NAMED = {"a": None, "b": EMBEDDINGS, "d": None, "e": EMBEDDINGS, "f": EMBEDDINGS}


@pytest.fixture(params=["sqlite", "postgresql"])
def house(
    request: pytest.FixtureRequest,
    redis_server: RedisServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[House]:
    url = None if request.param == "sqlite" else request.getfixturevalue("migrated_url")
    memory = Memory()
    quick(monkeypatch, memory)
    with batch_house(redis_server.url, tmp_path, memory, url) as made:
        yield made


async def test_batches_have_one_endpoint_each(house: House) -> None:
    """What fails keeps its endpoint: in the next batch, as a dead letter, and in its replay."""
    vectors = {
        "object": "list",
        "model": "m",
        "data": [{"index": 0, "embedding": [0.5]}],
        "usage": USAGE,
    }

    def answer(name: str, nth: int) -> BatchAnswer | None:
        if name == "b" and nth < 3:
            return BatchAnswer(name, 400 if nth == 2 else 500, b'{"error": {"message": "no"}}')
        return good(name) if name in "ad" else BatchAnswer(name, 200, json.dumps(vectors).encode())

    house.provider.answer = answer
    job = house.producer.submit(mixed(house.folder), {"lane": "batch", "max_bad_rows": 1})
    counts = await house.all_settled(job)
    assert (counts.succeeded, counts.dead_by_reason) == (4, {"invalid_url": 1, "bad_request": 1})
    asked = {
        (batch.endpoint, *sorted(names))
        for batch, names in zip(house.provider.made, house.provider.names, strict=True)
    }
    assert asked == {(CHAT, "a", "d"), (EMBEDDINGS, "b", "e", "f"), (EMBEDDINGS, "b")}
    assert endpoints(house.producer, job) == NAMED

    assert house.producer.replay(job.job_id, reason="bad_request") == 1
    async with house.working():
        await house.until(
            lambda: len(house.provider.made) == 4 and not house.store.open_of(job.job_id)
        )
    again = outcome(house.producer, job, "b")
    assert again is not None
    assert (again.key.generation, again.endpoint) == (2, EMBEDDINGS)
    assert house.provider.made[-1].endpoint == EMBEDDINGS
    assert {batch.state for batch in house.store.of_job(job.job_id)} == {BatchState.SETTLED}


def test_each_line_of_a_real_time_job_goes_to_its_url(tmp_path: Path) -> None:
    """Bodies above 16 KiB, which travel by reference, too; a replay asks the same endpoint
    again."""
    with Fleet(tmp_path) as fleet:
        fleet.provider.start()
        source = mixed(tmp_path)
        source.write_text(
            source.read_text() + line("g", EMBEDDINGS, TEXT | {"input": "long " * 5_000})
        )
        job = fleet.producer.submit(source, {"lane": "api", "max_bad_rows": 1})
        fleet.control()
        fleet.worker(lane="api")
        fleet.wait_for(job, JobState.COMPLETED, 60)
        assert endpoints(fleet.producer, job) == NAMED
        for doc, kind in {"a": "chat.completion", "b": "list", "g": "list"}.items():
            found = outcome(fleet.producer, job, doc)
            assert isinstance(found, Result)
            assert json.loads(found.body)["object"] == kind
        letter = json.loads(fleet.penstock("dlq", "show", job.job_id, "c", "--json"))
        assert letter["reason"] == "invalid_url"
        assert EMBEDDINGS in letter["last_error"]
        fleet.provider.tell(poison_rate=1.0)
        failed = fleet.producer.submit(source, {"lane": "api", "max_bad_rows": 1}, job_key="failed")
        fleet.wait_for(failed, JobState.COMPLETED, 60)
        assert fleet.producer.status(failed.job_id).counts.dead == 7
        fleet.provider.tell(poison_rate=0.0)
        assert fleet.producer.replay(failed.job_id, doc_ids=[*"abdefg"]) == 6
        fleet.wait_for(failed, JobState.COMPLETED, 60)
        assert endpoints(fleet.producer, failed) == NAMED
        again = outcome(fleet.producer, failed, "g")
        assert isinstance(again, Result)
        assert (again.key.generation, again.endpoint, json.loads(again.body)["object"]) == (
            2,
            EMBEDDINGS,
            "list",
        )


@pytest.mark.parametrize(("lane", "doc"), [("embed", "a"), ("gpu", "c")])
def test_a_lane_that_cannot_refuses_the_line_by_its_name(
    lane: str, doc: str, tmp_path: Path
) -> None:
    """And takes the others."""
    with Producer(database_url=f"sqlite:///{tmp_path}/ledger.db") as producer:
        job = producer.submit(
            mixed(tmp_path), {"lane": lane, "endpoint": EMBEDDINGS, "max_bad_rows": 3}
        )
        found = outcome(producer, job, doc)
        assert isinstance(found, DeadLetter)
        assert found.reason == "invalid_url"
        if lane == "embed":
            assert "Lane embed does not answer /v1/chat/completions" in found.last_error
        assert producer.status(job.job_id).counts.dead == (3 if lane == "embed" else 1)
