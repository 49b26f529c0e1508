"""Routes, escalation and degradation in a real fleet against the simulated provider, while a worker
dies with answers in hand."""

from __future__ import annotations

import json
import signal
from collections import Counter
from pathlib import Path
from typing import Any, Final

import pytest
from fleet import Fleet, Process, until

from penstock_ledger import ProviderBatchStore, StepsTaken
from penstock_ledger.model import Job, JobState
from penstock_producer import Producer
from penstock_producer.job.provider_facts import ProviderFacts
from penstock_producer.settings import ProducerSettings

TIME_S: Final = 60.0
DOCUMENTS: Final = 24
PRICES: Final = {
    "providers__default__usd_per_mtok_in": 1,
    "providers__default__usd_per_mtok_out": 1,
}
SCHEMA: Final = {
    "type": "object",
    "properties": {"label": {"enum": ["sure", "unsure"]}},
    "required": ["label"],
}


def submitted(fleet: Fleet, **spec: object) -> Job:
    """Every third document is German, and every sixth says that its answer will be unsure."""
    path = fleet.source(0, "rules")
    rows = [
        {
            "id": f"doc-{n}",
            "text": f"{'unsure' if n % 6 < 2 else 'sure'} number {n}",
            "lang": "de" if n % 3 == 0 else "en",
        }
        for n in range(DOCUMENTS)
    ]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    asked = fleet.spec(model="small", response_schema=SCHEMA, **spec)
    facts = {"default": ProviderFacts(usd_per_mtok_in=1.0, usd_per_mtok_out=1.0)}
    settings = ProducerSettings(database_url=fleet.database_url, providers=facts)
    with Producer(settings) as producer:
        return producer.submit(path, asked, job_key="rules")


def models(fleet: Fleet, job: Job) -> Counter[str | None]:
    return Counter(result.model for result in fleet.producer.results(job.job_id))


def test_a_dead_worker_changes_no_route_and_pays_no_answer_twice(tmp_path: Path) -> None:
    """Each document has one outcome, of the model that its rule or its answer asks for; what died
    with the worker is paid again, and no more; report and books agree."""
    with Fleet(tmp_path / "fleet", settings=PRICES) as fleet:
        fleet.provider.start("--latency-ms", "50")
        control = fleet.control()
        doomed = fleet.worker(4, failpoints="before_commit:kill")
        fleet.ready(doomed)
        job = submitted(
            fleet,
            routes=["lang=de -> model=german", 'text~"number 1$" -> refuse'],
            escalate="label=unsure -> model=large",
        )
        assert doomed.wait(30) == -signal.SIGKILL
        fleet.ready(fleet.worker(4))
        fleet.wait_for(job, JobState.COMPLETED, TIME_S)
        assert control.alive
        # doc-1 is refused; of the others 0, 6, 7, 12, 13, 18 and 19 are unsure; 3, 9, 15 and 21
        # are German and sure
        assert models(fleet, job) == {"large": 7, "german": 4, "small": 12}
        [letter] = fleet.producer.dead_letters(job.job_id)
        assert (letter.key.doc_id, letter.reason, letter.calls) == ("doc-1", "refused_by_route", 0)
        calls = fleet.provider.calls(job)
        died_with_it = 4 * 2  # documents under way, each with a first answer and a second call
        assert 23 + 7 <= calls.total() <= 23 + 7 + died_with_it
        report: dict[str, Any] = json.loads(fleet.run("report", job.job_id, "--json").stdout)
        assert [one["documents"] for one in report["routes"]] == [8, 1, 15]
        assert [one["ended"] for one in report["routes"]] == [8, 0, 15]
        assert report["escalated"]["documents"] == 7
        assert 0 < report["escalated"]["cost_usd"] < report["cost_usd"]
        spent = sum(one["cost_usd"] for one in report["routes"])
        assert spent == pytest.approx(report["cost_usd"], abs=1e-6)
        shown = " ".join(fleet.run("report", job.job_id).stdout.split())
        assert "route lang=de -> model=german: 8 documents" in shown
        assert "--escalate label=unsure -> model=large: 7 documents went on" in shown


@pytest.mark.whole
def test_batches_have_one_model_each_and_a_route_for_each_document(tmp_path: Path) -> None:
    """Requests go into batches as their rules say, without the mark, and cost what their models
    cost."""
    with Fleet(tmp_path / "fleet", settings=PRICES) as fleet:
        fleet.provider.start("--latency-ms", "5")
        fleet.ready(fleet.worker(4, lane="batch", control=True))
        job = submitted(
            fleet, lane="batch", batch_poll_s=0.5, routes=["lang=de -> model=german max_tokens=9"]
        )
        fleet.wait_for(job, JobState.COMPLETED, TIME_S)
        assert models(fleet, job) == {"german": 8, "small": 16}
        report: dict[str, Any] = json.loads(fleet.run("report", job.job_id, "--json").stdout)
        assert [one["ended"] for one in report["routes"]] == [8, 16]
        spent = sum(one["cost_usd"] for one in report["routes"])
        assert spent == pytest.approx(report["cost_usd"], abs=1e-6)


BATCHES: Final = ("--batch-s", "0.2", "--batch-step-s", "0.05")


