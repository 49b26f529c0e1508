"""What Celery's events and `inspect` say of a request: whole or not at all, failures always, and
never a document."""

from __future__ import annotations

import ast
import json
from types import SimpleNamespace
from typing import Any

import pytest
from attempts import dead
from celery import Celery
from celery.exceptions import InvalidTaskError
from celery_worker import Settings, no_engine

from penstock_ledger.model import ItemKey
from penstock_producer.feed.wire import encode_item
from penstock_workers.broker.messages import Message, payload_of
from penstock_workers.celery_app.app import create_app
from penstock_workers.celery_app.events import ERROR_MAX_CHARS, EventSample, celery_result
from penstock_workers.celery_app.requests import ID_MAX_CHARS, DoorRequest, ItemRequest
from penstock_workers.item.outcome import Retry

SECRET = "the patient's file"
QUEUE = "penstock.api"


class Eventer:
    """Writes down what would be sent."""

    enabled = True

    def __init__(self, *groups: str) -> None:
        self.groups = {"worker", *groups}
        self.sent: list[tuple[str, dict[str, Any]]] = []

    def send(self, type: str, **fields: Any) -> None:
        self.sent.append((type, fields))

    @property
    def types(self) -> list[str]:
        return [type for type, _ in self.sent]


@pytest.fixture(scope="module")
def app() -> Celery:
    return create_app(Settings("redis://127.0.0.1:1/0").for_app(), no_engine)


def item(
    app: Celery, eventer: Eventer, *, doc: str = "doc-1", redelivered: bool = False, **more: Any
) -> ItemRequest:
    raw = encode_item(
        ItemKey("job", 1, doc),
        queue=QUEUE,
        body=json.dumps({"prompt": SECRET}).encode(),
        ref=None,
        **more,
    )
    message = Message(
        payload_of(raw), channel=SimpleNamespace(decode_body=lambda body, _encoding: body.encode())
    )
    message.delivery_info["redelivered"] = redelivered
    return ItemRequest(
        message, app=app, task=app.tasks["penstock.item"], eventer=eventer, headers=message.headers
    )


def fail(request: ItemRequest) -> None:
    request.acknowledged = True
    request.on_success(celery_result(dead("no such model")))


@pytest.fixture
def watched() -> Eventer:
    return Eventer("task")


@pytest.fixture
def unwatched() -> Eventer:
    return Eventer()


def run(request: ItemRequest) -> None:
    request.on_accepted(7, 0.0)
    request.acknowledged = True
    request.on_success((0, None, 0.1))


def test_an_item_of_the_sample_is_told_whole(app: Celery, watched: Eventer) -> None:
    """received, started and succeeded of one task id."""
    request = item(app, watched)
    request.receive(EventSample(1.0))
    run(request)
    assert watched.types == ["task-received", "task-started", "task-succeeded"]
    assert {fields["uuid"] for _, fields in watched.sent} == {"job:doc-1"}


def test_an_item_outside_the_sample_is_silent(app: Celery, watched: Eventer) -> None:
    """No event shows a part of it."""
    request = item(app, watched)
    request.receive(EventSample(0.0))
    run(request)
    assert watched.sent == []


def test_a_failure_is_always_told_with_its_past(app: Celery, watched: Eventer) -> None:
    """Outside the sample a dead letter's received and started are sent late, with their own times,
    and then its reason."""
    request = item(app, watched)
    request.receive(EventSample(0.0))
    request.on_accepted(7, 0.0)
    fail(request)
    assert watched.types == ["task-received", "task-started", "task-failed"]
    (_, received), (_, started), (_, failed) = watched.sent
    assert received["timestamp"] == request._received_at
    assert started["timestamp"] == request.time_start
    assert "bad_request: no such model" in failed["exception"]


def test_a_retry_is_always_told(app: Celery, watched: Eventer) -> None:
    """task-retried with its reason, whatever the sample says."""
    request = item(app, watched)
    request.receive(EventSample(0.0))
    request.acknowledged = True
    request.on_success(celery_result(Retry(2.0, "server_error", "500")))
    assert watched.types == ["task-received", "task-retried"]
    assert "server_error: 500" in watched.sent[-1][1]["exception"]


@pytest.mark.parametrize("before", [{"retries": 1}, {"calls": 2}, {"redelivered": True}])
def test_what_came_before_is_told_to_its_end(
    app: Celery, watched: Eventer, before: dict[str, Any]
) -> None:
    """Else Flower would show a retried item as RETRY, and one of a lost worker as STARTED, for
    ever."""
    request = item(app, watched, **before)
    request.receive(EventSample(0.0))
    run(request)
    assert watched.types == ["task-received", "task-started", "task-succeeded"]


def test_nobody_watches_nothing_is_sent(app: Celery, unwatched: Eventer) -> None:
    """With task events off not even failures are sent, and no budget of the sample is spent."""
    sample = EventSample(None)
    request = item(app, unwatched)
    request.receive(sample)
    request.on_accepted(7, 0.0)
    fail(request)
    assert (unwatched.sent, sample._seen) == ([], 0)


def test_switched_on_while_it_runs(app: Celery, unwatched: Eventer) -> None:
    """An item that was received before Flower came has no events of its later steps alone; should
    it fail, it has all of them."""
    quiet, failing = item(app, unwatched), item(app, unwatched)
    for request in (quiet, failing):
        request.receive(EventSample(1.0))
    unwatched.groups.add("task")
    run(quiet)
    assert unwatched.sent == []
    fail(failing)
    assert unwatched.types == ["task-received", "task-failed"]


