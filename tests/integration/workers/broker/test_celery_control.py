"""What Celery's own tools see of our workers, and what odd messages do to them."""

from __future__ import annotations

import base64
import json
import pickle
from collections import Counter
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from celery_worker import QUEUE, Fleet, Settings, fleet_on, no_engine, until
from servers import RedisServer, as_bytes

from penstock_ledger.model import ItemKey
from penstock_producer.feed.wire import encode_item
from penstock_workers.broker.lease_scripts import PARKED_KEY
from penstock_workers.celery_app.app import create_app


@pytest.fixture
def fleet(redis_server: RedisServer, tmp_path: Path) -> Iterator[Fleet]:
    with fleet_on(redis_server, tmp_path) as fleet:
        yield fleet


@pytest.fixture
def client_app(redis_server: RedisServer) -> Celery:
    """Any Celery client, which knows nothing of us but the broker."""
    app = Celery("client", broker=redis_server.url, set_as_current=False)
    app.conf.broker_transport_options = {"priority_steps": [0]}
    return app


def parked(fleet: Fleet) -> list[bytes]:
    return [as_bytes(raw) for raw in fleet.server.client().lrange(PARKED_KEY, 0, -1)]


def test_flower_sees_every_fate(fleet: Fleet, client_app: Celery) -> None:
    """With events on, each item is seen as received, started and succeeded, failed with its reason,
    or retried."""
    seen: list[dict[str, Any]] = []
    fleet.start("-E")
    with client_app.connection() as connection:
        receiver = client_app.events.Receiver(connection, handlers={"*": seen.append})
        capture = receiver.itercapture(timeout=20, wakeup=False)
        next(capture, None)
        fleet.publish(40)
        fleet.publish(5, first=100, outcome="failed")
        fleet.publish(5, first=200, outcome="retried")
        wanted = {
            "task-received": 50,
            "task-started": 50,
            "task-succeeded": 40,
            "task-failed": 5,
            "task-retried": 5,
        }
        for _ in capture:
            if wanted == {
                kind: n
                for kind, n in Counter(e["type"] for e in seen).items()
                if kind.startswith("task-")
            }:
                break
    failed = next(event for event in seen if event["type"] == "task-failed")
    assert "the provider said no" in failed["exception"]
    until(fleet.is_empty)


def test_revoked_items_do_not_run(fleet: Fleet, client_app: Celery) -> None:
    """Items revoked before they start never run, wherever they wait; revoke(terminate) stops those
    that run."""
    fleet.start(seconds=2, concurrency=4)
    tags = fleet.publish(20)
    until(lambda: len(fleet.runs()) == 4 and fleet.held() == 8)
    running, waiting = set(fleet.runs()), set(tags) - set(fleet.runs())
    client_app.control.revoke(sorted(waiting))
    client_app.control.revoke(sorted(running), terminate=True)
    until(fleet.is_empty)
    assert fleet.done() == set()
    assert set(fleet.runs()) <= running | waiting


def test_a_job_can_be_revoked_by_its_stamp(fleet: Fleet, client_app: Celery) -> None:
    """revoke_by_stamped_headers reaches items that carry the job as a stamp, and no others."""
    worker = fleet.start(seconds=1)
    until(lambda: client_app.control.ping(timeout=0.5))
    client_app.control.revoke_by_stamped_headers({"job": ["doomed"]})
    for job in ("doomed", "kept"):
        kwargs: dict[str, Any] = {"v": 1, "job": job, "gen": 1, "doc": "d", "body": {}}
        headers = {"stamped_headers": ["job"], "stamps": {"job": [job]}}
        client_app.send_task(
            "penstock.item", (), kwargs, task_id=f"{job}:d", queue=QUEUE, headers=headers
        )
    until(lambda: fleet.done() == {"kept:d"} and fleet.is_empty(), 30, worker.text)
    assert set(fleet.runs()) == {"kept:d"}


def test_the_pool_grows_and_tells(fleet: Fleet, client_app: Celery) -> None:
    """pool_grow widens prefetch and engine, and `inspect stats` shows items, commits and
    acknowledgements."""
    fleet.start(seconds=0.1, concurrency=4)
    until(lambda: client_app.control.ping(timeout=0.5))
    client_app.control.pool_grow(4)
    fleet.publish(30)
    until(fleet.is_empty)
    (stats,) = (client_app.control.inspect(timeout=5).stats() or {}).values()
    pool = stats["pool"]
    assert (pool["max-concurrency"], pool["resized"], stats["prefetch_count"]) == (8, 8, 16)
    assert (pool["acks"], pool["items"], pool["leases"]) == (30, 0, 0)
    assert 0 < pool["commits"] <= 30
    assert 0 < pool["ack-groups"] <= 30


