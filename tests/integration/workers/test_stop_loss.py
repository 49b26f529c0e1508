"""The stop-loss against real stores, through every door, in a real fleet and in real runs against
the simulated provider."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
from attempts import make_attempt
from celery import Celery
from doors import door
from fleet import Fleet, until
from jobs_api import Client, settings_with_roots, submitted
from machine import Machine, simulator
from servers import RedisServer
from sqlalchemy import update

from penstock_gateway.batches.specs import asked_in, metadata_of
from penstock_ledger import (
    Database,
    JobNotFound,
    JobStore,
    NewJob,
    RedisLedger,
    SettleBatch,
    SettledRetry,
    open_database,
)
from penstock_ledger.model import DeadLetter, ItemKey, JobState
from penstock_ledger.reasons import Accepted, By, Reason, StopCode, explain
from penstock_ledger.sql.tables import jobs
from penstock_ledger.stores.outcomes import OutcomeStore
from penstock_producer import JobSpec, Producer, ProducerSettings
from penstock_producer.reporting.reasons import FIRST
from penstock_workers.control.feeding import FED
from penstock_workers.item.attempt import Attempt, Settled
from penstock_workers.item.outcome import Dead, Retry
from penstock_workers.item.settling.rows import settled_dead, settled_retry
from penstock_workers.item.settling.stop_loss import StopLoss, is_refused_first

WORK_S: Final = 60.0
BOUNDS: Final[dict[str, Any]] = {
    "stop_at_dead": "30%",
    "stop_at_usd_per_doc": 0.5,
    "max_prompt_tokens": 9_000,
}
SCHEMA: Final = {
    "type": "object",
    "required": ["label"],
    "properties": {"label": {"type": "string"}},
}


class House:
    """Both stores of a job, and a worker's part that looks after its stop-loss."""

    def __init__(self, database: Database, server: RedisServer) -> None:
        self.database, self.jobs = database, JobStore(database)
        self.client = server.client()
        self.hot = RedisLedger(self.client, "epoch")
        self.stop_loss = StopLoss(self.jobs, self.hot)

    def submit(self, name: str = "job", **spec: Any) -> str:
        stored = JobSpec(**spec).to_json()
        self.jobs.create(NewJob(name, name, stored, {"kind": "file"}, name, 1_000))
        return name

    def settle(
        self,
        job_id: str,
        documents: range,
        *,
        refused: bool,
        generation: int = 1,
        awaited: bool = False,
    ) -> None:
        """So many first answers come: each is refused and tried again, or the document is a dead
        letter."""
        group = list[Settled]()
        for number in documents:
            made = make_attempt(f"doc-{number}", job_id=job_id, generation=generation)
            made.begun, made.calls = True, 1
            made.job = replace(made.job, awaited=awaited)
            outcome: Retry | Dead = Retry(
                60.0, "schema_mismatch", "the answer is\nno \ud83d \0 JSON"
            )
            if not refused:
                outcome = Dead(
                    DeadLetter(made.key, "bad_request", 1, 1, "it is bad", 400, b"{}", None)
                )
            group.append(Settled(made, outcome))
        report = self.hot.settle(
            SettleBatch(
                dead=[
                    settled_dead(one, what.letter, refused_first=is_refused_first(one, what))
                    for one, what in group
                    if isinstance(one, Attempt) and isinstance(what, Dead)
                ],
                retries=[
                    settled_retry(one, what, "q", refused_first=is_refused_first(one, what))
                    for one, what in group
                    if isinstance(one, Attempt) and isinstance(what, Retry)
                ],
            )
        )
        self.stop_loss.look(group, report.lately)


@pytest.fixture
def house(either: Database, redis_server: RedisServer) -> Iterator[House]:
    made = House(either, redis_server)
    made.client.flushall()
    yield made
    made.client.close()


