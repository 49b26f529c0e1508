"""A job that the release before began ends under this one, with processes of both side by side.

The release before is the commit below, out of this repository's history: a clone without it (a
shallow one) skips these tests and says so. Processes are real and so is their time.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, Self

import pytest
from aiohttp import web
from embed_servers import OnThread, Vllm
from fleet import START_S, Fleet, Process, until

from penstock_ledger import HEAD, BatchState, JobStore, ProviderBatchStore, keys, open_database
from penstock_ledger.model import JobState
from penstock_ledger.sql.tables import outcomes
from penstock_producer import Producer

pytestmark = pytest.mark.whole

BEFORE = "73c49e461a8d2398703ca1b6f6bdaf644ff3eeae"
ROOT = Path(__file__).parents[2]
PACKAGES = ("producer", "workers", "ratelimit", "ledger", "gateway", "cli", "simulate")
DOCUMENTS, CONCURRENCY = 240, 4
PRICES = {
    "providers__default__usd_per_mtok_in": 100,
    "providers__default__usd_per_mtok_out": 200,
}
WORKER = ("worker", "-c", str(CONCURRENCY), "--lane")
ASKED = ("--prompt", "Say: {text}", "--model", "sim")
STARTS = (("migrate",), ("jobs",), ("control",), ("worker", "--lane", "api"))


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sources of that commit."""
    asked = ["git", "-C", str(ROOT), "archive", "--format=tar", BEFORE, *PACKAGES]
    archive = subprocess.run(asked, capture_output=True, check=False)
    if archive.returncode:
        why = archive.stderr.decode(errors="replace").strip()
        pytest.skip(f"commit {BEFORE[:8]} is not in this clone (git fetch --unshallow): {why}")
    folder = tmp_path_factory.mktemp("before")
    with tarfile.open(fileobj=BytesIO(archive.stdout)) as tar:
        tar.extractall(folder, filter="data")
    return folder


@dataclass
class Release:
    """Commands of the release before, with the settings of a fleet."""

    fleet: Fleet
    sources: Path

    def environment(self, settings: dict[str, object]) -> dict[str, str]:
        path = os.pathsep.join(str(self.sources / package) for package in PACKAGES)
        return self.fleet._environment(settings) | {"PYTHONPATH": path}

    def start(self, *arguments: str, **settings: object) -> Process:
        log = self.fleet.logs / f"before-{len(self.fleet.processes)}.log"
        with log.open("ab") as out:
            popen = subprocess.Popen(
                [sys.executable, "-m", "penstock_cli", *arguments],
                env=self.environment(settings),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        process = Process(f"before: {arguments[0]}", log, popen)
        self.fleet.processes.append(process)
        return process

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "penstock_cli", *arguments],
            env=self.environment({}),
            capture_output=True,
            text=True,
            timeout=START_S,
            check=False,
        )


class OlderFleet(Fleet):
    """A fleet whose tables the release before makes: nothing of this one has seen them yet."""

    def __enter__(self) -> Self:
        self.database = open_database(self.database_url)
        return self

    def __exit__(self, *failed: Any) -> None:
        if not hasattr(self, "producer"):  # it failed before the upgrade
            self.upgraded()
        super().__exit__(*failed)
        self.database.close()

    def upgraded(self) -> None:
        """Migrate, and look at jobs with this release from now on."""
        self.penstock("migrate")
        self.producer = Producer(database_url=self.database_url)

    @property
    def revision(self) -> str:
        with self.database.engine.connect() as connection:
            found = connection.exec_driver_sql("SELECT version_num FROM alembic_version")
            return str(found.scalar_one())

    def outcomes(self) -> int:
        """Whatever the tables are of: the release before has this one as well."""
        with self.database.engine.connect() as connection:
            found = connection.exec_driver_sql(f"SELECT count(*) FROM {outcomes.name}")
            return int(found.scalar_one())

    def wait_for_number(self, number: int) -> None:
        until(lambda: self.outcomes() >= number, 120, f"{number} outcomes")


@dataclass(frozen=True)
class Lane:
    """How a lane's jobs and workers are started, by both releases."""

    name: str
    provider: tuple[str, ...]
    submit: tuple[str, ...] = ()
    settings: Callable[[Fleet], dict[str, object]] = lambda _: {}
    prompt: str = "Say: {text}"
    has_prices: bool = True  # a server of one's own is not paid by the token


def sidecar(fleet: Fleet) -> dict[str, object]:
    return {"gpu__upstream_url": fleet.provider.url, "gpu__max_num_seqs": CONCURRENCY}


class Encoder(Vllm):
    """A server with a model that takes its time."""

    async def embeddings(self, request: web.Request) -> web.Response:
        await asyncio.sleep(0.15)
        return await super().embeddings(request)


