"""Results on gs://, over real HTTP: moto answers the requests that Google's XML API shares with S3.

It knows neither generations nor metadata of Google's, so conditions are tried in
tests/unit/producer/outputs/test_store_places.py.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from servers import S3Server

from penstock_cli import files
from penstock_cli.errors import UsageProblem
from penstock_ledger import JobStore, OutcomeStore, open_database
from penstock_ledger.model import ItemKey, NewJob, Result
from penstock_producer.bucket import stores
from penstock_producer.errors import SinkError
from penstock_producer.outputs import probe_sink, write_outputs
from penstock_producer.parts import RESULTS_MIN, GrowingOutput
from penstock_producer.storage import bucket_at, read_object
from penstock_producer.tables.reading import Lines, Reading
from penstock_producer.tables.with_source import write_table


class Bucket:
    def __init__(self, client: Any) -> None:
        self._client = client

    def objects(self) -> dict[str, bytes]:
        listed = self._client.list_objects_v2(Bucket="gsresults").get("Contents", [])
        read = {
            one["Key"]: self._client.get_object(Bucket="gsresults", Key=one["Key"])
            for one in listed
        }
        return {key: answer["Body"].read() for key, answer in read.items()}

    def remove_all(self) -> None:
        for key in self.objects():
            self._client.delete_object(Bucket="gsresults", Key=key)


@pytest.fixture
def bucket(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    monkeypatch.setenv("GOOGLE_BASE_URL", s3_server.url)
    monkeypatch.setenv("GOOGLE_BEARER_TOKEN", "test")
    monkeypatch.setenv("GOOGLE_ALLOW_HTTP", "true")
    client = s3_server.client()
    client.create_bucket(Bucket="gsresults", ACL="public-read-write")
    made = Bucket(client)
    yield made
    made.remove_all()
    client.delete_bucket(Bucket="gsresults")


def test_results_of_every_form_lie_in_the_bucket(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lines in one request or in parts, Parquet, part objects and their whole: the bytes are those
    of a local file."""
    monkeypatch.setattr(stores, "PART_BYTES", 5 * 1024 * 1024)
    database = open_database(f"sqlite:///{tmp_path}/ledger.db")
    database.migrate()
    new = NewJob(
        "job_1", "night", {"endpoint": "/v1/chat/completions"}, {"kind": "spool"}, "digest", None
    )
    job, _ = JobStore(database).create(new)
    outcomes = OutcomeStore(database)
    body = json.dumps({"a": "x" * 20_000}).encode()
    keys = [ItemKey("job_1", 1, f"d{number}") for number in range(RESULTS_MIN)]
    outcomes.settle(
        [Result(key, 200, body, None, "m", "stop", 1, 1, 0, 1, 1, 1) for key in keys], []
    )
    growing = GrowingOutput(
        bucket_at("gs://gsresults/parts/job_1"), database, job, conditional=False
    )
    growing.grow(RESULTS_MIN)
    assert sum(name.startswith("parts/job_1/parts/") for name in bucket.objects()) == 1
    lines = b"".join(Lines(database, job))
    assert len(lines) > 5 * 1024 * 1024
    assert growing.complete(RESULTS_MIN, keep=False) == "gs://gsresults/parts/job_1/output.jsonl"
    assert bucket.objects() == {"parts/job_1/output.jsonl": lines}
    written = write_outputs(outcomes, "job_1", "gs://gsresults/run%207/")
    assert (written.output, written.results) == ("gs://gsresults/run%207/output.jsonl", RESULTS_MIN)
    assert sorted(bucket.objects()["run 7/output.jsonl"].splitlines()) == sorted(lines.splitlines())
    assert bucket.objects()["run 7/errors.jsonl"] == b""
    table = write_table(Reading(database, job), "gs://gsresults/run", "output.parquet", "parquet")
    assert (
        pq.read_table(io.BytesIO(bucket.objects()["run/output.parquet"])).num_rows
        == table.rows
        == RESULTS_MIN
    )
    database.close()


def test_run_looks_before_it_writes(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing bucket and another job's results are refused before anything starts; a probe leaves
    nothing there."""
    monkeypatch.setattr(stores, "TRIES", 1)
    with pytest.raises(UsageProblem, match="there is no bucket 'no-such-bucket'; create it"):
        files.probe("gs://no-such-bucket/out", "a.jsonl")
    probe_sink("gs://gsresults/out")
    assert bucket.objects() == {}
    assert read_object("gs://gsresults/out/report.json", 100) is None
    files.write_lines("gs://gsresults/out/report.json", [b'{"job": "other"}'])
    assert read_object("gs://gsresults/out/report.json", 7) == b'{"job":'
    with pytest.raises(UsageProblem, match="holds the result files of job 'other'"):
        files.refuse_other_jobs("gs://gsresults/out", "mine")
    files.refuse_other_jobs("gs://gsresults/out", "other")
    with pytest.raises(UsageProblem, match="is the source itself"):
        files.probe("gs://gsresults/in", "gs://gsresults/in/output.jsonl")
    monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT_KEY", "{")
    with pytest.raises(SinkError, match="check the account and the credentials"):
        probe_sink("gs://gsresults/out")
