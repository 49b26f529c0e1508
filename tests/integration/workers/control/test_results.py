"""Where the results of a fleet's jobs go: a real control loop, ledger, table and bucket, and no
worker around."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import orjson
import pytest
from servers import RedisServer, S3Server

from penstock_ledger import (
    JobStore,
    Meta,
    OutcomeStore,
    RedisLedger,
    SettleBatch,
    SettledDone,
    buckets_for,
    open_database,
)
from penstock_ledger.model import ItemKey, Job, JobState, Result
from penstock_producer import Producer, ProducerSettings, SpecError
from penstock_producer import parts as part_index
from penstock_producer.accepting.remote_limits import DoorSettings, RemoteLimits
from penstock_workers.control.job import sinks
from penstock_workers.control.loop import Control
from penstock_workers.settings import WorkerSettings

SPEC = {"prompt": "Summarise: {text}", "model": "m"}
ANSWER = orjson.dumps({"choices": [{"message": {"content": "short"}}]})
SECONDS = 20.0  # for threads of one or two passes


class House:
    """A ledger, a queue and one control loop."""

    def __init__(self, redis_server: RedisServer, folder: Path, **settings: Any) -> None:
        self.folder = folder
        url = f"sqlite:///{folder}/ledger.db"
        self.settings = WorkerSettings(redis_url=redis_server.url, database_url=url, **settings)
        self.database = open_database(url)
        self.database.migrate()
        place = self.settings.results_url
        self.producer = Producer(
            ProducerSettings(database_url=url, results_url=place, results_probe_s=0)
        )
        self.hot = RedisLedger(redis_server.client(), Meta(self.database).epoch())
        self.jobs, self.outcomes = JobStore(self.database), OutcomeStore(self.database)
        self.control = Control(self.settings, self.database, self.hot, owner="test")

    def submit(self, documents: int, **spec: object) -> Job:
        path = self.folder / f"{documents}.jsonl"
        path.write_bytes(
            b"".join(
                orjson.dumps({"id": f"d{n}", "text": f"text {n}"}) + b"\n" for n in range(documents)
            )
        )
        return self.producer.submit(path, SPEC | spec)

    def finish(self, job: Job, *docs: str) -> None:
        """What a worker does with documents that succeed."""
        keys = [ItemKey(job.job_id, 1, doc) for doc in docs]
        self.outcomes.settle(
            [Result(key, 200, ANSWER, None, None, None, 1, 1, 5, 1, 1, 1) for key in keys], []
        )
        self.hot.settle(
            SettleBatch(done=[SettledDone(key, buckets_for(job), cost_microusd=5) for key in keys])
        )

    def until(self, *holds: Any) -> None:
        """Tick until it is so."""
        ends = time.monotonic() + SECONDS
        while not all(one() for one in holds):
            assert time.monotonic() < ends, "it did not come to that"
            self.control.tick()
            time.sleep(0.01)

    def found(self, job: Job) -> Job:
        return self.jobs.get(job.job_id)

    def is_in(self, job: Job, state: JobState) -> Any:
        return lambda: self.found(job).state is state

    def close(self) -> None:
        self.producer.close()
        self.database.close()


@pytest.fixture
def house(
    redis_server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[House]:
    monkeypatch.setattr(sinks, "PASS_EVERY_S", 0.0)
    monkeypatch.setattr(sinks, "RETRY_BASE_S", 0.0)
    made = House(redis_server, tmp_path, results_url=str(tmp_path / "results"))
    yield made
    made.close()


def rows(path: Path, query: str) -> list[tuple[Any, ...]]:
    with sqlite3.connect(path) as mine:
        return mine.execute(query).fetchall()


def test_a_table_fills_while_its_job_runs(house: House) -> None:
    """Rows come as documents are finished, and are all there before the job is called complete,
    each once."""
    target = house.folder / "mine.db"
    job = house.submit(3, into=f"sqlite:///{target}", into_table="labels")
    house.control.tick()
    house.finish(job, "d0")
    house.until(
        lambda: (
            target.exists()
            and rows(target, "SELECT count(*) FROM sqlite_master WHERE name = 'labels'") == [(1,)]
        )
    )
    house.until(lambda: rows(target, "SELECT id, answer FROM labels") == [("d0", "short")])
    assert house.found(job).state is JobState.RUNNING
    house.finish(job, "d1", "d2")
    house.until(house.is_in(job, JobState.COMPLETED))
    found = rows(target, "SELECT id, text IS NULL, answer IS NULL FROM labels ORDER BY id")
    assert found == [("d0", 0, 0), ("d1", 0, 0), ("d2", 0, 0)]


def test_a_table_that_cannot_be_written_pauses_its_job(house: House) -> None:
    """Before the documents are paid for the job is paused with the reason; once the table fits, it
    goes on when it is resumed."""
    target = house.folder / "mine.db"
    with sqlite3.connect(target) as mine:
        mine.execute("CREATE TABLE labels (id TEXT, text TEXT)")
    job = house.submit(2, into=f"sqlite:///{target}", into_table="labels")
    house.until(house.is_in(job, JobState.PAUSED))
    assert "results_not_written: table labels has no primary key" in str(house.found(job).reason)
    with sqlite3.connect(target) as mine:
        mine.execute("CREATE UNIQUE INDEX of_labels ON labels (id)")
    house.producer.resume(job.job_id)
    house.control.tick()
    house.finish(job, "d0", "d1")
    house.until(house.is_in(job, JobState.COMPLETED))
    assert rows(target, "SELECT count(*) FROM labels") == [(2,)]


def test_a_password_is_named_not_given(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """The URL may stand in a variable of the control process; the ledger has its name alone, and an
    unset one is named."""
    target = house.folder / "mine.db"
    job = house.submit(1, into="env:SHOP_URL", into_table="labels")
    house.until(house.is_in(job, JobState.PAUSED))
    assert "variable SHOP_URL is not set" in str(house.found(job).reason)
    monkeypatch.setenv("SHOP_URL", f"sqlite:///{target}")
    house.producer.resume(job.job_id)
    house.control.tick()
    house.finish(job, "d0")
    house.until(house.is_in(job, JobState.COMPLETED))
    assert house.found(job).spec["into"] == "env:SHOP_URL"
    assert rows(target, "SELECT id FROM labels") == [("d0",)]


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_a_job_ends_in_a_table_beside_its_lines(house: House, form: str) -> None:
    """With `output_format` the folder of a completed job has the table, too."""
    if form == "parquet":
        pytest.importorskip("pyarrow")
    job = house.submit(2, output_format=form)
    house.control.tick()
    house.finish(job, "d0", "d1")
    house.until(house.is_in(job, JobState.COMPLETED))
    written = house.folder / "results" / job.job_id
    assert {path.name for path in written.iterdir()} == {
        "output.jsonl",
        "errors.jsonl",
        f"output.{form}",
    }
    if form == "csv":
        assert (written / "output.csv").read_bytes().count(b"\r\n") == 3


def test_a_format_without_a_place_is_refused(house: House) -> None:
    """Where no results_url is set there is no place for the table, and the submitter gets to know
    it."""
    bare = Producer(ProducerSettings(database_url=house.settings.database_url))
    with pytest.raises(
        SpecError, match=r"/output_format: csv is written where results_url says.*penstock results"
    ):
        bare.submit(house.folder / "none.jsonl", {**SPEC, "output_format": "csv"})
    bare.close()


def test_a_remote_door_writes_into_no_table_that_its_operator_does_not_name(house: House) -> None:
    """`into` is written with the rights of the control process, so `doors.into` has to name it."""
    spec = {**SPEC, "into": "env:SHOP_URL", "into_table": "labels"}
    source = house.folder / "none.jsonl"
    for allowed, told in (
        ((), r"/into: 'env:SHOP_URL' is refused at this door"),
        (("env:SHOP_URL",), "source_forbidden"),
    ):
        remote = Producer(
            ProducerSettings(database_url=house.settings.database_url),
            remote_limits=RemoteLimits(DoorSettings(into=allowed)),
        )
        with pytest.raises(Exception, match=told):
            remote.submit(str(source), spec)
        remote.close()


def test_results_are_in_the_bucket_while_the_job_runs(
    redis_server: RedisServer, s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With `results_parts` part objects come while documents are finished; a completed job has the
    whole and its errors."""
    for name, value in (
        ("ACCESS_KEY_ID", "test"),
        ("SECRET_ACCESS_KEY", "test"),
        ("DEFAULT_REGION", "us-east-1"),
    ):
        monkeypatch.setenv(f"AWS_{name}", value)
    monkeypatch.setattr(sinks, "PASS_EVERY_S", 0.0)
    monkeypatch.setattr(part_index, "RESULTS_MIN", 2)
    client, bucket = s3_server.client(), f"fleet-{uuid4().hex[:12]}"
    client.create_bucket(Bucket=bucket)
    house = House(
        redis_server,
        tmp_path,
        results_url=f"s3://{bucket}/out",
        results_parts="until_end",
        s3_endpoint_url=s3_server.url,
    )

    def keys() -> list[str]:
        return [entry["Key"] for entry in client.list_objects_v2(Bucket=bucket).get("Contents", [])]

    job = house.submit(5)
    house.control.tick()
    house.finish(job, "d0", "d1", "d2")
    house.until(lambda: any(key.endswith("/parts.json") for key in keys()))
    assert house.found(job).state is JobState.RUNNING
    house.finish(job, "d3", "d4")
    house.until(house.is_in(job, JobState.COMPLETED))
    assert keys() == [f"out/{job.job_id}/errors.jsonl", f"out/{job.job_id}/output.jsonl"]
    body = client.get_object(Bucket=bucket, Key=f"out/{job.job_id}/output.jsonl")["Body"].read()
    assert [orjson.loads(line)["custom_id"] for line in body.splitlines()] == [
        f"d{n}" for n in range(5)
    ]
    house.close()
