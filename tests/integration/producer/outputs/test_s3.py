"""Outputs in a bucket, over real HTTP."""

from __future__ import annotations

import io
import itertools
import json
import random
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from servers import S3Server

from penstock_ledger import JobStore, OutcomeStore, open_database
from penstock_ledger.model import DeadLetter, ItemKey, NewJob, Result
from penstock_producer.bucket.s3 import PART_BYTES
from penstock_producer.errors import SinkError
from penstock_producer.outputs import probe_sink, write_outputs
from penstock_producer.tables import arrow
from penstock_producer.tables.reading import Reading
from penstock_producer.tables.with_source import write_table

ROW_BYTES = 64 * 1024
ROWS = 2 * PART_BYTES // ROW_BYTES + 30  # two full parts and a smaller last one


class Ledger:
    def __init__(self, rows: int, *, fail: bool = False, dead: int = 0) -> None:
        self.rows = rows
        self.fail = fail
        self.dead = dead

    def results(self, job_id: str) -> Iterator[Result]:
        body = json.dumps({"text": "x" * ROW_BYTES}).encode()
        for number in range(self.rows):
            key = ItemKey(job_id, 1, f"doc-{number}")
            yield Result(key, 200, body, None, "m", "stop", 1, 1, 0, 1, 1, 1)
        if self.fail:
            raise ConnectionError("the database is gone")

    def dead_letters(self, job_id: str) -> Iterator[DeadLetter]:
        for number in range(self.dead):
            yield DeadLetter(
                ItemKey(job_id, 1, f"dead-{number}"),
                "timeout",
                4,
                4,
                "no answer",
                None,
                b"{}",
                None,
            )


class Bucket:
    def __init__(self, server: S3Server) -> None:
        self.client = server.client()
        self.name = f"outputs-{uuid4().hex[:12]}"
        self.client.create_bucket(Bucket=self.name)

    def objects(self) -> dict[str, bytes]:
        listed = self.client.list_objects_v2(Bucket=self.name).get("Contents", [])
        return {entry["Key"]: self.read(entry["Key"]) for entry in listed}

    def read(self, key: str) -> bytes:
        body: bytes = self.client.get_object(Bucket=self.name, Key=key)["Body"].read()
        return body

    def unfinished(self) -> list[Any]:
        uploads: list[Any] = self.client.list_multipart_uploads(Bucket=self.name).get("Uploads", [])
        return uploads


