"""Sources on gs://, over real HTTP: moto answers the requests that Google's XML API shares with S3,
of an open bucket."""

from __future__ import annotations

import gzip
import io
import json
import sys
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from servers import S3Server

from penstock_producer.accepting.survey import survey
from penstock_producer.errors import BadReference, SourceChanged, SourceError, SourceUnavailable
from penstock_producer.job.spec import JobSpec
from penstock_producer.settings import ProducerSettings
from penstock_producer.sources import Document, open_source
from penstock_producer.sources.blobs import s3, store
from penstock_producer.sources.open import unchanged

SPEC = JobSpec(prompt="{text}", model="m", max_bad_rows=10)


class Bucket:
    def __init__(self, client: Any) -> None:
        self._client = client

    def put(self, key: str, content: bytes, **how: str) -> None:
        self._client.put_object(Bucket="gsdocs", Key=key, Body=content, ACL="public-read", **how)

    def remove(self, key: str) -> None:
        self._client.delete_object(Bucket="gsdocs", Key=key)


@pytest.fixture
def bucket(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    key = {
        "gcs_base_url": s3_server.url,
        "disable_oauth": True,
        "client_email": "",
        "private_key": "",
        "private_key_id": "",
    }
    monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT_KEY", json.dumps(key))
    monkeypatch.setenv("GOOGLE_ALLOW_HTTP", "true")
    client = s3_server.client()
    client.create_bucket(Bucket="gsdocs", ACL="public-read")
    yield Bucket(client)
    for entry in client.list_objects_v2(Bucket="gsdocs").get("Contents", []):
        client.delete_object(Bucket="gsdocs", Key=entry["Key"])
    client.delete_bucket(Bucket="gsdocs")


def jsonl(count: int, text: str = "t") -> bytes:
    return b"".join(
        json.dumps({"id": f"d{number}", "text": text}).encode() + b"\n" for number in range(count)
    )


def test_an_object_is_surveyed_read_and_fetched(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An object read in many ranges gives the same documents as a file, from any cursor and
    position."""
    monkeypatch.setattr(s3, "RANGE_BYTES", 100)
    bucket.put("in put.jsonl", jsonl(50))
    pin = json.loads(json.dumps(survey(open_source("gs://gsdocs/in%20put.jsonl", SPEC), SPEC).pin))
    assert (pin["kind"], bool(pin["etag"])) == ("gs", True)
    source = open_source(pin, SPEC)
    documents = [row for row in source.documents({}) if isinstance(row, Document)]
    assert [document.doc_id for document in documents] == [f"d{number}" for number in range(50)]
    assert list(source.documents(documents[19].cursor)) == documents[20:]
    assert source.fetch(documents[30].position).body == documents[30].body
    with pytest.raises(BadReference):
        source.fetch("100000:10")


def test_a_replaced_object_is_never_read(bucket: Bucket) -> None:
    """Other content than what was pinned is refused, in the middle of a file as at its start; one
    that is gone can come back."""
    uri = "gs://gsdocs/a.jsonl"
    bucket.put("a.jsonl", jsonl(3))
    pin = open_source(uri, SPEC).pin()
    assert unchanged(pin, uri)
    bucket.put("a.jsonl", jsonl(3, "o"))
    assert not unchanged(pin, uri)
    with pytest.raises(SourceChanged):
        list(open_source(pin, SPEC).documents({}))
    with pytest.raises(SourceChanged):
        open_source(pin, SPEC).fetch("0:10")
    bucket.remove("a.jsonl")
    with pytest.raises(SourceUnavailable, match="no such object"):
        list(open_source(pin, SPEC).documents({}))


def test_a_service_without_conditions_is_held_to_its_answer(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where `If-Match` is ignored, the ETag of the answer shows that it is another object."""
    import obstore

    bucket.put("a.jsonl", jsonl(3))
    pin = open_source("gs://gsdocs/a.jsonl", SPEC).pin()
    bucket.put("a.jsonl", jsonl(3, "o"))
    get = obstore.get

    def ignoring(place: Any, key: str, *, options: dict[str, Any]) -> Any:
        return get(place, key, options={"range": options["range"]})

    monkeypatch.setattr(obstore, "get", ignoring)
    with pytest.raises(SourceChanged):
        list(open_source(pin, SPEC).documents({}))


def test_an_object_that_says_it_is_encoded_is_refused(bucket: Bucket) -> None:
    """Whether that is so or not: what is unpacked on its way has other sizes and places than those
    listed."""
    packed = gzip.compress(jsonl(3))
    for key, content in {
        "plain.jsonl": jsonl(3),
        "packed.jsonl": packed,
        "packed.jsonl.gz": packed,
    }.items():
        bucket.put(key, content, ContentEncoding="gzip")
        with pytest.raises(SourceError, match=r"content_encoding: .*--clear-content-encoding"):
            survey(open_source(f"gs://gsdocs/{key}", SPEC), SPEC)
    bucket.put("fine.jsonl.gz", packed)
    assert survey(open_source("gs://gsdocs/fine.jsonl.gz", SPEC), SPEC).total == 3


def test_a_prefix_of_rows_and_a_prefix_of_texts(bucket: Bucket) -> None:
    """Objects below a prefix are one source: rows by their formats, texts as a document each;
    patterns choose among them."""
    parquet = io.BytesIO()
    pq.write_table(
        pa.table({"id": [f"p{row}" for row in range(90)], "text": ["t"] * 90}),
        parquet,
        row_group_size=30,
    )
    rows = {
        "night/a.jsonl": jsonl(1),
        "night/deep/b c.csv": b"id,text\nb,x\n",
        "night/p.parquet": parquet.getvalue(),
    }
    for key, content in (rows | {"night/_SUCCESS": b"", "other.csv": b"id,text\no,x\n"}).items():
        bucket.put(key, content)
    pin = json.loads(json.dumps(survey(open_source("gs://gsdocs/night/", SPEC), SPEC).pin))
    source = open_source(pin, SPEC)
    documents = [row for row in source.documents({}) if isinstance(row, Document)]
    assert [document.doc_id for document in documents] == [
        "d0",
        "b",
        *(f"p{row}" for row in range(90)),
    ]
    assert list(source.documents(documents[40].cursor)) == documents[41:]
    assert source.fetch(documents[-1].position).body == documents[-1].body
    for pattern, ids in {"gs://gsdocs/*.csv": ["o"], "gs://gsdocs/night/**.csv": ["b"]}.items():
        assert [row.doc_id for row in open_source(pattern, SPEC).documents({})] == ids
    for number in range(40):
        bucket.put(f"notes/{number:02}.txt", b"" if number == 7 else f"text {number}".encode())
    found = survey(open_source("gs://gsdocs/notes/", SPEC), SPEC)
    assert [(refusal.doc_id, refusal.row.code) for refusal in found.refused] == [
        ("07.txt", "empty_file")
    ]
    texts = open_source(json.loads(json.dumps(found.pin)), SPEC)
    read = list(texts.documents({}))
    assert [row.doc_id for row in read] == [f"{number:02}.txt" for number in range(40)]
    assert list(texts.documents(read[20].cursor)) == read[21:]
    assert isinstance(read[9], Document)
    assert texts.fetch(read[9].position).body == read[9].body
    assert unchanged(found.pin, "gs://gsdocs/notes/")
    bucket.put("notes/11.txt", b"other text")
    assert not unchanged(found.pin, "gs://gsdocs/notes/")
    with pytest.raises(SourceChanged):
        list(texts.documents({}))


def test_what_cannot_be_reached_can_come_back(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A missing bucket, a silent endpoint, a missing account and a missing package pause a job:
    each says what to check."""
    monkeypatch.setattr(store, "TRIES", 1)
    with pytest.raises(SourceUnavailable, match="no such object"):
        open_source("gs://no-such-bucket/x.jsonl", SPEC).pin()
    monkeypatch.setenv(
        "GOOGLE_SERVICE_ACCOUNT_KEY",
        '{"gcs_base_url": "http://127.0.0.1:9", "disable_oauth": true, '
        '"client_email": "", "private_key": "", "private_key_id": ""}',
    )
    with pytest.raises(SourceUnavailable, match="check the endpoint"):
        open_source("gs://gsdocs/x.jsonl", SPEC).pin()
    monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT_KEY", "{")
    with pytest.raises(SourceUnavailable, match="check the endpoint, account and credentials"):
        open_source("gs://gsdocs/x.jsonl", SPEC).pin()
    for name in ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_ACCOUNT_NAME"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(SourceUnavailable, match="Account must be specified"):
        open_source("az://docs/x.jsonl", SPEC)
    monkeypatch.setitem(sys.modules, "obstore.store", None)
    with pytest.raises(SourceUnavailable, match=r"pip install penstock\[stores\]"):
        open_source("gs://gsdocs/x.jsonl", SPEC)


@pytest.mark.parametrize(
    "uri",
    ["gs://", "gs://bucket", "gs:///key", "az://[x/y", "gs://bucket/key?x=1", "gs://bucket/#"],
)
def test_an_address_without_an_object_is_refused(uri: str) -> None:
    """An address needs a bucket and a key."""
    with pytest.raises(SourceError, match=r"gs://bucket/key"):
        open_source(uri, SPEC)


def test_a_remote_door_reads_inside_its_roots_only(bucket: Bucket) -> None:
    """`source_roots` holds buckets of each service apart, and a pin that came through such a door
    is held to it again."""
    bucket.put("open/a.jsonl", jsonl(2))
    bucket.put("closed.jsonl", jsonl(2))
    roots = ProducerSettings(source_roots=("gs://gsdocs/open", "s3://gsdocs"))
    pin = survey(open_source("gs://gsdocs/open/a.jsonl", SPEC, roots, remote=True), SPEC).pin
    assert len(list(open_source(pin | {"door": "remote"}, SPEC, roots).documents({}))) == 2
    for uri in (
        "gs://gsdocs/closed.jsonl",
        "gs://gsdocs/open/../closed.jsonl",
        "az://gsdocs/open/a.jsonl",
    ):
        with pytest.raises(SourceError, match="source_forbidden"):
            open_source(uri, SPEC, roots, remote=True)
    with pytest.raises(SourceError, match="source_forbidden"):
        open_source(
            pin | {"door": "remote"}, SPEC, ProducerSettings(source_roots=("gs://gsdocs/other",))
        ).pin()
