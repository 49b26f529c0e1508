"""Several models in one fleet: each job is answered by its model, whatever else runs in the
lane."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from fleet import Fleet, Process, until
from metrics_page import scrape, value
from played_vllm import PlayedVllm
from servers import free_port

from penstock_ledger.keys import unacked, unacked_index
from penstock_ledger.model import ItemKey, Job, JobState
from penstock_producer.feed.queues import queue_name
from penstock_producer.feed.wire import encode_item

DOCUMENTS = 300
WORK_S = 60.0


class House:
    """A fleet, and servers that play vLLM for its gpu workers."""

    first: PlayedVllm
    second: PlayedVllm
    port: int  # of the control loop's metrics

    def __init__(self, fleet: Fleet, exits: ExitStack) -> None:
        self.fleet = fleet
        self._exits = exits

    def server(self, model: str, *adapters: str) -> PlayedVllm:
        return self._exits.enter_context(PlayedVllm(model, *adapters))

    def worker(self, server: PlayedVllm, **settings: object) -> Process:
        return self.fleet.worker(16, lane="gpu", gpu__upstream_url=server.url, **settings)

    def submit(self, key: str, model: str | None, documents: int = DOCUMENTS) -> Job:
        return self.fleet.submit(documents, key=key, lane="gpu", model=model)

    def answers(self, job: Job) -> dict[str, int]:
        """How many of a job's documents each model has answered, by what the answers say."""
        found: dict[str, int] = {}
        for result in self.fleet.producer.results(job.job_id):
            said = json.loads(result.body)["choices"][0]["message"]["content"]
            found[said] = found.get(said, 0) + 1
        return found


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """One fleet for all tests, in their order: it starts with one model, and the first test adds
    the other."""
    with ExitStack() as exits, Fleet(tmp_path_factory.mktemp("models")) as fleet:
        house = House(fleet, exits)
        house.port = free_port()
        fleet.control(metrics_port=house.port)
        house.first = house.server("tiny1")
        fleet.ready(house.worker(house.first))
        yield house


def test_a_model_that_comes_late_is_waited_for(house: House) -> None:
    """Documents of a model that no worker serves wait uncounted, and `status` and `submit` say so;
    its worker answers them all when it comes. A job without a model stays with the one that began
    to answer it."""
    fleet = house.fleet
    unnamed = fleet.producer.open_job(Fleet.spec(lane="gpu", model=None), job_key="unnamed")
    unnamed.enqueue("before", {"id": "before", "text": "x"})
    unnamed.flush()
    late = house.submit("late", "org/tiny2")
    client = fleet.store.client()
    until(lambda: client.llen(queue_name("gpu", "org/tiny2")) > 0, 20, "it is fed")
    fleet.wait_for_outcomes(unnamed.job, 1)
    assert "no worker serves org/tiny2; served here: tiny1 (1 worker)" in fleet.penstock(
        "status", "late"
    )
    assert fleet.finished(late) == 0

    house.second = second = house.server("org/tiny2", "legal")
    second.loads = True
    worker = house.worker(second, gpu__names='["org/tiny2"]')
    place = second.url.removeprefix("http://").removesuffix("/v1")
    loading = f"loading in 1 worker: waiting for the model of {place}"
    until(lambda: loading in fleet.penstock("status", "late"), 30, "the load is shown (H14)")
    assert (
        "no worker serves org/tiny2 yet, and a worker loads it; served here: tiny1"
        in fleet.penstock("status", "late")
    )
    assert "loading in 1 worker" in fleet.penstock(
        "doctor", "--accept", "database", "--accept", "aof"
    )
    assert worker.popen.pid not in fleet.heard_of()
    assert fleet.finished(late) == 0
    second.loads = False
    fleet.ready(worker)
    unnamed.enqueue("after", {"id": "after", "text": "x"})
    unnamed.close()
    for job in (unnamed.job, late):
        fleet.wait_for(job, JobState.COMPLETED, WORK_S)
    assert house.answers(unnamed.job) == {"tiny1 answers": 2}
    assert house.answers(late) == {"org/tiny2 answers": DOCUMENTS}
    said = fleet.penstock("status", "late")
    assert "no worker serves" not in said
    assert "loading in" not in said


def test_each_job_is_answered_by_its_model(house: House) -> None:
    """300 items of each model, and of an adapter, go to the worker that has it: none is refused,
    none is tried twice (H3)."""
    fleet, first, second = house.fleet, house.first, house.second
    before = first.answered | second.answered
    jobs = {
        name: house.submit(f"job-of-{name[-5:]}", name) for name in ("tiny1", "org/tiny2", "legal")
    }
    for job in jobs.values():
        fleet.wait_for(job, JobState.COMPLETED, WORK_S)
    assert [house.answers(job) for job in jobs.values()] == [
        {"tiny1 answers": DOCUMENTS},
        {"org/tiny2 answers": DOCUMENTS},
        {"org/tiny2 answers": DOCUMENTS},
    ]
    assert (first.answered | second.answered) - before == dict.fromkeys(jobs, DOCUMENTS)
    assert (first.refused, second.refused) == ({}, {})
    assert all(fleet.counters(job)["calls"] == DOCUMENTS for job in jobs.values())


