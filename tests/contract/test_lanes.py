"""Lanes are rows of one registry: each brings all its parts, nothing else knows them by name, and
another is one folder."""

from __future__ import annotations

import ast
import asyncio
import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, cast, get_args

import pytest
from servers import RedisServer
from typer.testing import CliRunner

from penstock_cli.doctor.checks import _lanes
from penstock_cli.main import command_line
from penstock_producer import Producer
from penstock_producer.job.lanes import LANES, Lane, LaneFacts, served_lanes
from penstock_workers.build import WorkerEngine
from penstock_workers.item.answer import Answer, Tried
from penstock_workers.item.deliveries import Delivery
from penstock_workers.item.lane import Prepared, Request
from penstock_workers.item.outcome import Done, Outcome
from penstock_workers.lanes.embed.settings import EmbedSettings
from penstock_workers.lanes.gpu.settings import GpuSettings
from penstock_workers.lanes.lane_fields import LaneFields
from penstock_workers.lanes.registry import REGISTRY, lane_row
from penstock_workers.lanes.row import LaneRow, Unpaced
from penstock_workers.metrics.catalogue import CATALOGUE
from penstock_workers.preload import preload
from penstock_workers.settings import WorkerSettings

ROOT = Path(__file__).parents[2]
PACKAGES = ("penstock", "producer", "workers", "ratelimit", "ledger", "cli", "gateway", "simulate")
LANES_FOLDER = ROOT / "workers/penstock_workers/lanes"
# Where a lane may be named outside of its folder, and why.
MAY_NAME_LANES = {
    "ledger/penstock_ledger/model.py": (
        "the lane of jobs from before there were several; it cannot import the producer"
    ),
    "ledger/penstock_ledger/reasons.py": "the id of a provider batch, among parameters",
    "producer/penstock_producer/job/lanes.py": "the producer's table; it cannot import workers",
    "producer/penstock_producer/job/options.py": "the flag --api, which is about a provider's API",
    "producer/penstock_producer/jobfile/fields.py": "as above",
    "cli/penstock_cli/job/options.py": "as above",
    "cli/penstock_cli/job/jobspec.py": "as above",
    "cli/penstock_cli/commands/run.py": "as above",
    "cli/penstock_cli/commands/plan.py": "as above",
    "cli/penstock_cli/chaos/command.py": "the lanes that `penstock chaos` plays in",
    "cli/penstock_cli/chaos/fleet.py": "as above",
    "cli/penstock_cli/chaos/play.py": "as above",
    "cli/penstock_cli/chaos/stage.py": "as above",
    "cli/penstock_cli/chaos/table.py": "as above",
    "penstock/calls.py": "the option api, which is about a provider's API",
    "gateway/penstock_gateway/batches/routes.py": (
        "OpenAI's word for the purpose of a file, and the kind of an id"
    ),
    "gateway/penstock_gateway/files/form.py": "as above",
    "gateway/penstock_gateway/middleware.py": "as above",
    "gateway/penstock_gateway/jobs/schemas.py": "the examples of the OpenAPI document",
}
OUTSIDE = "simulate"  # it knows nothing of lanes: `batch` is a word of OpenAI's there
WAIT_S = 30.0


@cache
def own_code() -> list[tuple[str, ast.AST]]:
    """Our code outside of the lanes' folder: its path, and what it says."""
    return [
        (file.relative_to(ROOT).as_posix(), ast.parse(file.read_text("utf-8")))
        for package in PACKAGES
        for file in sorted((ROOT / package).rglob("*.py"))
        if not file.is_relative_to(LANES_FOLDER)
    ]


def test_producers_and_workers_know_the_same_lanes() -> None:
    """The producer's table, its type and the registry name the same lanes; those without messages
    run no items."""
    assert get_args(Lane) == tuple(LANES)
    assert served_lanes() == list(REGISTRY)
    assert {name for name, lane in LANES.items() if lane.packs} == {
        n for n, row in REGISTRY.items() if row.runs
    }