def test_a_job_is_paused_with_the_group_that_shows_it(house: House) -> None:
    """After 99 refused first answers it runs; with the hundredth it is paused in both stores, and
    says what, why and which."""
    job_id = house.submit()
    house.settle(job_id, range(99), refused=True)
    assert house.jobs.get(job_id).state is JobState.RUNNING
    house.settle(job_id, range(99, 100), refused=True)
    job = house.jobs.get(job_id)
    assert (job.state, house.client.get(f"penstock:{job_id}:state")) == (JobState.PAUSED, b"paused")
    assert job.pause is not None
    assert (job.pause.code, job.pause.by, job.reason) == (
        StopCode.MISSED,
        By.STOP_LOSS,
        explain(job.pause),
    )
    params = job.pause.params
    assert (params["bad"], params["of"], params["cause"]) == (
        100,
        100,
        {"reason": "schema_mismatch", "count": 100},
    )
    assert [one["doc_id"] for one in params["examples"]] == ["doc-97", "doc-98", "doc-99"]
    assert all("\n" not in one["excerpt"] for one in params["examples"])


def test_a_job_that_goes_on_stops_only_where_it_gets_worse(house: House) -> None:
    """What it was paused for is in its row when a person lets it go on; that its documents are dead
    letters then is no news, and a process that starts later knows it. A new generation begins
    anew."""
    job_id = house.submit()
    house.settle(job_id, range(100), refused=True)
    assert house.jobs.set_state(job_id, JobState.RUNNING, expect={JobState.PAUSED})
    job = house.jobs.get(job_id)
    assert (job.pause, job.accepted) == (None, Accepted(1, 1.0, 0.0))
    house.stop_loss = StopLoss(house.jobs, house.hot)
    house.settle(job_id, range(100, 300), refused=True)
    house.settle(job_id, range(300, 700), refused=False)
    assert house.jobs.get(job_id).state is JobState.RUNNING
    house.settle(job_id, range(100), refused=True, generation=2)
    assert house.jobs.get(job_id).state is JobState.PAUSED


def test_other_bounds_count_at_once(house: House) -> None:
    """A stop-loss that was switched off while the job runs stops nothing, though workers keep what
    they have read of a spec."""
    job_id = house.submit()
    house.settle(job_id, range(50), refused=False)
    job = house.jobs.get(job_id)
    assert house.jobs.amend(job_id, job.spec | {"stop_at_dead": "off"}, "other", expect=job.digest)
    house.settle(job_id, range(50, 400), refused=False)
    assert house.jobs.get(job_id).state is JobState.RUNNING


def test_callers_who_wait_do_not_stop_one_another(house: House) -> None:
    """The calls of all callers of an endpoint are one job: the bad requests of one of them pause
    nothing."""
    job_id = house.submit()
    house.settle(job_id, range(300), refused=False, awaited=True)
    assert house.jobs.get(job_id).state is JobState.RUNNING


def test_a_release_without_the_column_pauses_and_resumes(house: House) -> None:
    """Its reason is what counts then; and a job that it let go on has accepted what it was paused
    for."""
    job_id = house.submit()
    house.settle(job_id, range(100), refused=True)
    old = update(jobs).where(jobs.c.job_id == job_id)
    house.database.write(
        lambda connection: connection.execute(old.values(state="running", reason=None))
    )
    assert house.jobs.get(job_id).accepted == Accepted(1, 1.0, 0.0)
    house.database.write(
        lambda connection: connection.execute(old.values(state="paused", reason="out_of_credit: x"))
    )
    job = house.jobs.get(job_id)
    assert job.pause is not None
    assert (job.pause.code, job.reason) == ("out_of_credit", "out_of_credit: x")


def test_settling_a_group_again_counts_nothing_twice(house: House) -> None:
    """A worker that died between the stores repeats its group: the window has each document
    once."""
    again = SettledRetry(ItemKey("job", 1, "doc"), 1, "q", "tag", b"{}", 60.0, refused_first=True)
    house.hot.settle(SettleBatch(retries=[again]))
    report = house.hot.settle(SettleBatch(retries=[again]))
    assert report.lately == {}
    assert house.client.hget("penstock:job:1:lately", "missed") == b"1"


def test_the_window_slides(house: House) -> None:
    """Of many good documents the oldest are forgotten: five hundred bad ones stop a job, however
    long it went well."""
    job_id = house.submit()
    house.client.hset(f"penstock:{job_id}:1:earlier", mapping={"ended": 500})
    house.settle(job_id, range(499), refused=False)
    assert house.jobs.get(job_id).state is JobState.RUNNING
    house.settle(job_id, range(499, 500), refused=False)
    assert house.jobs.get(job_id).state is JobState.PAUSED