def test_ordinary_tasks_run_beside(fleet: Fleet, client_app: Celery) -> None:
    """A plain Celery task sent to the control queue runs in a thread and is acknowledged."""
    fleet.start(seconds=60, concurrency=4)
    fleet.publish(4)
    client_app.send_task("test.add", (2, 3), queue="penstock.control")
    until(lambda: fleet.server.client().get("test:sum") == b"5")
    until(lambda: fleet.held() == 4)


def test_pickle_is_refused(fleet: Fleet) -> None:
    """A pickled body is neither run nor unpickled; the message is kept aside."""
    worker = fleet.start()
    message = json.loads(encode_item(ItemKey("job", 1, "evil"), queue=QUEUE, body=b"{}", ref=None))
    message["body"] = base64.b64encode(pickle.dumps([[], {}, {}])).decode()
    message["content-type"] = "application/x-python-serialize"
    message["content-encoding"] = "binary"
    message["properties"]["body_encoding"] = "base64"
    fleet.server.client().lpush(QUEUE, json.dumps(message))
    until(lambda: len(parked(fleet)) == 1, 30, worker.text)
    until(fleet.is_empty)
    assert fleet.runs() == {}


def odd_messages() -> dict[str, str]:
    numbers = count()

    def item(**changes: Any) -> str:
        message = json.loads(
            encode_item(ItemKey("job", 1, f"odd{next(numbers)}"), queue=QUEUE, body=b"{}", ref=None)
        )
        for path, value in changes.items():
            target, *rest = path.split("__")
            if rest:
                message[target][rest[0]] = value
            else:
                message[target] = value
        return json.dumps(message)

    return {
        "not JSON": "hello",
        "JSON, but no message": "[1, 2]",
        "no properties": '{"body": "x", "headers": {}}',
        "tag is a number": item(properties__delivery_tag=7),
        "body is not JSON": item(body="{nope"),
        "body is no triple": item(body="[1]"),
        "body is not base64": item(
            body="%%%", properties={"delivery_tag": "x", "body_encoding": "base64"}
        ),
        "headers are missing": item(headers=None),
        "headers are a list": item(headers=[1]),
        "task has no name": item(headers__task={"a": 1}),
        "task is not registered": item(headers__task="another.task"),
        "id is missing": item(headers={"task": "penstock.item"}),
        "eta is nonsense": item(headers__eta="tomorrow-ish"),
    }


def test_odd_messages_are_kept_and_harm_nobody(fleet: Fleet) -> None:
    """Whatever is pushed into a queue: the worker goes on, and the text of the message is kept
    aside."""
    worker = fleet.start()
    odd = odd_messages()
    for text in odd.values():
        fleet.server.client().lpush(QUEUE, text)
    tags = fleet.publish(5)
    until(lambda: fleet.done() == set(tags), 30, worker.text)
    until(fleet.is_empty, 30, worker.text)
    kept = {text.decode() for text in parked(fleet)}
    assert [name for name, text in odd.items() if text not in kept] == []
    assert len(parked(fleet)) == len(odd)


def test_odd_kwargs_reach_the_engine(fleet: Fleet) -> None:
    """A valid task message of an unknown version is for the engine to refuse: it gets the kwargs as
    they are."""
    fleet.start()
    message = json.loads(encode_item(ItemKey("job", 1, "new"), queue=QUEUE, body=b"{}", ref=None))
    for number, kwargs in enumerate(({"v": 99}, [1, 2], None, "text")):
        message["body"] = json.dumps([[], kwargs, {}])
        message["headers"]["id"] = message["properties"]["delivery_tag"] = f"odd:{number}"
        fleet.server.client().lpush(QUEUE, json.dumps(message))
    until(lambda: fleet.done() == {f"odd:{number}" for number in range(4)})
    assert parked(fleet) == []


def test_replies_are_not_recorded_as_unacked(fleet: Fleet, redis_server: RedisServer) -> None:
    """Our own app can ask workers things over its transport, and leaves nothing behind in the
    broker."""
    fleet.start()
    app = create_app(Settings(redis_server.url).for_app(), no_engine)
    assert len(app.control.ping(timeout=3)) == 1
    until(fleet.is_empty)


def test_other_pools_are_refused_with_the_fix(fleet: Fleet, tmp_path: Path) -> None:
    """A worker started with -P ends with a message that names the cause."""
    with pytest.raises(AssertionError, match="leave out -P"):
        fleet.start("-P", "solo")


def test_an_engine_that_cannot_start_ends_the_worker(fleet: Fleet) -> None:
    """The worker exits with a failure that names the cause, instead of claiming messages that it
    does not run."""
    fleet.publish(3)
    with pytest.raises(AssertionError, match="the engine has no key"):
        fleet.start(fails_to_start=True)
    assert (fleet.queued(), fleet.held()) == (3, 0)
