"""Output and error lines, and the folder they are written to."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from penstock_ledger.model import DeadLetter, ItemKey, Result
from penstock_producer.bucket.s3 import Bucket
from penstock_producer.errors import SinkError
from penstock_producer.outputs import error_line, output_line, probe_sink, write_outputs
from penstock_producer.storage import BucketSink, open_sink

BODY = b'{"id": "x",\r\n  "choices": [{"message": {"content": "a\\nb \xe2\x80\xa8 c"}}]}'


def result(doc_id: str = "doc", body: bytes = BODY) -> Result:
    return Result(ItemKey("job", 1, doc_id), 200, body, "req_1", "m", "stop", 7, 9, 12, 80, 1, 1)


def letter(
    reason: str, status_code: int | None = None, response: bytes | None = None
) -> DeadLetter:
    key = ItemKey("job", 2, "doc")
    return DeadLetter(key, reason, 4, 4, "what was said", status_code, b"{}", response)


@dataclass
class Ledger:
    """Outcomes as the ledger gives them, made on the way."""

    good: int = 3
    dead: int = 2
    fail_at: int | None = None
    body: bytes = BODY
    given: int = field(default=0, init=False)

    def results(self, job_id: str) -> Iterator[Result]:
        for number in range(self.good):
            if number == self.fail_at:
                raise ConnectionError("the database is gone")
            self.given += 1
            yield structs.replace(result(body=self.body), key=ItemKey(job_id, 1, f"doc-{number}"))

    def dead_letters(self, job_id: str) -> Iterator[DeadLetter]:
        for number in range(self.dead):
            yield replace(letter("bad_request", 400), key=ItemKey(job_id, 1, f"dead-{number}"))


def lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]


def test_an_output_line_is_openais() -> None:
    """A result is one line with the provider's body untouched in meaning, and the same bytes each
    time."""
    line = output_line(result())
    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")
    assert line == output_line(result())
    parsed = json.loads(line)
    assert parsed.pop("id").startswith("batch_req_")
    assert parsed == {
        "custom_id": "doc",
        "response": {"status_code": 200, "request_id": "req_1", "body": json.loads(BODY)},
        "error": None,
    }


def test_a_refused_request_keeps_the_providers_words() -> None:
    """HTTP refusals have error null and the refusal in response.body.error, with what only we know
    under `penstock`."""
    said = (
        b'{"error": {"message": "too long", "type": "invalid_request_error", "code": '
        b'"context_length_exceeded"}}'
    )
    parsed = json.loads(error_line(letter("context_overflow", 400, said)))
    assert parsed["error"] is None
    assert parsed["response"] == {"status_code": 400, "request_id": None, "body": json.loads(said)}
    assert parsed["penstock"] == {"reason": "context_overflow", "attempts": 4, "generation": 2}


@pytest.mark.parametrize(
    "kept",
    [
        None,
        b"<html>",
        b'{"error": {"message": "cut',
        b"[]",
        b'{"detail": "x"}',
        b'{"error": %b}' % (b"[" * 300 + b"]" * 300),
    ],
)
def test_a_refusal_without_usable_words_says_what_is_known(kept: bytes | None) -> None:
    """Excerpts, HTML pages and JSON too deep to be written are not error bodies: one is made of the
    reason and last error."""
    body = json.loads(error_line(letter("server_error", 503, kept)))["response"]["body"]
    assert (body["error"]["code"], body["error"]["message"]) == ("server_error", "what was said")


@pytest.mark.parametrize(
    ("reason", "status", "code"),
    [
        ("cancelled", None, "batch_cancelled"),
        ("deadline_exceeded", None, "batch_expired"),
        ("timeout", None, "request_timeout"),
        ("worker_crashed", None, "worker_crashed"),
        ("schema_mismatch", 200, "schema_mismatch"),
    ],
)
def test_a_failure_without_a_refusal_has_an_error_and_no_response(
    reason: str, status: int | None, code: str
) -> None:
    """What never got a 4xx or 5xx has OpenAI's error code where there is one, our reason
    elsewhere."""
    parsed = json.loads(error_line(letter(reason, status)))
    assert parsed["response"] is None
    assert parsed["error"] == {"code": code, "message": "what was said"}


def test_a_refused_row_names_its_line() -> None:
    """A row that never became a document can be found in its source."""
    refused = replace(letter("invalid_json_line"), line=17)
    assert json.loads(error_line(refused))["penstock"]["line"] == 17


def test_a_folder_gets_both_files(tmp_path: Path) -> None:
    """Files are complete, in a folder made for them, with nothing beside them; an empty side is an
    empty file."""
    written = write_outputs(Ledger(dead=0), "job", tmp_path / "new" / "out")
    assert sorted(path.name for path in (tmp_path / "new" / "out").iterdir()) == [
        "errors.jsonl",
        "output.jsonl",
    ]
    assert (written.results, written.dead_letters) == (3, 0)
    assert [line["custom_id"] for line in lines(Path(str(written.output)))] == [
        "doc-0",
        "doc-1",
        "doc-2",
    ]
    assert Path(str(written.errors)).read_bytes() == b""


def test_a_failure_leaves_the_earlier_files(tmp_path: Path) -> None:
    """When the ledger fails in the middle, yesterday's files are still whole and no part is
    left."""
    write_outputs(Ledger(), "job", tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(ConnectionError):
        write_outputs(Ledger(good=9, fail_at=5), "job", tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_memory_does_not_grow_with_the_job(tmp_path: Path) -> None:
    """Twenty times the outcomes need no more memory: outcomes are read as they are written, never
    gathered."""

    def peak(rows: int) -> int:
        tracemalloc.start()
        write_outputs(Ledger(good=rows, dead=rows), "job", tmp_path)
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return most

    assert peak(20_000) < peak(1_000) + 200_000


def test_ids_of_documents_never_become_file_names(tmp_path: Path) -> None:
    """A document that calls itself `../../x` is a custom_id and nothing else."""
    ledger = Ledger(good=0, dead=0)
    ledger.results = lambda job_id: iter([result("../../x\0/\n")])  # type: ignore[method-assign]  # a fake of a fake
    write_outputs(ledger, "job", tmp_path / "out")
    assert sorted(path.name for path in tmp_path.rglob("*")) == [
        "errors.jsonl",
        "out",
        "output.jsonl",
    ]
    assert lines(tmp_path / "out" / "output.jsonl")[0]["custom_id"] == "../../x\0/\n"


def test_a_folder_that_cannot_be_written_is_refused_beforehand(tmp_path: Path) -> None:
    """The probe names the place and the cause, makes a missing folder, and leaves no file."""
    (tmp_path / "file").write_text("")
    with pytest.raises(
        SinkError, match=r"cannot write .*/file/out: Not a directory; choose a folder"
    ):
        probe_sink(tmp_path / "file" / "out")
    probe_sink(tmp_path / "fresh")
    assert list((tmp_path / "fresh").iterdir()) == []


@pytest.mark.parametrize(
    "place",
    [
        "ftp://bucket/out",
        "gs://",
        "az://box/out?x=1",
        "s3://",
        "s3:///key",
        "https://host/out",
        "s3://bucket/out?x=1",
    ],
)
def test_an_unknown_place_is_refused(place: str) -> None:
    """Only folders and prefixes of buckets are places for outputs, and the message says so."""
    with pytest.raises(SinkError, match="give a folder or s3://bucket/prefix"):
        open_sink(place)


class RefusingClient:
    """S3 as seen with credentials that may do nothing."""

    def __init__(self, code: str) -> None:
        self._code = code

    def _refuse(self, **_: Any) -> Any:
        from botocore.exceptions import ClientError

        raise ClientError({"Error": {"Code": self._code, "Message": "no"}}, "CreateMultipartUpload")

    create_multipart_upload = put_object = head_object = _refuse


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (
            "AccessDenied",
            r"s3://bucket/out/penstock-probe: the credentials may not; grant s3:PutObject",
        ),
        ("ExpiredToken", r"the credentials are refused \(ExpiredToken\); renew"),
        ("PermanentRedirect", r"in another region .* set AWS_REGION"),
        ("SlowDown", r"SlowDown"),
    ],
)
def test_a_bucket_that_refuses_is_explained(code: str, told: str) -> None:
    """What S3 answers is put in terms of what to do."""
    with pytest.raises(SinkError, match=told):
        BucketSink(Bucket(RefusingClient(code), "bucket", "out")).probe()