@pytest.mark.parametrize("name", REGISTRY)
def test_a_row_brings_all_its_parts(name: str) -> None:
    """Its modules can be imported without an engine, its settings are a field of the worker's, its
    gauges are metrics."""
    row = lane_row(name)
    assert row.name == name
    preload(name)
    field = LaneFields.model_fields.get(name)
    assert row.settings is (None if field is None else type(field.default))
    assert {gauge.metric for gauge in row.gauges.values()} <= set(CATALOGUE)
    assert (row.engine is not None) == LANES[name].has_own_model
    # documents of such a lane wait for a worker that serves their model
    assert (row.serves is not None) == LANES[name].has_own_model
    assert row.check is not None or row.settings is None


def test_a_lane_with_settings_is_in_the_registry() -> None:
    """No field of the worker's settings is left from a lane that is gone."""
    assert set(LaneFields.model_fields) == {
        row.name for row in REGISTRY.values() if row.settings is not None
    }


@pytest.mark.parametrize(
    "name", [name for name, row in REGISTRY.items() if row.settings is not None]
)
def test_settings_of_lanes_are_documented(name: str) -> None:
    """Each is a row of the table in docs/lanes.md, and the table has no other."""
    page = (ROOT / "docs/lanes.md").read_text("utf-8")
    rows = {line.split("`")[1] for line in page.splitlines() if line.startswith(f"| `{name}.")}
    settings = lane_row(name).settings
    assert settings is not None
    assert rows == {f"{name}.{field}" for field in settings.model_fields}


def test_the_chart_has_pools_of_each_lane() -> None:
    """The schema of its values allows a pool of every lane that is served, of control, and of
    nothing else."""
    schema = json.loads((ROOT / "helm/penstock/values.schema.json").read_text("utf-8"))
    assert set(schema["$defs"]["kind"]["enum"]) == {*REGISTRY, "control"}


