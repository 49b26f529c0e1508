"""Sources on S3, over real HTTP."""

from __future__ import annotations

import gzip
import io
import json
import sys
import threading
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from servers import S3Server

from penstock_producer.accepting.survey import survey
from penstock_producer.errors import SourceChanged, SourceError, SourceUnavailable
from penstock_producer.job.spec import JobSpec
from penstock_producer.settings import ProducerSettings
from penstock_producer.sources import Document, open_source
from penstock_producer.sources.blobs import s3
from penstock_producer.sources.open import unchanged
from penstock_producer.sources.readers import whole_files

SPEC = JobSpec(prompt="{text}", model="m")
URI = "s3://docs/in%20put.jsonl"


@pytest.fixture
def client(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    for name, value in (
        ("ACCESS_KEY_ID", "test"),
        ("SECRET_ACCESS_KEY", "test"),
        ("DEFAULT_REGION", "us-east-1"),
    ):
        monkeypatch.setenv(f"AWS_{name}", value)
    client = s3_server.client()
    client.create_bucket(Bucket="docs")
    yield client
    for entry in client.list_objects_v2(Bucket="docs").get("Contents", []):
        client.delete_object(Bucket="docs", Key=entry["Key"])
    client.delete_bucket(Bucket="docs")


@pytest.fixture
def settings(s3_server: S3Server) -> ProducerSettings:
    return ProducerSettings(s3_endpoint_url=s3_server.url)


def put(client: Any, count: int, text: str = "t") -> None:
    lines = [json.dumps({"id": f"d{number}", "text": text}) for number in range(count)]
    client.put_object(Bucket="docs", Key="in put.jsonl", Body="\n".join(lines).encode())


def test_an_object_is_surveyed_read_and_fetched(
    client: Any, settings: ProducerSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An object read in many ranges gives the same documents as a file, from any cursor and
    position."""
    monkeypatch.setattr(s3, "RANGE_BYTES", 100)
    put(client, 50)
    found = survey(open_source(URI, SPEC, settings), SPEC)
    assert found.total == 50
    assert found.pin["etag"]
    source = open_source(found.pin, SPEC, settings)
    documents = [row for row in source.documents({}) if isinstance(row, Document)]
    assert [document.doc_id for document in documents] == [f"d{number}" for number in range(50)]
    assert list(source.documents(documents[19].cursor)) == documents[20:]
    assert source.fetch(documents[30].position).body == documents[30].body


def test_a_replaced_object_is_never_read(client: Any, settings: ProducerSettings) -> None:
    """The server refuses other content than what was pinned, in the middle of a file as at its
    start."""
    put(client, 3)
    pin = open_source(URI, SPEC, settings).pin()
    assert unchanged(pin, URI, settings)
    put(client, 3, text="other")
    assert not unchanged(pin, URI, settings)
    with pytest.raises(SourceChanged):
        list(open_source(pin, SPEC, settings).documents({}))
    with pytest.raises(SourceChanged):
        open_source(pin, SPEC, settings).fetch("0:10")


def test_a_missing_object_is_unavailable(client: Any, settings: ProducerSettings) -> None:
    """A missing object, a missing bucket and a silent endpoint can come back, so they are
    unavailable."""
    for uri in ("s3://docs/nothing.jsonl", "s3://no-such-bucket/x.jsonl"):
        with pytest.raises(SourceUnavailable, match="check the name"):
            list(open_source(uri, SPEC, settings).documents({}))


def test_an_unreachable_endpoint_is_unavailable(
    client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A silent endpoint is named together with what to check."""
    monkeypatch.setattr(s3, "TRIES", 1)
    source = open_source(URI, SPEC, ProducerSettings(s3_endpoint_url="http://127.0.0.1:9"))
    with pytest.raises(SourceUnavailable, match="check the endpoint"):
        list(source.documents({}))


def test_an_empty_object_is_an_empty_source(client: Any, settings: ProducerSettings) -> None:
    """An object without bytes is refused like an empty file."""
    client.put_object(Bucket="docs", Key="in put.jsonl", Body=b"")
    with pytest.raises(SourceError, match="empty_source"):
        survey(open_source(URI, SPEC, settings), SPEC)


@pytest.mark.parametrize("uri", ["s3://", "s3://bucket", "s3:///key"])
def test_a_uri_without_an_object_is_refused(uri: str) -> None:
    """A URI needs a bucket and a key."""
    with pytest.raises(SourceError, match="s3://bucket/key"):
        open_source(uri, SPEC)


def test_a_prefix_of_several_formats_is_one_source(
    client: Any, settings: ProducerSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Objects below a prefix are read by their formats, each held by the ETag that was listed; a
    pattern chooses among them."""
    monkeypatch.setattr(s3, "RANGE_BYTES", 1000)
    parquet = io.BytesIO()
    pq.write_table(
        pa.table({"id": [f"p{row}" for row in range(90)], "text": ["t"] * 90}),
        parquet,
        row_group_size=30,
    )
    objects = {
        "night/a.jsonl.gz": gzip.compress(b'{"id": "a", "text": "x"}\n'),
        "night/deep/b c.csv": b"id,text\nb,x\n",
        "night/p.parquet": parquet.getvalue(),
        "night/_SUCCESS": b"",
        "other.csv": b"id,text\no,x\n",
    }
    for key, content in objects.items():
        client.put_object(Bucket="docs", Key=key, Body=content)
    found = survey(open_source("s3://docs/night/", SPEC, settings), SPEC)
    source = open_source(json.loads(json.dumps(found.pin)), SPEC, settings)
    documents = [row for row in source.documents({}) if isinstance(row, Document)]
    assert [document.doc_id for document in documents] == [
        "a",
        "b",
        *(f"p{row}" for row in range(90)),
    ]
    assert list(source.documents(documents[40].cursor)) == documents[41:]
    assert source.fetch(documents[-1].position).body == documents[-1].body
    assert unchanged(found.pin, "s3://docs/night/", settings)
    for pattern, ids in {"s3://docs/*.csv": ["o"], "s3://docs/night/**.csv": ["b"]}.items():
        assert [row.doc_id for row in open_source(pattern, SPEC, settings).documents({})] == ids
    client.put_object(
        Bucket="docs", Key="night/p.parquet", Body=objects["night/p.parquet"][:-1] + b"x"
    )
    assert not unchanged(found.pin, "s3://docs/night/", settings)
    with pytest.raises(SourceChanged):
        list(open_source(found.pin, SPEC, settings).documents({}))


def test_a_prefix_of_texts_is_a_document_each(
    client: Any, settings: ProducerSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Objects are listed and read in the order of their names, a feeder begins at any, and a
    replaced one is never read."""
    monkeypatch.setattr(whole_files, "SEGMENT", 10)
    names = [f"{number // 10}/{number:03}.txt" for number in range(35)] + ["9/\u00fc +?#%41.txt"]
    for name in names:
        client.put_object(Bucket="docs", Key=f"notes/{name}", Body=f"text of {name}".encode())
    client.put_object(Bucket="docs", Key="notes/9/bad.txt", Body=b"\xff")
    found = survey(
        open_source("s3://docs/notes/", SPEC, settings), SPEC.model_copy(update={"max_bad_rows": 1})
    )
    assert [(refusal.doc_id, refusal.row.code) for refusal in found.refused] == [
        ("9/bad.txt", "invalid_encoding")
    ]
    source = open_source(json.loads(json.dumps(found.pin)), SPEC, settings)
    documents = [row for row in source.documents({}) if isinstance(row, Document)]
    assert [document.doc_id for document in documents] == names
    assert list(source.documents(documents[24].cursor))[:10] == documents[25:35]
    assert source.fetch(documents[-1].position).body == documents[-1].body
    assert unchanged(found.pin, "s3://docs/notes/", settings)
    client.put_object(Bucket="docs", Key="notes/1/015.txt", Body=b"other")
    with pytest.raises(SourceChanged, match=r"files 11 to 20"):
        list(source.documents({}))
    with pytest.raises(SourceChanged):
        source.fetch(documents[15].position)


def test_what_an_object_says_of_its_encoding_changes_nothing(
    client: Any, settings: ProducerSettings
) -> None:
    """S3 and boto3 leave the bytes as they are stored: a plain object that says gzip is read, a
    packed one by its name."""
    rows = b'{"id": "a", "text": "b"}\n'
    packed = gzip.compress(rows)
    for key, content in {
        "lies.jsonl": rows,
        "says.jsonl.gz": packed,
        "named.jsonl": packed,
    }.items():
        client.put_object(Bucket="docs", Key=key, Body=content, ContentEncoding="gzip")
    for key in ("lies.jsonl", "says.jsonl.gz"):
        found = survey(open_source(f"s3://docs/{key}", SPEC, settings), SPEC)
        pin = json.loads(json.dumps(found.pin))
        assert [row.doc_id for row in open_source(pin, SPEC, settings).documents({})] == ["a"]
    with pytest.raises(
        SourceError, match=r"named\.jsonl is gzip, not JSON Lines; let its name end in .gz"
    ):
        survey(open_source("s3://docs/named.jsonl", SPEC, settings), SPEC)


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (403, "S3 answered 403 .*check the name and the rights"),
        (301, "S3 sends each request elsewhere .*check the endpoint and the region"),
    ],
)
def test_rights_that_end_in_the_middle_of_a_job_pause_it(
    client: Any, settings: ProducerSettings, monkeypatch: pytest.MonkeyPatch, status: int, said: str
) -> None:
    """After some documents the store refuses, or sends us elsewhere: what can be put right, for
    feeder and worker alike."""
    monkeypatch.setattr(s3, "RANGE_BYTES", 200)
    rows = b"".join(
        json.dumps({"id": f"d{number}", "text": "t"}).encode() + b"\n" for number in range(50)
    )
    client.put_object(Bucket="docs", Key="long.jsonl", Body=rows)
    pin = survey(open_source("s3://docs/long.jsonl", SPEC, settings), SPEC).pin
    with Door(settings.s3_endpoint_url or "", status, after=3) as door:
        source = open_source(pin, SPEC, ProducerSettings(s3_endpoint_url=door.url))
        with pytest.raises(SourceUnavailable, match=said):
            list(source.documents({}))
        first = next(iter(open_source(pin, SPEC, settings).documents({})))
        assert isinstance(first, Document)
        with pytest.raises(SourceUnavailable, match=said):
            source.fetch(first.position)
        assert door.passed == 3


class Door(ThreadingHTTPServer):
    """Passes some requests on to a server, and refuses all further ones."""

    daemon_threads = True

    def __init__(self, behind: str, status: int, *, after: int) -> None:
        super().__init__(("127.0.0.1", 0), Passes)
        self.behind, self.status, self.after, self.passed = behind, status, after, 0
        self._thread = threading.Thread(target=self.serve_forever, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self._thread.join()
        self.server_close()


class Passes(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        door = self.server
        assert isinstance(door, Door)
        if door.passed == door.after:
            self._answer(
                door.status,
                {"location": door.behind + self.path},
                b"<Error><Code>Refused</Code></Error>",
            )
            return
        door.passed += 1
        request = urllib.request.Request(door.behind + self.path, headers=dict(self.headers))
        with urllib.request.urlopen(request) as answer:
            self._answer(answer.status, {"etag": answer.headers["etag"]}, answer.read())

    do_HEAD = do_GET

    def _answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.send_response(status)
        for name, value in {**headers, "content-length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None: ...


def test_a_prefix_of_pictures_is_a_document_each(client: Any, settings: ProducerSettings) -> None:
    """Objects are known by their first bytes, and a replaced one is never sent."""
    picture = b"\x89PNG\r\n\x1a\n" + bytes(200)
    for key, content in {"1": picture, "2.png": picture, "3.txt": b"notes"}.items():
        client.put_object(Bucket="docs", Key=f"photos/{key}", Body=content)
    spec = JobSpec(model="m", prompt="{name}: {bytes}", max_bad_rows=1)
    found = survey(open_source("s3://docs/photos/", spec, settings), spec)
    assert [(refusal.doc_id, refusal.row.code) for refusal in found.refused] == [
        ("3.txt", "media_invalid")
    ]
    source = open_source(json.loads(json.dumps(found.pin)), spec, settings)
    first, second, _ = source.documents({})
    assert isinstance(first, Document)
    assert isinstance(second, Document)
    assert b"data:image/png;base64," in second.body
    assert source.fetch(second.position).body == second.body
    client.put_object(Bucket="docs", Key="photos/2.png", Body=picture[::-1])
    with pytest.raises(SourceChanged):
        source.fetch(second.position)


def test_a_machine_without_boto3_pauses_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library that is missing is named, as what can be put right: a control loop pauses such a
    job and does not fail it."""
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(SourceUnavailable, match=r"pip install penstock\[s3\]"):
        open_source(URI, SPEC)


def test_images_lie_beside_the_object_or_in_allowed_buckets(
    client: Any, settings: ProducerSettings
) -> None:
    """Objects below the source's prefix go into requests; others, missing ones and files of this
    machine do not."""
    png = b"\x89PNG\r\n\x1a\n" + bytes(20)
    spec = JobSpec(model="m", prompt="{id}", image_fields=["image"])
    for key in ("jobs/im g/a.png", "elsewhere/b.png"):
        client.put_object(Bucket="docs", Key=key, Body=png)
    names = [
        "im g/a.png",
        "s3://docs/jobs/im%20g/a.png",
        "s3://docs/elsewhere/b.png",
        "none.png",
        "/etc/passwd",
        "../elsewhere/b.png",
    ]
    lines = [json.dumps({"id": f"d{number}", "image": name}) for number, name in enumerate(names)]
    client.put_object(Bucket="docs", Key="jobs/in.jsonl", Body="\n".join(lines).encode())

    def codes(found: ProducerSettings) -> list[str]:
        rows = open_source("s3://docs/jobs/in.jsonl", spec, found).documents({})
        return ["" if isinstance(row, Document) else row.code for row in rows]

    gone, shut = "media_unavailable", "media_forbidden"
    assert codes(settings) == ["", "", shut, gone, shut, shut]
    wider = settings.model_copy(update={"source_roots": ("s3://docs",)})
    assert codes(wider) == ["", "", "", gone, shut, shut]
    lenient = spec.model_copy(update={"max_bad_rows": 9})
    found = survey(open_source("s3://docs/jobs/in.jsonl", lenient, settings), lenient)
    again = open_source(found.pin, spec, settings)
    (first, *_) = [row for row in again.documents({}) if isinstance(row, Document)]
    assert again.fetch(first.position).body == first.body
    client.delete_object(Bucket="docs", Key="jobs/im g/a.png")
    with pytest.raises(SourceUnavailable, match="no such file"):
        again.fetch(first.position)
