"""Recordings that rows name, for requests that are forms: what becomes of each, and what is refused
before anything is sent."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path
from typing import Any

import pytest

from penstock_ledger import open_database
from penstock_producer import JobSpec, Producer, SpecError
from penstock_producer.accepting.survey import survey
from penstock_producer.errors import RowChanged
from penstock_producer.job.endpoints import MAX_UPLOAD_BYTES, TRANSCRIPTIONS
from penstock_producer.job.lanes import can_answer
from penstock_producer.rows import BadRow, Document
from penstock_producer.settings import ProducerSettings
from penstock_producer.sources import open_source
from penstock_producer.sources.forms import media
from penstock_producer.sources.of_feed import open_feed_source

MP3 = b"ID3" + bytes(40)
M4A = b"\x00\x00\x00\x20ftypM4A " + bytes(24)
SPEC = JobSpec(model="whisper-1", endpoint=TRANSCRIPTIONS, audio_fields=["call"])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Recordings beside a source."""
    for name, content in {"a.mp3": MP3, "b.bin": M4A, "same.mp3": MP3, "empty.mp3": b""}.items():
        (tmp_path / name).write_bytes(content)
    return tmp_path


def row_of(folder: Path, call: Any, spec: JobSpec = SPEC) -> Document | BadRow:
    path = folder / "calls.jsonl"
    path.write_text(json.dumps({"id": "d", "call": call, "names": "Ada"}) + "\n")
    (row,) = open_source(path, spec, ProducerSettings()).documents({})
    return row


def body_of(folder: Path, call: Any, **spec: Any) -> dict[str, Any]:
    row = row_of(folder, call, SPEC.model_copy(update=spec))
    assert isinstance(row, Document), row
    body: dict[str, Any] = json.loads(row.body)
    return body


def test_a_recording_is_the_file_of_a_request(folder: Path) -> None:
    """With its type by its first bytes; a prompt is a hint, and need not be there."""
    body = body_of(folder, "a.mp3", params={"language": "en"})
    url = "data:audio/mpeg;base64," + base64.b64encode(MP3).decode()
    assert body == {"model": "whisper-1", "language": "en", "file": url}
    assert body_of(folder, "b.bin")["file"].startswith("data:audio/mp4;base64,")
    assert body_of(folder, "a.mp3", prompt="Names: {names}")["prompt"] == "Names: Ada"


def test_equal_recordings_make_equal_requests(folder: Path) -> None:
    """Whatever their names are: the content is what counts."""
    assert body_of(folder, "a.mp3") == body_of(folder, "same.mp3")


def test_what_is_no_recording_is_refused(folder: Path) -> None:
    """Each with the reason, before anything is sent."""
    with (folder / "large.mp3").open("wb") as large:
        large.write(MP3)
        large.truncate(MAX_UPLOAD_BYTES + 1)
    os.symlink("/etc/hostname", folder / "link.mp3")
    for call, code in {
        "empty.mp3": "media_invalid",
        "calls.jsonl": "media_invalid",
        "gone.mp3": "media_unavailable",
        "large.mp3": "media_too_large",
        "link.mp3": "media_forbidden",
        "../a.mp3": "media_forbidden",
        "https://127.0.0.1/a.mp3": "media_unavailable",
        "https://169.254.169.254/a.mp3": "media_unavailable",
        "https://localhost/a.mp3": "media_unavailable",
        "http://127.0.0.1/a.mp3": "media_invalid",
        "": "media_invalid",
    }.items():
        row = row_of(folder, call)
        assert isinstance(row, BadRow), call
        assert (row.code, bool(row.fix)) == (code, True)
    for several in ([], ["a.mp3", "b.bin"]):
        row = row_of(folder, several)
        assert isinstance(row, BadRow)
        assert row.code == "media_invalid"


def test_the_largest_recording_that_a_provider_takes_fits(folder: Path) -> None:
    """25 MiB in a request, which the limit of other requests would not let through."""
    (folder / "most.mp3").write_bytes(MP3 + bytes(MAX_UPLOAD_BYTES - len(MP3)))
    assert len(body_of(folder, "most.mp3")["file"]) > MAX_UPLOAD_BYTES


