"""A job as a task of a real Airflow: a DAG that is run, deferral and trigger included, beside a
real fleet.

`make test-airflow` installs Airflow into an environment of its own: its pins and those of
Penstock's tests need not agree.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fleet import Fleet

pytestmark = pytest.mark.airflow

RUN_S = 240.0
DAG = """
import json, sys
from datetime import datetime
from airflow.sdk import DAG
from penstock_producer.integrations.airflow import PenstockJobOperator

with DAG("nightly", schedule=None, start_date=datetime(2026, 1, 1)) as dag:
    PenstockJobOperator(task_id="label", source=SOURCE, spec=SPEC, poll_s=0.1, **MORE)

if __name__ == "__main__":
    run = dag.test()
    task = run.get_task_instances()[0]
    print("RESULT " + json.dumps([str(task.state), task.xcom_pull(task_ids="label")]))
"""


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with Fleet(tmp_path_factory.mktemp("airflow")) as fleet:
        fleet.provider.start("--latency-ms", "50")
        fleet.ready(fleet.worker(control=True))
        yield fleet


@pytest.fixture(scope="module")
def airflow(fleet: Fleet) -> dict[str, str]:
    """The environment of Airflow's processes, with a database of its own."""
    home = fleet.folder / "home"
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PENSTOCK_", "AIRFLOW"))
    }
    environment |= {
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__DAGS_FOLDER": str(fleet.folder / "dags"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__UNIT_TEST_MODE": "False",
        "PENSTOCK_DATABASE_URL": fleet.database_url,
        "PENSTOCK_CONFIG": str(fleet.folder / "settings.toml"),
    }
    (fleet.folder / "dags").mkdir()
    migrate = [sys.executable, "-m", "airflow", "db", "migrate"]
    subprocess.run(migrate, env=environment, check=True, timeout=RUN_S, capture_output=True)
    return environment


def run_dag(
    folder: Path, environment: dict[str, str], source: Path, spec: dict[str, Any], **more: Any
) -> tuple[str, Any]:
    """State of the task and what it returned."""
    path = folder / "dags" / "nightly.py"
    text = (
        DAG.replace("SOURCE", repr(str(source)))
        .replace("SPEC", repr(spec))
        .replace("MORE", repr(more))
    )
    path.write_text(text)
    return run_file(path, environment)


def run_file(path: Path, environment: dict[str, str]) -> tuple[str, Any]:
    """State of the only task of a file, and what it returned."""
    done = subprocess.run(
        [sys.executable, str(path)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=RUN_S,
        check=False,
    )
    told = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    assert told, done.stdout[-3000:] + done.stderr[-3000:]
    state, returned = json.loads(told[-1].removeprefix("RESULT "))
    return str(state), returned


def test_a_task_waits_for_its_job_and_returns_what_came_of_it(
    fleet: Fleet, airflow: dict[str, str]
) -> None:
    """The task defers while the fleet works, and its summary is there for the next task."""
    state, summary = run_dag(
        fleet.folder, airflow, fleet.source(40), Fleet.spec(), job_key="airflow-label"
    )
    assert state.endswith("success")
    assert (summary["state"], summary["succeeded"], summary["total"]) == ("completed", 40, 40)
    again, same = run_dag(
        fleet.folder, airflow, fleet.source(40), Fleet.spec(), job_key="airflow-label"
    )
    assert again.endswith("success")
    assert same == summary


def test_a_task_fails_with_its_job(fleet: Fleet, airflow: dict[str, str]) -> None:
    """More dead letters than are allowed, and a spec that is refused, fail the task."""
    source = fleet.folder / "odd.jsonl"
    source.write_text('{"id": "a", "text": "x"}\n{"id": "b"}\n')
    spec = Fleet.spec(max_bad_rows=1)
    state, _ = run_dag(fleet.folder, airflow, source, spec, job_key="airflow-dead", max_dead=0.4)
    assert state.endswith("failed")
    state, _ = run_dag(
        fleet.folder, airflow, source, {"prompt": "{", "model": "m"}, job_key="airflow-refused"
    )
    assert state.endswith("failed")


CALL = """
import json
from datetime import datetime
from airflow.sdk import DAG, task

with DAG("call", schedule=None, start_date=datetime(2026, 1, 1)) as dag:

    @task
    def label():
        import penstock

        rows = [{"text": f"order {number} came late"} for number in range(20)]
        answers = penstock.run(rows, prompt="Categorise: {text}", model="sim", workers=1, **GIVEN)
        return [answers.report["succeeded"], answers.job]

    label()

if __name__ == "__main__":
    run = dag.test()
    found = run.get_task_instances()[0]
    print("RESULT " + json.dumps([str(found.state), found.xcom_pull(task_ids="label")]))
"""


def test_a_task_calls_penstock_run(fleet: Fleet, airflow: dict[str, str]) -> None:
    """Its rows are answered in the task's own process; the task again finds its job and pays
    nothing."""
    own = {name: text for name, text in airflow.items() if not name.startswith("PENSTOCK_")}
    given = {"base_url": fleet.provider.url, "state": str(fleet.folder / "kept")}
    path = fleet.folder / "dags" / "call.py"
    path.write_text(CALL.replace("GIVEN", repr(given)))
    state, (succeeded, job) = run_file(path, own)
    assert state.endswith("success")
    assert succeeded == 20
    calls = len(fleet.provider.call_log.read_text().splitlines())
    assert run_file(path, own) == (state, [20, job])
    assert len(fleet.provider.call_log.read_text().splitlines()) == calls
