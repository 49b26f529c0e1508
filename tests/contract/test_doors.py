"""The doors for Celery clients against a real Redis and ledger, without a worker: what is counted,
reported and kept."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from celery.exceptions import Reject
from servers import RedisServer

from penstock_ledger import ApiKeyStore, DatabaseUnavailable, NewApiKey, keys, open_database
from penstock_producer import Producer
from penstock_producer.accepting.remote_limits import DoorSettings
from penstock_workers.celery_app import door_tasks as doors
from penstock_workers.celery_app.app import PenstockApp, create_app
from penstock_workers.celery_app.door_records import REFUSED_KEPT, TaskRecords
from penstock_workers.errors import DoorRefused
from penstock_workers.settings import WorkerSettings

SPEC = {"prompt": "{text}", "model": "m"}


@pytest.fixture
def app(redis_server: RedisServer, tmp_path: Path) -> Iterator[PenstockApp]:
    settings = WorkerSettings(
        redis_url=redis_server.url,
        database_url=f"sqlite:///{tmp_path}/ledger.db",
        source_roots=(str(tmp_path),),
        doors=DoorSettings(max_crashes=2, submit_timeout_s=5),
    )
    with create_app(settings) as app:
        yield app


@pytest.fixture
def source(tmp_path: Path) -> str:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"id": "a", "text": "t"}\n')
    return str(path)


@pytest.fixture
def book(redis_server: RedisServer) -> TaskRecords:
    return TaskRecords(redis_server.client())


def attend(app: PenstockApp, name: str, *args: Any, task_id: str = "one", **kwargs: Any) -> Any:
    """As the worker runs a task: with a request of its own."""
    task = app.tasks[name]
    task.push_request(id=task_id, args=args, kwargs=kwargs)
    try:
        return task.run(*args, **kwargs)
    finally:
        task.pop_request()


def test_a_task_that_takes_its_process_with_it_is_counted(
    app: PenstockApp, source: str, book: TaskRecords, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Starts are counted before anything is read; after `doors.max_crashes` of them the task is
    parked with its reason, and the next delivery starts anew (B8)."""

    def die(*_: Any, **__: Any) -> None:
        raise SystemExit("killed")

    with monkeypatch.context() as poisoned:
        poisoned.setattr(Producer, "submit", die)
        for _ in range(2):
            with pytest.raises(SystemExit):
                attend(app, doors.SUBMIT, source, SPEC)
        with pytest.raises(Reject) as parked:
            attend(app, doors.SUBMIT, source, SPEC, job_key="night")
    assert parked.value.requeue is False
    (kept,) = book.refusals()
    assert (kept.parked, kept.job, kept.id) == (True, "night", "one")
    assert "died 2 times" in kept.reason
    assert attend(app, doors.SUBMIT, source, SPEC)


def test_what_ends_is_not_counted(app: PenstockApp, source: str, redis_server: RedisServer) -> None:
    """Accepted, refused or given back by a drain: no count is left, however often the same task
    comes (B8)."""
    for _ in range(5):
        attend(app, doors.SUBMIT, source, SPEC)
        with pytest.raises(DoorRefused):
            attend(app, doors.SUBMIT, "/etc/passwd", SPEC)
    TaskRecords(redis_server.client()).begin("one")
    app.tasks[doors.SUBMIT].given_back("one")
    assert redis_server.client().get(keys.door_starts("one")) is None