def test_a_recording_that_changes_after_the_submit_is_refused(folder: Path) -> None:
    """Between the estimate and the call: the document is a dead letter, and nothing is paid."""
    path = folder / "calls.jsonl"
    path.write_text(json.dumps({"id": "d", "call": "a.mp3"}) + "\n")
    pin = json.loads(json.dumps(survey(open_source(path, SPEC), SPEC).pin))
    os.utime(folder / "a.mp3", (4_000_000_000, 4_000_000_000))
    (row,) = open_source(pin, SPEC).documents({})
    assert isinstance(row, BadRow)
    assert row.code == "media_changed"


def test_lines_hold_their_files(folder: Path) -> None:
    """A line of OpenAI's form has the file itself: a path in it would be sent as text."""
    spec = JobSpec(model="whisper-1", endpoint=TRANSCRIPTIONS)
    path, line = folder / "lines.jsonl", {"method": "POST", "url": TRANSCRIPTIONS}
    files = ["data:audio/mpeg;base64,SUQz", "a.mp3", None]
    path.write_text(
        "".join(
            json.dumps(line | {"custom_id": str(at), "body": {"file": one}}) + "\n"
            for at, one in enumerate(files)
        )
    )
    good, *bad = open_source(path, spec).documents({})
    assert isinstance(good, Document)
    assert [isinstance(row, BadRow) and row.code for row in bad] == ["invalid_request"] * 2


@pytest.mark.parametrize(
    ("spec", "pointer"),
    [
        ({"audio_fields": ["a", "b"]}, "/audio_fields"),
        ({"audio_fields": [], "prompt": "x"}, "/audio_fields"),
        ({"image_fields": ["a"], "audio_fields": [], "prompt": "x"}, "/audio_fields"),
        ({"params": {"response_format": "srt"}}, "/params/response_format"),
        ({"params": {"max_tokens": 5}}, "/params/max_tokens"),
        ({"response_format": "json_object"}, "/response_format"),
    ],
)
def test_a_job_that_cannot_be_sent_is_refused(
    spec: dict[str, Any], pointer: str, folder: Path
) -> None:
    """With the field, before its source is read."""
    given = {"model": "m", "endpoint": TRANSCRIPTIONS, "audio_fields": ["call"], **spec}
    with pytest.raises(SpecError) as refused:
        row_of(folder, "a.mp3", JobSpec(**given))
    assert pointer in {problem.pointer for problem in refused.value.problems}


def test_recordings_go_to_providers_in_real_time_only() -> None:
    """No batch takes forms, and no hosted model answers there."""
    answering = [
        lane for lane in ("api", "batch", "gpu", "embed") if can_answer(lane, TRANSCRIPTIONS)
    ]
    assert answering == ["api"]


def test_a_recording_at_an_address_is_the_one_that_was_fed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is fetched again for each attempt: another content is refused for its document alone, with
    the way out, and never sent under the name of the first. The same content is the same."""
    there = {f"https://example.com/{name}.mp3": MP3 + name.encode() for name in "ab"}
    monkeypatch.setattr(media, "fetch", lambda url, most: there[url])
    path = tmp_path / "calls.jsonl"
    rows = [{"id": url[-5], "call": url} for url in there]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    settings = ProducerSettings(database_url=f"sqlite:///{tmp_path}/ledger.db")
    database = open_database(settings.database_url)
    database.migrate()
    with Producer(settings, database=database) as producer:
        job = producer.submit(path, SPEC.to_json())
        source = open_feed_source(database, job.job_id, 1, settings)
        first, second = [row for row in source.documents({}) if isinstance(row, Document)]
        there["https://example.com/a.mp3"] += b"."
        with pytest.raises(RowChanged, match=r"not the one that it was .* submit the new content"):
            source.fetch(first.position)
        assert source.fetch(second.position) == second._replace(line=0, cursor={})
        there["https://example.com/a.mp3"] = MP3 + b"a"
        assert source.fetch(first.position).body == first.body
        before = first.position.partition("#")[0]
        assert source.fetch(before).body == first.body, "fed by the release before"
    database.close()