def test_what_an_earlier_release_fed_is_drained(house: House) -> None:
    """Items in the lane's own queue go to the worker of the model that each names, uncounted,
    whichever worker claims them."""
    fleet, client, number = house.fleet, house.fleet.store.client(), 80
    job = house.submit("older", "no-such-model", number)
    queue, lane = queue_name("gpu", "no-such-model"), queue_name("gpu")
    until(lambda: client.llen(queue) == number, 20, "the job is fed")
    client.delete(queue)
    for at in range(number):
        model = ("tiny1", "org/tiny2")[at % 2]
        body = json.dumps({"model": model, "messages": [{"role": "user", "content": "x"}]}).encode()
        client.lpush(
            lane, encode_item(ItemKey(job.job_id, 1, f"doc-{at}"), queue=lane, body=body, ref=None)
        )
    fleet.wait_for(job, JobState.COMPLETED, WORK_S)
    fleet.account(job, number)
    assert house.answers(job) == {"tiny1 answers": number // 2, "org/tiny2 answers": number // 2}
    assert {result.attempts for result in fleet.producer.results(job.job_id)} == {1}
    assert (house.first.refused, house.second.refused) == ({}, {})


def test_a_document_that_its_model_cannot_answer_goes_on_to_another_models_worker(
    house: House,
) -> None:
    """`fallback` across workers: each document has one outcome, what both servers were asked is
    counted, and no attempt is."""
    fleet, first, second = house.fleet, house.first, house.second
    second.delay_s, first.longest = 0.0, 600
    source = fleet.folder / "mixed.jsonl"
    rows = [{"id": f"doc-{n}", "text": "word " * (200 if n % 3 == 0 else 2)} for n in range(90)]
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    before = second.answered["legal"]
    job = fleet.producer.submit(
        source, fleet.spec(lane="gpu", model="tiny1", fallback=["legal"]), job_key="mixed"
    )
    fleet.wait_for(job, JobState.COMPLETED, WORK_S)
    assert fleet.account(job, 90).dead == {}
    assert house.answers(job) == {"tiny1 answers": 60, "org/tiny2 answers": 30}
    assert second.answered["legal"] - before == 30
    assert {result.attempts for result in fleet.producer.results(job.job_id)} == {1}
    first.longest = None
    counted = fleet.counters(job)
    assert (counted["calls"], counted["fallbacks"], counted["prompt_tokens"]) == (120, 30, 90 * 3)


def test_a_job_without_a_model_is_not_answered_by_chance(house: House) -> None:
    """While several models are served such a job is paused, and its reason names them."""
    fleet = house.fleet
    torn = house.submit("torn", None, 20)
    fleet.wait_for(torn, JobState.PAUSED, WORK_S)
    reason = fleet.producer.status(torn.job_id).job.reason or ""
    assert "serve several: org/tiny2 (1 worker; adapters legal), tiny1 (1 worker)" in reason
    assert fleet.finished(torn) == 0


def test_what_the_last_worker_of_a_model_held_comes_back(house: House) -> None:
    """Items that a worker held when it died return to their queue though no worker of that model is
    left to sweep them."""
    client = house.fleet.store.client()
    house.submit("held", "gone", 5)
    queue = queue_name("gpu", "gone")
    until(lambda: client.llen(queue) == 5, 20, "it is fed")
    raw = client.rpop(queue)
    assert isinstance(raw, bytes)
    tag = json.loads(raw)["properties"]["delivery_tag"]
    client.hset(unacked(queue), tag, f'[{raw.decode()},"","{queue}"]')
    client.zadd(unacked_index(queue), {tag: 1.0})
    until(lambda: client.hlen(unacked(queue)) == 0, 20, "what the dead held is back")
    assert client.llen(queue) == 5


def test_metrics_say_what_waits_for_which_model(house: House) -> None:
    """By queue: messages, and workers that take them; and how many wait for a model that no worker
    serves."""
    until(
        lambda: value(scrape(house.port), "penstock_unserved_items", lane="gpu") == 5,
        30,
        "the figures were read",
    )
    page, gone = scrape(house.port), queue_name("gpu", "gone")
    assert value(page, "penstock_model_queue_depth", lane="gpu", queue=gone) == 5
    assert value(page, "penstock_model_unacked", lane="gpu", queue=gone) == 0
    assert value(page, "penstock_model_workers", lane="gpu", queue=gone) == 0
    assert value(page, "penstock_model_workers", lane="gpu", queue=queue_name("gpu", "legal")) == 1
    assert value(page, "penstock_queue_depth", lane="gpu") >= 5


def test_commands_say_what_is_served_and_what_waits(house: House) -> None:
    """`doctor` lists the models and the jobs that wait for one; `submit` warns of a model that no
    worker serves, and refuses a prompt without a model where several are served."""
    fleet = house.fleet
    said = fleet.penstock("doctor", "--accept", "database", "--accept", "aof")
    assert "lane gpu serves org/tiny2 (1 worker; adapters legal), tiny1 (1 worker)" in said
    assert "job held: no worker serves gone" in said
    prompt = ("submit", str(fleet.source(3)), "--lane", "gpu", "--prompt", "{text}")
    warned = fleet.run(*prompt, "--model", "missing", "--job", "warned")
    assert warned.returncode == 0
    assert (
        "no worker serves missing; served here: org/tiny2 (1 worker; adapters legal), tiny1 (1 worker)"
        in warned.stderr
    )
    refused = fleet.run(*prompt, "--job", "refused")
    assert refused.returncode != 0
    assert "serve several models" in refused.stderr
    assert "name one with --model" in refused.stderr


def test_a_server_that_gets_another_model_is_followed(house: House) -> None:
    """Whatever a server serves while its worker runs is announced and answered; what names a model
    that it had waits uncounted, and is answered when that one is back."""
    fleet, server = house.fleet, house.second
    server.delay_s = 0.05
    torn = house.submit("torn-apart", "legal", 150)
    fleet.wait_for_outcomes(torn, 20)
    server.model, server.adapters = "after", ("new",)
    for name in ("after", "new"):
        fleet.wait_for(house.submit(f"of-{name}", name, 50), JobState.COMPLETED, WORK_S)
    assert (
        "no worker serves legal; served here: after (1 worker; adapters new), tiny1"
        in fleet.penstock("status", "torn-apart")
    )
    assert 20 <= fleet.finished(torn) < 150

    server.model, server.adapters = "org/tiny2", ("legal",)
    fleet.wait_for(torn, JobState.COMPLETED, WORK_S)
    assert house.answers(torn) == {"org/tiny2 answers": 150}
    assert {result.attempts for result in fleet.producer.results(torn.job_id)} == {1}


def test_strangers_in_the_heartbeats_harm_no_reader(house: House) -> None:
    """Whatever stands where workers announce themselves, the fleet is fed, and `status` and its
    sentences stay right."""
    fleet = house.fleet
    client: Any = fleet.store.client()
    now = float(client.time()[0])
    strange: list[dict[Any, Any]] = [
        {"lane": "gpu", "concurrency": "many", "serves": "["},
        {
            "lane": "gpu",
            "concurrency": "9" * 400,
            "serves": json.dumps({"names": [{}, 7, "\x1b[2J", "x" * 9_999]}),
        },
        {"lane": b"\xff\xfe", b"\xff": b"\xfe", "serves": b"\xff"},
        {"lane": "gpu", "serves": "x" * 100_000},
    ]
    for number, fields in enumerate(strange):
        client.hset(f"penstock:worker:strange-{number}", mapping=fields)
    client.set("penstock:worker:strange-list", "no hash")
    names = [b"\xff", "strange-list", *(f"strange-{number}" for number in range(len(strange)))]
    client.zadd("penstock:workers", dict.fromkeys(names, now))
    client.zadd(
        "penstock:queues:penstock.gpu", {b"\xff": now, "unacked": now, "penstock.gpu.a b": now}
    )
    job = house.submit("among-strangers", "tiny1", 50)
    fleet.wait_for(job, JobState.COMPLETED, WORK_S)
    assert house.answers(job) == {"tiny1 answers": 50}
    assert (
        "no worker serves gone; served here: org/tiny2 (1 worker; adapters legal), tiny1 (1 worker)"
        in fleet.penstock("status", "held")
    )


def test_documents_that_have_gone_on_to_a_model_that_no_worker_serves_are_told(
    house: House,
) -> None:
    """`submit` warns of it, and `status` says what they wait for, as long as they do."""
    fleet = house.fleet
    house.first.longest = 600
    source = fleet.folder / "long.jsonl"
    source.write_text(json.dumps({"id": "a", "text": "word " * 200}) + "\n")
    asked = (
        "submit",
        str(source),
        "--lane",
        "gpu",
        "--prompt",
        "{text}",
        "--model",
        "tiny1",
        "--job",
        "astray",
    )
    warned = fleet.run(*asked, "--fallback", "nowhere")
    assert warned.returncode == 0, warned.stderr
    assert (
        "no worker serves nowhere; served here: org/tiny2 (1 worker; adapters legal), tiny1"
        in warned.stderr
    )
    assert "Documents that go on to it wait for one" in warned.stderr
    waits = "no worker serves the models of queue penstock.gpu.nowhere; served here: org/tiny2"
    until(lambda: waits in fleet.penstock("status", "astray"), 30, "status says what it waits for")
