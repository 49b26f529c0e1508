"""Routes, escalation and degradation in a real fleet against the simulated provider, while a worker
dies with answers in hand."""

from __future__ import annotations

import json
import signal
from collections import Counter
from pathlib import Path
from typing import Any, Final

import pytest
from fleet import Fleet, until

from penstock_ledger import StepsTaken
from penstock_ledger.model import Job, JobState

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
    return fleet.producer.submit(path, asked, job_key="rules")


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
