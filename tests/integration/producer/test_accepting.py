"""The producer's door, against real databases: what is accepted, once and for all."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock_ledger import (
    JobClosed,
    JobConflict,
    JobNotFound,
    OutcomeStore,
    SpoolConflict,
    open_database,
)
from penstock_ledger.model import ItemKey, JobState, Result
from penstock_producer import JobSpec, Producer, SpecError, TooManyBadRows
from penstock_producer import producer as door
from penstock_producer.errors import InvalidDocument
from penstock_producer.settings import ProducerSettings

SPEC = JobSpec(prompt="{text}", model="m")


@pytest.fixture(params=["sqlite", "postgresql"])
def producer(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Producer]:
    url = (
        f"sqlite:///{tmp_path}/ledger.db"
        if request.param == "sqlite"
        else request.getfixturevalue("migrated_url")
    )
    database = open_database(url)
    database.migrate()
    database.close()
    with Producer(ProducerSettings(database_url=url)) as producer:
        yield producer


@pytest.fixture(autouse=True)
def no_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what is asked for is flushed; flushes by time are tested with the open jobs."""
    monkeypatch.setattr("penstock_producer.open_job.FLUSH_AFTER_S", 3600.0)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "in.jsonl"
    path.write_text("".join(json.dumps({"id": number, "text": "t"}) + "\n" for number in range(10)))
    return path


def test_a_submitted_job_is_in_the_ledger(producer: Producer, source: Path) -> None:
    """A submit returns a running job with its total, and its id is an unguessable `job_…`."""
    job = producer.submit(source, SPEC)
    assert (job.state, job.total, job.job_key) == (JobState.RUNNING, 10, job.job_id)
    assert job.job_id.startswith("job_")
    assert len(job.job_id) == 24
    assert producer.status(job.job_id).remaining == 10
    assert JobSpec.from_json(job.spec) == SPEC


def test_the_same_submit_is_the_same_job(producer: Producer, source: Path, tmp_path: Path) -> None:
    """Repeating a submit with its key returns the first job, also after the file moved or was
    touched."""
    job = producer.submit(source, SPEC, job_key="night")
    assert producer.submit(source, SPEC, job_key="night") == job
    moved = source.rename(tmp_path / "moved.jsonl")
    assert producer.submit(moved, SPEC.to_json(), job_key="night") == job