def through_producer(folder: Path) -> dict[str, Any]:
    source = folder / "rows.jsonl"
    source.write_text('{"id": "a", "text": "b"}\n')
    with Producer(ProducerSettings(database_url=f"sqlite:///{folder}/ledger.db")) as producer:
        return producer.submit(source, {"model": "m", "prompt": "{text}", **BOUNDS}).spec


def through_http(folder: Path) -> dict[str, Any]:
    settings = settings_with_roots(folder)
    with door(settings) as url:
        api = Client(url)
        job = submitted(api, settings, **BOUNDS)
        spec: dict[str, Any] = api.get(f"/v1/jobs/{job['id']}").json["spec"]
        return spec


def through_metadata(folder: Path) -> dict[str, Any]:
    """Of an OpenAI batch: texts, as all metadata."""
    return JobSpec(
        **asked_in(metadata_of({f"penstock.{name}": str(value) for name, value in BOUNDS.items()}))
    ).to_json()


@pytest.mark.parametrize("through", [through_producer, through_http, through_metadata])
def test_every_door_takes_the_bounds(
    tmp_path: Path, through: Callable[[Path], dict[str, Any]]
) -> None:
    """The command line and job spec files have all fields of a spec, and Celery's tasks take a spec
    as the producer does."""
    spec = through(tmp_path)
    assert {name: spec[name] for name in BOUNDS} == BOUNDS


def test_http_and_the_page_show_the_pause_and_what_to_do(tmp_path: Path) -> None:
    """The job object has it as data with its sentence, and the change that helps is one that PATCH
    takes; the job's page has the examples. A resumed job has none of it."""
    settings = settings_with_roots(tmp_path)
    with door(settings) as url:
        api = Client(url)
        job_id = submitted(api, settings)["id"]
        database = open_database(settings.database_url)
        example = {"doc_id": "doc-7", "reason": "schema_mismatch", "excerpt": "<b>no JSON</b>"}
        params = {
            "generation": 1,
            "bad": 80,
            "of": 100,
            "failing": 0.8,
            "usd_per_doc": 0.0,
            "bound": 50.0,
            "examples": [example],
            "cause": {"reason": "schema_mismatch", "count": 80},
        }
        pause = Reason(StopCode.MISSED, By.STOP_LOSS, params)
        JobStore(database).set_state(job_id, JobState.PAUSED, why=pause, expect={JobState.RUNNING})
        shown = api.get(f"/v1/jobs/{job_id}").json["pause"]
        assert {name: shown[name] for name in ("code", "by", "params")} == pause.to_json()
        assert shown["message"] == explain(pause)
        changes = [one["change"] for one in shown["advice"] if one["change"]]
        assert changes == [{"stop_at_dead": "off"}]
        page = api.ask("GET", f"/ui/jobs/{job_id}").raw.decode()
        assert "For example doc-7: schema_mismatch: &lt;b&gt;no JSON&lt;/b&gt;" in page
        assert "let it go on as it is" in page
        assert api.ask("PATCH", f"/v1/jobs/{job_id}", changes[0]).status == 200
        assert api.post(f"/v1/jobs/{job_id}/resume").json["pause"] is None
        found = JobStore(database).get(job_id)
        assert (found.spec["stop_at_dead"], found.accepted) == ("off", Accepted(1, 0.8, 0.0))
        database.close()


def test_a_run_whose_every_answer_misses_the_schema_stops_and_goes_on_once_told(
    tmp_path: Path,
) -> None:
    """It is paused after some hundred calls, its exit status and last screen say why; the command
    again goes on to the end."""
    machine = Machine(tmp_path)
    machine.source(900)
    (tmp_path / "schema.json").write_text(json.dumps(SCHEMA))
    with simulator("--structured", "ignored") as provider:
        arguments = machine.run_arguments(
            provider,
            "--response-schema",
            "schema.json",
            "--schema-repairs",
            "0",
            "--workers",
            "1",
            "--concurrency",
            "50",
        )
        status, told = machine.penstock(*arguments)
        assert status == 1, told + machine.logs()
        assert "first answers to the latest" in told
        assert "most often schema_mismatch" in told
        assert "add --stop-at-dead off" in told
        assert provider.stats()["requests"] < 500
        status, told = machine.penstock(*arguments)
        assert status == 3, told + machine.logs()
        assert provider.stats()["requests"] >= 900