def encoder(fleet: Fleet) -> dict[str, object]:
    return {"embed__upstream_url": OnThread(Encoder()).begin()}


def batch_settings(fleet: Fleet) -> dict[str, object]:
    return {
        "batch__folder": fleet.folder / "packed",
        "batch__poll_first_s": 0.1,
        "batch__poll_cap_s": 0.3,
        "batch__unclear_s": 0.2,
    }


SLOW = ("--latency-ms", "150", "--latency-sigma", "0")
LANES = [
    Lane("api", SLOW, ("--model", "sim")),
    Lane(
        "gpu", ("--like", "vllm", "--max-concurrency", "16", *SLOW), (), sidecar, has_prices=False
    ),
    Lane(
        "batch",
        ("--batch-s", "1.5", "--batch-step-s", "0.1"),
        ("--model", "sim", "--batch-max-requests", "10"),
        batch_settings,
    ),
    Lane(
        "embed",
        SLOW,
        ("--endpoint", "/v1/embeddings"),
        encoder,
        prompt="{text}",
        has_prices=False,
    ),
]


@pytest.fixture(params=["sqlite", "postgresql"])
def fleet(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[OlderFleet]:
    url = None if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    with OlderFleet(tmp_path / "fleet", database_url=url, settings=PRICES) as made:
        yield made


@pytest.mark.parametrize("lane", LANES, ids=lambda lane: lane.name)
def test_a_job_of_the_release_before_ends_under_this_one(
    lane: Lane, fleet: OlderFleet, before: Path
) -> None:
    """Old control and old worker; then both workers, under the old control and under the new one;
    then the new ones alone. Each document has one result, none is called twice, and the account is
    what its rows say."""
    old, settings = Release(fleet, before), lane.settings(fleet)
    assert old.run("migrate").returncode == 0
    fleet.provider.start(*lane.provider)
    old_control = old.start("control")
    old_worker = old.start(*WORKER, lane.name, **settings)
    source = fleet.source(DOCUMENTS)
    said = old.run(
        "submit", str(source), "--lane", lane.name, "--prompt", lane.prompt, *lane.submit
    )
    assert said.returncode == 0, said.stderr
    fleet.wait_for_number(DOCUMENTS // 12)

    assert fleet.revision < HEAD
    fleet.upgraded()
    (job,) = JobStore(fleet.database).list()
    new_worker = fleet.worker(CONCURRENCY, lane=lane.name, **settings)
    fleet.wait_for_number(3 * DOCUMENTS // 12)
    new_control = fleet.control()
    fleet.wait_for_number(5 * DOCUMENTS // 12)
    end(old_control)
    fleet.wait_for_number(7 * DOCUMENTS // 12)
    assert old_worker.alive, "old and new worker under the new control"
    end(old_worker)

    fleet.wait_for(job, JobState.COMPLETED, 120)
    assert (new_worker.alive, new_control.alive) == (True, True)
    account = fleet.account(job, DOCUMENTS)
    assert account.dead == {}
    assert account.extra_calls == 0
    counts = fleet.producer.status(job.job_id).counts
    store = fleet.producer._outcomes
    assert (counts.succeeded, counts.calls) == (DOCUMENTS, DOCUMENTS)
    if lane.has_prices:
        assert counts == store.recount(job.job_id)
        assert (counts.cost_microusd > 0, counts.unpriced) == (True, 0)
    if lane.name == "batch":
        batches = ProviderBatchStore(fleet.producer._database).of_job(job.job_id)
        assert {batch.state for batch in batches} == {BatchState.SETTLED}
        assert sum(batch.requests for batch in batches) == DOCUMENTS


def test_a_replay_of_the_release_before_ends_under_this_one(
    fleet: OlderFleet, before: Path
) -> None:
    """Begun by the old command, ended by old and new workers under the old control: each document
    has one result, and each dead letter was tried once more."""
    old = Release(fleet, before)
    assert old.run("migrate").returncode == 0
    fleet.provider.start(*SLOW, "--poison-rate", "0.3")
    old.start("control")
    old.start(*WORKER, "api")
    source = str(fleet.source(DOCUMENTS))
    assert old.run("submit", source, "--job", "night", *ASKED).returncode == 0
    fleet.wait_for_number(DOCUMENTS)
    until(lambda: "completed" in old.run("status", "night").stdout, 60, "the job has ended")
    fleet.provider.tell(poison_rate=0)
    assert old.run("dlq", "replay", "night").returncode == 0
    fleet.wait_for_number(DOCUMENTS + 8)

    fleet.upgraded()
    (job,) = JobStore(fleet.database).list()
    fleet.ready(fleet.worker(CONCURRENCY))
    fleet.wait_for(job, JobState.COMPLETED, 120)
    account, replays = fleet.account(job, DOCUMENTS), fleet.outcomes() - DOCUMENTS
    assert account.dead == {}
    assert (account.extra_calls, account.calls.total()) == (0, DOCUMENTS + replays)


def test_a_job_moves_between_lanes_with_workers_of_both_releases(
    fleet: OlderFleet, before: Path
) -> None:
    """Submitted by the release before and moved by this one, with both controls and workers of both
    in each lane: each document has one result and was asked once."""
    old, in_batches = Release(fleet, before), batch_settings(fleet)
    assert old.run("migrate").returncode == 0
    slower = ("--latency-ms", "800")  # processes start while the job is in its first lane
    fleet.provider.start(*slower, "--batch-s", "1.5", "--batch-step-s", "0.1")
    parts = [
        old.start("control"),
        old.start(*WORKER, "api"),
        old.start("worker", "-c", "1", "--lane", "batch", **in_batches),
    ]
    until(lambda: len(fleet.heard_of()) == len(parts) - 1, START_S, "workers are ready")
    source = str(fleet.source(DOCUMENTS))
    assert old.run("submit", source, "--job", "night", *ASKED).returncode == 0
    fleet.wait_for_number(DOCUMENTS // 12)
    fleet.upgraded()
    with fleet.explained():
        job = fleet.producer.status("night").job
        fleet.control()
        fleet.ready(fleet.worker(CONCURRENCY), fleet.worker(1, lane="batch", **in_batches))
        fleet.penstock("move", "night", "batch")
        fleet.wait_for(job, JobState.COMPLETED, 120)
        account = fleet.account(job, DOCUMENTS)
        assert account.dead == {}
        batches = ProviderBatchStore(fleet.producer._database).of_job(job.job_id)
        assert sum(batch.requests for batch in batches) + account.calls.total() == DOCUMENTS
        assert fleet.producer.status("night").counts.calls == DOCUMENTS
        assert all(part.alive for part in parts)


def end(process: Process) -> None:
    """As an orchestrator does: what is in flight ends, the rest goes back."""
    process.send(signal.SIGTERM)
    assert process.wait(60) in (0, -signal.SIGTERM), process.tail()


def test_going_back_is_refused_in_words(fleet: OlderFleet, before: Path) -> None:
    """The release before does not start on newer tables, and neither does this one on tables of the
    one after it: each says which it found and what to do, and changes nothing."""
    fleet.upgraded()
    old = Release(fleet, before)
    for command in STARTS:
        says_newer(old.run(*command), HEAD)
    with fleet.database.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
    for command in STARTS:
        says_newer(fleet.run(*command), "9999")
    assert fleet.revision == "9999"


def says_newer(refused: subprocess.CompletedProcess[str], found: str) -> None:
    said = refused.stdout + refused.stderr
    assert refused.returncode in (1, 2), said
    assert f"schema {found}" in said
    assert "upgrade this one" in said
    assert "Traceback" not in said


def test_messages_of_a_version_to_come_are_set_aside(fleet: OlderFleet) -> None:
    """They stay as they are where people look, and the job's documents end all the same, for they
    are published again."""
    fleet.upgraded()
    fleet.provider.start("--latency-ms", "1")
    job = fleet.submit(4)
    control = fleet.control()
    until(lambda: fleet.depths(job)["queued"] == 4, 30, "the job is fed")
    end(control)
    client: Any = fleet.store.client()
    queue = next(name for name in client.keys("penstock.api*") if client.type(name) == b"list")
    for raw in client.lrange(queue, 0, -1):
        client.rpush(queue, of_a_version_to_come(raw))
        client.lrem(queue, 1, raw)
    worker = fleet.worker(CONCURRENCY)
    until(lambda: client.llen(keys.PARKED_UNKNOWN) == 4, 60, "all four are set aside")
    shown = [json.loads(raw) for raw in client.lrange(keys.PARKED_UNKNOWN, 0, -1)]
    assert all("body" in one for one in shown)
    fleet.control()
    fleet.wait_for(job, JobState.COMPLETED, 90)
    assert fleet.account(job, 4).dead == {}
    assert client.llen(keys.PARKED_UNKNOWN) == 4, "they are still there for people to look at"
    assert worker.alive


def of_a_version_to_come(raw: bytes) -> bytes:
    message = json.loads(raw)
    arguments, item, more = json.loads(message["body"])
    message["body"] = json.dumps([arguments, item | {"v": 99}, more])
    return json.dumps(message).encode()