def test_an_unexpected_error_tells_and_logs_no_content(
    app: PenstockApp, source: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither the refusal nor the log shows the message of an error that may quote what was read
    (B2, B16)."""

    def fail(*_: Any, **__: Any) -> None:
        raise KeyError("hunter2")

    monkeypatch.setattr(Producer, "submit", fail)
    with (
        caplog.at_level(logging.DEBUG),
        pytest.raises(DoorRefused, match="unexpected KeyError") as refused,
    ):
        attend(app, doors.SUBMIT, source, SPEC)
    assert (refused.value.__cause__, refused.value.__context__) == (None, None)
    assert "hunter2" not in caplog.text
    assert "test_doors.py" in caplog.text


def test_a_database_that_is_away_loses_no_task(
    app: PenstockApp, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A submit that meets a database without an answer is tried again, not failed (D29)."""
    submit, tries = Producer.submit, []

    def flaky(*args: Any, **kwargs: Any) -> Any:
        tries.append(1)
        if len(tries) < 3:
            raise DatabaseUnavailable("db.example:5432", "no connection")
        return submit(*args, **kwargs)

    monkeypatch.setattr(Producer, "submit", flaky)
    monkeypatch.setattr(doors, "DATABASE_PAUSE_S", 0.0)
    assert attend(app, doors.SUBMIT, source, SPEC).startswith("job_")


@pytest.mark.parametrize(
    ("name", "args", "told"),
    [
        (doors.SUBMIT, (), "missing a required argument"),
        (doors.SUBMIT, ({"kind": "file"}, SPEC), "unsupported_source"),
        (doors.SUBMIT, ("SOURCE", ["hunter2"]), "job spec"),
        (doors.SUBMIT, ("SOURCE", SPEC, 5), "/job_key"),
        (
            doors.SUBMIT,
            ("SOURCE", SPEC | {"params": {"max_tokens": "hunter2"}}),
            "/params/max_tokens",
        ),
        (doors.SUBMIT, ("SOURCE", SPEC | {"hunter" * 1000: 1}), "unknown_field"),
        (doors.SUBMIT, ("SOURCE", SPEC | {"priority": "urgent"}), "doors.urgent_tenants"),
        (doors.SUBMIT, ("SOURCE", SPEC | {"endpoint": "/v1/../admin"}), "/endpoint"),
        (doors.OPEN, (SPEC | {"weight": 99.0},), "doors.max_weight"),
        (doors.ENQUEUE, ("open", "a", {"words": "hunter2"}), "missing_field"),
        (doors.ENQUEUE, ("open", "a\x00", {"text": "hunter2"}), "invalid_id"),
        (doors.ENQUEUE, ("open", "a\ud83d", {"text": "hunter2"}), "invalid_id"),
        (doors.ENQUEUE, ("open", "a", {"text": "hunter2 \ud83d"}), "invalid_unicode"),
        (doors.ENQUEUE, ("open", "a", {"text": "hunter2 \0"}), "nul_character"),
        (doors.SUBMIT, ("SOURCE", SPEC, "\ud83d"), "/job_key"),
        (doors.SUBMIT, ("SOURCE", SPEC | {"prompt": "\ud83d{text}"}), "/prompt"),
        (doors.ENQUEUE, ("\ud83d", "a", {}), "/job"),
        (doors.CLOSE, ("\ud83d",), "/job"),
        (doors.ENQUEUE, ("open", "a", "hunter2"), "invalid_json_line"),
        (doors.ENQUEUE, ("open", ["a"], {"text": "hunter2"}), "invalid_id"),
        (doors.ENQUEUE, ("j" * 9999, "a", {}), "/job"),
        (doors.ENQUEUE, ({"a": 1}, "a", {}), "/job"),
        (doors.CLOSE, ("absent",), "no job has"),
    ],
)
def test_every_bad_task_is_refused_in_words(
    app: PenstockApp, source: str, book: TaskRecords, name: str, args: tuple[Any, ...], told: str
) -> None:
    """Whatever a client sends, it hears what is wrong in a short text, without what stands in
    prompts and documents, and the same text is kept (B16, D29)."""
    attend(app, doors.OPEN, SPEC, "open", task_id="before")
    with pytest.raises(DoorRefused) as refused:
        attend(app, name, *(source if one == "SOURCE" else one for one in args))
    text = str(refused.value)
    assert told in text
    assert "hunter2" not in text
    assert len(text) < 2_000
    assert [kept.reason for kept in book.refusals()] == [text]


def test_the_list_of_refusals_is_bounded(book: TaskRecords, redis_server: RedisServer) -> None:
    """A client that sends unusable tasks for ever does not fill Redis (D29)."""
    client = redis_server.client()
    client.lpush(keys.REFUSED, *["x" * 100] * (REFUSED_KEPT + 500))
    book.refuse("penstock.submit", "t" * 9_000, "k" * 9_000, "r" * 9_000)
    assert client.llen(keys.REFUSED) == REFUSED_KEPT
    (kept,) = book.refusals()  # what is no entry is passed over
    assert len(kept.id) + len(kept.job or "") + len(kept.reason) < 3_000


def test_a_source_that_takes_too_long_is_refused(
    app: PenstockApp, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading and checking a source has a time limit, which the refusal names (B8)."""
    clock = iter(range(0, 1_000_000, 10))
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    with pytest.raises(DoorRefused, match=r"source_too_slow.*doors\.submit_timeout_s"):
        attend(app, doors.SUBMIT, source, SPEC)


def test_a_client_without_a_key_spends_no_tenants_budget(app: PenstockApp, source: str) -> None:
    """Once there are API keys, jobs that name a tenant are refused, and so are documents for a
    tenant's open job (S7)."""
    theirs = SPEC | {"tenant": "alpha"}
    assert attend(app, doors.OPEN, theirs, job_key="theirs").startswith("job_")
    assert attend(app, doors.ENQUEUE, "theirs", "a", {"text": "t"}) is True
    database = open_database(app.tasks[doors.OPEN].door.settings.database_url)
    ApiKeyStore(database).create(NewApiKey("first", "alpha", frozenset({"write"})))
    database.close()
    for name, args in (
        (doors.SUBMIT, (source, theirs)),
        (doors.OPEN, (theirs,)),
        (doors.ENQUEUE, ("theirs", "b", {"text": "t"})),
        (doors.CLOSE, ("theirs",)),
    ):
        with pytest.raises(DoorRefused, match="there are API keys"):
            attend(app, name, *args)
    assert attend(app, doors.SUBMIT, source, SPEC).startswith("job_")