def test_an_unchanged_file_is_not_surveyed_again(
    producer: Producer, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Resuming a job does not read a million lines to find that nothing changed."""
    job = producer.submit(source, SPEC, job_key="night")
    monkeypatch.setattr(door, "survey", None)
    assert producer.submit(source, SPEC, job_key="night") == job


def test_a_key_with_another_body_is_a_conflict(producer: Producer, source: Path) -> None:
    """The same key with another spec or other content is refused, and the first job stays."""
    job = producer.submit(source, SPEC, job_key="night")
    with pytest.raises(JobConflict, match="night"):
        producer.submit(source, SPEC.model_copy(update={"model": "other"}), job_key="night")
    source.write_text('{"id": 1, "text": "changed"}\n')
    with pytest.raises(JobConflict):
        producer.submit(source, SPEC, job_key="night")
    with pytest.raises(JobConflict):
        producer.open_job(SPEC, job_key="night")
    assert producer.status("night").job == job


def test_a_conflict_says_in_what_it_differs(producer: Producer, source: Path) -> None:
    """Both values of each option that differs are named, and a source that changed; remote doors
    tell neither (D23)."""
    producer.submit(source, SPEC, job_key="night")
    with pytest.raises(
        JobConflict, match=r"model was 'm', is now 'other'; timeout_s was 120\.0, is now 5\.0"
    ) as caught:
        producer.submit(
            source, SPEC.model_copy(update={"model": "other", "timeout_s": 5.0}), job_key="night"
        )
    assert "'other'" not in caught.value.public_message
    source.write_text('{"id": 1, "text": "changed"}\n')
    with pytest.raises(JobConflict, match=r"the content of .*in\.jsonl has changed"):
        producer.submit(source, SPEC, job_key="night")


@pytest.mark.parametrize("key", ["", "x" * 201, "a\nb", "job_abcdefghijklmnopqrst"])
def test_unusable_keys_are_refused(producer: Producer, source: Path, key: str) -> None:
    """A key is short printable text that cannot be taken for a job id."""
    with pytest.raises(SpecError, match="job_key"):
        producer.submit(source, SPEC, job_key=key)


def test_too_many_bad_rows_accept_nothing(producer: Producer, source: Path) -> None:
    """A file that is refused leaves no job behind."""
    source.write_text("oops\n" * 5)
    with pytest.raises(TooManyBadRows):
        producer.submit(source, SPEC, job_key="night")
    with pytest.raises(JobNotFound):
        producer.status("night")


def test_bad_rows_are_dead_letters_at_once(producer: Producer, source: Path) -> None:
    """Rows within the limit are dead letters from the start, with line, reason and fix."""
    with source.open("a") as file:
        file.write('oops\n{"id": "no-text"}\n')
    job = producer.submit(source, SPEC.model_copy(update={"max_bad_rows": 2}))
    letters = {letter.key.doc_id: letter for letter in producer.dead_letters(job.job_id)}
    assert set(letters) == {"line-11", "no-text"}
    assert letters["line-11"].line == 11
    assert "columns here: 'id'" in letters["no-text"].last_error
    assert producer.status(job.job_id).remaining == 10


def test_enqueue_is_idempotent_by_document(producer: Producer) -> None:
    """Pushing the same document again changes nothing; another document under its id is refused."""
    with producer.open_job(SPEC, job_key="stream") as job:
        job.enqueue("a", {"text": "1"})
        job.enqueue("a", {"text": "1"})
    with producer.open_job(SPEC, job_key="stream") as again:
        again.enqueue("a", {"text": "1"})
        again.enqueue("b", {"text": "2"})
        assert again.flush() == 1
    assert again.job_id == job.job_id
    assert again.close() == 2


def test_a_conflicting_document_is_named(producer: Producer) -> None:
    """Another body under a known id is an error that names the document."""
    job = producer.open_job(SPEC)
    job.enqueue("a", {"text": "1"})
    job.flush()
    job.enqueue("a", {"text": "2"})
    with pytest.raises(SpoolConflict, match="'a'"):
        job.flush()


def test_a_closed_job_takes_no_more(producer: Producer) -> None:
    """After close, further documents are refused and closing again is harmless."""
    job = producer.open_job(SPEC)
    job.enqueue("a", {"text": "1"})
    assert job.close() == job.close() == 1
    job.enqueue("b", {"text": "2"})
    with pytest.raises(JobClosed):
        job.flush()


def test_an_open_job_flushes_by_itself(producer: Producer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The buffer is bounded: it is written when it is full, not when memory is."""
    monkeypatch.setattr("penstock_producer.open_job.MAX_BUFFERED_DOCUMENTS", 3)
    job = producer.open_job(SPEC)
    for number in range(7):
        job.enqueue(number, {"text": "t"})
    assert job.flush() == 1
    assert job.close() == 7


def test_bad_documents_are_refused_one_by_one(producer: Producer) -> None:
    """A bad document raises at enqueue and leaves the others alone."""
    job = producer.open_job(SPEC)
    job.enqueue("a", {"text": "1"})
    with pytest.raises(InvalidDocument, match="missing_field"):
        job.enqueue("b", {"words": "1"})
    assert job.close() == 1


def test_pause_resume_and_cancel(producer: Producer, source: Path) -> None:
    """A job can be paused, resumed and cancelled by its key; impossible moves return False."""
    producer.submit(source, SPEC, job_key="night")
    assert [producer.pause("night"), producer.pause("night"), producer.resume("night")] == [
        True,
        False,
        True,
    ]
    assert [producer.cancel("night"), producer.cancel("night"), producer.resume("night")] == [
        True,
        False,
        False,
    ]
    assert producer.status("night").job.state is JobState.CANCELLING


def test_results_stream(producer: Producer, source: Path) -> None:
    """Results are read as they are, by key."""
    job = producer.submit(source, SPEC, job_key="night")
    key = ItemKey(job.job_id, 1, "3")
    done: Any = Result(key, 200, b'{"choices":[]}', "req", "m", "stop", 1, 2, 3, 4, 1, 1)
    outcomes: OutcomeStore = producer._outcomes
    outcomes.settle([done], [])
    assert list(producer.results("night")) == [done]
    assert producer.status("night").finished == 1