def batch_worker(fleet: Fleet, **settings: object) -> Process:
    quick = {f"batch__poll_{name}_s": 0.1 for name in ("first", "cap")}
    own = {"batch__folder": fleet.folder / "packed", "batch__unclear_s": 0.2, **quick}
    return fleet.worker(1, lane="batch", **own, **settings)


def test_answers_of_batches_go_on_once_whatever_happens_to_the_worker(tmp_path: Path) -> None:
    """The worker dies with answers half read: what went on to the large model stays there, no
    answer is paid for twice, and each document has one outcome with the cost of both."""
    with Fleet(tmp_path / "fleet", settings=PRICES) as fleet:
        fleet.provider.start(*BATCHES)
        fleet.control()
        doomed = batch_worker(fleet, failpoints="batch_collecting:kill")
        job = submitted(
            fleet,
            lane="batch",
            routes=["lang=de -> model=german"],
            escalate="label=unsure -> model=large max_tokens=50",
        )
        assert doomed.wait(30) == -signal.SIGKILL
        fleet.store.client().flushall()
        batch_worker(fleet)
        fleet.wait_for(job, JobState.COMPLETED, TIME_S)
        # 0, 6, 12 and 18 are German and unsure, 1, 7, 13 and 19 are English and unsure
        assert models(fleet, job) == {"large": 8, "german": 4, "small": 12}
        calls = {result.key.doc_id: result.calls for result in fleet.producer.results(job.job_id)}
        assert sum(calls.values()) == DOCUMENTS + 8
        assert (calls["doc-0"], calls["doc-2"]) == (2, 1)
        seen = fleet.provider.stats()["batches"]
        assert (seen["documents"], seen["answered_more_than_once"], seen["unread"]) == (
            DOCUMENTS,
            8,
            0,
        )
        report: dict[str, Any] = json.loads(fleet.run("report", job.job_id, "--json").stdout)
        assert report["escalated"]["documents"] == 8
        assert 0 < report["escalated"]["cost_usd"] < report["cost_usd"]
        assert report["succeeded_after_retry"] == 0
        spent = sum(one["cost_usd"] for one in report["routes"])
        assert spent == pytest.approx(report["cost_usd"], abs=1e-6)


@pytest.mark.whole
def test_batches_that_were_not_created_are_packed_again_by_the_step(tmp_path: Path) -> None:
    """Once the first batch has spent its share, those that wait for room are given up before they
    cost anything, and their documents are asked of the cheaper model, each once."""
    with Fleet(tmp_path / "fleet", settings=PRICES) as fleet:
        # the first batch runs while those behind it are packed
        fleet.provider.start("--batch-s", "3", "--batch-step-s", "0.05")
        fleet.control()
        batch_worker(fleet, providers__default__batch_enqueued_tokens=200)  # a few documents
        job = submitted(
            fleet,
            lane="batch",
            budget_usd=1.0,
            degrade=["model=tiny max_tokens=50 at 0.001% of budget"],
        )
        fleet.wait_for(job, JobState.COMPLETED, TIME_S)
        asked = models(fleet, job)
        assert set(asked) == {"small", "tiny"}
        batches = ProviderBatchStore(fleet.producer._database).of_job(job.job_id)
        given_up = [
            batch for batch in batches if batch.failure and batch.failure.name == "gave_way"
        ]
        assert given_up
        assert not any(batch.remote_id for batch in given_up)
        assert {(batch.model, batch.step) for batch in batches} == {("small", 0), ("tiny", 1)}
        assert fleet.provider.stats()["batches"]["documents"] == DOCUMENTS
        report: dict[str, Any] = json.loads(fleet.run("report", job.job_id, "--json").stdout)
        assert report["degraded"][0]["documents"] == asked["tiny"]


@pytest.mark.whole
def test_a_step_holds_for_all_processes_and_over_a_restart(tmp_path: Path) -> None:
    """Two control processes write one entry; workers that start later go by it."""
    with Fleet(tmp_path / "fleet", settings=PRICES) as fleet:
        fleet.provider.start("--latency-ms", "5")
        first, second = fleet.control(), fleet.control()
        job = submitted(
            fleet,
            deadline_s=3_000.0,
            degrade=["model=tiny at 0.001% of deadline", "model=micro at 90% of deadline"],
        )
        database = fleet.producer._database
        until(lambda: StepsTaken(database).latest(job.job_id) > 0, TIME_S, "a step is taken")
        [step] = StepsTaken(database).of(job.job_id)
        first.kill()
        second.kill()
        fleet.control()
        fleet.ready(fleet.worker(4))
        fleet.wait_for(job, JobState.COMPLETED, TIME_S)
        assert models(fleet, job) == {"tiny": DOCUMENTS}
        assert StepsTaken(database).of(job.job_id) == [step]
        assert (step.number, step.of) == (1, "deadline")
        report: dict[str, Any] = json.loads(fleet.run("report", job.job_id, "--json").stdout)
        assert [(one["at"], one["documents"]) for one in report["degraded"]] == [
            (step.at, DOCUMENTS),
            (None, 0),
        ]
        shown = " ".join(fleet.run("report", job.job_id).stdout.split())
        assert "--degrade model=micro at 90% of deadline: not taken yet" in shown