@pytest.mark.parametrize("name", [*LANES, "no-such-lane"])
def test_a_worker_serves_a_lane_or_says_why_not(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`penstock worker --lane` gets as far as its model or its database, or ends with the
    reason."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    ran = CliRunner().invoke(command_line(), ["worker", "--lane", name])
    said = (
        ran.output
        if ran.exception is None or isinstance(ran.exception, SystemExit)
        else str(ran.exception)
    )
    reason = {"gpu": "needs a model", "embed": "embed.model"}.get(
        name, "database" if name in LANES else f"lane {name!r} is not"
    )
    assert ran.exit_code != 0
    assert reason in said


@pytest.mark.parametrize(
    ("lane", "flag", "takers"),
    [
        ("api", "--model=x", "gpu or embed"),
        ("api", "--lora=a=b", "gpu"),
        ("embed", "--engine=a=1", "gpu"),
    ],
)
def test_a_flag_of_another_lane_is_refused(lane: str, flag: str, takers: str) -> None:
    """It would change nothing, and the person who typed it would believe that it did."""
    ran = CliRunner().invoke(command_line(), ["worker", "--lane", lane, flag])
    said = ran.output + str(ran.exception)
    assert ran.exit_code != 0
    assert f"is for workers of lane {takers}, and this one serves lane {lane}" in said


def test_the_doctor_asks_each_lane_that_is_configured(tmp_path: Path) -> None:
    """It warns of models and adapters that are not there, asks no server unless it may, and is
    silent about the rest."""
    assert list(_lanes(WorkerSettings(), knock=True)) == []
    gone = GpuSettings(
        model=str(tmp_path / "gone"),
        lora={"legal": str(tmp_path / "legal")},
        media_folder=str(tmp_path / "images"),
    )
    found = list(
        _lanes(WorkerSettings(gpu=gone, embed=EmbedSettings(model="no-such-model")), knock=False)
    )
    seen = {
        (one.subject, one.verdict.value, one.seen.split(":")[0].split(" is ")[0]) for one in found
    }
    assert {
        ("gpu", "warn", f"gpu.{name}") for name in ("model", "lora.legal", "media_folder")
    } <= seen
    assert [one.verdict.value for one in found if one.subject == "embed"] == ["warn"]
    beside = WorkerSettings(gpu=GpuSettings(upstream_url="http://127.0.0.1:9/v1"))
    assert list(_lanes(beside, knock=False)) == []
    (away,) = _lanes(beside, knock=True)
    assert "http://127.0.0.1:9/v1 does not answer" in away.seen


def test_no_other_code_names_a_lane() -> None:
    """A string that is a lane's name stands in the lane's folder, or where the list says why."""
    found = {
        path
        for path, tree in own_code()
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in LANES
    }
    assert {path for path in found if not path.startswith(OUTSIDE)} == set(MAY_NAME_LANES)


def test_no_other_code_imports_a_lane() -> None:
    """Lanes are reached through their rows: nothing else imports from a lane's folder, or reads a
    lane's own settings."""
    found = set[str]()
    for path, tree in own_code():
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module is not None:
                if node.module.startswith(
                    tuple(f"penstock_workers.lanes.{name}" for name in REGISTRY)
                ):
                    found.add(path)
            elif (
                isinstance(node, ast.Attribute)
                and node.attr in LaneFields.model_fields
                and ast.unparse(node.value).endswith("settings")
            ):
                found.add(path)
    assert found == set()


# -- a lane that is added --------------------------------------------------------------------------


class ToyLane:
    """Answers each request with its own length."""

    async def start(self) -> None:
        """Nothing to open."""

    async def prepare(self, request: Request) -> Prepared:
        return Prepared(request)

    async def infer(self, prepared: Prepared) -> Tried:
        content = f"toy, {len(prepared.request.body)} bytes"
        answer = {"choices": [{"message": {"role": "assistant", "content": content}}]}
        return Answer(200, {}, json.dumps(answer).encode(), 1)

    def gauges(self) -> Mapping[str, float | str]:
        return {}

    def drain(self) -> None:
        """Nothing to begin that takes long."""

    async def close(self) -> None:
        """Nothing to close."""


TOY: LaneRow[ToyLane] = LaneRow(
    name="toy", make=lambda settings: ToyLane(), admission=lambda settings, lane: Unpaced()
)


class Outcomes:
    """The side of Celery: keeps what the engine says of its deliveries."""

    def __init__(self) -> None:
        self.first: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

    async def sure(self, *, anew: bool = False) -> None:
        """It is."""

    def started(self, delivery: Delivery) -> None:
        """Nothing listens."""

    def conclude(self, pairs: Sequence[tuple[Delivery, Outcome]]) -> None:
        for _, outcome in pairs:
            self.first.set_result(outcome)


async def run_one(settings: WorkerSettings, delivery: Delivery) -> Outcome:
    """Through all that a worker has, stores included."""
    engine, outcomes = WorkerEngine(settings), Outcomes()
    await engine.start(outcomes)
    try:
        engine.accept(delivery)
        return await asyncio.wait_for(outcomes.first, WAIT_S)
    finally:
        await engine.drain(1.0)
        await engine.stop()


def test_a_lane_is_added_by_a_folder_and_its_rows(
    redis_server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a row in each of the two tables a job names the lane, a worker serves it, and its answer
    is the result."""
    monkeypatch.setitem(cast("dict[str, LaneFacts]", LANES), "toy", LaneFacts(has_own_model=True))
    monkeypatch.setitem(cast("dict[str, LaneRow[Any]]", REGISTRY), "toy", TOY)
    url = f"sqlite:///{tmp_path}/ledger.db"
    source = tmp_path / "rows.jsonl"
    source.write_text('{"id": "d", "text": "t"}\n')
    with Producer(database_url=url) as producer:
        job = producer.submit(source, {"lane": "toy", "prompt": "{text}"})
    settings = WorkerSettings.load(
        redis_url=redis_server.url, database_url=url, lane="toy", control=False
    )
    kwargs = {"v": 1, "job": job.job_id, "gen": 1, "doc": "d", "body": {"messages": []}}
    outcome = asyncio.run(run_one(settings, Delivery(f"{job.job_id}:d", kwargs, {}, queue="toy")))
    assert isinstance(outcome, Done)
    with Producer(database_url=url) as producer:
        (result,) = producer.results(job.job_id)
    assert "toy, 15 bytes" in str(result)