def test_ids_are_shown_and_documents_are_not(app: Celery, watched: Eventer) -> None:
    """Job, generation and document in a form that Flower's search reads; no word of the body in
    events or inspect."""
    request = item(app, watched, doc="x" * 500)
    request.receive(EventSample(1.0))
    fail(request)
    shown = watched.sent[0][1]
    assert ast.literal_eval(shown["kwargs"]) == {
        "job": "job",
        "gen": 1,
        "doc": "x" * (ID_MAX_CHARS - 1) + "…",
    }
    assert shown["root_id"] == "job"
    assert SECRET not in repr((watched.sent, request.info(), request.info(safe=True), request))


def test_long_reasons_are_cut(app: Celery, watched: Eventer) -> None:
    """A provider that echoes a request of megabytes does not fill Redis and Flower with it."""
    for outcome in (dead("y" * 10**6), Retry(1.0, "y" * 10**6)):
        request = item(app, watched)
        request.receive(EventSample(0.0))
        request.acknowledged = True
        request.on_success(celery_result(outcome))
    assert all(len(repr(event)) < 4 * ERROR_MAX_CHARS for event in watched.sent)


@pytest.mark.parametrize(
    "kwargs", [None, [1], "text", {"job": {"a": SECRET}, "doc": [SECRET] * 9, "gen": SECRET * 99}]
)
def test_odd_kwargs_are_survived(app: Celery, kwargs: Any) -> None:
    """Whatever a foreign client sends, what is shown is short and holds none of its objects."""
    request = item(app, Eventer("task"))
    request._kwargs = kwargs
    assert len(request.kwargsrepr) < 200
    assert f"[{SECRET!r}" not in request.kwargsrepr


def test_a_submitted_job_shows_its_key_only(app: Celery) -> None:
    """Celery clients put a kilobyte of a spec, prompt included, into their headers: no event and no
    log shows it."""
    body = json.dumps([[f"sql://user:{SECRET}@db", {"prompt": SECRET}], {"job_key": "nightly"}, {}])
    headers = {"id": "1", "task": "penstock.submit", "argsrepr": SECRET, "kwargsrepr": SECRET}
    message = SimpleNamespace(
        headers=headers,
        body=body,
        payload=json.loads(body),
        delivery_info={},
        properties={},
        content_type="application/json",
        content_encoding="utf-8",
    )
    task = app.tasks["penstock.submit"]
    assert task.Request.endswith(DoorRequest.__name__)
    request = DoorRequest(message, app=app, task=task)
    # the log lines of Celery read these
    assert SECRET not in repr({**request.request_dict, "args": None, "kwargs": None})
    assert (request.argsrepr, request.kwargsrepr) == ("()", "{'job_key': 'nightly'}")
    assert SECRET not in repr((request.info(), request))


def door_request(app: Celery, payload: Any, **headers: Any) -> DoorRequest:
    given = {"id": "task-1", "task": "penstock.submit", "retries": 0, **headers}
    message = SimpleNamespace(
        headers=given,
        body=json.dumps(payload),
        payload=payload,
        delivery_info={},
        properties={},
        content_type="application/json",
        content_encoding="utf-8",
    )
    return DoorRequest(
        message, app=app, task=app.tasks["penstock.submit"], body=message.body, headers=given
    )


def test_a_task_of_a_door_sends_no_other_tasks(app: Celery) -> None:
    """Links, chains, chords, time limits and stamps of a sender reach neither what runs its task
    nor what reports it (B30)."""
    other = {
        "task": "penstock.item",
        "args": [],
        "kwargs": {},
        "options": {"queue": "penstock.api"},
    }
    embed = {
        "callbacks": [other],
        "errbacks": [other],
        "chain": [other],
        "chord": other,
        "id": "another",
        "is_eager": True,
    }
    request = door_request(
        app,
        [["/data/a.jsonl", {}], {"job_key": "nightly"}, embed],
        group="g",
        timelimit=[1, 1],
        stamped_headers=["s"],
        stamps={"s": 1},
        shadow="other",
        reply_to="x",
    )
    context = request._context
    assert [context.callbacks, context.errbacks, context.chain, context.chord, context.group] == [
        None
    ] * 5
    assert request.body == (["/data/a.jsonl", {}], {"job_key": "nightly"}, {})
    assert request.content_type is None, "the body is not parsed again, with what was left out"
    assert (request.id, request.name, request.time_limits, request.stamps) == (
        "task-1",
        "penstock.submit",
        (None, None),
        {},
    )


@pytest.mark.parametrize(
    ("payload", "headers"),
    [
        ([[], {}, {}], {"eta": "9999-12-31T23:59:59+00:00"}),
        ([[], {}, {}], {"id": 5}),
        ([[], {}, {}], {"id": None}),
        ([[], {}, {}], {"id": "x" * 256}),
        ("text", {}),
        ([[]], {}),
        (["args", {}, {}], {}),
        ([[], [1], {}], {}),
    ],
)
def test_odd_tasks_of_doors_are_refused_before_they_wait(
    app: Celery, payload: Any, headers: dict[str, Any]
) -> None:
    """A task for later would fill the memory of its process, and one of another shape would end in
    Celery's own code; both are kept aside (B8)."""
    with pytest.raises(InvalidTaskError):
        door_request(app, payload, **headers)