@pytest.fixture
def bucket(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    return Bucket(s3_server)


def test_a_large_output_is_uploaded_in_parts(s3_server: S3Server, bucket: Bucket) -> None:
    """An output of several parts arrives whole and in order; an empty side is an empty object, as
    in a folder (D39)."""
    written = write_outputs(
        Ledger(ROWS), "job", f"s3://{bucket.name}/runs/7/", s3_endpoint_url=s3_server.url
    )
    assert written.output == f"s3://{bucket.name}/runs/7/output.jsonl"
    assert written.errors == f"s3://{bucket.name}/runs/7/errors.jsonl"
    objects = bucket.objects()
    assert set(objects) == {"runs/7/output.jsonl", "runs/7/errors.jsonl"}
    assert objects["runs/7/errors.jsonl"] == b""
    data = objects["runs/7/output.jsonl"]
    assert len(data) > 2 * PART_BYTES
    assert [json.loads(line)["custom_id"] for line in data.splitlines()] == [
        f"doc-{n}" for n in range(ROWS)
    ]
    parts = (
        bucket.client.head_object(Bucket=bucket.name, Key="runs/7/output.jsonl")["ETag"]
        .strip('"')
        .split("-")
    )
    assert parts[1] == "3"
    assert bucket.unfinished() == []


def test_a_failed_upload_leaves_nothing(s3_server: S3Server, bucket: Bucket) -> None:
    """When the ledger fails after parts were sent: no object, no unfinished upload, and no loss of
    an old one."""
    bucket.client.put_object(Bucket=bucket.name, Key="errors.jsonl", Body=b"old")
    with pytest.raises(ConnectionError):
        write_outputs(
            Ledger(ROWS, fail=True), "job", f"s3://{bucket.name}", s3_endpoint_url=s3_server.url
        )
    assert bucket.objects() == {"errors.jsonl": b"old"}
    assert bucket.unfinished() == []


def test_writing_again_replaces_what_is_out_of_date(s3_server: S3Server, bucket: Bucket) -> None:
    """After a replay that rescued every document, the errors of the first run are gone from the
    bucket (D39)."""
    place = f"s3://{bucket.name}/run"
    write_outputs(Ledger(1, dead=2), "job", place, s3_endpoint_url=s3_server.url)
    assert set(bucket.objects()) == {"run/output.jsonl", "run/errors.jsonl"}
    write_outputs(Ledger(3), "job", place, s3_endpoint_url=s3_server.url)
    objects = bucket.objects()
    assert objects["run/errors.jsonl"] == b""
    assert objects["run/output.jsonl"].count(b"\n") == 3


def test_a_missing_bucket_is_refused_beforehand(s3_server: S3Server, bucket: Bucket) -> None:
    """The probe says that the bucket does not exist; a good one is left without a trace."""
    with pytest.raises(SinkError, match="there is no bucket 'no-such-bucket-here'; create it"):
        probe_sink("s3://no-such-bucket-here/out", s3_endpoint_url=s3_server.url)
    probe_sink(f"s3://{bucket.name}/out", s3_endpoint_url=s3_server.url)
    assert bucket.objects() == {}
    assert bucket.unfinished() == []


def test_an_endpoint_that_is_not_there_is_named(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a server the message gives the place and what to check."""
    monkeypatch.setattr("penstock_producer.bucket.s3.TRIES", 1)
    with pytest.raises(
        SinkError, match=r"cannot write s3://b/out/penstock-probe: .*check the endpoint"
    ):
        probe_sink("s3://b/out", s3_endpoint_url="http://127.0.0.1:1")


def test_a_table_is_uploaded_in_parts_and_appears_whole(
    s3_server: S3Server, bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parquet goes up while it is written, and a failure leaves neither object nor upload."""
    parquet = pytest.importorskip("pyarrow.parquet")
    database = open_database(f"sqlite:///{tmp_path}/ledger.db")
    database.migrate()
    job, _ = JobStore(database).create(
        NewJob("job", "job", {"endpoint": "/v1/rerank"}, {"kind": "spool"}, "digest", None)
    )
    numbers = random.Random(7)
    for start in range(0, 6_000, 1_000):  # what does not compress, in more than two parts
        rows = [
            (f"doc-{n}", b64encode(numbers.randbytes(3_000))) for n in range(start, start + 1_000)
        ]
        OutcomeStore(database).settle(
            [
                Result(ItemKey("job", 1, doc), 200, body, None, "m", "stop", 1, 1, 0, 5, 1, 1)
                for doc, body in rows
            ],
            [],
        )
    to = f"s3://{bucket.name}/run"
    monkeypatch.setattr(arrow, "BATCH_ROWS", 1_000)

    class Fails(Reading):
        def __iter__(self) -> Iterator[Any]:
            yield from itertools.islice(super().__iter__(), 5_500)
            raise ConnectionError("the database is gone")

    with pytest.raises(ConnectionError):
        write_table(
            Fails(database, job), to, "output.parquet", "parquet", s3_endpoint_url=s3_server.url
        )
    assert (bucket.objects(), bucket.unfinished()) == ({}, [])
    written = write_table(
        Reading(database, job), to, "output.parquet", "parquet", s3_endpoint_url=s3_server.url
    )
    assert (written.place, written.rows) == (f"{to}/output.parquet", 6_000)
    read = parquet.read_table(io.BytesIO(bucket.objects()["run/output.parquet"]))
    assert read["id"].to_pylist() == [
        f"doc-{n}" for n in sorted(range(6_000), key=lambda n: (n // 1_000, f"doc-{n}"))
    ]
    database.close()