REPAIRS: Final = 2  # of an answer that misses its schema, where a job says nothing else


def test_the_first_hundred_gate_what_is_paid(tmp_path: Path) -> None:
    """With four hundred free slots and the usual repairs, a job whose every answer misses its
    schema pays for the documents that it began with and for nothing else. A job spec file says the
    rest."""
    machine = Machine(tmp_path)
    machine.source(3_000)
    lines = ["source: reviews.jsonl", "prompt: 'Summarise: {text}'", "model: sim"]
    (tmp_path / "job.yaml").write_text(
        "\n".join([*lines, f"response_schema: {json.dumps(SCHEMA)}\n"])
    )
    with simulator("--structured", "ignored") as provider:
        slots = ["--workers", "2", "--concurrency", "200"]
        status, told = machine.penstock(
            "run", "job.yaml", "--base-url", provider.url, "--out", "out", "--no-progress", *slots
        )
        assert status == 1, told + machine.logs()
        assert "first answers to the latest" in told
        assert FIRST <= provider.stats()["requests"] <= FED * (1 + REPAIRS)


def test_a_job_from_a_celery_client_stops_too(tmp_path: Path) -> None:
    """Its spec is a spec as any other: the job pauses with its first hundred documents."""
    roots = json.dumps([str(tmp_path / "fleet/sources")])
    with Fleet(tmp_path / "fleet", settings={"source_roots": roots}) as fleet:
        fleet.provider.start("--latency-ms", "5", "--structured", "ignored")
        fleet.control()
        fleet.ready(fleet.worker(200))
        spec = fleet.spec(response_schema=SCHEMA)
        with Celery(broker=fleet.store.url, set_as_current=False) as client:
            client.send_task(
                "penstock.submit",
                args=[str(fleet.source(2_000)), spec],
                kwargs={"job_key": "night"},
                queue="penstock.control",
            )
        until(lambda: is_paused(fleet, "night"), WORK_S, "the job is paused")
        fleet.wait_for_quiet(fleet.producer.status("night").job)
        assert fleet.provider_calls() <= FED * (1 + REPAIRS)


def is_paused(fleet: Fleet, job_key: str) -> bool:
    with suppress(JobNotFound):
        pause = fleet.producer.status(job_key).job.pause
        return pause is not None and pause.by is By.STOP_LOSS
    return False


def test_a_healthy_job_never_stops_and_long_prompts_are_not_paid(tmp_path: Path) -> None:
    """A tenth of its documents is longer than it allows: they are dead letters without a call, and
    the rest ends."""
    machine = Machine(tmp_path)
    rows = [
        {"id": f"doc-{nth}", "text": "word " * (2_000 if nth % 10 == 0 else 5)}
        for nth in range(300)
    ]
    (tmp_path / "reviews.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with simulator() as provider:
        status, told = machine.penstock(
            *machine.run_arguments(provider, "--max-prompt-tokens", "1000")
        )
        assert status == 3, told + machine.logs()
        assert provider.stats()["requests"] == 270
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["dead_by_reason"] == {"prompt_too_long": 30}
    assert sum(one["documents"] for one in report["prompt_sizes"]["histogram"]) == 270
    assert len(report["prompt_sizes"]["largest"]) == 5


def test_prompts_are_counted_by_their_size(house: House) -> None:
    """By the providers' count for each call, with the longest named; what took another's answer is
    not among them."""
    job_id = house.submit()
    letters = [
        DeadLetter(
            ItemKey(job_id, 1, name), "x", 2, calls, "", None, b"{}", None, prompt_tokens=tokens
        )
        for name, calls, tokens in (
            ("a", 1, 16),
            ("b", 2, 60),
            ("c", 1, 5_000_000),
            ("d", 0, 9_000),
        )
    ]
    store = OutcomeStore(house.database)
    store.settle([], letters)
    found = store.prompt_sizes(job_id)
    assert found.histogram == [(16, 1), (32, 1), (None, 1)]
    assert found.largest == [("c", 5_000_000), ("b", 30), ("a", 16)]
