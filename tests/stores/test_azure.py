"""Sources and results on az://, against Azurite, Microsoft's own emulator (`npm install
azurite`)."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import http.client
import json
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest
from servers import free_port

from penstock_ledger import JobStore, OutcomeStore, open_database
from penstock_ledger.model import ItemKey, NewJob, Result
from penstock_producer.accepting.survey import survey
from penstock_producer.bucket import stores
from penstock_producer.errors import SinkError, SinkTaken, SourceChanged, SourceUnavailable
from penstock_producer.job.spec import JobSpec
from penstock_producer.outputs import probe_sink, write_outputs
from penstock_producer.parts import RESULTS_MIN, GrowingOutput
from penstock_producer.sources import Document, open_source
from penstock_producer.sources.blobs import s3, store
from penstock_producer.sources.open import unchanged
from penstock_producer.storage import bucket_at
from penstock_producer.tables.reading import Lines

pytestmark = pytest.mark.servers
SPEC = JobSpec(prompt="{text}", model="m")
ACCOUNT = "devstoreaccount1"
# Azurite's own, the same on every machine.
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
START_TIMEOUT_S = 30.0


@pytest.fixture(scope="module")
def azurite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of a server with a container `docs`."""
    binary = shutil.which("azurite-blob")
    if binary is None:
        pytest.skip("no Azurite: `npm install --global azurite`")
    port, folder = free_port(), tmp_path_factory.mktemp("azurite")
    process = subprocess.Popen(
        [
            binary,
            "--blobPort",
            str(port),
            "--location",
            str(folder),
            "--skipApiVersionCheck",
            "--silent",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            with (
                contextlib.suppress(OSError),
                socket.create_connection(("127.0.0.1", port), timeout=0.2),
            ):
                break
            time.sleep(0.1)
        create_container(port, "docs")
        yield port
    finally:
        process.terminate()
        process.wait()


def create_container(port: int, name: str) -> None:
    """By hand: obstore reads and writes objects only."""
    date = formatdate(usegmt=True)
    headers = {"x-ms-date": date, "x-ms-version": "2021-08-06"}
    lines = [
        "PUT",
        *[""] * 11,
        f"x-ms-date:{date}",
        "x-ms-version:2021-08-06",
        f"/{ACCOUNT}/{ACCOUNT}/{name}",
        "restype:container",
    ]
    signature = hmac.new(base64.b64decode(KEY), "\n".join(lines).encode(), hashlib.sha256).digest()
    headers["Authorization"] = f"SharedKey {ACCOUNT}:{base64.b64encode(signature).decode()}"
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request("PUT", f"/{ACCOUNT}/{name}?restype=container", headers=headers)
    answer = connection.getresponse()
    assert answer.status == 201, answer.read()
    connection.close()


@pytest.fixture
def put(azurite: int, monkeypatch: pytest.MonkeyPatch) -> Any:
    for name, value in (
        ("ACCOUNT_NAME", ACCOUNT),
        ("ACCOUNT_KEY", KEY),
        ("ENDPOINT", f"http://127.0.0.1:{azurite}/{ACCOUNT}"),
    ):
        monkeypatch.setenv(f"AZURE_STORAGE_{name}", value)
    monkeypatch.setenv("AZURE_ALLOW_HTTP", "true")
    import obstore

    container = store.open_store("az", "docs")
    return lambda key, content: obstore.put(container, key, content)


def jsonl(count: int, text: str = "t") -> bytes:
    return b"".join(
        json.dumps({"id": f"d{number}", "text": text}).encode() + b"\n" for number in range(count)
    )


def test_an_object_is_read_as_it_was_pinned(put: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """An object read in many ranges gives its documents from any cursor and position, and other
    content is refused."""
    monkeypatch.setattr(s3, "RANGE_BYTES", 100)
    uri = "az://docs/in%20put.jsonl"
    put("in put.jsonl", jsonl(50))
    pin = json.loads(json.dumps(survey(open_source(uri, SPEC), SPEC).pin))
    source = open_source(pin, SPEC)
    documents = [row for row in source.documents({}) if isinstance(row, Document)]
    assert [document.doc_id for document in documents] == [f"d{number}" for number in range(50)]
    assert list(source.documents(documents[19].cursor)) == documents[20:]
    assert source.fetch(documents[30].position).body == documents[30].body
    assert unchanged(pin, uri)
    put("in put.jsonl", jsonl(50, "o"))
    assert not unchanged(pin, uri)
    with pytest.raises(SourceChanged):
        source.fetch(documents[30].position)
    with pytest.raises(SourceUnavailable, match="no such object"):
        open_source("az://docs/nothing.jsonl", SPEC).pin()


def test_a_prefix_of_rows_and_a_prefix_of_texts(put: Any) -> None:
    """What a list says of an object is what a read is held to, though lists leave out the quotes of
    ETags."""
    put("night/a.jsonl", jsonl(2))
    put("night/deep/b c.csv", b"id,text\nb,x\n")
    pin = json.loads(json.dumps(survey(open_source("az://docs/night/", SPEC), SPEC).pin))
    assert [row.doc_id for row in open_source(pin, SPEC).documents({})] == ["d0", "d1", "b"]
    assert [row.doc_id for row in open_source("az://docs/night/**.csv", SPEC).documents({})] == [
        "b"
    ]
    for number in range(30):
        put(f"notes/{number:02}.txt", f"text {number}".encode())
    texts = open_source(
        json.loads(json.dumps(survey(open_source("az://docs/notes/", SPEC), SPEC).pin)), SPEC
    )
    read = list(texts.documents({}))
    assert [row.doc_id for row in read] == [f"{number:02}.txt" for number in range(30)]
    assert list(texts.documents(read[20].cursor)) == read[21:]
    assert isinstance(read[9], Document)
    assert texts.fetch(read[9].position).body == read[9].body
    put("notes/11.txt", b"other text")
    with pytest.raises(SourceChanged):
        list(texts.documents({}))


def test_results_go_into_a_container(
    put: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Conditions hold, large objects go in blocks and keep what is noted of them, and parts become
    one object."""
    monkeypatch.setattr(stores, "PART_BYTES", 300_000)
    database = open_database(f"sqlite:///{tmp_path}/ledger.db")
    database.migrate()
    new = NewJob(
        "job_1", "night", {"endpoint": "/v1/chat/completions"}, {"kind": "spool"}, "digest", None
    )
    job, _ = JobStore(database).create(new)
    outcomes = OutcomeStore(database)
    body = json.dumps({"a": "x" * 2_000}).encode()
    keys = [ItemKey("job_1", 1, f"d{number}") for number in range(RESULTS_MIN)]
    outcomes.settle(
        [Result(key, 200, body, None, "m", "stop", 1, 1, 0, 1, 1, 1) for key in keys], []
    )
    probe_sink("az://docs/runs")
    place = bucket_at("az://docs/runs/job_1")
    assert place.takes_conditions()
    first, second = (GrowingOutput(place, database, job, conditional=True) for _ in range(2))
    first.grow(RESULTS_MIN)
    parts = place.read("parts.json")
    assert parts is not None
    with pytest.raises(SinkTaken):
        place.put("parts.json", b"{}", condition={"IfMatch": '"0x1"'})
    lines = b"".join(Lines(database, job))
    first.complete(RESULTS_MIN, keep=False)
    whole, there = place.read("output.jsonl"), place.head("output.jsonl")
    assert whole is not None
    assert there is not None
    assert whole[0] == lines
    assert (
        there.metadata.items()
        >= {"penstock-job": "job_1", "penstock-results": str(RESULTS_MIN)}.items()
    )
    second.complete(RESULTS_MIN, keep=False)
    assert place.head("output.jsonl") == there
    assert list(place.names("parts/")) == []
    written = write_outputs(outcomes, "job_1", "az://docs/run")
    assert (written.output, written.results) == ("az://docs/run/output.jsonl", RESULTS_MIN)
    with pytest.raises(SinkError, match="there is no bucket 'nothing'"):
        probe_sink("az://nothing/run")
    database.close()
